"""`train`: a table in; a model, the comparisons that chose its settings and its recipe, and a test on held-out rows."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn

from bidwise import distributed
from bidwise.checks import InputError, derived_seed
from bidwise.data.ads import Ads
from bidwise.data.columns import Encoder
from bidwise.data.splits import halves
from bidwise.data.store import SPLITS, Store
from bidwise.data.table_files import Table
from bidwise.evaluation.evaluate import evaluate
from bidwise.evaluation.metrics import Metrics
from bidwise.evaluation.result import Evaluation
from bidwise.losses.api import cross_entropy
from bidwise.models import Ensemble
from bidwise.run_folder import (
    CHECKSUMS,
    environment,
    locked_folder,
    read_result,
    save,
    to_toml,
    write_checksums,
    write_json,
    write_result,
    write_text,
)
from bidwise.study.compare import Power, choose, power
from bidwise.study.recipe import BASELINE, SOLVED
from bidwise.study.search import Search, budget, searched
from bidwise.study.served import Served, numbers, trained
from bidwise.table.config import AUTO, Config, nested, option_key, read_config, resolved
from bidwise.table.model import MODEL_FILES, ModelFile, members_of
from bidwise.table.plan import candidates, recipes
from bidwise.table.prepare import PREVIOUS, TEST, Prepared, prepare, write_parquet
from bidwise.table.refresh import STATE, Previous, state_of
from bidwise.table.results import Epoch, FitResult, Scores, TrainResult
from bidwise.training.validation import logits_across, logits_of, predict
from bidwise.workers import Progress, Show

TEACHER = "teacher"  # the logged predictions, among the models of the evaluation
EARLY = "early"  # in a run folder, while it lasts: the first model, a regression if there is one
_BEST = "best so far: {}, validation {} {:.5g}"
REGRESSION = "regression"  # a solved logistic regression, a reference of the test
SHUFFLED = 50_000  # test ads, at most, that columns are shuffled in
TEST_ROLES = ("auction", "truth", "position", "weight")  # of columns that a test may have


def train(
    table: Table | None = None,
    *,
    out: str | Path,
    config: Config | str | Path | None = None,
    continue_from: str | Path | None = None,
    settings: Sequence[str] = (),
    device: str = "cpu",
    progress: Progress | None = None,
    opened: Callable[[Prepared], None] | None = None,
    **options: Any,
) -> TrainResult:
    """Train a model on a table of logged ads and evaluate it on the newest of them.

    Args:
        table: Parquet, CSV or TSV file, folder or pattern of such files, URL, polars or pandas frame, or mapping of
            columns; one row per logged ad. By default the one that the configuration names. It may exceed the memory.
        out: run folder; the same call resumes an earlier one that was cut off.
        config: a :class:`Config`, or the TOML file of one.
        continue_from: folder of a finished run, to continue with these rows: its encoder, weights, optimizer and
            configuration but for ``options`` and ``settings``; both models are then tested on the newest rows.
        settings: ``["train.learning_rate=3e-4"]``, above all else.
        device: ``cpu`` or ``cuda``.
        progress: called as ``progress("training", 0.4, "model 2 of 5, epoch 1.3 of 4")``.
        opened: called when the table has been read, before anything is trained.
        options: columns by their role, and others: ``click="y", bid="b", auction="id", recipe="auto", model="deepfm"``;
            names as in the sections of :class:`Config`.

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
    sections = nested(config.flat()) if isinstance(config, Config) else read_config(Path(config)) if config else {}
    if continue_from is not None:
        if config is not None:
            raise InputError("cannot be combined with --continue; remove it", argument="config")
        if Path(continue_from).resolve() == Path(out).resolve():
            raise InputError(f"must be another folder than the run to continue, found {out} for both", argument="out")
        sections = Previous.read(continue_from).sections()
    values = {option_key(name): value for name, value in options.items() if value is not None}
    if isinstance(table, str | Path):
        values["data.table"] = str(table)
    asked = resolved(sections, values, settings)
    table = asked.data.table if table is None else table
    if table is None:
        raise InputError(f"{config or 'table'} must name the table to train on, found no table in [data]")
    started = time.monotonic()
    show = progress or (lambda work, done, detail="": None)
    previous = None if asked.train.continue_from is None else Previous.read(asked.train.continue_from)
    if previous is not None:
        previous.continued(next(iter(recipes(asked, candidates(asked)[0]).values())))
    with ExitStack() as stack:
        distributed.first(lambda: stack.enter_context(locked_folder(out)))
        first = partial(_first, Path(out), asked, show)
        distributed.first(lambda: prepare(table, asked, out, previous=previous, progress=show, first=first))
        here, there = f"rank {distributed.rank()} on {platform.node()}", Path(out).absolute()
        unseen = f"out must be a folder that all ranks see, found that {here} does not see {there}"
        distributed.agree(None if (Path(out) / "config.toml").is_file() else unseen)
        prepared = Prepared(Path(out), asked)
        if opened is not None:
            opened(prepared)
        whole = [(prepared.folder / name).exists() for name in (CHECKSUMS, "result.json", "model.pt", "model.json")]
        if all(whole):  # the first was written last: training is complete; lost files are made again
            return read_result(prepared.folder, TrainResult)
        valid = prepared.store.ads("valid", auction_size=prepared.facts.auction_size)
        choosing, held_out = valid, None
        if asked.train.recipe == AUTO:  # settings, epochs and calibration by the one half, the recipe by the other
            choosing, held_out = halves(valid, asked.train.seed)
        models, search, told_apart = _trained(prepared, previous, choosing, held_out, device, show)

        result = distributed.first(lambda: _result(prepared, models, valid, held_out, show), tell=True)
        assert result is not None
        result = replace(result, search=search, power=told_apart)
        served, store = models[result.chosen], prepared.store
        if prepared.full is not None:
            store = prepared.full
            served = _refitted(prepared, store, previous, models, result.chosen, device, show)
            result = replace(result, refit=store.splits["train"])
        made = {"seconds": round(time.monotonic() - started, 1), **environment(torch.device(device))}
        distributed.first(lambda: _write(prepared, store, result, served, made))
    return result


