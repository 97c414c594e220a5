"""Models compared pair by pair, over the same auctions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidwise.auctions.columns import Floats
from bidwise.evaluation.intervals import Interval, auction_intervals

DECISIVE = 100  # auctions with different winners, below which no interval for welfare is to be trusted
CHANGED = 30  # auctions with another value, below which none for any metric is: clicks may be rare
COMPARED = {  # weight of an auction -> metric -> unit of its difference
    "weight": dict.fromkeys(("welfare", "revenue", "surplus"), "mean per auction"),
    "ad_weight": {"log_loss": "mean per ad"},
}
NUMBERS_AT_ONCE = 2**24  # of differences, 128 MB
BARS = 41  # of the distribution over auctions; an odd number, so that no bar hides the sign


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
) -> list[dict[str, Any]]:
    """The paired differences of all pairs in all compared metrics, as ``result.json`` holds them.

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

        found: dict[tuple[str, str, str], dict[str, Any]] = {}
        for weight, units in COMPARED.items():
            asked = [(model, baseline, metric) for model, baseline in part for metric in units]
            weights = seen[part[0][1]][weight]
            change = np.stack([_weighted(seen[m], metric) - _weighted(seen[b], metric) for m, b, metric in asked], 1)
            intervals = auction_intervals(change, weights, rounds=rounds, seed=seed, cuts=cuts, progress=report)
            for key, interval, column in zip(asked, intervals, change.T, strict=True):
                found[key] = _comparison(seen, *key, interval, column, weights, cuts)
        comparisons += [found[*pair, metric] for pair in part for units in COMPARED.values() for metric in units]
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
) -> dict[str, Any]:
    """One comparison as ``result.json`` holds it; counts are per cut."""
    mine, base = seen[model], seen[baseline]
    different = (mine["winners"] != base["winners"]).any(axis=1)
    decisive, changed = (math.ceil(np.count_nonzero(x) / cuts) for x in (different, change))
    if decisive and not changed:  # other ads, and none of them clicked: there is no bound
        interval = Interval(0.0, -math.inf, math.inf, math.nan)
    found = {
        "model": model,
        "baseline": baseline,
        "metric": metric,
        "unit": next(units[metric] for units in COMPARED.values() if metric in units),
        **_numbers(interval, change, _weighted(base, metric), weights),
        "decisive_auctions": decisive,
        "changed_auctions": changed,
        "outcome": _outcome(metric, interval, decisive, changed),
    }
    return found | ({"distribution": _distribution(mine[metric] - base[metric])} if metric == "welfare" else {})


def _numbers(interval: Interval, change: Floats, level: Floats, weights: Floats) -> dict[str, float]:
    """The interval, and the same in shares of the baseline, whose level is as uncertain as the difference.

    The error of the ratio r = sum d / sum B is that of the mean of d - r B (delta method), but never taken below that
    of d: a model without clicks has r = -1 and d - r B = 0, which is no certainty. Where the two intervals would
    disagree about 0 the difference decides, and no metric falls by more than all of it.
    """
    mean = float(level.sum() / weights.sum())
    numbers = {
        "difference": interval.estimate,
        "ci_low": interval.low,
        "ci_high": interval.high,
        "standard_error": interval.standard_error,
        "smallest_lift": interval.smallest,
    }
    if not mean > 0:
        return numbers | {"relative": math.nan} | {f"relative_{name}": math.nan for name in [*numbers][1:]}
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
    shares = (low, high, interval.standard_error / mean * wider, interval.smallest / mean)
    return numbers | {"relative": ratio} | {f"relative_{n}": x for n, x in zip([*numbers][1:], shares, strict=True)}


def _outcome(metric: str, interval: Interval, decisive: int, changed: int) -> str:
    """What a comparison found: better, worse, unclear, few (auctions to tell) or same (nothing is different).

    >>> _outcome("log_loss", Interval(0.2, 0.1, 0.3, 0.05), decisive=0, changed=300)
    'worse'
    """
    if decisive == 0 and changed == 0:
        return "same"
    if changed < CHANGED or (metric == "welfare" and decisive < DECISIVE):
        return "few"
    if not (interval.low > 0 or interval.high < 0):
        return "unclear"
    return "better" if (interval.low > 0) == (metric != "log_loss") else "worse"


def _weighted(seen: Mapping[str, NDArray[Any]], metric: str) -> NDArray[Any]:
    """The metric times the auction's weight; log losses are weighted sums already."""
    return seen[metric] if metric == "log_loss" else seen[metric] * seen["weight"]


def _distribution(change: NDArray[Any]) -> dict[str, Any]:
    """How the difference is spread over the auctions where it is not 0."""
    moved = change[change != 0]
    if not len(moved):
        return {"edges": [], "auctions": [], "unchanged": len(change)}
    reach = float(np.abs(moved).max())
    auctions, edges = np.histogram(moved, bins=BARS, range=(-reach, reach))
    return {"edges": edges.tolist(), "auctions": auctions.tolist(), "unchanged": len(change) - len(moved)}
