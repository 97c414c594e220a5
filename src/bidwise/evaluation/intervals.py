"""The certainty of a mean or a paired difference: intervals over auctions and repeats, and detectable differences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from bidwise.checks import InputError
from bidwise.values import Floats

LEVEL = 0.95  # of every interval that does not say otherwise
_MANY = 10_000  # degrees of freedom
POWER = 0.8  # share of data sets in which the smallest lift would have been found


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval; ``smallest`` is the effect that 4 data sets in 5 like this one would show."""

    estimate: float
    low: float
    high: float
    standard_error: float

    def __str__(self) -> str:
        return self.text()

    @property
    def half(self) -> float:
        """The distance of the farther bound; NaN if one is not known."""
        return max(self.estimate - self.low, self.high - self.estimate)

    def text(self, places: int | None = None) -> str:
        """With half its width, or with both bounds if one is much nearer; with as many digits as its error allows.

        >>> str(Interval(0.51234, 0.4986, 0.5262, 0.007)), str(Interval(0.2, 0.05, 0.54, 0.1))
        ('0.512 ± 0.014', '0.20 [0.05, 0.54]')
        """
        if not math.isfinite(self.estimate):
            return "–"
        if not math.isfinite(self.half):
            return f"{self.estimate:.3g}, no interval"
        below, above = self.estimate - self.low, self.high - self.estimate
        places = digits_of(self.half) if places is None else places
        if max(below, above) > 1.5 * min(below, above):
            return f"{self.estimate:,.{places}f} [{self.low:,.{places}f}, {self.high:,.{places}f}]"
        return f"{self.estimate:,.{places}f} ± {(below + above) / 2:,.{places}f}"

    @property
    def smallest(self) -> float:
        """(half width in standard errors + z_0.8) standard errors, the least effect found with 80 % power.

        >>> round(Interval(0.0, -2.0, 2.0, 1.0).smallest, 2)
        2.84
        """
        return self.high - self.estimate + NormalDist().inv_cdf(POWER) * self.standard_error


def unit_interval(differences: ArrayLike, weights: ArrayLike | None = None, *, level: float = LEVEL) -> Interval:
    """A mean paired difference over auctions, ads or clusters, with Student's t interval.

        theta = sum_u d_u / sum_u w_u = S / W
        se^2 = (U - 1) / U sum_u (theta without u - theta)^2,   theta without u - theta = -(d_u - theta w_u) / (W - w_u)

    the jackknife over units, which sees that a large unit has drawn theta to itself. Degrees of freedom are as for so
    many units of one weight as have the same effect, W^2 / sum w^2. Without at least two units that weigh anything
    there are no bounds.

    Args:
        differences: of U units, model minus baseline, times the weight if there is one.
        weights: of the units; 1 by default.
        level: of the interval.

    >>> interval = unit_interval([0.0, 1.0, 0.0, 2.0] * 50)
    >>> interval.estimate, round(interval.low, 2), round(interval.high, 2)
    (0.75, 0.63, 0.87)
    """
    d = np.asarray(differences, dtype=np.float64)
    w = None if weights is None else np.asarray(weights, dtype=np.float64)
    units, total = len(d), float(len(d) if w is None else w.sum())
    estimate = float(d.sum()) / total if total > 0 else math.nan
    rest = total - 1 if w is None else total - w  # weight of the other units
    if not np.min(rest, initial=math.inf) > 0 or not total > 0:
        return Interval(estimate, math.nan, math.nan, math.nan)
    without = (d - (estimate if w is None else estimate * w)) / rest
    error = math.sqrt(float((without * without).sum()) * (units - 1) / units)
    alike = units if w is None else effective_units(w)
    half = student_quantile(0.5 + level / 2, max(1, round(alike) - 1)) * error
    return Interval(estimate, estimate - half, estimate + half, error)


def level_interval(values: ArrayLike, weights: ArrayLike | None = None, *, bounded: bool = False) -> Interval:
    """A mean that is never negative, such as welfare, with an interval on the scale of its logarithm.

    Sums of rare and unequal parts are skewed: bounds mean exp(-+ half / mean) are off less often than mean -+ half, and
    never below 0. Of a ``bounded`` mean, such as AUC, it is the logit, and the bounds are below 1 too.

    >>> interval = level_interval([0.0, 1.0, 0.0, 2.0] * 5)
    >>> interval.estimate, round(interval.low, 2), round(interval.high, 2)
    (0.75, 0.44, 1.28)
    """
    found = unit_interval(values, weights)
    mean, half = found.estimate, found.high - found.estimate
    room = 1 - mean if bounded else 1.0
    if not (mean > 0 and room > 0 and math.isfinite(half)):
        return Interval(mean, math.nan, math.nan, found.standard_error)
    factor = math.exp(min(half / (mean * room), 700.0))
    bounds = (mean / factor, mean * factor)
    if bounded:
        bounds = (mean / (mean + room * factor), mean / (mean + room / factor))
    return Interval(mean, *bounds, found.standard_error)


def digits_of(half: float) -> int:
    """Decimals that show two digits of half an interval, at most 12.

    >>> digits_of(0.0142), digits_of(37.0)
    (3, 0)
    """
    return min(max(1 - math.floor(math.log10(half)), 0), 12) if half > 0 else 2


def effective_units(weights: Floats) -> float:
    """(sum w)^2 / sum w^2: how many units of one weight are worth as much.

    >>> effective_units(np.array([1.0, 1.0, 1.0])), round(effective_units(np.array([8.0, 1.0, 1.0])), 2)
    (3.0, 1.52)
    """
    return float(weights.sum()) ** 2 / float((weights * weights).sum())


@lru_cache(maxsize=4096)
def student_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t with ``freedom`` degrees of freedom, by bisection.

    >>> round(student_quantile(0.975, 4), 4)
    2.7764
    """
    if not 0.5 <= probability < 1:
        raise InputError(f"probability must be in [0.5, 1), found {probability}")
    if freedom > _MANY:  # the normal's, with the first term of Cornish and Fisher's expansion
        z = NormalDist().inv_cdf(probability)
        return z + (z**3 + z) / (4 * freedom)
    low, high = 0.0, 1.0
    while student_share(high, freedom) < probability:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_share(middle, freedom) < probability else (low, middle)
    return high


def student_share(t: float, freedom: int) -> float:
    """P(T <= t), t >= 0, for whole degrees of freedom: finite sums in theta = atan(t / sqrt(freedom))."""
    theta = math.atan(t / math.sqrt(freedom))
    if freedom == 1:
        return 0.5 + theta / math.pi
    odd = freedom % 2
    term = math.cos(theta) if odd else 1.0
    total = term
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= math.cos(theta) ** 2 * (k - 1) / k
        total += term
    inside = 2 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total
    return 0.5 + inside / 2
