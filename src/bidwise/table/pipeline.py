"""`train`: a table in; a model, the contest that chose its loss, and a test on rows that nothing was chosen by."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

import bidwise
from bidwise import distributed
from bidwise.data.ads import Ads
from bidwise.data.read_table import Table
from bidwise.data.splits import halves
from bidwise.data.store import SCHEMA
from bidwise.evaluation.evaluate import evaluate
from bidwise.evaluation.metrics import Metrics
from bidwise.evaluation.result import Evaluation
from bidwise.losses.named import LOSSES, named_loss, needs_teacher
from bidwise.models import MODELS
from bidwise.run_folder import environment, locked_folder, read_json, save, write_json, write_text
from bidwise.study.keep_best import Choice, choose
from bidwise.table.config import AUTO, BASELINE, SECTIONS, Config, read_toml, resolved
from bidwise.table.encode import Prepared, Progress, prepare, prepared_before, write_parquet
from bidwise.table.train_sentences import verdict
from bidwise.training.across_ranks import logits_across
from bidwise.training.loop import fit
from bidwise.training.selection import Fit
from bidwise.training.validation import predict
from bidwise.typed_json import to_json

TEACHER = "teacher"  # the logged predictions, among the models of the evaluation


def train(
    table: Table,
    *,
    out: str | Path,
    config: Config | str | Path | None = None,
    settings: Sequence[str] = (),
    device: str = "cpu",
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train a model on a table of logged ads and evaluate it on the newest of them: what ``result.json`` holds.

    Args:
        table: Parquet, CSV or TSV file or URL, polars or pandas frame, or mapping of columns; one row per logged ad.
        out: run folder; the same call goes on where an earlier one stopped.
        config: a :class:`Config`, or the TOML file of one.
        settings: ``["train.learning_rate=3e-4"]``, above all else.
        device: ``cpu`` or ``cuda``.
        progress: called as ``progress("log_plus", 0.4)``.
        options: columns by their role, and others: ``click="y", bid="b", auction="id", loss="auto", model="deepfm"``;
            names as in the sections of :class:`Config`, whose keys they are.

    >>> import numpy as np, tempfile
    >>> random = np.random.default_rng(0)
    >>> table = {"site": random.integers(0, 5, 600), "bid": random.uniform(0.5, 2, 600)}
    >>> table["click"] = random.random(600) < 0.1 + 0.15 * table["site"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asked = {"click": "click", "bid": "bid", "model": "logistic_regression", "loss": "log_loss", "epochs": 2}
    ...     found = train(table, out=f"{folder}/run", **asked)
    >>> found["chosen"], found["splits"]["test"]["ads"]
    ('log_loss', 60)
    """
    sections: dict[str, Any] = {}
    if config is not None:
        sections = config.sections() if isinstance(config, Config) else read_toml(Path(config))
    told = {option_key(name): value for name, value in options.items() if value is not None}
    if isinstance(table, str | Path):
        told["data.table"] = str(table)
    with begun(table, resolved(sections, told, settings), out, progress) as prepared:
        return finish(prepared, device=device, progress=progress)


@contextmanager
def begun(table: Table, config: Config, out: str | Path, progress: Progress | None = None) -> Iterator[Prepared]:
    """A run folder that is ready to train in, and no one else's meanwhile; of several ranks the first prepares it."""
    with ExitStack() as held:
        distributed.first(lambda: held.enter_context(locked_folder(out)))
        prepared = distributed.first(lambda: prepare(table, config, out, progress=progress))
        distributed.agree(None if (Path(out) / "store" / SCHEMA).is_file() else _unseen(out))
        yield prepared or prepared_before(config, Path(out))


def _unseen(out: str | Path) -> str:
    here = f"rank {distributed.rank()} on {platform.node()}"
    return f"out must be a folder that all ranks see, found that {here} does not see {Path(out).absolute()}"


def option_key(name: str) -> str:
    """Where an option belongs: ``click -> data.click``, ``model -> model.name``, ``loss -> train.loss``."""
    if name == "model":
        return "model.name"
    for section, part in SECTIONS.items():
        if name in part.__dataclass_fields__:
            return f"{section}.{name}"
    return f"data.{name}"  # not known: refused with the nearest name


