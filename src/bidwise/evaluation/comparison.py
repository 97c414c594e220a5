"""Models compared pair by pair, over the same auctions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bidwise.auctions.columns import Floats
from bidwise.evaluation.estimate import Estimate
from bidwise.evaluation.intervals import Interval, auction_intervals

ROUNDING = 1e-12  # of a level: sums over the ads of an auction, in any order
DECISIVE = 100  # auctions with different winners, below which no interval for welfare is to be trusted
CHANGED = 30  # auctions with another value, below which none for any metric is: clicks may be rare
COMPARED = {  # weight of an auction -> metric -> unit of its difference
    "weight": dict.fromkeys(("welfare", "revenue", "surplus"), "mean per auction"),
    "ad_weight": {"log_loss": "mean per ad"},
}
NUMBERS_AT_ONCE = 2**24  # of differences, 128 MB
BARS = 41  # of the distribution over auctions; an odd number, so that no bar hides the sign


@dataclass(frozen=True, kw_only=True)
class AuctionEstimate(Estimate):
    """A difference over auctions: where few of them differ there is too little to tell.

    >>> AuctionEstimate(difference=0.2, ci_low=0.1, ci_high=0.3, changed_auctions=12).outcome.value
    'few'
    """

    changed_auctions: int  # where the two have another value
    written: ClassVar[tuple[str, ...]] = ("outcome",)

    @property
    def enough(self) -> bool:
        return self.changed_auctions >= CHANGED

    @property
    def same(self) -> bool:
        return self.changed_auctions == 0


@dataclass(frozen=True)
class Distribution:
    """How a difference is spread over the auctions where it is not 0: ``len(auctions) + 1`` edges."""

    edges: tuple[float, ...]
    auctions: tuple[int, ...]
    unchanged: int


@dataclass(frozen=True, kw_only=True)
class Comparison(AuctionEstimate):
    """One metric of a model against a baseline's, over the same auctions; counts are per cut.

    >>> losses = {"model": "b", "baseline": "a", "metric": "log_loss", "unit": "mean per ad", "decisive_auctions": 0}
    >>> Comparison(**losses, difference=0.2, ci_low=0.1, ci_high=0.3, changed_auctions=300).outcome.value
    'worse'
    """

    model: str
    baseline: str
    metric: str
    unit: str
    decisive_auctions: int  # where the two show different ads
    standard_error: float = math.nan
    smallest_lift: float = math.nan  # the least difference that 4 of 5 data sets like this one would show
    relative: float = math.nan  # these five as shares of the baseline
    relative_ci_low: float = math.nan
    relative_ci_high: float = math.nan
    relative_standard_error: float = math.nan
    relative_smallest_lift: float = math.nan
    distribution: Distribution | None = None  # of welfare

    @property
    def higher_is_better(self) -> bool:
        return self.metric != "log_loss"

    @property
    def enough(self) -> bool:
        return super().enough and (self.metric != "welfare" or self.decisive_auctions >= DECISIVE)

    @property
    def same(self) -> bool:
        return super().same and self.decisive_auctions == 0

    @property
    def lift(self) -> Estimate:
        """The difference as a share of the baseline; not a number where the baseline has nothing."""
        return Estimate(difference=self.relative, ci_low=self.relative_ci_low, ci_high=self.relative_ci_high)


def pairs_of(models: Sequence[str], baseline: str, twins: Mapping[str, str]) -> list[tuple[str, str]]:
    """Who is compared with whom, as (model, baseline).

    All pairs, the baseline's first; then every calibrated twin with its original, and with the baseline's twin.

    >>> pairs_of(["a", "b", "c"], "b", {})
    [('a', 'b'), ('c', 'b'), ('c', 'a')]
    >>> pairs_of(["a", "b"], "b", {"a+platt": "a", "b+platt": "b"})
    [('a', 'b'), ('a+platt', 'a'), ('b+platt', 'b'), ('a+platt', 'b+platt')]
    """
    others = [model for model in models if model != baseline]
    rest = [(later, earlier) for earlier, later in combinations(others, 2)]
    twin_of = {model: twin for twin, model in twins.items()}
    after = [(twin_of[model], twin_of[baseline]) for model in others if model in twin_of]
    return [(model, baseline) for model in others] + rest + list(twins.items()) + after


def compared(
    seen: Mapping[str, Mapping[str, NDArray[Any]]],
    pairs: Sequence[tuple[str, str]],
    *,
    rounds: int = 999,
    seed: int = 0,
    cuts: int = 1,
    progress: Callable[[float], None] | None = None,
) -> list[Comparison]:
    """The paired differences of all pairs in all compared metrics.

    Args:
        seen: ``Metrics.per_auction`` of every model, over the same auctions.
        pairs: (model, baseline); differences are model minus baseline.
        rounds, seed, cuts: as in :func:`bidwise.evaluation.auction_intervals`.
        progress: called with the share that is done.
    """
    if not pairs:
        return []
    auctions = len(seen[pairs[0][0]]["weight"])
    at_once = max(1, NUMBERS_AT_ONCE // (3 * max(auctions, 1)))
    comparisons = []
    for first in range(0, len(pairs), at_once):
        part = pairs[first : first + at_once]

        def report(done: int, first: int = first, here: int = len(part)) -> None:
            if progress is not None:
                progress((first + here * done / auctions) / len(pairs))

        measured: dict[tuple[str, str, str], Comparison] = {}
        for weight, units in COMPARED.items():
            asked = [(model, baseline, metric) for model, baseline in part for metric in units]
            weights = seen[part[0][1]][weight]
            change = np.stack([_weighted(seen[m], metric) - _weighted(seen[b], metric) for m, b, metric in asked], 1)
            intervals = auction_intervals(change, weights, rounds=rounds, seed=seed, cuts=cuts, progress=report)
            for key, interval, column in zip(asked, intervals, change.T, strict=True):
                measured[key] = _comparison(seen, *key, interval, column, weights, cuts)
        comparisons += [measured[*pair, metric] for pair in part for units in COMPARED.values() for metric in units]
    return comparisons


def _comparison(
    seen: Mapping[str, Mapping[str, NDArray[Any]]],
    model: str,
    baseline: str,
    metric: str,
    interval: Interval,
    change: Floats,
    weights: Floats,
    cuts: int,
) -> Comparison:
    mine, base = seen[model], seen[baseline]
    different = (mine["winners"] != base["winners"]).any(axis=1)
    moved = np.abs(change) > ROUNDING * np.abs(_weighted(base, metric))
    decisive, changed = (math.ceil(np.count_nonzero(x) / cuts) for x in (different, moved))
    if decisive and not changed:  # other ads, and none of them clicked: there is no bound
        interval = Interval(0.0, -math.inf, math.inf, math.nan)
    return Comparison(
        model=model,
        baseline=baseline,
        metric=metric,
        unit=next(units[metric] for units in COMPARED.values() if metric in units),
        decisive_auctions=decisive,
        changed_auctions=changed,
        difference=interval.estimate,
        ci_low=interval.low,
        ci_high=interval.high,
        standard_error=interval.standard_error,
        smallest_lift=interval.smallest,
        **_shares(interval, change, _weighted(base, metric), weights),
        distribution=_distribution(mine[metric] - base[metric]) if metric == "welfare" else None,
    )


def _shares(interval: Interval, change: Floats, level: Floats, weights: Floats) -> dict[str, float]:
    """The interval in shares of the baseline, whose level is as uncertain as the difference.

    The error of the ratio r = sum d / sum B is that of the mean of d - r B (delta method), but never taken below that
    of d: a model without clicks has r = -1 and d - r B = 0, which is no certainty. Where the two intervals would
    disagree about 0 the difference decides, and no metric falls by more than all of it.
    """
    mean = float(level.sum() / weights.sum())
    if not mean > 0:
        return {}
    ratio = interval.estimate / mean
    spread, ratio_spread, size = (
        math.sqrt(float((x**2).sum())) for x in (change - interval.estimate * weights, change - ratio * level, change)
    )
    wider = max(1.0, ratio_spread / spread) if spread > 1e-9 * size else 1.0
    half = (interval.high - interval.estimate) / mean * wider
    low, high = max(ratio - half, -1.0), ratio + half
    if low <= 0 < interval.low:
        low = interval.low / mean
    if interval.high < 0 <= high:
        high = interval.high / mean
    return {
        "relative": ratio,
        "relative_ci_low": low,
        "relative_ci_high": high,
        "relative_standard_error": interval.standard_error / mean * wider,
        "relative_smallest_lift": interval.smallest / mean,
    }


def _weighted(seen: Mapping[str, NDArray[Any]], metric: str) -> NDArray[Any]:
    """The metric times the auction's weight; log losses are weighted sums already."""
    return seen[metric] if metric == "log_loss" else seen[metric] * seen["weight"]


def _distribution(change: Floats) -> Distribution:
    moved = change[change != 0]
    if not len(moved):
        return Distribution((), (), len(change))
    reach = float(np.abs(moved).max())
    auctions, edges = np.histogram(moved, bins=BARS, range=(-reach, reach))
    return Distribution(tuple(edges.tolist()), tuple(auctions.tolist()), len(change) - len(moved))
