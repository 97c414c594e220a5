"""Columns of the simulated Criteo world: how often each value is drawn, what is missing, what goes together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

HIDDEN = 6  # hidden uniform variables that tie columns together: three of the user, three of the ad
TIE = 0.35  # share of ads whose value in a column is the hidden variable's, at the same quantile
GROUPS = 11  # of columns that are missing together; group 0 is never missing


class Integer(NamedTuple):
    """A column of counts, floor(scale (u / (1 - u))^shape - shift) for u uniform in [0, 1), at most ``most``.

    >>> Integer(4.0, 0.5, 100, 0.0, 0, 0).drawn(np.array([0.0, 0.5, 0.8]))
    array([0., 4., 8.])
    """

    scale: float  # median
    shape: float  # of the tail: P(x > t) ~ t^(-1 / shape)
    most: int
    missing: float
    group: int
    hidden: int
    vector: bool = False
    shift: float = 0.0

    def drawn(self, uniform: Floats) -> Floats:
        """The value at quantile ``uniform``."""
        with np.errstate(divide="ignore"):  # log 0 is right: the least value
            found: Floats = self.scale * np.exp(self.shape * np.log(uniform / (1 - uniform))) - self.shift
        return np.minimum(np.floor(found, out=found), self.most, out=found)

    def below(self, count: NDArray[Any]) -> Floats:
        """P(x < count), for whole counts from 0 on; nothing is below -1, which stands for all negative ones."""
        odds = (np.where(count < 0, 0.0, count + self.shift) / self.scale) ** (1 / self.shape)
        found: Floats = np.where(count > self.most, 1.0, odds / (1 + odds))
        return found


class Category(NamedTuple):
    """A column of names, numbered k = 0 ... values - 1 from the most frequent on: a power law, cut off at its end.

        P(k < rank) = (1 - (rank + 1)^(1 - power)) / (1 - (values + 1)^(1 - power))

    >>> Category(1000, 2.0, 0).below(np.array([0, 1, 3])).round(3)
    array([0.   , 0.5  , 0.751])
    """

    values: int
    power: float
    hidden: int
    vector: bool = False
    missing: float = 0.0
    group: int = 0

    def drawn(self, uniform: Floats) -> Floats:
        """The value at quantile ``uniform``."""
        rest = 1 - (self.values + 1) ** (1 - self.power)
        found: Floats = np.exp(np.log1p(-rest * uniform) / (1 - self.power))
        found = np.floor(found, out=found) - 1
        return np.clip(found, 0, self.values - 1, out=found)

    def below(self, rank: NDArray[Any]) -> Floats:
        """P(k < rank), for ranks from 0 on."""
        found: Floats = (1 - np.minimum(rank + 1.0, self.values + 1) ** (1 - self.power)) / (
            1 - (self.values + 1) ** (1 - self.power)
        )
        return found


# Missing rates, largest integers and numbers of values as publicly known of the challenge's 45.8 million ads.
COUNTS = (
    Integer(1.4, 0.75, 5_775, 0.45, 1, 0),
    Integer(4.0, 0.95, 257_675, 0.0, 0, 1, shift=1.2),
    Integer(7.0, 0.80, 65_535, 0.21, 2, 2),
    Integer(5.0, 0.55, 969, 0.22, 2, 0),
    Integer(2_800.0, 0.90, 23_159_456, 0.026, 3, 1, True),
    Integer(32.0, 0.80, 431_037, 0.22, 2, 2, True),
    Integer(3.5, 0.75, 56_311, 0.043, 4, 0, True),
    Integer(8.0, 0.50, 6_047, 0.0005, 5, 1),
    Integer(38.0, 0.65, 29_019, 0.043, 4, 2),
    Integer(0.9, 0.40, 11, 0.45, 1, 0),
    Integer(1.8, 0.55, 231, 0.043, 4, 1, True),
    Integer(0.5, 0.75, 4_008, 0.765, 6, 2),
    Integer(4.5, 0.55, 7_393, 0.22, 2, 0),
)
NAMES = (
    Category(1_460, 1.9, 3, True),
    Category(583, 1.35, 4, True),
    Category(10_131_227, 1.12, 5, False, 0.034, 7),
    Category(2_202_608, 1.15, 3, False, 0.034, 7),
    Category(305, 2.2, 0, True),
    Category(24, 1.5, 1, True, 0.12, 8),
    Category(12_517, 1.08, 2),
    Category(633, 2.1, 0, True),
    Category(3, 3.0, 1),
    Category(93_145, 1.25, 3),
    Category(5_683, 1.05, 4),
    Category(8_351_593, 1.12, 5, False, 0.034, 7),
    Category(3_194, 1.06, 4, True),
    Category(27, 1.6, 5, True),
    Category(14_992, 1.1, 3),
    Category(5_461_306, 1.13, 4, False, 0.034, 7),
    Category(10, 1.7, 2, True),
    Category(5_652, 1.2, 5, True),
    Category(2_173, 1.3, 0, False, 0.44, 9),
    Category(4, 1.4, 1, False, 0.44, 9),
    Category(7_046_547, 1.12, 5, False, 0.034, 7),
    Category(18, 1.8, 2, False, 0.76, 10),
    Category(15, 1.6, 3, True),
    Category(286_181, 1.18, 4, False, 0.034, 7),
    Category(105, 1.5, 5, False, 0.44, 9),
    Category(142_572, 1.2, 3, False, 0.44, 9),
)
FIELDS: tuple[Integer | Category, ...] = (*COUNTS, *NAMES)
