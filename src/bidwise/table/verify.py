"""`verify`: whether a run folder still holds what was found: its files, its settings, its metrics, its predictions."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from bidwise.checks import InputError
from bidwise.data.store import Store
from bidwise.evaluation.evaluate import evaluate
from bidwise.evaluation.result import Evaluation
from bidwise.run_folder import CHECKED, CHECKSUMS, checksum, load, read_json, to_toml
from bidwise.table.config import nested, read_toml
from bidwise.table.model import load as load_model
from bidwise.table.results import TrainResult
from bidwise.typed_json import to_json
from bidwise.urls import check_on_disk

SAMPLE = 10_000  # test rows that are predicted again
ROUNDS = 100  # of the bootstrap, whose intervals are not compared
SAME = 1e-9  # relative, of metrics: the same numbers added up on another machine
NEAR = 1e-4  # relative, of predictions: another machine, or another size of batch, multiplies matrices in another order


@dataclass(frozen=True)
class Check:
    """One line: ``holds`` is ``None`` for what the folder has no material to check by."""

    name: str
    holds: bool | None
    words: str

    def __str__(self) -> str:
        return (
            f"{ {True: 'matches', False: 'DIFFERS', None: 'cannot be checked'}[self.holds] }: {self.name}, {self.words}"
        )


def verify(run: str | Path) -> list[Check]:
    """Every check of a run folder of `train`, `evaluate`, `reproduce` or :func:`bidwise.fit`."""
    from bidwise.report.build import typed_result

    check_on_disk("run", run, "a folder", "copy it first")
    folder = Path(run)
    if not (folder / "result.json").is_file():
        raise InputError(f"must be a folder of a finished run, found no result.json in {folder}", argument="run")
    checks, found = list(_files(folder)), list[Any]()

    def readable() -> str:
        found.append(typed_result(read_json(folder / "result.json"), str(folder / "result.json")))
        return f"of kind {found[0].kind}, is whole"

    checks.append(_tried("result.json", readable))
    if not found:
        return checks
    result = found[0]
    checks.append(_tried("config.toml", lambda: _settings(folder, result)))
    more: dict[str, Callable[..., Iterator[Check]]] = {"train": _train, "fit": _fit}
    further: Callable[..., Iterator[Check]] = more.get(str(result.kind), _measured)
    return [*checks, *further(folder, result)]


class _Missing(Exception):
    """What a check needs is not there."""


def _tried(name: str, check: Callable[[], str]) -> Check:
    """A check that says what matches, or raises what does not."""
    try:
        return Check(name, True, check())
    except _Missing as missing:
        return Check(name, None, str(missing))
    except (ValueError, TypeError, LookupError, OSError, pl.exceptions.PolarsError) as error:  # any part may be wrong
        return Check(name, False, " ".join(str(error).split()))


def _demand(holds: bool, found: str) -> None:
    if not holds:
        raise InputError(found)


def _files(folder: Path) -> Iterator[Check]:
    path = folder / CHECKSUMS
    if not path.is_file():
        yield Check(CHECKSUMS, None, f"there is none in {folder}: the run was made by an older bidwise")
        return
    recorded: Any = None

    def listed() -> str:
        nonlocal recorded
        recorded = read_json(path)
        _demand(isinstance(recorded, dict) and {*recorded} <= {*CHECKED, "result.json"}, "it lists other files")
        return f"it lists {len(recorded)} files"

    yield (there := _tried(CHECKSUMS, listed))
    for name, stated in recorded.items() if there.holds else ():
        file = folder / name
        found = checksum(file) if file.is_file() else "no file"
        yield Check(name, found == stated, f"checksum {stated}" + ("" if found == stated else f", found {found}"))


def _settings(folder: Path, result: Any) -> str:
    """That the configuration is the one which the result was found with."""
    path = folder / "config.toml"
    if not path.is_file() or not hasattr(result, "config"):
        raise _Missing("there is no other record of the settings")
    there, config = read_toml(path), to_json(result.config)
    if isinstance(result, TrainResult):
        config = nested(config)
        for each in (there, config):  # the table may have moved: its rows are those of the store
            each.get("data", {}).pop("table", None)
    expected = tomllib.loads(to_toml(config))
    differing = [key for key, value in expected.items() if there.get(key) != value]
    _demand(not differing, f"differs from result.json in {', '.join(differing)}")
    return "the settings are those of result.json"


def _metrics(found: Evaluation, recorded: Evaluation) -> str:
    names = [f.name for f in fields(next(iter(recorded.models.values()))) if f.type in ("float", float)]
    compared = 0
    for model, before in recorded.models.items():
        _demand(model in found.models, f"has no predictions of {model}")
        for name in names:
            a, b = getattr(found.models[model], name), getattr(before, name)
            same = math.isclose(a, b, rel_tol=SAME, abs_tol=SAME) or (math.isnan(a) and not math.isfinite(b))
            _demand(same, f"{name} of {model} is {a:.10g}, result.json has {b:.10g}")
            compared += 1
    return f"{compared} metrics of {len(recorded.models)} models come out the same"


def _again(table: Path, recorded: Evaluation) -> str:
    """The metrics of stored predictions, computed again by what was asked for."""
    if not table.is_file():
        raise _Missing(f"{table} is not there")
    left = ("table", "rounds", "out", "progress")
    options = {key: value for key, value in recorded.options.items() if key not in left}
    return _metrics(evaluate(table, **options, rounds=ROUNDS), recorded)


def _measured(folder: Path, result: Any) -> Iterator[Check]:
    """An evaluation, or an experiment, which keeps no predictions."""
    table = result.options.get("table") if isinstance(result, Evaluation) else None
    yield _tried("metrics", lambda: _again(Path(table or "what they are computed from"), result))


def _train(folder: Path, result: TrainResult) -> Iterator[Check]:
    for check in _files(folder / "evaluation"):
        yield replace(check, name=f"evaluation/{check.name}")
    yield _tried("metrics of test.parquet", lambda: _again(folder / "test.parquet", result.evaluation))
    yield _tried("predictions", lambda: _predictions(folder, result))


def _predictions(folder: Path, result: TrainResult) -> str:
    """That the stored model gives the stored predictions for a sample of the test rows in the store."""
    if not (folder / "store").is_dir():
        raise _Missing("the store is gone")
    store, test = Store(folder / "store", verify=True), pl.read_parquet(folder / "test.parquet")
    _demand(
        len(test) == store.splits["test"], f"test.parquet has {len(test):,} rows, the store {store.splits['test']:,}"
    )
    rows = np.unique(np.linspace(0, len(test) - 1, min(len(test), SAMPLE)).astype(int))
    clicks = store.column("test", "clicks")[rows]
    _demand(bool((clicks == test["click"].to_numpy()[rows]).all()), "clicks of test.parquet and of the store differ")
    there = test[result.chosen].to_numpy()[rows]
    found = load_model(folder).ctr(store.column("test", "features")[rows])
    off = int((~np.isclose(found, there, rtol=NEAR, atol=1e-9)).sum())
    _demand(
        not off,
        f"the model predicts {off:,} of {len(rows):,} test rows otherwise, by {np.abs(found - there).max():.2g}",
    )
    return f"the model gives them again for {len(rows):,} test rows, to {np.abs(found - there).max():.1g}"


def _fit(folder: Path, result: Any) -> Iterator[Check]:
    """A training has its curve and its weights."""

    def curve() -> str:
        lines = pl.read_ndjson(folder / "metrics.jsonl").to_dicts()
        for name, best in result.best.items():
            at = [line[name] for line in lines if line["epoch"] == best.epoch]
            _demand(isinstance(best.epoch, list) or best.value in at, f"{name} of epoch {best.epoch} is another")
        return "the best epochs are those of result.json"

    def weights() -> str:
        tensors = load(folder / "model.pt")
        bad = [key for key, x in tensors.items() if x.is_floating_point() and not bool(torch.isfinite(x).all())]
        _demand(not bad, f"not finite: {', '.join(bad)}")
        return f"{len(tensors)} tensors, all of them finite"

    yield _tried("metrics.jsonl", curve)
    yield _tried("model.pt", weights)
