"""How often a 95 % interval for the welfare difference holds the true one, in worlds where that is known.

Every simulation draws ads, clicks and the predictions of two models, runs their auctions and asks for an interval; the
truth is the mean over all simulations. Ours is `bidwise.evaluation.auction_intervals`; its rivals use the same draws.

    python -m benchmarks.coverage
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch

import bidwise
from benchmarks.harness import write
from benchmarks.table import write_page
from bidwise.evaluation import auction_intervals, student_quantile

SIMULATIONS, AT_ONCE, ADS, ROUNDS = 2_000, 100, 5, 399


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


def rivals(d: np.ndarray, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Intervals by other methods, ``(simulations,)`` bounds each."""
    auctions = len(d)
    random = np.random.default_rng(seed)
    times = random.multinomial(auctions, np.full(auctions, 1 / auctions), size=ROUNDS).astype(np.float64)
    mean, error = d.mean(0), d.std(0, ddof=1) / math.sqrt(auctions)
    drawn = times @ d / auctions
    spread = np.sqrt(np.maximum(times @ d**2 / auctions - drawn**2, 0) / auctions)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(drawn == mean, 0, (drawn - mean) / spread)
    low_t, high_t = np.quantile(t, [0.025, 0.975], axis=0, method="nearest")
    half = student_quantile(0.975, auctions - 1) * error
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    with np.errstate(invalid="ignore"):
        studentised = np.nan_to_num(mean - high_t * error, nan=0.0), np.nan_to_num(mean - low_t * error, nan=0.0)
    return {
        "studentised": studentised,
        "bca": bias_corrected(d, drawn),
        "percentile": (low, high),
        "t": (mean - half, mean + half),
    }


def bias_corrected(d: np.ndarray, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """BCa: percentiles moved by the bias of the bootstrap means and by the skewness of the differences."""
    normal = NormalDist()
    residual = d - d.mean(0)
    square = (residual**2).sum(0)
    skewness = np.where(square > 0, (residual**3).sum(0) / (6 * np.where(square > 0, square, 1) ** 1.5), 0)
    below = ((drawn < d.mean(0)).mean(0) + (drawn <= d.mean(0)).mean(0)) / 2
    bounds = []
    for share in (0.025, 0.975):
        ends = []
        for column, (part, skew) in enumerate(zip(below.clip(0.5 / ROUNDS, 1 - 0.5 / ROUNDS), skewness, strict=True)):
            bias = normal.inv_cdf(part)
            z = bias + normal.inv_cdf(share)
            ends.append(np.quantile(drawn[:, column], normal.cdf(bias + z / (1 - skew * z))))
        bounds.append(np.array(ends))
    return bounds[0], bounds[1]


def batches(world: World) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    for seed in range(SIMULATIONS // AT_ONCE):
        yield seed, *world.differences(seed, AT_ONCE)


def coverage(world: World) -> dict[str, object]:
    """Share of the simulations whose interval holds the mean over all simulations, by method."""
    drawn = list(batches(world))
    truth = float(np.mean([d.mean() for _, d, _ in drawn]))
    held: dict[str, list[np.ndarray]] = {}
    for seed, d, _ in drawn:
        ours = auction_intervals(d, rounds=ROUNDS, seed=seed)
        bounds = {"ours": (np.array([x.low for x in ours]), np.array([x.high for x in ours])), **rivals(d, seed)}
        for name, (low, high) in bounds.items():
            held.setdefault(name, []).append((low <= truth) & (truth <= high))
    return {
        "world": world.name,
        "auctions": world.auctions,
        "decisive": float(np.mean([decisive.sum(0).mean() for _, _, decisive in drawn])),
        "changed": float(np.mean([(d != 0).sum(0).mean() for _, d, _ in drawn])),
        "true_difference": truth,
        "simulations": SIMULATIONS,
        **{name: float(np.mean(shares)) for name, shares in held.items()},
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
