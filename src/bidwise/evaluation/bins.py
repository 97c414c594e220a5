"""Bins of equal mass along a key, and how predictions and clicks compare in them; ads come in the order of the key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bidwise.values import Floats

CTR_BINS = 20
BID_BINS = 10


@dataclass(frozen=True, kw_only=True)
class Bin:
    """Ads of similar predicted CTR, or of similar bids: the least and the greatest, mean prediction and mean label."""

    low: float
    high: float
    ads: int
    predicted: float
    observed: float
    written: ClassVar[tuple[str, ...]] = ("ratio",)

    @property
    def ratio(self) -> float:
        """Predicted / observed; above 1 if a model overrates."""
        return self.predicted / self.observed if self.observed > 0 else math.nan


def equal_mass(key: Floats, bins: int, weights: Floats | None = None) -> NDArray[np.intp]:
    """The bounds of bins: at most ``bins`` of equal weight along a rising key, equal keys together.

    Bin k ends with the first key at which the weight so far is k / bins of all.

    >>> equal_mass(np.array([1.0, 2.0, 3.0, 4.0]), 2), equal_mass(np.array([1.0, 1.0, 1.0, 3.0]), 2)
    (array([0, 2]), array([0, 3]))
    """
    if len(key) == 0:
        return np.zeros(0, np.intp)
    share = np.arange(1, bins)
    if weights is None:
        last = -(-share * len(key) // bins) - 1
    else:
        below = weights.cumsum()
        last = np.searchsorted(below, (share / bins - 1e-9) * below[-1])  # tolerates rounding of the running sum
    ends = np.searchsorted(key, np.unique(key[last]), side="right")
    return np.append(0, ends[ends < len(key)])


def curve(key: Floats, ctr: Floats, label: Floats, weights: Floats | None, bins: int) -> tuple[Bin, ...]:
    """The bins that weigh anything."""
    starts = equal_mass(key, bins, weights)
    predicted, observed, weight = _sums(starts, ctr, label, weights)
    ends = np.append(starts[1:], len(key))
    return tuple(
        Bin(
            low=float(key[starts[k]]),
            high=float(key[ends[k] - 1]),
            ads=int(ends[k] - starts[k]),
            predicted=float(predicted[k] / weight[k]),
            observed=float(observed[k] / weight[k]),
        )
        for k in np.flatnonzero(weight)
    )


def calibration_error(ctr: Floats, label: Floats, weights: Floats | None = None) -> float:
    """sum over 20 bins of rising CTR |predicted - observed| / weight; NaN without weight."""
    predicted, observed, weight = _sums(equal_mass(ctr, CTR_BINS, weights), ctr, label, weights)
    gap, total = float(np.abs(predicted - observed).sum()), float(weight.sum())
    return gap / total if total > 0 else math.nan


def _sums(starts: NDArray[np.intp], ctr: Floats, label: Floats, weights: Floats | None) -> tuple[Floats, ...]:
    """Predicted and observed clicks and the weight of each bin."""
    if weights is None:
        weight = np.diff(starts, append=len(ctr)).astype(np.float64)
        return np.add.reduceat(ctr, starts), np.add.reduceat(label, starts), weight
    return tuple(np.add.reduceat(column, starts) for column in (ctr * weights, label * weights, weights))