def _refitted(
    prepared: Prepared,
    store: Store,
    previous: Previous | None,
    models: Mapping[str, Served],
    chosen: str,
    device: str,
    show: Progress,
) -> Served:
    """The chosen recipe trained once more, on all rows, for as many steps as in the best epoch that was tested, and
    with the calibration that was tested."""
    tested, ads = models[chosen], store.ads("train")
    share = prepared.store.splits["train"] / len(ads)
    best = float(next(iter(tested.fits[0].best.values())).epoch) if tested.fits[0].best else tested.recipe.epochs
    recipe = replace(tested.recipe, patience=None)
    if not recipe.solved:
        recipe = replace(recipe, epochs=best * share, l2=None if recipe.l2 is None else recipe.l2 * share)
    if recipe.teacher is not None:
        parts = [prepared.store.ads(part).features for part in SPLITS]  # in the order of all rows
        logits = torch.cat([logits_across(models[recipe.teacher].model, features) for features in parts])
        ads = ads.with_teacher(torch.sigmoid(logits).to(ads.bids))
    found = trained(
        recipe,
        ads,
        None,
        store.cardinalities,
        plain=prepared.plain,
        seed=prepared.config.train.seed,
        device=device,
        start=[] if previous is None else previous.start(recipe, store),
        calibrate=False,
        out=prepared.folder / "fits" / "refit",
        show=lambda done: show("training on all rows", done),
    )
    for name in ("slope", "intercept"):
        getattr(found.model, name).copy_(getattr(tested.model, name))
    return found


