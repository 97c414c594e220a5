"""The paper's experiment on Criteo: DeepFM and DCN, log loss against welfare losses, on any store of the same kind."""

from __future__ import annotations

import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import bidwise
from bidwise.auctions import optimal_welfare
from bidwise.checks import check_whole
from bidwise.data.store import Store
from bidwise.experiments.contest import seeds_of
from bidwise.experiments.criteo.numbers import Found, curves_of, lam_grid, of_protocol
from bidwise.experiments.criteo.paper import PAPER
from bidwise.experiments.criteo.plan import LAMS, Config, planned
from bidwise.experiments.criteo.runtime import runtime
from bidwise.experiments.criteo.trial import LAM, RATE, SETTINGS, SIGMA, Arena, Auctions, Trial, numbers_of, train
from bidwise.experiments.criteo.words import criteo_notes, criteo_verdict
from bidwise.experiments.pieces import Job, Pieces, Progress
from bidwise.runs import load


def run(
    config: Config,
    data: str | Path,
    out: str | Path,
    *,
    device: str = "cpu",
    workers: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train, measure and write ``result.json``; what is already there is not computed again.

    Args:
        data: a store, as ``bidwise prepare criteo`` writes it.
        out: the run folder; one piece for each model, repeat, loss and lam.
        workers: processes that train at once. On a GPU small steps wait for Python, and several processes fill it.
    """
    check_whole("workers", workers, 1)
    store = Store(data, verify=True)
    arena = arena_of(store, config)
    stated = {"experiment": "criteo", "data": store.folder.name, "checksum": _checksum(store), **asdict(config)}
    pieces = Pieces(out, stated, device, progress)
    seeds = seeds_of(config.seed, config.repeats)
    shared = {"folder": str(store.folder.absolute()), "config": config, "device": device}
    trials = planned(config)
    pieces.expected = float(len(trials) + len(config.models))
    found: Found = {}
    for taught in (False, True):  # teachers first
        some = [trial for trial in trials if (trial.teacher is not None) == taught]
        jobs = []
        for trial in some:
            teacher = pieces.path(_teacher(trial).name) if taught else None
            options = shared | {"trial": trial, "seed": seeds[trial.repeat], "teacher": teacher}
            jobs.append(Job(trial.name, str(trial), 1.0, compute, options))
        for trial, piece in zip(some, pieces.all(jobs, workers), strict=True):
            found[trial] = {key: value for key, value in piece.items() if key != "teacher"}  # as long as the data
    result = {
        "kind": "criteo",
        "version": bidwise.__version__,
        "config": {"data": store.folder.name, **asdict(config), "lams": LAMS, "lam": LAM, "sigma": SIGMA, "rate": RATE},
        "data": about(store, arena, config),
        "models": {model: _of_model(model, config, found, store, arena, pieces, device) for model in config.models},
        "paper": {model: PAPER[model] for model in config.models if model in PAPER},
    }
    result["verdict"] = criteo_verdict(result)
    result["notes"] = criteo_notes(result)
    pieces.write(result)
    return result


def arena_of(store: Store, config: Config) -> Arena:
    """The splits of a store, validation and test cut into auctions."""
    train_ads, valid, test = (
        store.ads("train"),
        *(store.ads(split, auction_size=config.auction_size) for split in ("valid", "test")),
    )
    cuts = [Auctions.of(len(ads), config.auction_size, config.cuts, config.seed) for ads in (valid, test)]
    return Arena(train_ads, valid, test, *cuts)


def _teacher(trial: Trial) -> Trial:
    return Trial(trial.model, trial.repeat, "log_loss")


def compute(
    show: Any, *, folder: str, config: Config, device: str, trial: Trial, seed: int, teacher: Path | None
) -> dict[str, Any]:
    """A piece of the experiment, in this process or another."""
    store = Store(folder)
    arena = arena_of(store, config)
    taught = None
    if teacher is not None:
        assert trial.teacher is not None
        taught = load(teacher)["found"]["teacher"][trial.teacher]
    return train(
        trial,
        arena,
        store.cardinalities,
        seed=seed,
        every=config.every,
        l2=config.l2,
        embeddings=config.embeddings,
        device=device,
        teacher=taught,
        progress=show,
    )


def about(store: Store, arena: Arena, config: Config) -> dict[str, Any]:
    """What a result tells of its data."""
    truth, optimum = None, None
    if arena.test.truth is not None:
        ctr, clicks = arena.test.truth.double(), arena.test.clicks.double()
        entropy = -(clicks * ctr.log() + (1 - clicks) * (-ctr).log1p()).mean()
        truth = {"auc": numbers_of(ctr.numpy(), clicks.numpy())["auc"], "log_loss": float(entropy)}
        order = arena.test_auctions.order
        best = optimal_welfare(ctr[order], arena.test.bids[order].double(), arena.test_auctions.offsets)
        optimum = float(best.mean())
    return {
        "splits": store.splits,
        "click_rate": float(arena.train.clicks.double().mean()),
        "fields": len(store.fields),
        "values": sum(store.cardinalities),
        **{name: store.schema.get("options", {}).get(name) for name in ("integers", "min_count")},
        "bids": store.schema.get("bids"),
        "auctions": len(arena.test_auctions.offsets[1:]) // config.cuts,
        "known_ctr": truth is not None,
        "optimal_welfare": optimum,
        "truth": truth,
    }


def _of_model(
    model: str,
    config: Config,
    found: Found,
    store: Store,
    arena: Arena,
    pieces: Pieces,
    device: str,
) -> dict[str, Any]:
    setting = SETTINGS[model]
    steps = -(-len(arena.train) // setting.batch_size)
    options = {"model": model, "losses": list(config.losses), "ads": arena.train, "cardinalities": store.cardinalities}
    job = Job(f"{model}-runtime", f"{config.losses} on {device}", 1.0, runtime, options | {"device": device})
    return {
        "parameters": found[Trial(model, 0, "log_loss")]["parameters"],
        "batch_size": setting.batch_size,
        "epochs": setting.epochs,
        "steps": round(steps * setting.epochs),
        "protocols": {name: {"losses": of_protocol(model, name, config, found)} for name in config.protocols},
        **(
            {"grid": lam_grid(model, config, found), "curves": curves_of(model, config, found)}
            if "tuned" in config.protocols
            else {}
        ),
        "runtime": pieces.all([job], 1)[0],
    }


def _checksum(store: Store) -> str:
    return f"{zlib.crc32(repr(sorted(store.schema['files'].items())).encode()):08x}"
