"""What the paper leaves open, side by side: its losses against log loss under every reading, in the same markets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import bidwise
from bidwise.run_folder import environment, open_folder
from bidwise.study.recipe import Recipe
from bidwise.workers import Progress
from paper.grids import grid
from paper.members import LAST
from paper.synthetic import ABLATION, BY_TRUTH, LAM, PAPER, Study, checked
from paper.synthetic_results import Losses, ReadingsConfig, ReadingsResult, SyntheticConfig, check_wholes
from paper.tasks import TaskCache

TUNED = {"protocol": "tuned", "patience": 20}
#: By name, what differs from the first: the world `plotted`, means over pairs and ads, 100 epochs, lam = 3, Glorot's
#: initial weights, nothing selected.
READINGS: Mapping[str, dict[str, Any]] = {
    "means, 100 epochs": {},
    "20 epochs": {"epochs": 20},
    "60 epochs": {"epochs": 60},
    "300 epochs": {"epochs": 300},
    "sums": {"sums": True},
    "bids ±2/√10": {"bid_weights": 2 / math.sqrt(10)},
    "bids ±2": {"bid_weights": 2.0},
    "torch's initial weights": {"init": "torch"},
    "best epoch, λ = 3": {**TUNED, "lams": (LAM,)},
    "best epoch and λ": {**TUNED, "lams": (0.3, 3.0, 30.0, 300.0)},
    "as printed": {"reading": "printed", "sums": True},
}


def run(
    config: ReadingsConfig, out: str | Path, *, device: str = "cpu", progress: Progress | None = None
) -> ReadingsResult:
    """Train, measure and write ``result.json``; readings that are already there are not computed again."""
    check_wholes(config, validation_auctions=1, test_auctions=1)
    folder, made_by = open_folder(out, {"experiment": "readings", **asdict(config)}), environment(device)
    losses = (*PAPER, *ABLATION)
    models = [len(grid(Recipe(), losses, changes.get("lams", (LAM,)))) for changes in READINGS.values()]
    cache = TaskCache(folder, progress, expected=sum(models))
    readings: dict[str, Losses] = {}
    for number, (name, changes) in enumerate(READINGS.items()):
        of_reading = checked(SyntheticConfig(**{**asdict(config), "losses": losses, "lams": (LAM,), **changes}))
        study = Study.of(of_reading, device, cache)
        if of_reading.protocol == "tuned":
            recipes, by = study.recipes(of_reading.lams, patience=of_reading.patience), BY_TRUTH
        else:
            recipes, by = study.recipes((LAM,), every=of_reading.epochs, sums=of_reading.sums), LAST
        readings[name] = study.judge(study.train(f"reading-{number:02d}", recipes, by), by)
    result = ReadingsResult(bidwise.__version__, config, readings)
    cache.write(result, made_by)
    return result