def _trained(
    prepared: Prepared, previous: Previous | None, valid: Ads, held_out: Ads | None, device: str, show: Progress
) -> tuple[dict[str, Served], Search | None, Power | None]:
    """Models by loss or recipe: the baseline, with the settings that the search finds, and after it all others.

    Candidates of recipe auto are trained only if the ads that choose among them could detect a gain, as far as the
    two best settings of the search tell.
    """
    config, ads, fits = prepared.config, prepared.store.ads("train"), prepared.folder / "fits"
    tried = candidates(config, len(ads))
    many = len(tried) > 1
    plan = recipes(config, tried[0], searched=many)
    leading: list[str] = []  # the best model of the search so far

    def step(name: str) -> Show:
        at, epochs = list(plan).index(name), plan[name].epochs

        def report(share: float) -> None:
            detail = f"model {at + 1} of {len(plan)}, epoch {share * epochs:.1f} of {epochs:g}"
            if many and name == BASELINE:
                detail = "; ".join([f"searching among {len(tried)} settings", *leading])
            show("training", (at + share) / len(plan), detail)

        report(0.0)
        return report

    def early(served: Served, value: float) -> None:
        name = served.recipe.model + " with a regression" * served.recipe.beside
        leading[:] = [_BEST.format(name, config.train.metric, value)]
        distributed.first(partial(_write_early, prepared.folder, config, prepared.encoder, served))

    shared: dict[str, Any] = {"ads": ads, "valid": valid, "cardinalities": prepared.store.cardinalities}
    shared["plain"] = prepared.plain
    shared |= {key: getattr(config.train, key) for key in ("seed", "metric", "calibrate")} | {"device": device}
    models: dict[str, Served] = {}
    others: list[Served] = []
    search, told_apart = None, None
    if many:
        # settings by all validation ads: this can only favour the baseline, which recipes have to beat
        judge = None if held_out is None else prepared.store.ads("valid", auction_size=prepared.facts.auction_size)
        limit = config.train.budget_seconds or budget(len(ads), prepared.plain or len(prepared.store.fields))
        found = searched(tried, **shared, judge=judge, limit=limit, out=fits, show=step(BASELINE), best=early)
        search, (models[BASELINE], *others) = found
        plan = recipes(config, models[BASELINE].recipe, searched=True)
        if config.train.recipe == AUTO and models[BASELINE].recipe.solved:
            plan = {BASELINE: models[BASELINE].recipe}  # members of an ensemble would all be the same
        if held_out is not None and others:
            told_apart = distributed.first(partial(_power, config, models[BASELINE], others[0], held_out), tell=True)
    if previous is not None and prepared.facts.refresh is not None:
        l2 = prepared.facts.refresh.l2 if config.train.l2 is None else config.train.l2
        plan = {name: previous.continued(replace(recipe, l2=l2)) for name, recipe in plan.items()}
    for name, recipe in plan.items():
        if name in models or (told_apart is not None and not told_apart.enough):
            continue
        base = models.get(BASELINE)
        start = [] if previous is None else previous.start(recipe, prepared.store)
        models[name] = trained(
            recipe,
            **shared,
            teacher=None if recipe.teacher is None else models[recipe.teacher].model,
            known=base.fits[:1] if base is not None and recipe.parts[0] == base.recipe.parts[0] else (),
            start=start,
            line=(1.0, 0.0) if previous is None else previous.line,
            out=fits / name,
            show=step(name),
        )
    solved = [each for each in (*models.values(), *others) if each.recipe.solved and not each.recipe.beside]
    if previous is None and not any(each in solved for each in models.values()):
        models[REGRESSION] = solved[0] if solved else trained(SOLVED, **shared)  # any model should beat it
    show("training", 1.0)
    return models, search, told_apart


def _power(config: Config, baseline: Served, second: Served, ads: Ads) -> Power:
    mine, other = (_metrics(each.model, ads, config).per_unit for each in (baseline, second))
    return power(mine, other, len(config.train.contestants))


def _metrics(model: nn.Module, ads: Ads, config: Config) -> Metrics:
    """A model's metrics over ads of a store, with bids in units of their mean."""
    more = {key: numbers(values) for key in ("exposure", "weights") if (values := getattr(ads, key)) is not None}
    columns = (numbers(predict(model, ads)), numbers(ads.clicks), numbers(ads.bids), ads.offsets)
    return Metrics(*columns, **more, slots=config.data.slots, size=ads.auction_size)


def _result(
    prepared: Prepared, models: Mapping[str, Served], valid: Ads, held_out: Ads | None, show: Progress
) -> TrainResult:
    """The model to keep, by validation auctions used for no other choice, and the test of all."""
    config, facts, choice = prepared.config, prepared.facts, None
    chosen = config.train.name if held_out is None else BASELINE
    if held_out is not None and models.keys() >= set(config.train.contestants):
        compared = (BASELINE, *config.train.contestants)
        seen = {name: _metrics(models[name].model, held_out, config).per_unit for name in compared}
        choice = choose(seen, BASELINE, unit=facts.mean_bid)
        chosen = choice.chosen
    model = models[chosen].model
    return TrainResult(
        config=config.flat(),
        table=facts,
        fields={field.name: field.values for field in prepared.store.fields},
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        fits={name: _fit_result(each, config.train.metric) for name, each in models.items() if name != REGRESSION},
        choice=choice,
        chosen=chosen,
        validation=Scores.of(_metrics(model, valid, config).compute(), facts.mean_bid),
        evaluation=_evaluated(prepared, models, show),
        importance=_importance(prepared, model),
    )


