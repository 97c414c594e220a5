"""LightGBM with its own objectives and with ours: share of the optimal welfare, and seconds of training.

Made tables of :mod:`benchmarks.made_tables`, split and target-encoded as in :mod:`benchmarks.rivals`; every method has
the same trees, rounds and auctions of training rows. The scores of all go through Platt's calibration on validation
rows: those of `lambdarank` are no CTR, and an auction needs one. Rounds, and lam and sigma where there are several, are
chosen on validation rows, once by log loss and once by the welfare of clicks. Seconds are CPU seconds of one thread for
100 rounds. Rows measured before are kept: a run that was cut off resumes.

    pip install -c constraints.txt -e '.[rivals]'
    python -m benchmarks.boosting [SEEDS] [WORLDS]      # such as: 0,1,2 tail
    python -m benchmarks.boosting table                 # the table of docs/guides/boosting.md
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

import bidwise
from benchmarks.harness import RESULTS, Machine, read, write
from benchmarks.made_tables import KINDS, make_table
from benchmarks.rivals import Rows, target_encoded
from bidwise.data.splits import split
from bidwise.evaluation import Platt, unit_interval
from bidwise.evaluation.metrics import log_losses

WORLDS = ("mixed", "triples", "tail")
ADS, ROUNDS, EVERY = 120_000, 250, 10
TREES = {"learning_rate": 0.1, "num_leaves": 8, "min_data_in_leaf": 100, "num_threads": 1, "verbose": -1}
BASELINE = "binary"

Columns = NDArray[np.float64]


@dataclass(frozen=True)
class Method:
    """A LightGBM objective by name, or a loss of ours by name with the settings that are tried."""

    title: str
    lightgbm: str = ""
    loss: str = ""
    bid_weights: bool = False
    settings: tuple[dict[str, float], ...] = field(default_factory=lambda: ({},))


METHODS = {
    BASELINE: Method("LightGBM `binary`", "binary"),
    "binary_bids": Method("LightGBM `binary`, weights = bids", "binary", bid_weights=True),
    "lambdarank": Method("LightGBM `lambdarank`", "lambdarank"),
    "log_loss": Method("`log_loss`", loss="log_loss"),
    "sqrt_bid_weighted": Method("`sqrt_bid_weighted`", loss="sqrt_bid_weighted"),
    "log": Method("`log`", loss="log", settings=({"lam": 0.3},)),
    "ranknet": Method("`ranknet`", loss="ranknet", settings=({"lam": 0.3}, {"lam": 0.3, "sigma": 10})),
    "log_plus": Method(
        "`log_plus`", loss="log_plus", settings=({"lam": 0.03}, {"lam": 0.3}, {"lam": 0.03, "sigma": 10})
    ),
}


@dataclass(frozen=True)
class Data:
    """One table, encoded."""

    rows: Rows
    train: Columns
    valid: Columns
    test: Columns

    @classmethod
    def of(cls, world: str, seed: int) -> Data:
        table = make_table(world, seed)[:ADS]
        size = KINDS[world].size
        parts = [table[part.rows] for part in split(len(table), auction=None, time=None, seed=seed).values()]
        parts[0] = parts[0][: len(parts[0]) // size * size]  # whole auctions
        rows = Rows(table, *parts, size, seed)
        return cls(rows, *target_encoded(rows.train, [rows.valid, rows.test], 100, seed))


@dataclass(frozen=True)
class Point:
    """A setting after some rounds."""

    setting: str
    log_loss: float  # on validation, calibrated
    clicked: float  # welfare on validation, by clicks
    share: float  # of the optimal welfare on test
    test_log_loss: float


def points(method: Method, data: Data, settings: dict[str, float]) -> Iterator[tuple[Point, float]]:
    """Every :data:`EVERY` rounds what was reached, and the CPU seconds of training up to there."""
    rows, size, spent = data.rows, data.rows.size, 0.0
    bids = rows.train["bid"].to_numpy()
    offsets = np.arange(0, len(bids) + 1, size)
    objective: Any = method.lightgbm
    if method.loss:
        start = float(rows.clicks.mean())
        objective = bidwise.welfare_objective(bids / bids.mean(), offsets, loss=method.loss, start=start, **settings)
    frame = lightgbm.Dataset(
        data.train, rows.clicks, weight=bids if method.bid_weights else None, group=np.diff(offsets)
    )
    booster = lightgbm.Booster(TREES | {"objective": "none" if method.loss else objective, "seed": rows.seed}, frame)
    scores = {name: np.zeros(len(x)) for name, x in (("valid", data.valid), ("test", data.test))}
    if method.loss:
        scores = {name: x + np.log(start / (1 - start)) for name, x in scores.items()}
    clicks, truth, paid = (
        {name: frame[column].to_numpy() for name, frame in (("valid", rows.valid), ("test", rows.test))}
        for column in ("click", "truth", "bid")
    )
    best = bidwise.pooled_welfare(truth["test"], truth["test"], paid["test"], size)
    for done in range(EVERY, ROUNDS + 1, EVERY):
        before = time.process_time()
        for _ in range(EVERY):
            booster.update(fobj=objective if method.loss else None)
        spent += time.process_time() - before
        for name, x in (("valid", data.valid), ("test", data.test)):
            scores[name] += booster.predict(x, raw_score=True, start_iteration=done - EVERY, num_iteration=EVERY)
        raw = {name: bidwise.boosted_ctr(x) for name, x in scores.items()}
        fitted = Platt.fit(raw["valid"], clicks["valid"])
        ctr = {name: fitted(x) for name, x in raw.items()}
        yield (
            Point(
                ", ".join(f"{key}={x:g}" for key, x in (settings | {"rounds": done}).items()),
                float(log_losses(ctr["valid"], clicks["valid"]).mean()),
                bidwise.pooled_welfare(ctr["valid"], clicks["valid"], paid["valid"], size),
                bidwise.pooled_welfare(ctr["test"], truth["test"], paid["test"], size) / best,
                float(log_losses(ctr["test"], clicks["test"]).mean()),
            ),
            spent,
        )


def measured(name: str, data: Data) -> dict[str, str]:
    """What the choice on validation rows gives on test rows."""
    found: list[Point] = []
    seconds = []
    for settings in METHODS[name].settings:
        steps = list(points(METHODS[name], data, settings))
        found += [point for point, _ in steps]
        seconds.append(100 * steps[-1][1] / ROUNDS)
    by_loss, by_welfare = min(found, key=lambda p: p.log_loss), max(found, key=lambda p: p.clicked)
    return {
        "method": name,
        "by_log_loss": f"{100 * by_loss.share:.2f}",
        "by_welfare": f"{100 * by_welfare.share:.2f}",
        "log_loss": f"{by_loss.test_log_loss:.5f}",
        "seconds_100_rounds": f"{np.mean(seconds):.2f}",
        "setting_by_log_loss": by_loss.setting,
        "setting_by_welfare": by_welfare.setting,
        "rows": f"{len(data.rows.table)}",
        "size": f"{data.rows.size}",
        "package": f"lightgbm {lightgbm.__version__}",
        **{key: f"{value}" for key, value in asdict(Machine()).items()},
    }


def known() -> list[dict[str, str]]:
    """The rows measured before."""
    return read("boosting") if (RESULTS / "boosting.csv").exists() else []


def markdown() -> Iterator[str]:
    """Shares by world, then the difference to the baseline over all tables, with its t interval."""
    rows = known()
    by = {(row["method"], row["world"], row["seed"]): row for row in rows}
    cells = [(row["world"], row["seed"]) for row in rows if row["method"] == BASELINE]
    cells = [cell for cell in cells if all((name, *cell) in by for name in METHODS)]
    yield f"| objective | {' | '.join(f'`{w}`' for w in WORLDS)} | − `binary` | − `binary`, chosen by welfare | s |"
    yield "|---" * (len(WORLDS) + 4) + "|"
    for name, method in METHODS.items():

        def share(cell: tuple[str, str], which: str, name: str = name) -> float:
            return float(by[(name, *cell)][which])

        means = [np.mean([share(cell, "by_log_loss") for cell in cells if cell[0] == world]) for world in WORLDS]
        gains = []
        for which in ("by_log_loss", "by_welfare"):
            apart = unit_interval([share(cell, which) - share(cell, "by_log_loss", BASELINE) for cell in cells])
            gains.append(f"{apart.estimate:+.2f} [{apart.low:+.2f}, {apart.high:+.2f}]".replace("-", "−"))
        seconds = np.mean([float(by[(name, *cell)]["seconds_100_rounds"]) for cell in cells])
        if name == BASELINE:
            gains[0] = ""
        yield f"| {method.title} | {' | '.join(f'{x:.2f}' for x in means)} | {' | '.join(gains)} | {seconds:.1f} |"


def main() -> None:
    if sys.argv[1:] == ["table"]:
        print("\n".join(markdown()))
        return
    warnings.simplefilter("ignore")
    seeds, worlds = ([text.split(",") for text in sys.argv[1:]] + [["0", "1", "2"], [*WORLDS]][len(sys.argv) - 1 :])[:2]
    for seed, world in ((s, w) for s in seeds for w in worlds):
        here = {row["method"] for row in known() if (row["world"], row["seed"]) == (world, seed)}
        data = Data.of(world, int(seed)) if not here.issuperset(METHODS) else None
        for name in METHODS if data else ():
            if data and name not in here:
                row = {"world": world, "seed": seed, **measured(name, data)}
                print("  ".join(f"{key} {row[key]}" for key in [*row][:9]), flush=True)
                write("boosting", [*known(), row])


if __name__ == "__main__":
    main()
