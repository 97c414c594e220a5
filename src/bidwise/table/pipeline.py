"""`train`: a table in; a model, the comparisons that chose its settings and its recipe, and a test on held-out rows."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import nn

from bidwise import distributed
from bidwise.checks import InputError
from bidwise.data.ads import Ads
from bidwise.data.read_table import Table, written_as
from bidwise.data.splits import halves
from bidwise.data.store import SCHEMA
from bidwise.evaluation.evaluate import evaluate
from bidwise.evaluation.metrics import Metrics
from bidwise.evaluation.result import Evaluation
from bidwise.losses.named import LOSSES
from bidwise.models import Ensemble
from bidwise.run_folder import environment, locked_folder, read_json, save, write_json, write_result, write_text
from bidwise.runners import Progress, Show
from bidwise.study.keep_best import Choice, Power, choose, power
from bidwise.study.recipe import BASELINE
from bidwise.study.search import Search, most_passes, searched
from bidwise.study.served import Served, calibrated, numbers, trained
from bidwise.table.config import AUTO, RECIPES, Config, option_key, read_toml, resolved
from bidwise.table.encode import Prepared, prepare, prepared_before, write_parquet
from bidwise.table.plan import candidates, recipes
from bidwise.table.predict import ModelFile
from bidwise.table.results import Epoch, FitResult, Scores, TrainResult
from bidwise.training.validation import predict

RIVAL = "rival"  # the baseline with another seed, that tells what the ads can tell
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
        progress: called as ``progress("training", 0.4, "model 2 of 5, epoch 1.3 of 4")``.
        opened: called when the table has been read, before anything is trained.
        options: columns by their role, and others: ``click="y", bid="b", auction="id", recipe="auto", model="deepfm"``;
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
        if config.train.recipe == AUTO:  # settings, epochs and calibration by the one half, the recipe by the other
            stopping, held_out = halves(valid, config.train.seed)
        found = _trained(prepared, stopping, held_out, device, show)

        def conclude() -> TrainResult:
            result = _result(prepared, found, valid, held_out, show)
            made = {"seconds": round(time.monotonic() - started, 1), **environment(torch.device(device), command)}
            _write(folder, result, read_json(folder / "environment.json") if known else made)
            return result

        result = distributed.first(conclude, tell=True)
    assert result is not None
    return result


def _unseen(out: str | Path) -> str:
    here = f"rank {distributed.rank()} on {platform.node()}"
    return f"out must be a folder that all ranks see, found that {here} does not see {Path(out).absolute()}"


Found = tuple[dict[str, Served], Search | None, Power | None]  # models by loss or recipe


def _trained(prepared: Prepared, valid: Ads, held_out: Ads | None, device: str, show: Progress) -> Found:
    """The baseline, with the settings that the search finds, and after it all other models of the recipe.

    Contestants of recipe auto are trained only where the ads that choose among them could tell a gain.
    """
    config, ads, fits = prepared.config, prepared.store.ads("train"), prepared.folder / "fits"
    train, tried = config.train, candidates(config, len(ads))
    data = (ads, valid, prepared.store.cardinalities)
    told: dict[str, Any] = {"seed": train.seed, "metric": train.metric, "calibrate": train.calibrate, "device": device}
    many = len(tried) > 1
    plan = recipes(config, tried[0], len(ads), searched=many)
    amounts = {name: recipe.epochs * recipe.members for name, recipe in plan.items()}
    amounts |= {BASELINE: most_passes(tried)} if many else {}
    total, done = sum(amounts.values()), 0.0

    def step(name: str, number: int, epochs: float) -> Show:
        def report(share: float, done: float = done) -> None:
            detail = f"model {number} of {len(plan)}, epoch {share * epochs:.1f} of {epochs:g}"
            if many and name == BASELINE:
                detail = f"searching among {len(tried)} settings"
            show("training", (done + share * amounts[name]) / total, detail)

        report(0.0)
        return report

    models: dict[str, Served] = {}
    search, told_apart, rival = None, None, None
    if many:
        search, finalists = searched(tried, *data, **told, out=fits, show=step(BASELINE, 1, 0))
        models[BASELINE], rival = finalists
        plan, done = recipes(config, models[BASELINE].recipe, len(ads), searched=True), amounts[BASELINE]
    for number, (name, recipe) in enumerate(plan.items(), 1):
        if name in models:
            continue
        base = models.get(BASELINE)
        alike = None if base is None or replace(recipe, members=1) != base.recipe else base.fits[0]
        if held_out is not None and base is not None and told_apart is None:
            if rival is None:  # the same with another seed
                two = trained(replace(base.recipe, members=2), *data, **told, first=base.fits[0], out=fits / RIVAL)
                rival = Served(base.recipe, calibrated(Ensemble([two.model.models[1]]), valid), two.fits[1:])
            told_apart = distributed.first(partial(_power, config, base, rival, held_out), tell=True)
        if told_apart is not None and not told_apart.enough:
            break
        models[name] = trained(
            recipe,
            *data,
            **told,
            teacher=None if recipe.teacher is None else models[recipe.teacher].model,
            first=alike,
            out=fits / name,
            show=step(name, number, recipe.epochs),
        )
        done += amounts[name]
    show("training", 1.0)
    return models, search, told_apart


def _power(config: Config, baseline: Served, rival: Served, ads: Ads) -> Power:
    mine, other = (_metrics(each.model, ads, config).per_unit for each in (baseline, rival))
    return power(mine, other, len(config.train.contestants), seed=config.train.seed)


def _result(prepared: Prepared, found: Found, valid: Ads, held_out: Ads | None, show: Progress) -> TrainResult:
    """What is kept, its model in the folder, and the test of all."""
    config, facts, (models, search, told_apart) = prepared.config, prepared.facts, found
    choice = None if held_out is None or len(models) == 1 else _choice(prepared, models, held_out, show)
    chosen = choice.chosen if choice else config.train.name if held_out is None else BASELINE
    model = models[chosen].model
    _save_model(prepared, chosen, models[chosen])
    return TrainResult(
        config=config.flat(),
        table=facts,
        fields={field.name: field.values for field in prepared.store.fields},
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        search=search,
        fits={name: _fit_result(each, config.train.metric) for name, each in models.items()},
        power=told_apart,
        choice=choice,
        chosen=chosen,
        validation=Scores.of(_metrics(model, valid, config).compute(), facts.mean_bid),
        evaluation=_evaluated(prepared, models, show),
    )


def _choice(prepared: Prepared, models: dict[str, Served], ads: Ads, show: Progress) -> Choice:
    """The baseline and the contestants compared, on validation auctions that chose nothing else."""
    names, seen = (BASELINE, *prepared.config.train.contestants), {}
    for at, name in enumerate(names):
        show("comparing", at / len(names))
        seen[name] = _metrics(models[name].model, ads, prepared.config).per_unit
    show("comparing", 1.0)
    return choose(seen, BASELINE, unit=prepared.facts.mean_bid, seed=prepared.config.train.seed)


def _metrics(model: nn.Module, ads: Ads, config: Config) -> Metrics:
    """A model's metrics over ads of a store, whose bids are in units of their mean."""
    more = {key: numbers(values) for key in ("exposure", "weights") if (values := getattr(ads, key)) is not None}
    metrics = Metrics(slots=config.data.slots, size=ads.auction_size)
    return metrics.update(numbers(predict(model, ads)), numbers(ads.clicks), numbers(ads.bids), ads.offsets, **more)


