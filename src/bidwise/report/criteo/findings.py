"""What the numbers of a Criteo run say: which differences are measured, and differences in per cent of the log loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bidwise.report.formatting import NONE, hundredths, number

Result = Mapping[str, Any]
MODELS = {"deepfm": "DeepFM", "dcn": "DCN", "dcnv2": "DCN-V2", "logistic_regression": "Logistic regression"}
SOURCES = ("repeats", "auctions")  # of chance, each with an interval of its own
WELFARE = {"expected": "expected_welfare", "realised": "welfare"}
PAPERS = ("log_weighted", "log_teacher")  # the losses that the paper trains on Criteo


def model_called(name: str) -> str:
    return MODELS.get(name, name)


def protocols_of(model: Result) -> dict[str, Mapping[str, Result]]:
    """The losses of each protocol that was run, the paper's first."""
    found = {
        name: protocol["losses"] for name, protocol in model["protocols"].items() if (protocol or {}).get("losses")
    }
    order = [name for name in ("converged", "tuned") if name in found]
    return {name: found[name] for name in [*order, *(name for name in found if name not in order)]}


def chosen_on(config: Result) -> str:
    """Where lam was chosen.

    >>> chosen_on({"lam_repeats": 1}), chosen_on({"lam_repeats": 3}), chosen_on({})
    ('chosen on the first repeat', 'chosen on the first 3 repeats', 'chosen in each repeat')
    """
    first = config.get("lam_repeats")
    if not first:
        return "chosen in each repeat"
    return "chosen on the first repeat" if first == 1 else f"chosen on the first {first} repeats"


def grid_log_loss(model: Result) -> Result:
    """The tuned log loss over the repeats that tried every lam."""
    found: Result = model.get("grid_log_loss") or (protocols_of(model).get("tuned") or {}).get("log_loss") or {}
    return found


def known(value: float | None) -> float | None:
    """The number, or ``None`` where there is none: one repeat has an interval of NaN until it is written to a file."""
    return None if value is None or not math.isfinite(value) else value


def estimate(difference: Result | None) -> float | None:
    """The difference itself; both of its intervals are around it."""
    found = difference or {}
    return next((x for x in (known((found.get(s) or {}).get("difference")) for s in SOURCES) if x is not None), None)


def bounds(difference: Result | None, source: str) -> tuple[float, float] | None:
    """Interval of a difference over ``repeats`` or ``auctions``, if it has both ends."""
    found = (difference or {}).get(source) or {}
    low, high = (known(found.get(end)) for end in ("ci_low", "ci_high"))
    return None if low is None or high is None else (low, high)


def finding(difference: Result | None) -> str:
    """better or worse where both intervals leave out 0 on the same side, else unclear; none without a difference.

    >>> repeats, auctions = ({"difference": 0.2, "ci_low": low, "ci_high": 0.3} for low in (0.1, -0.1))
    >>> finding({"repeats": repeats, "auctions": repeats}), finding({"repeats": repeats, "auctions": auctions})
    ('better', 'unclear')
    """
    if estimate(difference) is None:
        return "none"
    found = [bounds(difference, source) for source in SOURCES]
    if all(interval is not None and interval[0] > 0 for interval in found):
        return "better"
    return "worse" if all(interval is not None and interval[1] < 0 for interval in found) else "unclear"


def reference(losses: Mapping[str, Result], difference: Result | None) -> float | None:
    """Welfare of the log loss, of the kind that the difference is of."""
    kind = WELFARE.get((difference or {}).get("of", ""), "welfare")
    return known((losses.get("log_loss") or {}).get(kind))


def share(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def shares(difference: Result | None, base: float | None, source: str) -> tuple[float, float] | None:
    """An interval as shares of the log loss's welfare."""
    found = bounds(difference, source)
    return None if found is None or not base else (found[0] / base, found[1] / base)


def percentage(value: float | None) -> str:
    """A share in per cent with its sign.

    >>> percentage(0.0123), percentage(None)
    ('+1.23 %', '–')
    """
    return NONE if value is None else f"{hundredths(value)} %"


def interval(found: tuple[float, float] | None) -> str:
    """An interval of shares, in per cent.

    >>> interval((-0.001, 0.0123)), interval(None)
    ('[−0.10, +1.23]', 'no interval')
    """
    return "no interval" if found is None else f"[{hundredths(found[0])}, {hundredths(found[1])}]"


def told(difference: Result | None, base: float | None) -> str:
    """A difference in per cent of the log loss's welfare, with the wider of its intervals: the one that decides.

    >>> repeats, auctions = {"difference": 0.2, "ci_low": 0.1, "ci_high": 0.3}, {"ci_low": 0.0, "ci_high": 1.0}
    >>> told({"repeats": repeats, "auctions": auctions}, base=20)
    '+1.00 % [0.00, +5.00]'
    """
    centre = share(estimate(difference), base)
    found = [shares(difference, base, source) for source in SOURCES]
    if centre is None or None in found:
        return percentage(centre)
    return f"{percentage(centre)} {interval(max(found, key=lambda ends: ends[1] - ends[0] if ends else 0.0))}"


def paper_gain(paper: Result, loss: str) -> tuple[float, float] | None:
    """Gain in welfare that the paper reports against its log loss, as a share, and the standard error of that.

    The error takes the two means as independent: the paper gives none for their difference.

    >>> paper = {"log_loss": {"welfare": (2.0, 0.03)}, "log": {"welfare": (2.1, 0.04)}}
    >>> tuple(round(x, 6) for x in paper_gain(paper, "log"))
    (0.05, 0.025)
    """
    if loss == "log_loss" or loss not in paper or "log_loss" not in paper:
        return None
    (mean, error), (base, other) = paper[loss]["welfare"], paper["log_loss"]["welfare"]
    return (mean - base) / base, math.hypot(error, other) / base


def give_or_take(value: float | None, error: float | None, places: int) -> str:
    """A mean with its standard error, where it has one.

    >>> give_or_take(1.23456, 0.012, 4), give_or_take(1.2, None, 2)
    ('1.2346 ± 0.0120', '1.20')
    """
    value, error = known(value), known(error)
    return number(value, places) if value is None or error is None else f"{number(value, places)} ± {error:.{places}f}"
