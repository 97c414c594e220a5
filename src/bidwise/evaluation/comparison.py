"""Models compared pair by pair, over the same auctions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bidwise.evaluation.estimate import Estimate
from bidwise.evaluation.intervals import LEVEL, Interval, auction_intervals, effective_units, unit_interval
from bidwise.values import Floats

ROUNDING = 1e-12  # of a level: sums over the ads of an auction, in any order
DECISIVE = 100  # auctions with different winners, below which no interval for welfare is to be trusted
CHANGED = 30  # auctions with another value, below which none for any metric is: clicks may be rare
EFFECTIVE = 15  # clicks that decide a pooled difference, below which its interval is not to be trusted
COMPARED = {  # weight of a unit -> metric -> unit of its difference
    "weight": dict.fromkeys(("welfare", "revenue", "surplus"), "mean per auction"),
    "ad_weight": {"log_loss": "mean per ad", "auc": "over all ads"},
}
METRICS = tuple(metric for metrics in COMPARED.values() for metric in metrics)
Units = Mapping[str, NDArray[Any]]  # Metrics.per_unit
HANDFUL = 10  # ads, or auctions, that are looked at for how much of the welfare they hold


@dataclass(frozen=True, kw_only=True)
class AuctionEstimate(Estimate):
    """A difference over auctions: where few of them, or few clicks, make it up there is too little to tell.

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
    """(sum |c|)^2 / sum c^2, c what each click adds to a difference: how many alike would make it up.

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
    decisive_auctions: int | None = None  # real ones, where the two show different ads
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
        of_winners = self.metric in ("welfare", "surplus")  # revenue also changes where the same ads win
        if self.decisive_auctions is not None and of_winners and self.decisive_auctions < DECISIVE:
            return False
        return super().enough

    @property
    def same(self) -> bool:
        return super().same and not self.decisive_auctions

    @property
    def needed(self) -> float:
        """How many times the data it would take to see the difference, if it is what it looks like, 4 times in 5."""
        return (self.smallest_lift / self.difference) ** 2 if self.difference else math.inf

    @property
    def lift(self) -> Estimate:
        """The difference as a share of the baseline; not a number where the baseline has nothing."""
        return Estimate(difference=self.relative, ci_low=self.relative_ci_low, ci_high=self.relative_ci_high)


def sizes_of(seen: Units) -> tuple[float, int | None, int]:
    """Mean welfare, how many real auctions there are, and how many units."""
    welfare = float(np.average(seen["welfare"], weights=seen["weight"]))
    return welfare, len(seen["winners"]) if "winners" in seen else None, len(seen["weight"])


@dataclass(frozen=True)
class Concentration:
    """How much of a model's welfare the few ads (real auctions) hold that hold the most."""

    count: int
    share: float


def concentration(seen: Units) -> Concentration:
    """The fewest of the ten largest parts of the welfare that hold nearly all that those ten hold.

    >>> concentration({"own_welfare": np.array([60.0, 37.0] + [0.1] * 30)})
    Concentration(count=2, share=0.97)
    """
    parts = seen["own_welfare"] if "own_welfare" in seen else seen["welfare"] * seen["weight"]
    total = float(parts.sum())
    if not total > 0:
        return Concentration(0, 0.0)
    most = min(HANDFUL, len(parts))
    shares = np.sort(np.partition(parts, -most)[-most:])[::-1].cumsum() / total
    count = int(np.searchsorted(shares, 0.95 * shares[-1])) + 1
    return Concentration(count, float(shares[count - 1]))


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
    seen: Mapping[str, Units],
    pairs: Sequence[tuple[str, str]],
    *,
    level: float = LEVEL,
    rounds: int = 999,
    seed: int = 0,
    metrics: Sequence[str] = METRICS,
    progress: Callable[[float], None] | None = None,
) -> list[Comparison]:
    """The paired differences of all pairs in all compared metrics.

    Over real auctions intervals are those of :func:`bidwise.evaluation.auction_intervals`; over the ads of a pool, and
    over clusters, those of :func:`bidwise.evaluation.intervals.unit_interval`.

    Args:
        seen: ``Metrics.per_unit`` of every model, over the same auctions or ads.
        pairs: (model, baseline); differences are model minus baseline.
        level: of the intervals.
        rounds, seed: of the bootstrap over auctions.
        metrics: those that are compared.
        progress: called with the share that is done.
    """
    comparisons = []
    for at, (model, baseline) in enumerate(pairs):
        mine, base = seen[model], seen[baseline]
        real = len(base.get("winners", ())) == len(base["weight"])  # and in no clusters
        for weight, units in COMPARED.items():
            asked = [metric for metric in units if metric in metrics]
            change = [_weighted(mine, metric) - _weighted(base, metric) for metric in asked]
            if real and asked:
                intervals = auction_intervals(np.stack(change, 1), base[weight], level=level, rounds=rounds, seed=seed)
            else:
                intervals = [unit_interval(d, base[weight], level=level) for d in change]
            for metric, interval, d in zip(asked, intervals, change, strict=True):
                names = {"model": model, "baseline": baseline, "metric": metric, "unit": units[metric]}
                comparisons.append(_comparison(mine, base, interval, d, base[weight], names))
        if progress is not None:
            progress((at + 1) / len(pairs))
    return comparisons


def _comparison(
    mine: Units, base: Units, interval: Interval, change: Floats, weights: Floats, names: dict[str, Any]
) -> Comparison:
    metric = names["metric"]
    counts: dict[str, Any]
    own, level = _own(mine, metric) - _own(base, metric), _own(base, metric)
    moved = np.abs(own) > ROUNDING * np.abs(level)
    if "winners" in base:
        different = (mine["winners"] != base["winners"]).any(axis=1)
        decisive, changed = (int(np.count_nonzero(x)) for x in (different, moved))
        counts = {"decisive_auctions": decisive, "changed_auctions": changed}
        nothing = decisive and not changed  # other ads, and none of them clicked: there is no bound
    else:
        counts = {"effective_clicks": effective(np.where(moved, own, 0.0))}
        nothing = not len(own)  # no clicks
    if nothing:
        interval = Interval(0.0, -math.inf, math.inf, math.nan)
    return Comparison(
        **names,
        **counts,
        difference=interval.estimate,
        ci_low=interval.low,
        ci_high=interval.high,
        standard_error=interval.standard_error,
        smallest_lift=interval.smallest,
        **_shares(interval, change, _weighted(base, metric), weights),
    )


def _own(seen: Units, metric: str) -> Floats:
    """What each auction, ad or click adds to a metric, also where they are drawn in clusters."""
    if metric == "surplus":
        return _own(seen, "welfare") - _own(seen, "revenue")
    return seen[f"own_{metric}"] if f"own_{metric}" in seen else _weighted(seen, metric)


def _shares(interval: Interval, change: Floats, level: Floats, weights: Floats) -> dict[str, Any]:
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
        "relative_smallest_lift": interval.smallest / mean,
    }


def _weighted(seen: Mapping[str, NDArray[Any]], metric: str) -> NDArray[Any]:
    """The metric times the unit's weight; log losses and AUC are weighted sums already."""
    if metric in COMPARED["ad_weight"]:
        return seen[metric]
    values = seen["welfare"] - seen["revenue"] if metric == "surplus" else seen[metric]
    return values if seen["weight"].strides == (0,) else values * seen["weight"]  # a broadcast 1 weighs nothing
