"""Bins of equal mass, and how predictions and clicks compare in them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bidwise.values import Floats


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
        """Predicted / observed; above 1 where a model overrates."""
        return self.predicted / self.observed if self.observed > 0 else math.nan


def equal_mass_bins(key: Floats, bins: int, weights: Floats | None = None) -> NDArray[np.intp]:
    """The bin of every ad: at most ``bins`` of equal weight from the lowest key up, equal keys together.

    Bin k ends with the first key at which the weight so far is k / bins of all.

    >>> equal_mass_bins(np.array([4.0, 1.0, 2.0, 3.0]), 2)
    array([1, 0, 0, 1])
    >>> equal_mass_bins(np.array([1.0, 1.0, 1.0, 3.0]), 2)
    array([0, 0, 0, 1])
    """
    share = np.arange(1, bins)
    if len(key) == 0:
        return np.zeros(0, np.intp)
    if weights is None:
        last = np.unique(-(-share * len(key) // bins) - 1)
        ends = np.partition(key, last)[last]
    else:
        order = np.argsort(key)
        below = weights[order].cumsum()
        reached = (share / bins - 1e-9) * below[-1]  # whatever the last digits of the running sum
        ends = key[order[np.searchsorted(below, reached)]]
    return np.searchsorted(np.unique(ends), key, side="left")


def binned(bins: NDArray[np.intp], ctr: Floats, label: Floats, weights: Floats | None) -> dict[str, Floats]:
    """Sums over every bin."""
    columns = {"predicted": ctr, "observed": label, "weight": np.ones_like(ctr)}
    weighted = {name: column if weights is None else column * weights for name, column in columns.items()}
    return {name: np.asarray(np.bincount(bins, column), np.float64) for name, column in weighted.items()}


def calibration_error(sums: dict[str, Floats]) -> float:
    """sum over bins |predicted - observed| / weight; NaN without weight."""
    gap, weight = float(np.abs(sums["predicted"] - sums["observed"]).sum()), float(sums["weight"].sum())
    return gap / weight if weight > 0 else math.nan


def curve(bins: NDArray[np.intp], key: Floats, sums: dict[str, Floats]) -> tuple[Bin, ...]:
    """The bins that weigh anything."""
    ads = np.bincount(bins)
    low, high = np.full(len(ads), np.inf), np.full(len(ads), -np.inf)
    np.minimum.at(low, bins, key)
    np.maximum.at(high, bins, key)
    return tuple(
        Bin(
            low=float(low[k]),
            high=float(high[k]),
            ads=int(ads[k]),
            predicted=float(sums["predicted"][k] / sums["weight"][k]),
            observed=float(sums["observed"][k] / sums["weight"][k]),
        )
        for k in np.flatnonzero(sums["weight"])
    )