def finish(prepared: Prepared, *, device: str = "cpu", progress: Progress | None = None) -> dict[str, Any]:
    """Train what was prepared: teacher, candidates, contest, test; all ranks train, the first does the rest."""
    began = time.monotonic()
    known = (prepared.folder / "result.json").exists()  # then nothing is trained, and it was made where it was made
    config, show = prepared.config, progress or (lambda work, done: None)
    store = prepared.store
    ads = store.ads("train")
    valid = store.ads("valid", auction_size=prepared.auction_size)
    contest: Ads | None = None
    if config.train.loss == AUTO:
        valid, contest = halves(valid, config.train.seed)  # epochs by the one half, the loss by the other
    fits: dict[str, Fit] = {}
    for name in fits_of(config):
        fits[name] = _fitted(prepared, name, _taught(ads, name, fits), valid, device, show)

    def finished() -> dict[str, Any]:
        result = _result(prepared, fits, contest, show)
        there = read_json(prepared.folder / "environment.json") if known else environment(torch.device(device))
        _write(prepared.folder, result, {"seconds": round(time.monotonic() - began, 1)} | there)
        return result

    result = distributed.first(finished, tell=True)
    assert result is not None
    return result


def _result(prepared: Prepared, fits: dict[str, Fit], contest: Ads | None, show: Progress) -> dict[str, Any]:
    """What ``result.json`` holds: the loss that was chosen, and the test."""
    config = prepared.config
    choice = None if contest is None else _contest(prepared, fits, contest, show)
    chosen = choice.chosen if choice else config.train.loss
    _keep(prepared, chosen, fits[chosen].model)
    evaluation = _evaluated(prepared, fits, chosen, show)
    result = {
        "kind": "train",
        "version": bidwise.__version__,
        "config": config.flat(),
        "columns": prepared.about["columns"],
        "splits": prepared.about["splits"],
        "mean_bid": prepared.about["mean_bid"],
        "min_count": prepared.about["min_count"],
        "auction_size": prepared.auction_size,
        "fields": {field.name: field.values for field in prepared.store.fields},
        "parameters": sum(parameter.numel() for parameter in fits[chosen].model.parameters()),
        "metric": config.train.metric,
        "fits": {name: _told(each, config.train.metric) for name, each in fits.items()},
        "contest": to_json(choice) if choice else None,
        "chosen": chosen,
        "evaluation": to_json(evaluation.without_curves()),
        "notes": prepared.about["notes"],
    }
    result["verdict"] = verdict(result)
    return to_json(result)  # type: ignore[no-any-return]


def fits_of(config: Config) -> list[str]:
    """The losses to train with, in order: a teacher comes before its students."""
    losses = config.train.losses
    if config.data.teacher is None and any(map(needs_teacher, losses)):
        losses = [BASELINE, *losses]
    return list(dict.fromkeys(losses))


def model_of(config: Config, cardinalities: Sequence[int]) -> nn.Module:
    """The untrained model."""
    return MODELS[config.model.name](list(cardinalities), **config.model.options, seed=config.train.seed)


def _taught(ads: Ads, name: str, fits: dict[str, Fit]) -> Ads:
    """The ads with a teacher's CTR where the loss needs one and the table has none: that of the log-loss model."""
    if not needs_teacher(name) or ads.teacher is not None:
        return ads
    return ads.with_teacher(torch.sigmoid(logits_across(fits[BASELINE].model, ads.features)).cpu())


def _fitted(prepared: Prepared, name: str, ads: Ads, valid: Ads, device: str, show: Progress) -> Fit:
    options = prepared.config.train
    work = f"training, {name}"
    show(work, 0.0)
    found = fit(
        _at_the_mean(model_of(prepared.config, prepared.store.cardinalities), ads).to(device),
        ads,
        loss=named_loss(name, lam=options.lam, sigma=options.sigma),
        valid=valid,
        metric=options.metric,
        epochs=options.epochs,
        batch_size=options.batch_size,
        rate=options.learning_rate,
        schedule=options.schedule,
        precision=options.precision or "float32",
        patience=options.patience,
        every=options.every,
        l2=options.l2,
        seed=options.seed,
        out=prepared.folder / "fits" / name,
        progress=lambda epochs: show(work, epochs / options.epochs),
    )
    show(work, 1.0)
    return found