def _save_model(prepared: Prepared, chosen: str, served: Served) -> None:
    """The chosen model as ``bidwise predict`` reads it."""
    save(prepared.folder / "model.pt", {name: tensor.cpu() for name, tensor in served.model.state_dict().items()})
    recipe = served.recipe
    about = ModelFile(
        recipe=chosen,
        loss=recipe.loss,
        members=recipe.members,
        model=recipe.model,
        options=recipe.options,
        cardinalities=tuple(prepared.store.cardinalities),
    )
    write_json(prepared.folder / "model.json", about)


def _evaluated(prepared: Prepared, models: dict[str, Served], show: Progress) -> Evaluation:
    """All models on the test rows, predictions as a table and `bidwise.evaluate` on it."""
    path, config = prepared.folder / "test.parquet", prepared.config
    table = pl.read_parquet(path)
    table = table.select([column for column in table.columns if column not in (*LOSSES, *RECIPES)])
    ads = prepared.store.ads("test")
    table = table.with_columns(pl.Series(loss, numbers(predict(each.model, ads))) for loss, each in models.items())
    write_parquet(path, table)
    roles: dict[str, Any] = {role: role if role in table.columns else None for role in ("truth", "position", "weight")}
    names = [*([TEACHER] if TEACHER in table.columns else []), *models]
    found = evaluate(
        path,
        ctr=names,
        click="click",
        bid="bid",
        auction="auction" if config.data.auction else None,
        auction_size=prepared.facts.auction_size,
        **roles,
        slots=config.data.slots,
        baseline=BASELINE if BASELINE in models else names[0],
        seed=config.train.seed,
        out=prepared.folder / "evaluation",
        progress=lambda work, done: show("testing", done, work),
    ).without_curves()
    return replace(found, options=replace(found.options, table=path.name))  # run folders move


def _fit_result(served: Served, metric: str) -> FitResult:
    fit = served.fits[0]
    history = tuple(Epoch(float(each["epoch"]), float(each["loss"]), float(each[metric])) for each in fit.history)
    best = next(each for each in history if each.epoch == float(fit.best[metric].epoch))
    return FitResult(served.recipe, best, history, float(served.model.slope), float(served.model.intercept))


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
