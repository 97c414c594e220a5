"""Models compared pair by pair, over the same auctions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import numpy as np

from bidwise.evaluation.estimate import Estimate, Outcome
from bidwise.evaluation.intervals import LEVEL, Interval, effective_units, unit_interval
from bidwise.evaluation.units import Units
from bidwise.values import Floats

ROUNDING = 1e-12  # of a level: sums over the ads of an auction, in any order
DECISIVE = 100  # auctions with different winners, below which no interval for welfare is to be trusted
CHANGED = 30  # auctions with another value, below which none for any metric is: clicks may be rare
EFFECTIVE = 15  # clicks that decide a pooled difference, below which its interval is not to be trusted
_METRICS = {  # compared metric -> unit of its difference
    **dict.fromkeys(("welfare", "revenue", "surplus"), "mean per auction"),
    "log_loss": "mean per ad",
    "auc": "over all ads",
}


@dataclass(frozen=True, kw_only=True)
class AuctionEstimate(Estimate):
    """A difference over auctions: if few of them, or few clicks, make it up, the verdict is too few.

    >>> AuctionEstimate(difference=0.2, ci_low=0.1, ci_high=0.3, changed_auctions=12).outcome.value
    'few'
    >>> AuctionEstimate(difference=0.2, ci_low=0.1, ci_high=0.3, effective_clicks=120.5).outcome.value
    'better'
    """

    changed_auctions: int | None = None  # real auctions in which the two have another value
    effective_clicks: float | None = None  # pooled auctions: clicks that make up the difference, see `effective`
    written: ClassVar[tuple[str, ...]] = ("outcome",)

    @property
    def enough(self) -> bool:
        if self.effective_clicks is not None:
            return self.effective_clicks >= EFFECTIVE
        return self.changed_auctions is None or self.changed_auctions >= CHANGED

    @property
    def same(self) -> bool:
        return self.known and 0 in (self.changed_auctions, self.effective_clicks)


def effective(own: Floats) -> float:
    """(sum |c|)^2 / sum c^2, with c the part of each click in a difference: how many equal clicks would make it up.

    >>> effective(np.array([1.0, -1.0, 1.0, 0.0])), effective(np.array([9.0, 0.1, 0.1]))
    (3.0, 1.0446...)
    """
    size = float(np.abs(own).max(initial=0.0))
    if not size > 0:
        return 0.0
    return effective_units(np.abs(own) / size)


@dataclass(frozen=True, kw_only=True)
class Comparison(AuctionEstimate):
    """One metric of a model against a baseline's, over the same auctions.

    >>> losses = {"model": "b", "baseline": "a", "metric": "log_loss", "unit": "mean per ad", "decisive_auctions": 0}
    >>> Comparison(**losses, difference=0.2, ci_low=0.1, ci_high=0.3, changed_auctions=300).outcome.value
    'worse'
    """

    model: str
    baseline: str
    metric: str
    unit: str
    decisive_auctions: int | None = None  # real ones in which the two show different ads
    standard_error: float = math.nan
    smallest_lift: float = math.nan  # the least difference that 4 of 5 data sets like this one would show
    relative: float = math.nan  # these four as shares of the baseline
    relative_ci_low: float = math.nan
    relative_ci_high: float = math.nan
    relative_smallest_lift: float = math.nan

    @property
    def higher_is_better(self) -> bool:
        return self.metric != "log_loss"

    @property
    def enough(self) -> bool:
        of_winners = self.metric in ("welfare", "surplus")  # revenue also changes if the same ads win
        if self.decisive_auctions is not None and of_winners and self.decisive_auctions < DECISIVE:
            return False
        return super().enough

    @property
    def same(self) -> bool:
        return super().same and not self.decisive_auctions

    @property
    def pair(self) -> tuple[str, str]:
        """The model and its baseline."""
        return self.model, self.baseline

    @property
    def worse(self) -> str:
        """Which of the two is measurably worse; "" if none is."""
        return {Outcome.BETTER: self.baseline, Outcome.WORSE: self.model}.get(self.outcome, "")

    @property
    def lift(self) -> Estimate:
        """The difference as a share of the baseline; not a number if the baseline is 0."""
        return Estimate(difference=self.relative, ci_low=self.relative_ci_low, ci_high=self.relative_ci_high)


def pairs_of(models: Sequence[str], baseline: str) -> list[tuple[str, str]]:
    """All pairs of models as (model, baseline), pairs with the baseline first.

    >>> pairs_of(["a", "b", "c"], "b")
    [('a', 'b'), ('c', 'b'), ('c', 'a')]
    """
    others = [model for model in models if model != baseline]
    return [(model, baseline) for model in others] + [(later, earlier) for earlier, later in combinations(others, 2)]


def compared(
    seen: Mapping[str, Units],
    pairs: Sequence[tuple[str, str]],
    *,
    level: float = LEVEL,
    metrics: Sequence[str] = tuple(_METRICS),
) -> list[Comparison]:
    """The paired differences of all pairs in all compared metrics, with the intervals of :func:`unit_interval`.

    Args:
        seen: ``Metrics.per_unit`` of every model, over the same auctions or ads.
        pairs: (model, baseline); differences are model minus baseline.
        level: of the intervals.
        metrics: those that are compared.
    """
    return [_comparison(seen, pair, metric, level) for pair in pairs for metric in metrics]


def _comparison(seen: Mapping[str, Units], pair: tuple[str, str], metric: str, level: float) -> Comparison:
    mine, base = (seen[model] for model in pair)
    weight, change = base.weight_of(metric), mine.sum(metric) - base.sum(metric)
    interval = unit_interval(change, weight, level=level)
    counts: dict[str, Any]
    own = mine.part(metric) - base.part(metric)
    moved = np.abs(own) > ROUNDING * np.abs(base.part(metric))
    if base.shown is not None and mine.shown is not None:
        decisive, changed = (mine.shown != base.shown).any(axis=1), int(np.count_nonzero(moved))
        counts = {"decisive_auctions": int(np.count_nonzero(decisive)), "changed_auctions": changed}
        nothing = decisive.any() and not changed  # other ads, and none of them clicked: there is no bound
    else:
        counts = {"effective_clicks": effective(np.where(moved, own, 0.0))}
        nothing = not len(own)  # no clicks
    if nothing:
        interval = Interval(0.0, -math.inf, math.inf, math.nan)
    return Comparison(
        model=pair[0],
        baseline=pair[1],
        metric=metric,
        unit=_METRICS[metric],
        **counts,
        difference=interval.estimate,
        ci_low=interval.low,
        ci_high=interval.high,
        standard_error=interval.standard_error,
        smallest_lift=interval.smallest,
        **_shares(interval, change, base, metric, sure=effective(mine.part(metric)) >= EFFECTIVE),
    )


def _shares(interval: Interval, change: Floats, base: Units, metric: str, *, sure: bool) -> dict[str, Any]:
    """The interval in shares of the baseline, whose level is as uncertain as the difference.

    The error of the ratio r = sum d / sum B is the error of the mean of d - r B (delta method). Unless the model has
    enough clicks to be ``sure``, it is never below that of d: a model without clicks has r = -1 and d - r B = 0, which
    is no certainty. Where the two intervals would disagree about 0 the difference decides, and no metric falls by more
    than all of it.
    """
    level, weight, mean = base.sum(metric), base.weight_of(metric), base.mean(metric)
    if not mean > 0:
        return {}
    ratio = interval.estimate / mean
    residual = change - (interval.estimate if weight is None else interval.estimate * weight)
    spread, ratio_spread, size = (
        math.sqrt(float(np.square(x).sum())) for x in (residual, change - ratio * level, change)
    )
    factor = ratio_spread / spread if spread > 1e-9 * size else 1.0
    half = (interval.high - interval.estimate) / mean * (factor if sure else max(1.0, factor))
    low, high = ratio - half, ratio + half
    if (low > 0) != (interval.low > 0):
        low = interval.low / mean
    if (high < 0) != (interval.high < 0):
        high = interval.high / mean
    return {
        "relative": ratio,
        "relative_ci_low": max(low, -1.0),
        "relative_ci_high": high,
        "relative_smallest_lift": interval.smallest / mean,
    }
