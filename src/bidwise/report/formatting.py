"""Numbers as people read them on pages; an estimate with its interval formats itself."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from bidwise.evaluation.estimate import NONE, Estimate, signed

__all__ = ["NONE", "aligned", "change", "decimals", "duration", "number", "per_cent", "signed"]


def change(estimate: Estimate, level: float) -> str:
    """A difference in per cent of the baseline's ``level``, in units if that is 0.

    >>> change(Estimate(difference=0.02, ci_low=0.01, ci_high=0.03), 2.0), change(Estimate(difference=0.02), 0.0)
    ('+1.00 % [+0.50, +1.50]', '+0.020, without a finite interval')
    """
    words = f"{estimate / level:%}" if level > 0 else f"{estimate}"
    return words if estimate.known or words == NONE else f"{words}, without a finite interval"


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
    """A share in per cent, with more than two decimals only if they would all be 0.

    >>> per_cent(-0.0123), per_cent(0.000012, sign=True), per_cent(None)
    ('−1.23 %', '+0.0012 %', '–')
    """
    if share is None or not math.isfinite(share):
        return NONE
    return f"{number(100 * share, 2 if abs(share) >= 1e-4 or share == 0 else 4, sign=sign)} %"


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] | None = None) -> list[str]:
    """The lines of a table for the terminal; columns ``right`` are flush right, by default all but the first.

    >>> print("\\n".join(aligned([["model", "AUC"], ["a", "0.71"]])))
    model   AUC
    a      0.71
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = range(1, len(widths)) if right is None else right
    return [
        "  ".join(x.rjust(widths[k]) if k in right else x.ljust(widths[k]) for k, x in enumerate(row)).rstrip()
        for row in rows
    ]


def counted(number: float, thing: str) -> str:
    """How many of a thing there are.

    >>> counted(1, "epoch"), counted(0.5, "epoch"), counted(45_840_617, "row")
    ('1 epoch', '0.5 epochs', '45,840,617 rows')
    """
    digits = f"{int(number):,}" if number == int(number) else f"{number:g}"
    return f"{digits} {thing}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(42.4), duration(600), duration(9000)
    ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
