"""Bins of equal mass along the predicted CTR, and how predictions and clicks compare in them; ads come in its order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bidwise.values import Floats

BINS = 20


@dataclass(frozen=True, kw_only=True)
class Bin:
    """Ads of similar predicted CTR: the least and the greatest, mean prediction and mean label."""

    low: float
    high: float
    ads: int
    predicted: float
    observed: float


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


def calibration_curve(ctr: Floats, label: Floats, weights: Floats | None) -> tuple[Bin, ...]:
    """The bins that weigh anything."""
    starts = equal_mass(ctr, BINS, weights)
    predicted, observed, weight = _sums(starts, ctr, label, weights)
    ends = np.append(starts[1:], len(ctr))
    return tuple(
        Bin(
            low=float(ctr[starts[k]]),
            high=float(ctr[ends[k] - 1]),
            ads=int(ends[k] - starts[k]),
            predicted=float(predicted[k] / weight[k]),
            observed=float(observed[k] / weight[k]),
        )
        for k in np.flatnonzero(weight)
    )


def calibration_error(ctr: Floats, label: Floats, weights: Floats | None = None) -> float:
    """sum over 20 bins of rising CTR |predicted - observed| / weight; NaN without weight."""
    predicted, observed, weight = _sums(equal_mass(ctr, BINS, weights), ctr, label, weights)
    gap, total = float(np.abs(predicted - observed).sum()), float(weight.sum())
    return gap / total if total > 0 else math.nan


def _sums(starts: NDArray[np.intp], ctr: Floats, label: Floats, weights: Floats | None) -> tuple[Floats, ...]:
    """Predicted and observed clicks and the weight of each bin."""
    if weights is None:
        weight = np.diff(starts, append=len(ctr)).astype(np.float64)
        return np.add.reduceat(ctr, starts), np.add.reduceat(label, starts), weight
    return tuple(np.add.reduceat(column, starts) for column in (ctr * weights, label * weights, weights))
