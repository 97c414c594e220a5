"""Pooled welfare in worlds whose truth is known: do its intervals hold it, and what does it see that one cut does not?

Every simulation draws ads, clicks and the predictions of two models; the truth is the mean difference over all of them.
Simulations run side by side, each a pool of its own. Power is at equal coverage: the share of simulations that find the
true difference with an estimate whose interval is 1.96 of its real standard deviations wide.

    python -m benchmarks.pooled [cpu|cuda]
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import write
from bidwise.evaluation.comparison import EFFECTIVE
from bidwise.evaluation.intervals import student_quantile
from bidwise.evaluation.pooled import Pool

SIMULATIONS, ADS_AT_ONCE, CUTS = 2_000, 2**20, 20


@dataclass(frozen=True)
class World:
    """Ads whose logits are normal around ``rate``; each model adds its own noise, of an ad and of its cluster."""

    name: str
    size: int
    rate: float = -3.0
    noise: tuple[float, float] = (0.6, 0.6)  # of the model and of the baseline
    bids: float = 0.7  # standard deviation of the logarithm
    ads: int = 20_000
    clusters: int = 0
    shared: float = 0.0  # noise that the ads of a cluster share

    @property
    def equal(self) -> bool:
        """Whether no model is better."""
        return self.noise[0] == self.noise[1]


WORLDS = [
    World("equal models, m = 4", 4),
    World("equal models, m = 32", 32),
    World("equal models, rare clicks, m = 256", 256, rate=-5.5),
    World("equal models, heavy bids", 32, bids=1.5),
    World("equal models, very heavy bids", 32, bids=2.0),
    World("equal models, 100 clusters", 32, clusters=100, shared=0.6, noise=(0.3, 0.3)),
    World("equal models, 20 clusters", 32, clusters=20, shared=0.6, noise=(0.3, 0.3)),
    World("equal models, hardly a click", 32, rate=-7.5),
    World("better model, m = 4", 4, noise=(0.5, 0.8)),
    World("better model, m = 32", 32, noise=(0.5, 0.8)),
    World("better model, m = 256", 256, noise=(0.5, 0.8)),
    World("better model, m = 1,024", 1024, noise=(0.5, 0.8)),
    World("better model, rare clicks", 32, rate=-5.5, noise=(0.5, 1.0)),
    World("better model, heavy bids", 32, bids=1.5, noise=(0.5, 0.8)),
    World("better model, very heavy bids", 32, bids=2.0, noise=(0.5, 0.8)),
    World("better model, 100 clusters", 32, clusters=100, shared=0.6, noise=(0.3, 0.5)),
    World("better model, heavy bids, rare clicks", 32, rate=-4.5, bids=1.5, noise=(0.5, 1.0)),
    World("better model, very heavy bids, 100,000 ads", 32, ads=100_000, rate=-4.5, bids=2.0, noise=(0.5, 1.0)),
    World("better model, 100,000 ads, rare clicks", 32, ads=100_000, rate=-5.5, noise=(0.5, 0.8)),
]


def simulated(world: World, many: int, random: torch.Generator, cuts: int = 0) -> dict[str, Tensor]:
    """``many`` data sets at once, each ``(many,)``: estimates, standard errors, effective clicks, and means of cuts."""
    device, shape = random.device, (many, world.ads)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=random, dtype=torch.float64, device=device)

    cluster = None
    if world.clusters:
        cluster = torch.randint(world.clusters, shape, generator=random, device=device)
    logits, bids = world.rate + normal(*shape), torch.exp(world.bids * normal(*shape))
    clicks = (torch.rand(*shape, generator=random, dtype=torch.float64, device=device) < torch.sigmoid(logits)).double()
    value = bids * clicks
    found, cut = [], []
    for noise in world.noise:
        z = logits + noise * normal(*shape)
        if cluster is not None:
            z = z + (world.shared * normal(many, world.clusters)).gather(1, cluster)
        ecpm = bids * torch.sigmoid(z)
        each = [Pool(score, world.size, 1).welfare(worth, (1.0,)) for score, worth in zip(ecpm, value, strict=True)]
        found.append([torch.stack([getattr(x, name) for x in each]) for name in ("own", "values")])
        cut.append(one_cuts(ecpm, value, world, cuts))
    own, values = (one - other for one, other in zip(*found, strict=True))
    units = torch.full((many,), world.ads, device=device)
    if cluster is not None:
        sums = torch.zeros(many, world.clusters, dtype=torch.float64, device=device).scatter_add(1, cluster, values)
        sizes = torch.zeros_like(sums).scatter_add(1, cluster, torch.ones_like(values))
        estimate = sums.sum(1) / world.ads
        residual, units = sums - estimate[:, None] * sizes, (sizes > 0).sum(1)
    else:
        estimate = values.mean(1)
        residual = values - estimate[:, None]
    error = (residual.square().sum(1) * units / (units - 1)).sqrt() / world.ads
    size = own.abs()
    effective = size.sum(1).square() / size.square().sum(1).clamp(min=1e-300)
    mean = cut[0] - cut[1]
    return {"estimate": estimate, "error": error, "effective": effective, "one_cut": mean[0], "cuts": mean.mean(0)}


def one_cuts(ecpm: Tensor, value: Tensor, world: World, cuts: int) -> Tensor:
    """Mean welfare of so many cuts at random, ``(cuts, data sets)``; the same cuts for both models."""
    random = torch.Generator(device=ecpm.device).manual_seed(1)
    means, whole = [], world.ads // world.size * world.size
    for _ in range(cuts):
        order = torch.rand(world.ads, generator=random, device=ecpm.device).argsort()[:whole]
        table = ecpm[:, order].view(len(ecpm), -1, world.size)
        winner = table.argmax(-1, keepdim=True)
        means.append(value[:, order].view(table.shape).gather(-1, winner).squeeze(-1).mean(-1))
    return torch.stack(means) if cuts else ecpm.new_zeros(1, len(ecpm))


def measured(world: World, device: str) -> dict[str, Any]:
    """Coverage, false findings and power in one world."""
    random = torch.Generator(device=device).manual_seed(0)
    at_once = max(1, ADS_AT_ONCE // world.ads)
    parts = []
    for k in range(0, SIMULATIONS, at_once):  # a quarter of the data sets is enough for the spread of cuts
        parts.append(simulated(world, min(at_once, SIMULATIONS - k), random, CUTS if 4 * k < SIMULATIONS else 0))
    found = {name: torch.cat([part[name] for part in parts]).cpu() for name in parts[0]}
    quarter = sum(len(part["estimate"]) for part in parts[: math.ceil(len(parts) / 4)])
    estimate, truth = found["estimate"], 0.0 if world.equal else float(found["estimate"].mean())
    units = world.clusters or world.ads
    t = (estimate - truth) / found["error"]
    half = student_quantile(0.975, units - 1)
    held, enough = t.abs() <= half, found["effective"] >= EFFECTIVE
    wrong = (estimate.abs() > half * found["error"]) & enough
    spread = {name: float(found[name][:quarter].std()) for name in ("estimate", "one_cut", "cuts")}
    return {
        "world": world.name,
        "ads": world.ads,
        "size": world.size,
        "simulations": SIMULATIONS,
        "true_difference": truth,
        "effective_clicks": float(found["effective"].mean()),
        "too_few": 1 - float(enough.double().mean()),
        "covered": float(held.double().mean()),
        "covered_where_enough": float(held[enough].double().mean()) if bool(enough.any()) else math.nan,
        "found_different": float(wrong.double().mean()),
        "found_different_where_enough": float(wrong[enough].double().mean()) if bool(enough.any()) else math.nan,
        "one_cut_error": spread["one_cut"] / spread["estimate"],
        "cuts_error": spread["cuts"] / spread["estimate"],
        "power_pooled": power(truth, spread["estimate"]),
        "power_one_cut": power(truth, spread["one_cut"]),
        "power_cuts": power(truth, spread["cuts"]),
    }


def by_effective_clicks(device: str) -> list[dict[str, Any]]:
    """Coverage of intervals in data sets with so many effective clicks: from where on may they be trusted?"""
    random = torch.Generator(device=device).manual_seed(1)
    bounds = [0, 5, 10, 15, 20, 30, 40, 60, 100, 10_000]
    rows = []
    for name, like in (("equal", World("", 32)), ("better", World("", 32, noise=(0.5, 1.0)))):
        for heavy in (0.7, 1.5):
            parts = []
            for rate in (-7.5, -7.0, -6.5, -6.0, -5.5, -5.0, -4.5):
                world = replace(like, rate=rate, bids=heavy)
                found = [simulated(world, ADS_AT_ONCE // world.ads, random) for _ in range(SIMULATIONS // 200)]
                joined = {key: torch.cat([part[key] for part in found]).cpu() for key in found[0]}
                truth = 0.0 if world.equal else float(joined["estimate"].mean())
                held = (joined["estimate"] - truth).abs() <= 1.96 * joined["error"]
                parts.append(torch.stack([joined["effective"], held.double()]))
            effective, held = torch.cat(parts, dim=1)
            for low, high in pairwise(bounds):
                here = (effective >= low) & (effective < high)
                if int(here.sum()) >= 100:
                    row = {"models": name, "bids": heavy, "from": low, "to": high, "data_sets": int(here.sum())}
                    rows.append(row | {"covered": float(held[here].mean())})
    return rows


def power(truth: float, spread: float) -> float:
    normal = NormalDist(truth / spread)
    return 1 - normal.cdf(1.96) + normal.cdf(-1.96)


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    rows = []
    for world in WORLDS:
        rows.append(measured(world, device))
        print("  ".join(f"{k} {x:.4g}" if isinstance(x, float) else f"{x}" for k, x in rows[-1].items()), flush=True)
    write("pooled", rows, device=device)
    rows = by_effective_clicks(device)
    for row in rows:
        print("  ".join(f"{k} {x:.4g}" if isinstance(x, float) else f"{k} {x}" for k, x in row.items()), flush=True)
    write("effective_clicks", rows, device=device)


if __name__ == "__main__":
    main()
