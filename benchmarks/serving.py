"""What scoring an auction takes, of 1, 100 and 20,000 ads, from columns of Python lists to CTR, on one core.

Ads and ids are the same for all methods; agreement is asserted first. Methods of one model take turns.
Times are CPU time of the process, all of it on one core: what an idle core would take, on a machine that is not idle.
``encoding`` says whether the way from values to what the model takes is in the time: ids for ours, for LightGBM the
smoothed click rate of every value by the same kind of look-up, in Python's own dictionaries.

    pip install -c constraints.txt -e '.[onnx,rivals]'
    python -m benchmarks.serving
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

import bidwise
from benchmarks.harness import write
from benchmarks.made_tables import COLUMNS, NUMBERS
from benchmarks.rivals import ONE_CORE, Rows, target_encoded
from bidwise.bridges.onnx_export import export_onnx
from bidwise.bridges.scoring import Scorer
from bidwise.table.model import Model

REPEATS = {1: 1000, 100: 1000, 20_000: 5}  # auctions of so many ads
RECIPES = {"dcnv2": "single", "4 dcnv2": "ensemble"}
SMOOTH, LEAVES = 100, 4  # of LightGBM: what benchmarks.rivals chose

Columns = dict[str, list[Any]]
Method = Callable[["Ads"], Any]


class Trees:
    """LightGBM with the setting that benchmarks.rivals chose for this table, and its encodings in dictionaries."""

    def __init__(self, rows: Rows) -> None:
        import lightgbm

        train, valid, test = target_encoded(rows.train, [rows.valid, rows.test], SMOOTH, rows.seed)
        self.mean = float(rows.clicks.mean())
        self.rates = {}
        for name in COLUMNS:
            counts = rows.train.group_by(name).agg(clicks=pl.col("click").sum(), ads=pl.len())
            rate = (counts["clicks"] + SMOOTH * self.mean) / (counts["ads"] + SMOOTH)
            self.rates[name] = dict(zip(counts[name], rate, strict=True))
        np.testing.assert_allclose(self.encode(rows.test.to_dict(as_series=False)), test)
        data = lightgbm.Dataset(train, rows.clicks)
        held_out = lightgbm.Dataset(valid, rows.valid["click"].to_numpy(), reference=data)
        options = {"objective": "binary", "learning_rate": 0.05, "min_data_in_leaf": 100, "num_leaves": LEAVES}
        options |= {"num_threads": 1, "verbose": -1, "seed": 0}
        stop = lightgbm.early_stopping(30, verbose=False)
        self.model = lightgbm.train(options, data, 2000, valid_sets=[held_out], callbacks=[stop])

    def encode(self, columns: Columns) -> NDArray[np.float64]:
        known = [[self.rates[name].get(x, self.mean) for x in columns[name]] for name in COLUMNS]
        return np.array([*known, *(columns[name] for name in NUMBERS)], dtype=np.float64).T

    def predict(self, features: NDArray[np.float64]) -> Any:
        return self.model.predict(features, num_threads=1)


@dataclass(frozen=True)
class Ads:
    """The same ads for every method."""

    columns: Columns
    frame: pl.DataFrame
    ids: NDArray[np.int64]
    rates: NDArray[np.float64]

    @classmethod
    def of(cls, frame: pl.DataFrame, scorer: Scorer, trees: Trees) -> Ads:
        columns = frame.to_dict(as_series=False)
        return cls(columns, frame, scorer.encode(columns), trees.encode(columns))


def ours(model: Model, scorer: Scorer) -> dict[tuple[str, str], Method]:
    """By name, and by whether encoding is included."""
    return {
        ("bidwise.load().predict(dict)", "included"): lambda ads: model.predict(ads.columns),
        ("bidwise.load().predict(polars)", "included"): lambda ads: model.predict(ads.frame),
        ("torch network", "excluded"): lambda ads: model.ctr(ads.ids),
        ("Scorer.score(dict)", "included"): lambda ads: scorer.score(ads.columns),
        ("onnxruntime", "excluded"): lambda ads: scorer.ctr(ads.ids),
    }


def theirs(trees: Trees) -> dict[tuple[str, str], Method]:
    return {
        ("LightGBM", "included"): lambda ads: trees.predict(trees.encode(ads.columns)),
        ("LightGBM", "excluded"): lambda ads: trees.predict(ads.rates),
    }


def timed(method: Method, ads: Ads) -> float:
    start = time.process_time()
    method(ads)
    return 1e3 * (time.process_time() - start)


def main() -> None:
    if os.environ.get("POLARS_MAX_THREADS") != "1":  # which polars reads when it is imported
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.serving"], os.environ | ONE_CORE)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    world = Rows.of("mixed", 0)
    table, test = (frame.drop("truth") for frame in (world.table, world.test))
    trees, columns = Trees(world), len(COLUMNS) + len(NUMBERS)
    models: dict[str, tuple[dict[tuple[str, str], Method], Scorer]] = {}
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, recipe in RECIPES.items():
            out = Path(folder) / recipe
            options = {
                "click": "click",
                "bid": "bid",
                "model": "dcnv2",
                "recipe": recipe,
                "epochs": 1,
                "budget_seconds": 0.0,
            }
            bidwise.table.train(table, out=out, **options)
            export_onnx(out, out / "ctr.onnx")
            scorer = Scorer(out / "ctr.onnx")
            models[name] = ours(bidwise.load(out), scorer), scorer
    models[f"{trees.model.best_iteration} trees"] = theirs(trees), scorer  # whose ids they do not read
    for name, (methods, scorer) in models.items():
        for ads, times in REPEATS.items():
            auctions = [Ads.of(test.sample(ads, seed=k), scorer, trees) for k in range(times)]
            first, *others = (method(auctions[0]) for method in methods.values())
            for ctr in others:
                np.testing.assert_allclose(ctr, first, rtol=0, atol=1e-5)
            spent = np.array([[timed(method, auction) for method in methods.values()] for auction in auctions])
            for (method, encoding), (p50, p99) in zip(methods, np.quantile(spent, [0.5, 0.99], axis=0).T, strict=True):
                row: dict[str, object] = {"method": method, "encoding": encoding, "model": name, "columns": columns}
                row |= {"ads": ads, "auctions": times, "ms_p50": float(p50), "ms_p99": float(p99)}
                rows.append(row | {"rows_per_second": float(1e3 * ads / p50)})
                print(rows[-1], flush=True)
    versions = {name: version(name) for name in ("onnxruntime", "polars", "lightgbm")}
    write("serving", rows, clock="CPU time", **versions)


if __name__ == "__main__":
    main()
