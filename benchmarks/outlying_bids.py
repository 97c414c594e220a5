"""What a few absurd bids among training ads do to models: 5 of 1e6 in 60,000 ads with a median of 0.3; test has none.

Bids are as `bidwise train` takes them ("capped"), divided by their plain mean ("mean"), or divided as now but in full
("scaled"). Shares of the optimal welfare of test ads by their true CTR, mean over worlds; `log_plus` with two weights.

    python -m benchmarks.outlying_bids
"""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from typing import Any

import numpy as np
import polars as pl

from bidwise.table import prepare, train

WORLDS, ADS, ABSURD, FIELDS, VALUES = 4, 60_000, 5, 6, 20
LOSSES = (("log_loss", None), ("log_plus", 0.3), ("log_plus", 3.0), ("bid_weighted", None))
plain_columns, CAP = prepare._Rows.stored, prepare.CAP


def world(seed: int, absurd: int, spread: float) -> pl.DataFrame:
    """Ads whose logit has products of fields, which a logistic regression misses; bids depend on the fields too."""
    random = np.random.default_rng(seed)
    fields = random.integers(0, VALUES, (ADS, FIELDS))
    main, crossed = (
        np.stack([random.normal(size=VALUES)[fields[:, k]] for k in range(FIELDS)]) / FIELDS**0.5 for _ in range(2)
    )
    logit = -3 + 0.7 * main.sum(0) + FIELDS**0.5 * (crossed * np.roll(crossed, 1, 0)).sum(0)
    level = sum(random.normal(size=VALUES)[fields[:, k]] for k in range(FIELDS)) / FIELDS**0.5
    bids = 0.3 * np.exp(0.7 * spread * (level + random.normal(size=ADS)))
    truth = 1 / (1 + np.exp(-logit))
    clicks = random.random(ADS) < truth
    bids[random.choice(int(0.8 * ADS), absurd, replace=False)] = 1e6  # in the oldest ads, which train
    columns = {f"field_{k}": fields[:, k].astype(str) for k in range(FIELDS)}
    return pl.DataFrame(columns | {"bid": bids, "click": clicks, "truth": truth, "time": np.arange(ADS)})


def share_of_optimum(table: pl.DataFrame, bids: str, loss: str, lam: float | None) -> float:
    """Of the welfare that the true CTR has on test ads."""

    def in_full(columns: Any, rows: Any) -> Any:
        return plain_columns(columns, rows) | {"bids": columns["bid"][rows] / columns.mean_bid}

    prepare.CAP = math.inf if bids == "mean" else CAP
    prepare._Rows.stored = in_full if bids == "scaled" else plain_columns
    roles = {"click": "click", "bid": "bid", "truth": "truth", "time": "time"}
    with tempfile.TemporaryDirectory() as folder:
        told = {"model": "logistic_regression", "loss": loss, "lam": lam, "epochs": 5, "schedule": "constant"}
        told |= {"l2": 0.0, "calibrate": False}
        found = train(table, out=f"{folder}/run", **roles, **told).evaluation
    assert found.optimal_welfare is not None
    return found.models[loss].welfare / found.optimal_welfare


def main() -> None:
    for spread in (0.7, 1.5):
        shares: dict[tuple[str, int], list[list[float]]] = defaultdict(list)
        for seed in range(WORLDS):
            for bids, absurd in (("mean", 0), ("capped", 0), ("mean", ABSURD), ("scaled", ABSURD), ("capped", ABSURD)):
                table = world(seed, absurd, spread)
                shares[bids, absurd].append([share_of_optimum(table, bids, *each) for each in LOSSES])
        print(f"sigma {spread}: " + ", ".join(f"{loss} {lam or ''}".strip() for loss, lam in LOSSES))
        for (bids, absurd), found in shares.items():
            numbers = ", ".join(f"{100 * share:.2f} %" for share in np.mean(found, 0))
            print(f"  {absurd} absurd bids, {bids}: {numbers}", flush=True)


if __name__ == "__main__":
    main()
