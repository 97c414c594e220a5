"""The paper's experiment on Criteo: DeepFM and DCN, log loss against welfare losses, on a store or on simulated ads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import bidwise
from bidwise.checks import check_whole
from bidwise.paper.criteo.criteo_sentences import criteo_notes, criteo_verdict
from bidwise.paper.criteo.dataset import Source, source_of
from bidwise.paper.criteo.numbers import Found, chosen_lams, curves_of, grid_row, lam_grid, of_protocol
from bidwise.paper.criteo.plan import LAMS, Config, planned, work
from bidwise.paper.criteo.reported import PAPER
from bidwise.paper.criteo.runtime import runtime
from bidwise.paper.criteo.trial import LAM, RATE, SIGMA, Trial, train
from bidwise.run_folder import load
from bidwise.study.pieces import Job, Pieces, Progress
from bidwise.study.recipe import has_lam, seeds_of
from bidwise.training.run import matmul_precision


def run(
    config: Config,
    data: str | Path | None,
    out: str | Path,
    *,
    device: str = "cpu",
    workers: int = 1,
    apart: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train, measure and write ``result.json``; what is already there is not computed again.

    Args:
        data: a store, as ``bidwise prepare criteo`` writes it; ``None`` where ``config.rows`` ads are simulated.
        out: the run folder; one piece for each model, repeat, loss and lam.
        workers: trainings at once.
        apart: how they run side by side, see :meth:`Pieces.all`; ``None``: threads on a GPU, processes on a CPU.
    """
    check_whole("workers", workers, 1)
    source = source_of(config, data, device, verify=True)  # the same ads in every precision
    with matmul_precision(config.precision):  # in what is measured too
        return _run(config, source, data, out, device, workers, apart, progress)


def _run(
    config: Config,
    source: Source,
    data: str | Path | None,
    out: str | Path,
    device: str,
    workers: int,
    apart: str | None,
    progress: Progress | None,
) -> dict[str, Any]:
    stated = {"experiment": "criteo", "data": source.name, "checksum": source.checksum, **config.stated}
    pieces = Pieces(out, stated, device, progress)
    seeds = seeds_of(config.seed, config.repeats)
    shared = {"data": None if data is None else str(Path(data).absolute()), "config": config, "device": device}
    pieces.expected = float(work(config) + len(config.models))
    found: Found = {}

    def compute_all(trials: Sequence[Trial]) -> None:
        jobs = []
        for trial in trials:
            teacher = None if trial.teacher is None else pieces.path(_teacher(trial).name)
            options = shared | {"trial": trial, "seed": seeds[trial.repeat], "teacher": teacher}
            jobs.append(Job(trial.name, str(trial), 1.0, compute, options))
        for trial, piece in zip(trials, pieces.all(jobs, workers, apart), strict=True):
            found[trial] = {key: value for key, value in piece.items() if key != "teacher"}  # as long as the data

    first = planned(config)
    for taught in (False, True):  # teachers first
        compute_all([trial for trial in first if (trial.teacher is not None) == taught])
    if config.lam_repeats is not None and "tuned" in config.protocols:
        every = planned(config, chosen_lams(config, found))
        pieces.expected = float(len(every) + len(config.models))
        compute_all([trial for trial in every if trial not in found])
    told = {"data": source.name, **asdict(config), "lams": LAMS, "lam": LAM, "sigma": SIGMA, "rate": RATE}
    result = {
        "kind": "criteo",
        "version": bidwise.__version__,
        "config": told,
        "data": source.about(config),
        "models": {model: _of_model(model, config, found, source, pieces, device) for model in config.models},
        "paper": {model: PAPER[model] for model in config.models if model in PAPER},
    }
    result["verdict"] = criteo_verdict(result)
    result["notes"] = criteo_notes(result)
    pieces.write(result)
    return result


def _teacher(trial: Trial) -> Trial:
    return Trial(trial.model, trial.repeat, "log_loss")


def compute(
    show: Any, *, data: str | None, config: Config, device: str, trial: Trial, seed: int, teacher: Path | None
) -> dict[str, Any]:
    """A piece of the experiment, in this process or another."""
    source = source_of(config, data, device)
    taught = None
    if teacher is not None:
        assert trial.teacher is not None
        taught = load(teacher)["found"]["teacher"][trial.teacher]
    with matmul_precision(config.precision):  # in another process too
        return train(
            trial,
            source.arena,
            source.cardinalities,
            setting=config.setting(trial.model),
            seed=seed,
            every=config.every,
            l2=config.l2,
            embeddings=config.embeddings,
            precision=config.precision,
            device=device,
            teacher=taught,
            progress=show,
        )


def _of_model(model: str, config: Config, found: Found, source: Source, pieces: Pieces, device: str) -> dict[str, Any]:
    setting, ads = config.setting(model), source.arena.train
    steps = -(-len(ads) // setting.batch_size)
    options = {
        "model": model,
        "setting": setting,
        "losses": list(config.losses),
        "ads": ads,
        "cardinalities": source.cardinalities,
        "device": device,
        "precision": config.precision,
    }
    job = Job(f"{model}-runtime", f"{config.losses} on {device}", 1.0, runtime, options)
    tuned: dict[str, Any] = {}
    if "tuned" in config.protocols:
        tuned = {"grid": lam_grid(model, config, found), "curves": curves_of(model, config, found)}
        if config.lam_repeats is not None and any(map(has_lam, config.losses)):  # log loss over the same repeats
            tuned["grid_log_loss"] = grid_row(model, "log_loss", None, config, found)
    return {
        "parameters": found[Trial(model, 0, "log_loss")]["parameters"],
        "batch_size": setting.batch_size,
        "epochs": setting.epochs,
        "steps": round(steps * setting.epochs),
        "protocols": {name: {"losses": of_protocol(model, name, config, found)} for name in config.protocols},
        **tuned,
        "runtime": pieces.all([job], 1)[0],
    }
