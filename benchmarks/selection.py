"""How much true welfare is lost by what epoch and lam are selected by: one cut, pooled welfare, log loss.

Models are trained with log loss and with log_plus at several lam, and measured on validation ads within the training.
Each way of selecting keeps one (lam, epoch); what it lost is the true welfare (all auctions of the test ads, by their
true CTR) that selecting by the truth of the validation ads would have reached, in per cent.

    python -m benchmarks.selection [cpu|cuda] [REPEATS]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness import write
from bidwise.data.ads import Ads
from bidwise.data.worlds import WORLDS
from bidwise.evaluation.intervals import unit_interval
from bidwise.evaluation.pooled import pooled_welfare
from bidwise.models import MLP
from bidwise.study.recipe import Recipe
from bidwise.training.validation import METRICS, Metric, mean_welfare, predict
from paper.criteo_device import simulated_ads
from paper.grids import grid

LAMS = (0.1, 1.0, 10.0, 100.0)
SELECTIONS = ("one cut", "welfare", "log_loss", "expected_welfare")


@dataclass(frozen=True)
class Case:
    """A world, drawn anew for every repeat: training, validation and test ads, and a model for them."""

    name: str
    size: int
    recipe: Recipe

    def ads(self, seed: int, device: str) -> tuple[list[Ads], Any]:
        """The three splits, and what a model is built from."""
        if self.name == "criteo":
            drawn = simulated_ads(1_000_000, seed=seed, device=device)
            return [drawn.train, drawn.valid, drawn.test], drawn.cardinalities
        random = torch.Generator().manual_seed(seed)
        market = WORLDS[self.name].market(random)
        return [market.ads(count, random).to(device) for count in (20_000, 20_000, 200_000)], None

    def model(self, made_of: Any, seed: int, device: str) -> nn.Module:
        if self.name == "criteo":
            return self.recipe.build(made_of, seed).to(device)
        return MLP(WORLDS[self.name].features, (32,), seed=seed).to(device)


CASES = [
    Case("criteo", 256, Recipe(epochs=3, every=0.25, batch_size=2048)),
    Case("misspecified", 50, Recipe(epochs=20, every=1, batch_size=512)),
    Case("misspecified_rare", 50, Recipe(epochs=20, every=1, batch_size=512)),
]


def one_cut(size: int) -> Metric:
    """Clicked welfare of one random cut into auctions."""

    def of(logits: Tensor, ads: Ads) -> Tensor:
        random = torch.Generator().manual_seed(0)
        rows = torch.randperm(len(ads), generator=random)[: len(ads) // size * size].to(logits.device)
        bids = ads.bids[rows]
        return mean_welfare(logits[rows], bids * ads.clicks[rows], bids, size * torch.arange(len(rows) // size + 1))

    return Metric("one cut", True, of)


def trained(case: Case, seed: int, device: str) -> Iterator[dict[str, tuple[float, float]]]:
    """For each recipe: selection -> (value on validation, true welfare on test)."""
    (train, valid, test), made_of = case.ads(seed, device)
    valid = replace(valid, auction_size=case.size)
    metrics = [one_cut(case.size), *(METRICS[name] for name in SELECTIONS[1:])]
    for recipe in grid(case.recipe, ["log_loss", "log_plus"], LAMS):
        model = case.model(made_of, seed, device)
        fitted = recipe.fit(model, train, valid=valid, metric=metrics, seed=seed)
        found = {}
        for name, best in fitted.best.items():
            model.load_state_dict(best.state)
            truth = pooled_welfare(predict(model, test), test.truth, test.bids, case.size)
            found[name] = (float(best.value), truth)
        yield found


def measured(case: Case, repeats: int, device: str) -> list[dict[str, Any]]:
    """Welfare lost by each way of selecting, in per cent: epochs of the log loss, and lam with its epochs."""
    lost: dict[tuple[str, str], list[float]] = {}
    for seed in range(repeats):
        log_loss, *by_lam = trained(case, seed, device)
        for what, tried in (("epoch of log loss", [log_loss]), ("epoch and lam of log_plus", by_lam)):
            chosen = {}
            for selection in SELECTIONS:
                sign = -1 if selection == "log_loss" else 1
                chosen[selection] = max((each[selection] for each in tried), key=lambda pair: sign * pair[0])[1]
            for selection in SELECTIONS[:-1]:
                loss = 100 * (1 - chosen[selection] / chosen["expected_welfare"])
                lost.setdefault((what, selection), []).append(loss)
    rows = []
    for (what, selection), losses in lost.items():
        interval = unit_interval(losses)
        row = {"world": case.name, "selected": what, "by": selection, "repeats": repeats, "lost": interval.estimate}
        rows.append(row | {"ci_low": interval.low, "ci_high": interval.high, "worst": float(np.max(losses))})
    return rows


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    rows = []
    for case in CASES:
        rows += measured(case, repeats, device)
        for row in rows[-6:]:
            print("  ".join(f"{k} {x:.4g}" if isinstance(x, float) else f"{x}" for k, x in row.items()), flush=True)
        write("selection", rows, device=device)


if __name__ == "__main__":
    main()