def _importance(prepared: Prepared, model: nn.Module) -> dict[str, float]:
    """The rise of the log loss when one column after the other is shuffled in test ads; those that matter most first.
    Of two redundant columns, each may seem to matter little."""
    ads, encoder = prepared.store.ads("test"), prepared.encoder
    ads = ads.take(slice(0, SHUFFLED))

    def loss(features: Tensor) -> float:
        return float(cross_entropy(logits_of(model, features).double().cpu(), ads.labels, ads.weights, "mean"))

    intact, rises = loss(ads.features), dict[str, float]()
    for at, (name, span) in enumerate(zip(encoder.names, encoder.spans, strict=False)):  # crosses come last
        seed = derived_seed(prepared.config.train.seed, "shuffled", at)
        order = torch.randperm(len(ads), generator=torch.Generator().manual_seed(seed))
        features = ads.features.clone()
        features[:, span] = features[order, span]
        rises[name] = loss(torch.from_numpy(encoder.crossed(features.numpy()))) - intact
    return dict(sorted(rises.items(), key=lambda each: -each[1]))


def _fit_result(served: Served, metric: str) -> FitResult:
    fit = served.fits[0]
    history = tuple(Epoch(float(each["epoch"]), float(each["loss"]), float(each[metric])) for each in fit.history)
    best = next(each for each in history if each.epoch == float(fit.best[metric].epoch))
    return FitResult(served.recipe, best, history, float(served.model.slope), float(served.model.intercept))


def _evaluated(prepared: Prepared, models: Mapping[str, Served], show: Progress) -> Evaluation:
    """All models on the test rows, predictions as a table and `bidwise.evaluate` on it."""
    path, config, ads = prepared.folder / "test.parquet", prepared.config, prepared.store.ads("test")
    ctr = [pl.Series(name, numbers(predict(each.model, ads))) for name, each in models.items()]
    table = pl.read_parquet(prepared.store.folder / TEST).with_columns(ctr)
    write_parquet(path, table)
    roles: dict[str, Any] = {role: role for role in TEST_ROLES if role in table.columns}
    names = [*(name for name in (PREVIOUS, TEACHER) if name in table.columns), *models]
    found = evaluate(
        table,
        ctr=names,
        click="click",
        bid="bid",
        auction_size=prepared.facts.auction_size,
        **roles,
        slots=config.data.slots,
        baseline=BASELINE if BASELINE in models else names[0],
        out=prepared.folder / "evaluation",
        progress=lambda work, done: show("testing", done, work),
    ).without_curves()
    return replace(found, options=found.options | {"table": path.name})  # run folders move


def _write(prepared: Prepared, store: Store, result: TrainResult, served: Served, made: dict[str, Any]) -> None:
    """The files of a run folder: the chosen model as :func:`bidwise.load` reads it, the result, the checksums."""
    from bidwise.report import write_page

    folder = prepared.folder
    _write_model(folder, Encoder.read(store.folder), result.chosen, served)
    save(folder / STATE, [state_of(fit) for fit in served.fits])
    write_json(folder / "environment.json", made)
    write_page(result, folder)
    write_result(folder, result)
    shutil.rmtree(folder / EARLY, ignore_errors=True)
    write_checksums(folder, (*MODEL_FILES, STATE, "result.json"))


def _write_model(folder: Path, encoder: Encoder, name: str, served: Served) -> None:
    """The files that :func:`bidwise.load` reads, next to the configuration and the checksums."""
    encoder.write(folder)
    save(folder / "model.pt", {key: tensor.cpu() for key, tensor in served.model.state_dict().items()})
    about = ModelFile(
        recipe=name,
        loss=served.recipe.loss,
        members=members_of(served.recipe, len(encoder.fields), len(encoder.names)),
        cardinalities=tuple(field.cardinality for field in encoder.fields),
    )
    write_json(folder / "model.json", about)


def _first(out: Path, config: Config, show: Progress, encoder: Encoder, model: nn.Module, value: float) -> None:
    """The regression before combinations of columns, for `bidwise predict`, after a twentieth of a usual run."""
    _write_early(out, config, encoder, Served(SOLVED, Ensemble([model]), ()))
    show("reading", 0.86, _BEST.format(SOLVED.model, "log_loss", value))


def _write_early(out: Path, config: Config, encoder: Encoder, served: Served) -> None:
    """A folder for `bidwise predict` with the first model, until the run ends."""
    folder = out / EARLY
    if not (folder / CHECKSUMS).exists():
        folder.mkdir(exist_ok=True)
        write_text(folder / "config.toml", to_toml(nested(config.flat())))
        _write_model(folder, encoder, BASELINE, served)
        write_checksums(folder, MODEL_FILES)