def _at_the_mean(model: nn.Module, ads: Ads) -> nn.Module:
    """The untrained model with the logit of the mean CTR as its bias: a small table has few steps to find it."""
    labels = ads.clicks.double() if ads.exposure is None else ads.clicks / ads.exposure.double()
    weights = torch.ones_like(labels) if ads.weights is None else ads.weights.double()
    mean = (labels * weights).sum() / weights.sum()
    model.get_parameter("bias").data.fill_(float(torch.logit(mean, eps=1e-6)))
    return model


def _contest(prepared: Prepared, fits: dict[str, Fit], ads: Ads, show: Progress) -> Choice:
    """The losses against each other, on validation auctions that no epoch was chosen by."""
    welfare: dict[str, Any] = {}
    weights = None
    for at, (name, each) in enumerate(fits.items()):
        show("contest", at / len(fits))
        seen = measured(each.model, ads, prepared.config)
        welfare[name] = seen.per_auction["welfare"] * prepared.about["mean_bid"]
        weights = seen.per_auction["weight"]
    found = choose(welfare, BASELINE, weights=weights, seed=prepared.config.train.seed)
    show("contest", 1.0)
    return found


def measured(model: nn.Module, ads: Ads, config: Config) -> Metrics:
    """A model's predictions for ads of a store, whose bids are in units of their mean."""
    more = {key: _numbers(found) for key in ("exposure", "weights") if (found := getattr(ads, key)) is not None}
    seen = Metrics(slots=config.data.slots)
    return seen.update(_numbers(predict(model, ads)), _numbers(ads.clicks), _numbers(ads.bids), ads.offsets, **more)


def _numbers(found: Tensor) -> Any:
    return found.cpu().numpy().astype(np.float64)


def _keep(prepared: Prepared, chosen: str, model: nn.Module) -> None:
    """The chosen model as ``bidwise predict`` reads it."""
    save(prepared.folder / "model.pt", {name: tensor.cpu() for name, tensor in model.state_dict().items()})
    about = {
        "format": "bidwise model",
        "version": 1,
        "model": prepared.config.model.name,
        "options": prepared.config.model.options,
        "cardinalities": prepared.store.cardinalities,
        "loss": chosen,
    }
    write_json(prepared.folder / "model.json", about)


def _evaluated(prepared: Prepared, fits: dict[str, Fit], chosen: str, show: Progress) -> Evaluation:
    """All models on the test rows, predictions as a table and `bidwise.evaluate` on it."""
    path = prepared.folder / "test.parquet"
    table = pl.read_parquet(path)
    table = table.select([column for column in table.columns if column not in LOSSES])
    ads = prepared.store.ads("test")
    for name, each in fits.items():
        table = table.with_columns(pl.Series(name, _numbers(predict(each.model, ads))))
    write_parquet(path, table)
    config = prepared.config
    models = [*([TEACHER] if TEACHER in table.columns else []), *fits]
    return evaluate(
        path,
        ctr=models,
        click="click",
        bid="bid",
        auction=None if config.data.auction is None else "auction",
        auction_size=prepared.auction_size,
        truth="truth" if "truth" in table.columns else None,
        position="position" if "position" in table.columns else None,
        weight="weight" if "weight" in table.columns else None,
        slots=config.data.slots,
        baseline=BASELINE if BASELINE in fits else models[0],
        seed=config.train.seed,
        out=prepared.folder / "evaluation",
        progress=lambda work, done: show(f"test, {work}", done),
    )


def _told(found: Fit, metric: str) -> dict[str, Any]:
    best = found.best[metric]
    return {
        "best": {metric: {"epoch": best.epoch, "value": best.value}},
        "epochs": found.history[-1]["epoch"],
        "history": found.history,
    }


def _write(folder: Path, result: dict[str, Any], there: dict[str, Any]) -> None:
    """The files of a run folder, the result last."""
    from bidwise.report import write_page  # late: matplotlib takes a second

    lines = [
        json.dumps({"loss_function": name, **entry}, allow_nan=False)
        for name, each in result["fits"].items()
        for entry in each["history"]
    ]
    write_text(folder / "metrics.jsonl", "".join(f"{line}\n" for line in lines))
    write_json(folder / "environment.json", there)
    write_page(result, folder)
    write_json(folder / "result.json", result)
