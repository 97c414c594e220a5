"""Losses against a baseline over repeats of an experiment: differences and intervals, in shares of the optimum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from bidwise.evaluation.calibration import Platt
from bidwise.evaluation.estimate import Estimate
from bidwise.evaluation.intervals import unit_interval
from bidwise.values import Floats


@dataclass(frozen=True, kw_only=True)
class Difference(Estimate):
    """Model minus baseline with two sources of chance, and the interval that holds both of theirs.

    ``repeats``: another training, initial weights and order of the ads. ``auctions``: other ads.
    """

    repeats: Estimate
    auctions: Estimate

    @classmethod
    def between(cls, repeats: Estimate, auctions: Estimate) -> Difference:
        """Both sources; a single repeat has no interval of its own, and then nothing is clear."""
        low, high = min(repeats.ci_low, auctions.ci_low), max(repeats.ci_high, auctions.ci_high)
        known = repeats.known and auctions.known
        return cls(
            difference=repeats.difference,
            ci_low=low if known else math.nan,
            ci_high=high if known else math.nan,
            repeats=repeats,
            auctions=auctions,
        )

    def __mul__(self, factor: float) -> Self:
        """The same in other units, with both of its sources."""
        return replace(super().__mul__(factor), repeats=self.repeats * factor, auctions=self.auctions * factor)

    __rmul__ = __mul__


def paired(chosen: Sequence[Floats], baseline: Sequence[Floats]) -> Difference:
    """Mean welfare of the chosen models minus that of the baseline's, repeat by repeat over the same ads.

    Args:
        chosen, baseline: for each repeat a number for each group of test ads, ``(groups,)``, whose mean is the welfare.
    """
    changes = [a - b for a, b in zip(chosen, baseline, strict=True)]
    repeats = Estimate.of(unit_interval([float(change.mean()) for change in changes]))
    return Difference.between(repeats, Estimate.of(unit_interval(np.mean(changes, axis=0))))


@dataclass(frozen=True, kw_only=True)
class Gain(Estimate):
    """A difference in shares of the optimal welfare over repeats; ``ratio`` is the share that the model reaches."""

    ratio: float

    @property
    def same(self) -> bool:
        """Whether nothing differs in any repeat."""
        return self.difference == self.ci_low == self.ci_high == 0


def gain(welfare: Floats, baseline: Floats, optimal: Floats) -> Gain:
    """Share of the optimal welfare, and the paired difference to the baseline in its units, over repeats."""
    estimate = Estimate.of(unit_interval(((welfare - baseline) / optimal).tolist()))
    return Gain(ratio=float((welfare / optimal).mean()), **vars(estimate))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean over repeats with its standard error, NaN for one repeat."""
    error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return float(np.mean(values)), error


def platt_scaled(logits: Tensor, seen: Tensor, clicks: Tensor) -> Tensor:
    """Logits ``(..., ads)`` after Platt scaling of each model by the clicks of other ads with logits ``seen``.

    >>> seen, clicks = torch.tensor([-1.0, -1.0, 1.0, 1.0]), torch.tensor([0.0, 0.5, 1.0, 0.5])
    >>> platt_scaled(torch.tensor([1.0]), seen, clicks).sigmoid()
    tensor([0.7500], dtype=torch.float64)
    """
    rows = zip(*(x.double().cpu().reshape(-1, x.shape[-1]) for x in (seen.sigmoid(), clicks)), strict=True)
    fitted = [Platt.fit(ctr, labels) for ctr, labels in rows]
    lines = torch.tensor([(line.slope, line.intercept) for line in fitted], dtype=torch.float64)
    slope, intercept = lines.T.to(logits.device).reshape(2, *logits.shape[:-1], 1)
    scaled: Tensor = slope * logits + intercept
    return scaled
