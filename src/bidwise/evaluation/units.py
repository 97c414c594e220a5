"""The units of intervals: auctions, ads or clusters, with their contributions to a model's metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidwise.evaluation.intervals import Interval, level_interval
from bidwise.values import Floats

HANDFUL = 10  # parts of the welfare that are searched for the few that make up most of it


@dataclass(frozen=True)
class Concentration:
    """The share of a model's welfare that its most valuable ads (real auctions) make up, and how many they are."""

    count: int
    share: float


@dataclass(frozen=True, kw_only=True)
class Units:
    """One model's metrics, unit by unit.

    The mean of a metric is its ``sums`` over the units divided by the sum of their weights: ``weight`` for welfare and
    revenue, ``ad_weight`` for log loss and AUC; ``None`` is a weight of 1 each. ``parts`` has what each real auction,
    or each ad that has a part, adds to welfare and revenue, if the sums do not.

    >>> Units(sums={"welfare": np.array([1.0, 0.0, 0.5])}).mean("welfare")
    0.5
    """

    sums: dict[str, Floats]
    parts: dict[str, Floats] = field(default_factory=dict)
    weight: Floats | None = None
    ad_weight: Floats | None = None
    shown: NDArray[Any] | None = None  # of real auctions: who is in each slot, equal if the models show the same ad

    @property
    def count(self) -> int:
        return len(self.sums["welfare"])

    @property
    def auctions(self) -> int | None:
        """How many real auctions there are."""
        return None if self.shown is None else len(self.shown)

    def weight_of(self, metric: str) -> Floats | None:
        return self.ad_weight if metric in ("log_loss", "auc") else self.weight

    def mean(self, metric: str) -> float:
        """The metric over all units."""
        weight = self.weight_of(metric)
        total = self.count if weight is None else float(weight.sum())
        return float(self.sum(metric).sum()) / total if total > 0 else math.nan

    def level(self, metric: str) -> Interval:
        """The mean with its interval."""
        return level_interval(self.sum(metric), self.weight_of(metric), bounded=metric == "auc")

    def sum(self, metric: str) -> Floats:
        """The contribution of each unit, times its weight."""
        return _column(self.sums, metric)

    def part(self, metric: str) -> Floats:
        """The contribution of each auction or ad, also if clusters of them are the units."""
        return _column(self.sums | self.parts, metric)

    def by(self, group: NDArray[np.int64]) -> Units:
        """Units of one group as one unit."""
        _, of_unit = np.unique(group, return_inverse=True)

        def added(column: Floats | None) -> Floats:
            return np.bincount(of_unit, column).astype(np.float64)

        return replace(
            self,
            sums={metric: added(column) for metric, column in self.sums.items()},
            parts=self.sums | self.parts,
            weight=added(self.weight),
            ad_weight=added(self.ad_weight),
        )

    def concentration(self) -> Concentration:
        """The fewest of the ten largest parts of the welfare that make up nearly all that those ten do.

        >>> welfare = np.array([60.0, 37.0] + [0.1] * 30)
        >>> Units(sums={"welfare": welfare}).concentration()
        Concentration(count=2, share=0.97)
        """
        parts = self.part("welfare")
        total = float(parts.sum())
        if not total > 0:
            return Concentration(0, 0.0)
        most = min(HANDFUL, len(parts))
        shares = np.sort(np.partition(parts, -most)[-most:])[::-1].cumsum() / total
        count = int(np.searchsorted(shares, 0.95 * shares[-1])) + 1
        return Concentration(count, float(shares[count - 1]))


def _column(columns: dict[str, Floats], metric: str) -> Floats:
    return columns["welfare"] - columns["revenue"] if metric == "surplus" else columns[metric]
