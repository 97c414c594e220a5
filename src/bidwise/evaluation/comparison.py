"""Models compared pair by pair, over the same auctions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidwise.evaluation.intervals import Interval, auction_intervals

DECISIVE = 100  # auctions with different winners, below which an interval is not to be trusted
COMPARED = {  # metric -> (unit of its difference, weight of an auction)
    "welfare": ("mean per auction", "weight"),
    "revenue": ("mean per auction", "weight"),
    "surplus": ("mean per auction", "weight"),
    "log_loss": ("mean per ad", "ad_weight"),
}
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
    asked = [(model, baseline, metric) for model, baseline in pairs for metric in COMPARED]
    auctions = len(seen[pairs[0][0]]["weight"])
    differences, weights = np.empty((2, auctions, len(asked)))
    for column, (model, baseline, metric) in enumerate(asked):
        weights[:, column] = seen[baseline][COMPARED[metric][1]]
        differences[:, column] = _weighted(seen[model], metric) - _weighted(seen[baseline], metric)
    report = None if progress is None else lambda done: progress(done / auctions)
    intervals = auction_intervals(differences, weights, rounds=rounds, seed=seed, cuts=cuts, progress=report)
    comparisons = []
    for at, ((model, baseline, metric), interval) in enumerate(zip(asked, intervals, strict=True)):
        unit, weight = COMPARED[metric]
        level = _weighted(seen[baseline], metric).sum() / seen[baseline][weight].sum()
        decisive = int((seen[model]["winners"] != seen[baseline]["winners"]).any(axis=1).sum()) // cuts
        changed = int(np.count_nonzero(differences[:, at])) // cuts
        if changed == 0 and decisive > 0:  # other ads, and none of them clicked: no bound can be given
            interval = Interval(0.0, -math.inf, math.inf, math.nan)
        comparison: dict[str, Any] = {"model": model, "baseline": baseline, "metric": metric, "unit": unit}
        comparison |= _numbers(interval, level)
        comparison |= {"decisive_auctions": decisive, "changed_auctions": changed}
        comparison["outcome"] = _outcome(metric, interval, decisive if metric == "welfare" else changed)
        if metric == "welfare":
            comparison["distribution"] = _distribution(seen[model][metric] - seen[baseline][metric])
        comparisons.append(comparison)
    return comparisons


def _outcome(metric: str, interval: Interval, different: int) -> str:
    """What a comparison found: better, worse, unclear, few (auctions to tell) or same (nothing is different).

    >>> _outcome("log_loss", Interval(0.2, 0.1, 0.3, 0.05), different=300)
    'worse'
    """
    if different == 0:
        return "same"
    if different < DECISIVE:
        return "few"
    if not (interval.low > 0 or interval.high < 0):
        return "unclear"
    return "better" if (interval.low > 0) == (metric != "log_loss") else "worse"


def _weighted(seen: Mapping[str, NDArray[Any]], metric: str) -> NDArray[Any]:
    """The metric times the auction's weight; log losses are weighted sums already."""
    return seen[metric] if metric == "log_loss" else seen[metric] * seen["weight"]


def _numbers(interval: Interval, level: float) -> dict[str, float]:
    """The interval, and the same as shares of the baseline's level, taken as given."""
    numbers = {
        "difference": interval.estimate,
        "ci_low": interval.low,
        "ci_high": interval.high,
        "standard_error": interval.standard_error,
        "smallest_lift": interval.smallest,
    }
    shares = {f"relative_{name}": x / level if level > 0 else math.nan for name, x in numbers.items()}
    return numbers | {"relative": shares.pop("relative_difference")} | shares


def _distribution(change: NDArray[Any]) -> dict[str, Any]:
    """How the difference is spread over the auctions where it is not 0."""
    moved = change[change != 0]
    if not len(moved):
        return {"edges": [], "auctions": [], "unchanged": len(change)}
    reach = float(np.abs(moved).max())
    auctions, edges = np.histogram(moved, bins=BARS, range=(-reach, reach))
    return {"edges": edges.tolist(), "auctions": auctions.tolist(), "unchanged": len(change) - len(moved)}
