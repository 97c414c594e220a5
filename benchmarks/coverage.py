"""How often 95 % intervals cover the truth over real auctions in simulated markets: of the welfare difference between
two models, and of the welfare, revenue, AUC and log loss of one.

Every simulation draws ads, clicks and the predictions of two models, runs their auctions and takes intervals; the
truth is the mean over all simulations. `benchmarks.pooled` measures intervals over ads and clusters.

    python -m benchmarks.coverage
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

import bidwise
from benchmarks.harness import write
from benchmarks.table import write_page
from bidwise.evaluation import Interval, level_interval, unit_interval
from bidwise.evaluation.auc import auc_values
from bidwise.evaluation.comparison import CHANGED, DECISIVE
from bidwise.evaluation.metrics import log_losses

SIMULATIONS, AT_ONCE, ADS = 2_000, 100, 5
LEVELS = ("welfare", "revenue", "auc", "log_loss")


@dataclass(frozen=True)
class World:
    """Ads whose logits are normal around ``rate``; a model adds its own noise; an auction has five ads."""

    name: str
    auctions: int
    rate: float = -1.0
    noise: tuple[float, float] = (0.5, 0.5)  # of the model and of the baseline
    bids: float = 0.5  # standard deviation of the logarithm
    shared: float = 0.0  # noise that both models have

    def draw(self, seed: int, simulations: int) -> dict[str, np.ndarray]:
        """What each auction adds, ``(simulations, auctions)``: to the welfare of the model minus that of the baseline,
        whether the winner differs, and to each metric of the model."""
        random = torch.Generator().manual_seed(seed)
        ads = self.auctions * simulations * ADS

        def normal() -> torch.Tensor:
            return torch.randn(ads, generator=random, dtype=torch.float64)

        logits, bids, shared = self.rate + normal(), torch.exp(self.bids * normal()), self.shared * normal()
        clicks = (torch.rand(ads, generator=random, dtype=torch.float64) < torch.sigmoid(logits)).double()
        offsets = ADS * torch.arange(self.auctions * simulations + 1)
        ctr = [torch.sigmoid(logits + shared + noise * normal()) for noise in self.noise]
        sold = [bidwise.run_auction(each, bids, offsets) for each in ctr]
        welfare = [outcome.welfare(clicks, bids) for outcome in sold]
        losses, areas = _predictions(ctr[0].view(simulations, -1).numpy(), clicks.view(simulations, -1).numpy())
        columns = {
            "difference": welfare[0] - welfare[1],
            "decisive": (sold[0].winners != sold[1].winners).any(1),
            "welfare": welfare[0],
            "revenue": sold[0].revenue(clicks),
        }
        seen = {name: column.view(simulations, self.auctions).numpy() for name, column in columns.items()}
        per_ad = {"log_loss": losses, "auc": areas}
        return seen | {name: x.reshape(simulations, self.auctions, ADS).mean(2) for name, x in per_ad.items()}


def _predictions(ctr: np.ndarray, clicks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The log loss of every ad, and what it adds to the AUC of its simulation; both ``(simulations, ads)``."""
    areas = np.empty_like(ctr)
    for row, own, clicked in zip(areas, ctr, clicks, strict=True):
        order = np.argsort(own)
        row[order] = auc_values(own[order], clicked[order] > 0)[1]
    return log_losses(ctr, clicks), areas


WORLDS = [
    World("equal models", 400),
    World("equal models, rare clicks", 4_000, rate=-4.0),
    World("equal models, heavy bids", 400, bids=1.0),
    World("better model", 300, noise=(0.2, 1.0)),
    World("better model, rare clicks", 4_000, rate=-4.0, noise=(0.2, 1.0)),
    World("useless baseline", 200, noise=(0.0, 9.0)),
    World("useless baseline, heavy bids", 200, noise=(0.0, 9.0), bids=1.0),
    World("useless baseline, rare clicks", 2_000, rate=-4.0, noise=(0.0, 9.0)),
    World("equal models, very heavy bids", 700, bids=2.0),
    World("useless baseline, very heavy bids", 300, noise=(0.0, 9.0), bids=2.0),
    World("better model, hardly a click", 1_000, rate=-7.0, noise=(0.2, 1.0)),
    World("hardly different models", 2_000, noise=(0.01, 0.02), shared=0.5),
    World("hardly different, 10 decisive", 300, noise=(0.03, 0.03), shared=0.5),
    World("10 decisive, rare clicks", 300, rate=-4.0, noise=(0.03, 0.03), shared=0.5),
]


def coverage(world: World) -> dict[str, object]:
    """Share of the simulations whose interval covers the mean over all simulations: of all, and of those with enough
    decisive auctions for a verdict; and of each metric of the model."""
    drawn = [world.draw(seed, AT_ONCE) for seed in range(SIMULATIONS // AT_ONCE)]
    seen = {name: np.concatenate([each[name] for each in drawn]) for name in drawn[0]}
    differences = seen["difference"]
    decisive, changed = seen["decisive"].sum(1), (differences != 0).sum(1)
    covered = _covered([unit_interval(row) for row in differences], differences)
    enough = (decisive >= DECISIVE) & (changed >= CHANGED)
    levels = {}
    for name in LEVELS:
        clear = ~np.isnan(seen[name]).any(1)
        rows = seen[name][clear]
        levels[f"{name}_covered"] = float(
            _covered([level_interval(row, bounded=name == "auc") for row in rows], rows).mean()
        )
    return {
        "world": world.name,
        "auctions": world.auctions,
        "decisive": float(decisive.mean()),
        "changed": float(changed.mean()),
        "true_difference": float(differences.mean()),
        "simulations": SIMULATIONS,
        "too_few": 1 - float(enough.mean()),
        "covered": float(covered.mean()),
        "covered_where_enough": float(covered[enough].mean()) if enough.any() else math.nan,
        "clicks_shown": float((seen["welfare"] > 0).sum(1).mean()),
        **levels,
    }


def _covered(intervals: list[Interval], rows: np.ndarray) -> np.ndarray:
    """Which intervals cover the mean over all simulations."""
    truth = rows.mean()
    return np.array([x.low <= truth <= x.high for x in intervals])


def main() -> None:
    rows = []
    for world in WORLDS:
        rows.append(coverage(world))
        print(
            "  ".join(f"{key} {x:.4g}" if isinstance(x, float) else f"{x}" for key, x in rows[-1].items()), flush=True
        )
    write("coverage", rows)
    print(write_page())


if __name__ == "__main__":
    main()
