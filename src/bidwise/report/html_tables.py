"""The tables of an evaluation's page: columns, rows, and numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Result = Mapping[str, Any]
Pairs = Mapping[tuple[str, str], Mapping[str, Result]]  # (model, baseline) -> metric -> comparison
NONE = "–"  # where a number is not defined
METRICS = {"welfare": "welfare", "revenue": "revenue", "surplus": "surplus", "log_loss": "log loss"}


@dataclass(frozen=True)
class Column:
    """A column of the table of models: ``digits`` significant ones of its largest number, or fixed ``decimals``."""

    key: str
    heading: str
    meaning: str
    digits: int = 5
    decimals: int | None = None
    per_cent: bool = False


COLUMNS = (
    Column(
        "welfare", "Welfare", "Bids of the ads shown times their clicks, mean per auction: what ranking by eCPM is for."
    ),
    Column("revenue", "Revenue", "What the advertisers of the shown ads pay, mean per auction."),
    Column("surplus", "Surplus", "Welfare − revenue: what is left to the advertisers, mean per auction."),
    Column(
        "share_of_optimum", "Share of optimum", "Welfare / the most that any prediction could reach.", per_cent=True
    ),
    Column("regret", "Regret", "Welfare that the best prediction would add, mean per auction.", digits=4),
    Column("auc", "AUC", "Chance that a clicked ad is predicted above an unclicked one, over all ads.", decimals=4),
    Column(
        "auc_in_auctions", "gAUC", "AUC inside each auction, averaged: ads that never compete do not count.", decimals=4
    ),
    Column("log_loss", "Log loss", "Mean −log of the probability given to what happened; lower is better.", decimals=4),
    Column(
        "normalised_entropy",
        "Norm. entropy",
        "Log loss / that of always predicting the mean CTR; below 1 is better than that.",
        decimals=4,
    ),
    Column("brier", "Brier", "Mean squared error of the predicted CTR; lower is better.", digits=4),
    Column(
        "calibration_error",
        "Calib. error",
        "Mean |predicted − observed CTR| over 20 bins of equal mass; lower is better.",
        digits=3,
    ),
    Column(
        "predicted_over_observed",
        "Pred./obs.",
        "Predicted clicks / observed clicks; 1 is right, above 1 overrates.",
        decimals=3,
    ),
    Column(
        "winners_predicted_over_observed",
        "Winners’ pred./obs.",
        "The same over the ads shown, weighted by bid: winning selects what was overrated.",
        decimals=3,
    ),
    Column(
        "rank_agreement",
        "Rank agreement",
        "Share of pairs inside auctions that predicted eCPM puts in the order of their value.",
        decimals=4,
    ),
)
TO_AVERAGE = "Welfare − mean welfare of all models, per auction, ± its standard error: what all models share cancels."


def models_table(result: Result) -> dict[str, Any]:
    """Headings and rows of the table of models, every column with as many decimals as its largest number needs."""
    models = result["models"]
    columns = [c for c in COLUMNS if any(c.key in numbers for numbers in models.values())]
    cells: dict[str, list[str]] = {model: [] for model in models}
    for column in columns:
        values = {model: numbers.get(column.key) for model, numbers in models.items()}
        places = decimals(values.values(), column.digits) if column.decimals is None else column.decimals
        for model, value in values.items():
            cells[model].append(per_cent(value) if column.per_cent else number(value, places))
    headings = [(c.heading, c.meaning) for c in columns]
    gaps = {model: numbers.get("difference_to_average") or {} for model, numbers in models.items()}
    if sum(map(bool, gaps.values())) < 2:
        gaps = {}
    else:
        headings.append(("Difference to average", TO_AVERAGE))
    places = decimals((x for gap in gaps.values() for x in gap.values()), 3)
    for model, gap in gaps.items():
        mean, error = gap.get("welfare"), gap.get("standard_error")
        give_or_take = "" if error is None else f" ± {number(error, places)}"
        cells[model].append(number(mean, places, sign=True) + give_or_take)
    return {
        "headings": headings,
        "rows": [{"name": model, "cells": cells[model]} for model in models],
    }


def calibration_table(result: Result, pairs: Pairs, twins: Mapping[str, str]) -> list[dict[str, Any]]:
    """Before and after calibration: per metric a line for each model."""
    metrics: list[dict[str, Any]] = []
    if not twins:
        return metrics
    for metric, heading in (("welfare", "Welfare"), ("revenue", "Revenue"), ("calibration_error", "Calibration error")):
        values = {model: result["models"][model][metric] for pair in twins.items() for model in pair}
        places = decimals(values.values(), 5)
        lines = []
        for twin, model in twins.items():
            comparison = pairs[twin, model].get(metric)
            change = per_cent(_growth(values[model], values[twin]), sign=True)
            interval = NONE if comparison is None else _interval(comparison, relative=True)
            lines.append(
                {"name": model, "cells": [number(values[m], places) for m in (model, twin)] + [change, interval]}
            )
        metrics.append({"heading": heading, "lines": lines})
    return metrics


def comparison_table(pairs: Pairs) -> list[dict[str, Any]]:
    places = {
        metric: decimals((by[metric][key] for by in pairs.values() for key in ("difference", "ci_low", "ci_high")), 3)
        for metric in METRICS
        if pairs
    }
    rows = []
    for (model, baseline), by in pairs.items():
        lines = []
        for metric, comparison in by.items():
            kind = comparison["outcome"]
            lines.append(
                {
                    "metric": METRICS.get(metric, metric),
                    "unit": comparison["unit"],
                    "kind": kind,
                    "finding": _finding(comparison, kind),
                    "cells": [
                        number(comparison["difference"], places[metric], sign=True),
                        per_cent(comparison["relative"], sign=True),
                        _interval(comparison, relative=comparison["relative"] is not None, places=places[metric]),
                        f"{comparison['decisive_auctions']:,}",
                        f"{comparison['changed_auctions']:,}",
                        per_cent(comparison["relative_smallest_lift"])
                        if comparison["relative"] is not None
                        else number(comparison["smallest_lift"], places[metric]),
                    ],
                }
            )
        rows.append({"model": model, "baseline": baseline, "lines": lines})
    return rows


def _finding(comparison: Result, kind: str) -> str:
    """Which way a metric went; for log loss also whether that is good.

    >>> _finding({"metric": "log_loss", "difference": -0.1}, "better")
    '▼ lower (better)'
    """
    if kind not in ("better", "worse"):
        return {"unclear": "≈ not measurable", "few": "? too few", "same": "= unchanged"}[kind]
    way = "▲ higher" if comparison["difference"] > 0 else "▼ lower"
    return f"{way} ({kind})" if comparison["metric"] == "log_loss" else way


def _interval(comparison: Result, *, relative: bool, places: int = 2) -> str:
    """The 95 % interval, in per cent of the baseline or as it is.

    >>> _interval({"relative_ci_low": -0.011, "relative_ci_high": 0.02}, relative=True)
    '[−1.10, +2.00] %'
    """
    low, high = (comparison[f"{'relative_' if relative else ''}{end}"] for end in ("ci_low", "ci_high"))
    if low is None or high is None:
        return "no finite interval"
    if relative:
        return f"[{signed(100 * low)}, {signed(100 * high)}] %"
    return f"[{number(low, places, sign=True)}, {number(high, places, sign=True)}]"


def decimals(values: Iterable[float | None], digits: int) -> int:
    """Decimal places that show ``digits`` digits of the largest of the values.

    >>> decimals([0.5, 12.3, None], digits=4), decimals([123456.0], digits=4), decimals([0.00123], digits=3)
    (2, 0, 5)
    """
    largest = max((abs(x) for x in values if x), default=1.0)
    return min(max(digits - 1 - math.floor(math.log10(largest)), 0), 12)


def number(value: float | None, places: int, *, sign: bool = False) -> str:
    """A number as tables show it, with a true minus, or a dash for none.

    >>> number(-1234.5, 1), number(None, 2), number(0.25, 2, sign=True)
    ('−1,234.5', '–', '+0.25')
    """
    return NONE if value is None else format(value, f"{'+' if sign and value else ''},.{places}f").replace("-", "−")


def per_cent(share: float | None, *, sign: bool = False) -> str:
    """A share in per cent, with more than two decimals only where they would all be 0.

    >>> per_cent(-0.0123), per_cent(0.000012, sign=True), per_cent(None)
    ('−1.23 %', '+0.0012 %', '–')
    """
    return NONE if share is None else f"{number(100 * share, _places(100 * share), sign=sign)} %"


def points(found: Result) -> str:
    """A difference of shares and its interval, in hundredths.

    >>> points({"difference": 0.0052, "ci_low": -0.001, "ci_high": 0.0114})
    '+0.52 [−0.10, +1.14]'
    """
    if found["difference"] is None:
        return NONE
    centre = hundredths(found["difference"])
    if found["ci_low"] is None or found["ci_high"] is None:
        return f"{centre}, no interval"
    return f"{centre} [{hundredths(found['ci_low'])}, {hundredths(found['ci_high'])}]"


def hundredths(share: float) -> str:
    """A share in hundredths with its sign, with more than two decimals only where they would all be 0.

    >>> hundredths(-0.0123), hundredths(-0.00001), hundredths(-1e-12)
    ('−1.23', '−0.001', '0.00')
    """
    places = 2 if abs(share) >= 5e-5 or abs(share) < 5e-6 else 3
    return number(round(100 * share, places) + 0.0, places, sign=True)


def _places(percentage: float) -> int:
    return 2 if abs(percentage) >= 0.01 or percentage == 0 else 4


def signed(percentage: float) -> str:
    return number(percentage, _places(percentage), sign=True)


def _growth(before: float | None, after: float | None) -> float | None:
    return (after - before) / before if before and after is not None else None
