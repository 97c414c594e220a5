"""First and second derivatives of a loss for every ad, as boosted trees need them: a gradient, a positive curvature."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bidwise.losses.named import BidWeightedLogLoss, WelfareLoss

LEAST = 1e-16  # curvature of an ad whose CTR is 0 or 1 in floating point

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Derivatives:
    """Gradient and curvature of a loss over the same ads, round after round, in O(n log n) where the loss is.

    Gradients are those of the mean loss times the number of ads (of ``reduction="sum"``, of the sum): of the size that
    a log loss has for each ad. Values are not checked.

    >>> found = Derivatives(WelfareLoss(lam=0.0, unit=1.0), np.array([1.0, 2.0, 0.5]))
    >>> gradient, curvature = found(np.zeros(3), np.array([1.0, 0.0, 0.0]))
    >>> gradient.round(3), curvature.round(3)
    (array([-0.088,  0.104,  0.018]), array([0.055, 0.073, 0.01 ]))
    """

    loss: WelfareLoss | BidWeightedLogLoss
    bids: Floats
    offsets: NDArray[np.int64] | None = None
    teacher: Floats | None = None
    _seen: dict[str, Any] = field(default_factory=dict, repr=False)  # the labels seen last, and their stakes

    def __post_init__(self) -> None:
        if isinstance(self.loss, WelfareLoss):  # from here on bids are in its unit
            unit = self.bids.mean() if isinstance(self.loss.unit, str) else self.loss.unit
            object.__setattr__(self, "bids", self.bids / unit)
            object.__setattr__(self, "loss", self.loss.with_options(unit=1.0))

    def __call__(self, logits: Floats, clicks: Floats, weights: Floats | None = None) -> tuple[Floats, Floats]:
        """Both derivatives for every logit; ``weights`` count as in :class:`bidwise.WelfareLoss`."""
        ctr, labels = sigmoid(logits), clicks
        mass = np.ones_like(ctr) if weights is None else weights
        if isinstance(self.loss, WelfareLoss):
            mass = mass * self.loss.lam
        else:
            mass = mass * self.bids**self.loss.power
            if self.loss.value == "teacher" and self.teacher is not None:
                labels = self.teacher
        gradient, curvature = mass * (ctr - labels), mass * ctr * (1 - ctr)
        if isinstance(self.loss, WelfareLoss):
            slope = self._rank_slope(self.loss, logits, clicks, weights)
            gradient = gradient + slope
            curvature = curvature + self._rank_curvature(
                self.loss, slope, ctr, self._stakes(self.loss, clicks, weights)
            )
        return gradient, np.maximum(curvature, LEAST)

    def _rank_slope(self, loss: WelfareLoss, logits: Floats, clicks: Floats, weights: Floats | None) -> Floats:
        """Derivative of the rank term for every logit, in float32."""

        def tensor(x: Floats | None) -> Any:
            return None if x is None else torch.from_numpy(x).float()

        z = tensor(logits).requires_grad_()
        offsets = None if self.offsets is None else torch.from_numpy(self.offsets)
        rank = loss.with_options(lam=0.0, validate=False)
        total = rank(z, tensor(clicks), tensor(self.bids), offsets, tensor(self.teacher), tensor(weights))
        slope: Floats = torch.autograd.grad(total, z)[0].double().numpy()
        return slope * len(slope) if loss.options.reduction == "mean" else slope

    def _rank_curvature(self, loss: WelfareLoss, slope: Floats, ctr: Floats, stakes: tuple[Floats, Floats]) -> Floats:
        """A curvature no less than the second derivative of the rank term for each score alone, and above 0.

        With eCPM s = b f and s' = ds/dz = b f (1 - f), pairs in which an ad is j push it down by P, those in which it
        is i pull it up by U, and s' (P - U) is its slope. The second derivative is s' (1 - 2 f) (P - U) + s'^2 B, with
        B = sum_j w gap phi'' over both. It is negative for most clicks, so each part is bounded:

        1. What is linear in s is a log loss from above: f >= f0 (1 + log f - log f0) gives -U b f <= -U b f0 log f + c,
           and the same of 1 - f bounds P b f. Curvature of the two: s' (f U + (1 - f) P). In a leaf whose slopes
           cancel both sides still count, as they do in a log loss.
        2. phi'' <= sigma^2 / 4 and phi'' <= sigma |phi'| give B <= sigma min(sigma / 4 stake, U + P), with the stake
           sum_j gap(v - v_j) + gap(v_j - v). The hinge has no phi''; pairs of the signed gap cancel.

        U and P alone would take another pass over pairs. Their difference is known, and |phi'| <= sigma bounds each
        by sigma times its half of the stake; with clicks as values one half is nearly 0, and that is exact.
        Weights of pairs, at most 1, are held fixed.
        """
        options = loss.options
        if options.surrogate == "indicator":
            return np.zeros_like(ctr)
        ecpm_slope = self.bids * ctr * (1 - ctr)
        most_up, most_down = (options.sigma * ecpm_slope * stake for stake in stakes)
        pulled, pushed = np.maximum(-slope, 0), np.maximum(slope, 0)
        both = np.maximum(np.minimum(most_up - pulled, most_down - pushed), 0)
        pulled, pushed = pulled + both, pushed + both
        curvature = ctr * pulled + (1 - ctr) * pushed
        if options.surrogate == "logistic" and (options.gap != "signed" or options.weighting is not None):
            bend = np.minimum((most_up + most_down) / 4, pulled + pushed)
            curvature = curvature + options.sigma * ecpm_slope * bend
        return curvature

    def _stakes(self, loss: WelfareLoss, clicks: Floats, weights: Floats | None) -> tuple[Floats, Floats]:
        """Both halves of the stake of every ad, as much as the reduction lets them count; the same in every round."""
        seen, options, ads = self._seen, loss.options, len(self.bids)
        if not seen or not _same(seen["clicks"], clicks) or not _same(seen["weights"], weights):
            offsets = np.array([0, ads]) if self.offsets is None else self.offsets
            labels = clicks if options.value == "clicks" or self.teacher is None else self.teacher
            sizes = np.diff(offsets)
            share = np.ones(len(sizes))
            if weights is not None:  # of an auction, the mean of its ads
                share = np.diff(np.concatenate([[0.0], np.cumsum(weights)])[offsets]) / np.maximum(sizes, 1)
            if options.pair_mean:
                share = share / np.maximum(sizes, 1) ** 2
            if options.reduction == "mean":
                share = share * ads / max(len(sizes), 1)
            stakes = (np.repeat(share, sizes) * x for x in stakes_of(self.bids * labels, offsets, options.gap))
            kept = None if weights is None else weights.copy()  # the caller may reuse its array
            seen.update(clicks=clicks.copy(), weights=kept, stakes=tuple(stakes))
        found: tuple[Floats, Floats] = seen["stakes"]
        return found


def stakes_of(value: Floats, offsets: NDArray[np.int64], gap: str) -> tuple[Floats, Floats]:
    """sum_j gap(v - v_j) and sum_j gap(v_j - v) of every ad over its auction, by a sort; ``signed`` as ``positive``.

    >>> stakes_of(np.array([1.0, 3.0, 1.0, 5.0]), np.array([0, 3, 4]), "positive")
    (array([0., 4., 0., 0.]), array([2., 0., 2., 0.]))
    """
    sizes = np.diff(offsets)
    auction = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((value, auction))
    sorted_value = value[order]
    first, last = np.repeat(offsets[:-1], sizes), np.repeat(offsets[1:], sizes)
    if gap == "order":
        fresh = np.flatnonzero(np.diff(sorted_value, prepend=np.nan) != 0)
        fresh = np.union1d(fresh, offsets[:-1][sizes > 0])
        runs = np.diff(fresh, append=len(value))
        below = np.repeat(fresh, runs) - first
        above = last - np.repeat(fresh + runs, runs)
    else:
        sums = np.concatenate([[0.0], np.cumsum(sorted_value)])
        row = np.arange(len(value))
        below = (row - first) * sorted_value - (sums[:-1] - sums[first])
        above = (sums[last] - sums[:-1]) - (last - row) * sorted_value
    up, down = np.empty(len(value)), np.empty(len(value))
    up[order], down[order] = np.maximum(below, 0), np.maximum(above, 0)  # rounding may leave less than nothing
    return up, down


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e^-x) without overflow."""
    return np.exp(-np.logaddexp(0, -x))


def _same(a: Floats | None, b: Floats | None) -> bool:
    return a is b if a is None or b is None else np.array_equal(a, b)
