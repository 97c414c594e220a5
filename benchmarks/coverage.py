"""How often a 95 % interval for the welfare difference covers the true one, over real auctions in simulated markets.

Every simulation draws ads, clicks and the predictions of two models, runs their auctions and takes an interval; the
truth is the mean over all simulations. `benchmarks.pooled` measures intervals over ads, pools and clusters.

    python -m benchmarks.coverage
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

import bidwise
from benchmarks.harness import write
from benchmarks.table import write_page
from bidwise.evaluation import unit_interval
from bidwise.evaluation.comparison import CHANGED, DECISIVE

SIMULATIONS, AT_ONCE, ADS = 2_000, 100, 5


@dataclass(frozen=True)
class World:
    """Ads whose logits are normal around ``rate``; a model adds its own noise; an auction has five ads."""

    name: str
    auctions: int
    rate: float = -1.0
    noise: tuple[float, float] = (0.5, 0.5)  # of the model and of the baseline
    bids: float = 0.5  # standard deviation of the logarithm
    shared: float = 0.0  # noise that both models have

    def differences(self, seed: int, simulations: int) -> tuple[np.ndarray, np.ndarray]:
        """Realised welfare of the model minus that of the baseline, and whether the winner differs.

        Both ``(auctions, simulations)``.
        """
        random = torch.Generator().manual_seed(seed)
        ads = self.auctions * simulations * ADS

        def normal() -> torch.Tensor:
            return torch.randn(ads, generator=random, dtype=torch.float64)

        logits, bids, shared = self.rate + normal(), torch.exp(self.bids * normal()), self.shared * normal()
        clicks = (torch.rand(ads, generator=random, dtype=torch.float64) < torch.sigmoid(logits)).double()
        offsets = ADS * torch.arange(self.auctions * simulations + 1)
        sold = [
            bidwise.run_auction(torch.sigmoid(logits + shared + noise * normal()), bids, offsets)
            for noise in self.noise
        ]
        welfare = [outcome.welfare(clicks, bids) for outcome in sold]
        decisive = (sold[0].winners != sold[1].winners).any(1)
        return tuple(x.view(self.auctions, simulations).numpy() for x in (welfare[0] - welfare[1], decisive))  # type: ignore[return-value]


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


def batches(world: World) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    for seed in range(SIMULATIONS // AT_ONCE):
        yield seed, *world.differences(seed, AT_ONCE)


def coverage(world: World) -> dict[str, object]:
    """Share of the simulations whose interval covers the mean over all simulations: of all, and of those with enough
    decisive auctions for a verdict."""
    drawn = list(batches(world))
    truth = float(np.mean([d.mean() for _, d, _ in drawn]))
    intervals = [unit_interval(column) for _, d, _ in drawn for column in d.T]
    covered = np.array([x.low <= truth <= x.high for x in intervals])
    decisive, changed = (
        np.concatenate([x.sum(0) for x in each]) for each in zip(*((c, d != 0) for _, d, c in drawn), strict=True)
    )
    enough = (decisive >= DECISIVE) & (changed >= CHANGED)
    return {
        "world": world.name,
        "auctions": world.auctions,
        "decisive": float(decisive.mean()),
        "changed": float(changed.mean()),
        "true_difference": truth,
        "simulations": SIMULATIONS,
        "too_few": 1 - float(enough.mean()),
        "covered": float(covered.mean()),
        "covered_where_enough": float(covered[enough].mean()) if enough.any() else math.nan,
    }


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
