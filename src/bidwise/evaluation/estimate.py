"""A difference between two models with its interval: its verdict and its format, the same everywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from bidwise.evaluation.intervals import Interval


class Outcome(StrEnum):
    """The outcome of a comparison with a baseline."""

    BETTER = "better"
    WORSE = "worse"
    UNCLEAR = "unclear"  # cannot be distinguished
    TOO_FEW = "few"  # the data cannot tell
    SAME = "same"  # no difference

    @property
    def clear(self) -> bool:
        """Better or worse."""
        return self in (Outcome.BETTER, Outcome.WORSE)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Model minus baseline with a 95 % interval; a bound that is not finite is not known.

    >>> lift = Estimate(difference=0.0032, ci_low=0.0015, ci_high=0.0049)
    >>> lift.outcome.value, f"{100 * lift:.2f}", f"{lift:%}"
    ('better', '+0.32 [+0.15, +0.49]', '+0.32 % [+0.15, +0.49]')
    """

    difference: float
    ci_low: float = math.nan
    ci_high: float = math.nan

    @classmethod
    def of(cls, interval: Interval) -> Estimate:
        """An interval as an estimate."""
        return Estimate(difference=interval.estimate, ci_low=interval.low, ci_high=interval.high)

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.ci_low) and math.isfinite(self.ci_high)

    @property
    def higher_is_better(self) -> bool:
        """Whether a difference above 0 is an improvement."""
        return True

    @property
    def enough(self) -> bool:
        """Whether the data can tell at all."""
        return True

    @property
    def same(self) -> bool:
        """Whether the two are equal, which needs no interval."""
        return False

    @property
    def outcome(self) -> Outcome:
        """Better or worse if the interval excludes 0; the only place that decides this."""
        if self.same:
            return Outcome.SAME
        if not self.enough:
            return Outcome.TOO_FEW
        if not (self.ci_low > 0 or self.ci_high < 0):
            return Outcome.UNCLEAR
        return Outcome.BETTER if (self.ci_low > 0) == self.higher_is_better else Outcome.WORSE

    def __mul__(self, factor: float) -> Self:
        """The same in other units, ``factor`` above 0."""
        if factor < 0:
            raise ValueError(f"factor must not be negative, found {factor}")
        bounds = (self.difference * factor, self.ci_low * factor, self.ci_high * factor)
        return replace(self, difference=bounds[0], ci_low=bounds[1], ci_high=bounds[2])

    __rmul__ = __mul__

    def __truediv__(self, unit: float) -> Self:
        return self * (1 / unit) if unit else self * math.nan

    def __neg__(self) -> Self:
        """Baseline minus model."""
        return replace(self, difference=-self.difference, ci_low=-self.ci_high, ci_high=-self.ci_low)

    def __format__(self, spec: str) -> str:
        """``+0.32 [+0.15, +0.49]``; ``%`` in per cent; without digits in ``spec`` as many as the interval deserves."""
        if spec.endswith("%"):
            shares = 100 * self
            number, _, interval = format(shares, f"{spec[:-1]}f" if spec[:-1] else "").partition(" ")
            return number if number == NONE else f"{number} % {interval}".rstrip()
        spec = spec or f".{self.digits}f"
        if not self.known:
            return signed(self.difference, spec)
        return f"{signed(self.difference, spec)} [{signed(self.ci_low, spec)}, {signed(self.ci_high, spec)}]"

    def __str__(self) -> str:
        return f"{self}"

    @property
    def digits(self) -> int:
        """Decimals that show two digits of the interval's half width and the sign of each bound, 2 to 6."""
        half = (self.ci_high - self.ci_low) / 2 if self.known else abs(self.difference)
        smallest = min((abs(x) for x in (self.ci_low, self.ci_high) if math.isfinite(x) and x), default=half)
        if not half > 0:
            return 2
        needed = max(1 - math.floor(math.log10(half)), -math.floor(math.log10(smallest)))
        return min(6, max(2, needed))


NONE = "–"  # for undefined numbers


def signed(number: float | None, spec: str = ".2f") -> str:
    """A number with its sign, the minus a real one; 0 has none, and an unknown number is a dash.

    >>> signed(0.318), signed(-1.5, ".1f"), signed(-0.001), signed(float("nan"))
    ('+0.32', '−1.5', '0.00', '–')
    """
    if number is None or not math.isfinite(number):
        return NONE
    text = format(number, spec)
    if float(text.replace(",", "").removesuffix("%")) == 0:
        return text.removeprefix("-")
    return ("+" + text if number > 0 else text).replace("-", "−")
