"""Numbers as people read them on pages; an estimate with its interval formats itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bidwise.evaluation.estimate import NONE, signed

__all__ = ["NONE", "decimals", "hundredths", "number", "per_cent", "points", "signed"]


def decimals(values: Iterable[float | None], digits: int) -> int:
    """Decimal places that show ``digits`` digits of the largest of the values.

    >>> decimals([0.5, 12.3, None], digits=4), decimals([123456.0], digits=4), decimals([0.00123], digits=3)
    (2, 0, 5)
    """
    largest = max((abs(x) for x in values if x and math.isfinite(x)), default=1.0)
    return min(max(digits - 1 - math.floor(math.log10(largest)), 0), 12)


def number(value: float | None, places: int, *, sign: bool = False) -> str:
    """A number as tables show it, with a real minus, or a dash for none.

    >>> number(-1234.5, 1), number(None, 2), number(0.25, 2, sign=True)
    ('−1,234.5', '–', '+0.25')
    """
    text = signed(value, f",.{places}f")
    return text if sign else text.removeprefix("+")


def per_cent(share: float | None, *, sign: bool = False) -> str:
    """A share in per cent, with more than two decimals only where they would all be 0.

    >>> per_cent(-0.0123), per_cent(0.000012, sign=True), per_cent(None)
    ('−1.23 %', '+0.0012 %', '–')
    """
    if share is None or not math.isfinite(share):
        return NONE
    return f"{number(100 * share, 2 if abs(share) >= 1e-4 or share == 0 else 4, sign=sign)} %"


def points(found: Mapping[str, Any]) -> str:
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
    return signed(100 * share, ".2f" if abs(share) >= 5e-5 or abs(share) < 5e-6 else ".3f")
