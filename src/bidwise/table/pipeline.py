"""`train`: a table in; a model, the comparison that chose its loss, and a test on held-out rows."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from bidwise import distributed
from bidwise.checks import InputError
from bidwise.data.ads import Ads
from bidwise.data.locations import written_as
from bidwise.data.read_table import Table
from bidwise.data.splits import halves
from bidwise.data.store import SCHEMA
from bidwise.evaluation.evaluate import evaluate
from bidwise.evaluation.metrics import Metrics
from bidwise.evaluation.result import Evaluation
from bidwise.losses.named import LOSSES
from bidwise.run_folder import environment, locked_folder, read_json, save, write_json, write_result, write_text
from bidwise.runners import Progress
from bidwise.study.keep_best import Choice, choose
from bidwise.study.recipe import BASELINE
from bidwise.table.config import AUTO, Config, option_key, read_toml, resolved
from bidwise.table.encode import Prepared, prepare, prepared_before, write_parquet
from bidwise.table.predict import ModelFile
from bidwise.table.results import Epoch, FitResult, Scores, TrainResult
from bidwise.training.validation import Fit, logits_across, predict

TEACHER = "teacher"  # the logged predictions, among the models of the evaluation


def train(
    table: Table | None = None,
    *,
    out: str | Path,
    config: Config | str | Path | None = None,
    settings: Sequence[str] = (),
    device: str = "cpu",
    progress: Progress | None = None,
    opened: Callable[[Prepared], None] | None = None,
    **options: Any,
) -> TrainResult:
    """Train a model on a table of logged ads and evaluate it on the newest of them.

    Args:
        table: Parquet, CSV or TSV file or URL, polars or pandas frame, or mapping of columns; one row per logged ad. By
            default the one that the configuration names.
        out: run folder; the same call resumes an earlier one that was cut off.
        config: a :class:`Config`, or the TOML file of one.
        settings: ``["train.learning_rate=3e-4"]``, above all else.
        device: ``cpu`` or ``cuda``.
        progress: called as ``progress("training", 0.4, "model 2 of 5, epoch 1.3 of 3")``.
        opened: called when the table has been read, before anything is trained.
        options: columns by their role, and others: ``click="y", bid="b", auction="id", loss="auto", model="deepfm"``;
            names as in the sections of :class:`Config`, whose keys they are.

    >>> import numpy as np, tempfile
    >>> random = np.random.default_rng(0)
    >>> table = {"site": random.integers(0, 5, 600), "bid": random.uniform(0.5, 2, 600)}
    >>> table["click"] = random.random(600) < 0.1 + 0.15 * table["site"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     options = {"click": "click", "bid": "bid", "model": "logistic_regression", "loss": "log_loss", "epochs": 2}
    ...     result = train(table, out=f"{folder}/run", **options)
    >>> result.chosen, result.table.splits["test"].ads
    ('log_loss', 60)
    """
    sections: dict[str, Any] = {}
    if config is not None:
        sections = config.sections() if isinstance(config, Config) else read_toml(Path(config))
    values = {option_key(name): value for name, value in options.items() if value is not None}
    if isinstance(table, str | Path):
        values["data.table"] = str(table)
    merged = resolved(sections, values, settings)
    if table is None and merged.data.table is None:
        raise InputError(f"{config or 'table'} must name the table to train on, found no table in [data]")
    return run(merged.data.table if table is None else table, merged, out, device, progress, opened)


def run(
    table: Table,
    config: Config,
    out: str | Path,
    device: str = "cpu",
    progress: Progress | None = None,
    opened: Callable[[Prepared], None] | None = None,
    command: Sequence[str] | None = None,
) -> TrainResult:
    """Train by a configuration: of several ranks the first prepares the folder and concludes, and all of them train."""
    started = time.monotonic()
    table = written_as(table, config.data.separator, config.data.header)
    show = progress or (lambda work, done, detail="": None)
    with ExitStack() as stack:
        distributed.first(lambda: stack.enter_context(locked_folder(out)))
        first = distributed.first(lambda: prepare(table, config, out, progress=show))
        distributed.agree(None if (Path(out) / "store" / SCHEMA).is_file() else _unseen(out))
        prepared = first or prepared_before(config, Path(out))
        if opened is not None:
            opened(prepared)
        folder = prepared.folder
        known = (folder / "result.json").exists()  # then nothing is trained, and it was made where it was made
        valid = prepared.store.ads("valid", auction_size=prepared.facts.auction_size)
        stopping, held_out = valid, None
        if config.train.loss == AUTO:  # epochs by the one half, the loss by the other
            stopping, held_out = halves(valid, config.train.seed)
        fits = _fits(prepared, stopping, device, show)

        def conclude() -> TrainResult:
            result = _result(prepared, fits, valid, held_out, show)
            made = {"seconds": round(time.monotonic() - started, 1), **environment(torch.device(device), command)}
            _write(folder, result, read_json(folder / "environment.json") if known else made)
            return result

        result = distributed.first(conclude, tell=True)
    assert result is not None
    return result


def _unseen(out: str | Path) -> str:
    here = f"rank {distributed.rank()} on {platform.node()}"
    return f"out must be a folder that all ranks see, found that {here} does not see {Path(out).absolute()}"


def _fits(prepared: Prepared, valid: Ads, device: str, show: Progress) -> dict[str, Fit]:
    """A model by each loss; where a loss needs a teacher and the table has none, that of the log loss is it."""
    config, ads = prepared.config, prepared.store.ads("train")
    seed, losses = config.train.seed, config.fits
    fits: dict[str, Fit] = {}
    for at, loss in enumerate(losses):
        recipe, taught = config.recipe(loss), ads
        if recipe.needs_teacher and ads.teacher is None:
            taught = ads.with_teacher(torch.sigmoid(logits_across(fits[BASELINE].model, ads.features)).cpu())

        def report(share: float, at: int = at, epochs: float = recipe.epochs) -> None:
            detail = f"epoch {share * epochs:.1f} of {epochs:g}"
            show("training", (at + share) / len(losses), f"model {at + 1} of {len(losses)}, {detail}")

        report(0.0)
        fits[loss] = recipe.fit(
            _at_the_mean(recipe.build(prepared.store.cardinalities, seed), ads).to(device),
            taught,
            valid=valid,
            metric=config.train.metric,
            seed=seed,
            out=prepared.folder / "fits" / loss,
            show=report,
        )
    show("training", 1.0)
    return fits


def _at_the_mean(model: nn.Module, ads: Ads) -> nn.Module:
    """The untrained model with the logit of the mean CTR as its bias: a small table has few steps to find it."""
    labels = ads.clicks.double() if ads.exposure is None else ads.clicks / ads.exposure.double()
    weights = torch.ones_like(labels) if ads.weights is None else ads.weights.double()
    mean = (labels * weights).sum() / weights.sum()
    model.get_parameter("bias").data.fill_(float(torch.logit(mean, eps=1e-6)))
    return model


def _result(prepared: Prepared, fits: dict[str, Fit], valid: Ads, held_out: Ads | None, show: Progress) -> TrainResult:
    """The loss that is kept, its model in the folder, and the test of all."""
    config, facts = prepared.config, prepared.facts
    choice = None if held_out is None else _choice(prepared, fits, held_out, show)
    chosen = choice.chosen if choice else config.train.loss
    model = fits[chosen].model
    _save_model(prepared, chosen, model)
    return TrainResult(
        config=config.flat(),
        table=facts,
        fields={field.name: field.values for field in prepared.store.fields},
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        fits={loss: _fit_result(fit, config.train.metric) for loss, fit in fits.items()},
        choice=choice,
        chosen=chosen,
        validation=Scores.of(_metrics(model, valid, config).compute(), facts.mean_bid),
        evaluation=_evaluated(prepared, fits, show),
    )


def _choice(prepared: Prepared, fits: dict[str, Fit], ads: Ads, show: Progress) -> Choice:
    """The losses compared, on validation auctions that chose no epoch."""
    seen = {}
    for at, (loss, fit) in enumerate(fits.items()):
        show("comparing", at / len(fits))
        seen[loss] = _metrics(fit.model, ads, prepared.config).per_unit
    show("comparing", 1.0)
    return choose(seen, BASELINE, unit=prepared.facts.mean_bid, seed=prepared.config.train.seed)


def _metrics(model: nn.Module, ads: Ads, config: Config) -> Metrics:
    """A model's metrics over ads of a store, whose bids are in units of their mean."""
    more = {key: _numbers(values) for key in ("exposure", "weights") if (values := getattr(ads, key)) is not None}
    metrics = Metrics(slots=config.data.slots, size=ads.auction_size)
    return metrics.update(_numbers(predict(model, ads)), _numbers(ads.clicks), _numbers(ads.bids), ads.offsets, **more)


def _numbers(values: Tensor) -> Any:
    return values.cpu().numpy().astype(np.float64)


def _save_model(prepared: Prepared, chosen: str, model: nn.Module) -> None:
    """The chosen model as ``bidwise predict`` reads it."""
    save(prepared.folder / "model.pt", {name: tensor.cpu() for name, tensor in model.state_dict().items()})
    network, cardinalities = prepared.config.model, tuple(prepared.store.cardinalities)
    about = ModelFile(model=network.name, options=network.options, cardinalities=cardinalities, loss=chosen)
    write_json(prepared.folder / "model.json", about)


def _evaluated(prepared: Prepared, fits: dict[str, Fit], show: Progress) -> Evaluation:
    """All models on the test rows, predictions as a table and `bidwise.evaluate` on it."""
    path, config = prepared.folder / "test.parquet", prepared.config
    table = pl.read_parquet(path)
    table = table.select([column for column in table.columns if column not in LOSSES])
    ads = prepared.store.ads("test")
    table = table.with_columns(pl.Series(loss, _numbers(predict(fit.model, ads))) for loss, fit in fits.items())
    write_parquet(path, table)
    roles: dict[str, Any] = {role: role if role in table.columns else None for role in ("truth", "position", "weight")}
    models = [*([TEACHER] if TEACHER in table.columns else []), *fits]
    found = evaluate(
        path,
        ctr=models,
        click="click",
        bid="bid",
        auction="auction" if config.data.auction else None,
        auction_size=prepared.facts.auction_size,
        **roles,
        slots=config.data.slots,
        baseline=BASELINE if BASELINE in fits else models[0],
        seed=config.train.seed,
        out=prepared.folder / "evaluation",
        progress=lambda work, done: show("testing", done, work),
    ).without_curves()
    return replace(found, options=replace(found.options, table=path.name))  # run folders move


def _fit_result(fit: Fit, metric: str) -> FitResult:
    history = tuple(Epoch(float(each["epoch"]), float(each["loss"]), float(each[metric])) for each in fit.history)
    best = float(fit.best[metric].epoch)
    return FitResult(next(each for each in history if each.epoch == best), history)


def _write(folder: Path, result: TrainResult, made: dict[str, Any]) -> None:
    """The files of a run folder, the result last."""
    from bidwise.report import write_page

    metric = result.settings.train.metric
    lines = [
        json.dumps({"loss_function": loss, "epoch": each.epoch, "loss": each.loss, metric: each.value}) + "\n"
        for loss, fit in result.fits.items()
        for each in fit.history
    ]
    write_text(folder / "metrics.jsonl", "".join(lines))
    write_json(folder / "environment.json", made)
    write_page(result, folder)
    write_result(folder, result)
