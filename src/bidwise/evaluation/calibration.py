"""Calibration of predicted CTRs: how predictions and clicks compare, and a line between logits fitted on clicks.

The line never reverses two CTRs, yet if bids differ it can change who wins: the auction ranks bid x CTR, and a
line between logits changes ratios of CTRs. Welfare is therefore worth reading before and after calibration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from bidwise.auctions import ad_numbers
from bidwise.checks import InputError, check_between, check_not_negative
from bidwise.values import Floats

BINS = 20
EDGE = 1e-12  # CTRs are moved into [EDGE, 1 - EDGE] before their logit is taken: |logit| <= 27.6
NEWTON_STEPS = 100  # about 8 are taken, some dozens if one more ad would separate the classes
FOLDS = 5
_CLICKS = 30.0  # that a slope of 1 and an intercept of 0 are worth in a shrunk line
GAIN = 2.0  # of summed log loss, for each number that is fitted
ONE_CTR = 1e-9  # logits all within this are one prediction, which does not determine a slope


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


@dataclass(frozen=True)
class Platt:
    """A straight line between logits, fitted by maximum likelihood.

        sigmoid(slope logit(ctr) + intercept),   slope >= 0

    The slope is 0, and the output constant, if the likelihood asks for a reversed order. It stays 1, and only the
    intercept fits the rate, if the data do not determine it: all predictions equal, or one class only (no
    clicks, or a mean label of 1 or more), with rate (N+ + 1) / (N + 2). If a threshold separates the classes
    the likelihood has no maximum, and Platt's targets (N+ + 1) / (N+ + 2) and 1 / (N- + 2) stand for 1 and 0.
    Otherwise the mean of the output over the training ads is their mean label.

    >>> Platt(slope=0.5, intercept=0.0)([0.1, 0.5, 0.9])
    array([0.25, 0.5 , 0.75])
    """

    slope: float
    intercept: float

    @classmethod
    def fit(cls, ctr: ArrayLike, clicks: ArrayLike, *, weights: ArrayLike | None = None) -> Self:
        """The line that fits these ads best.

        Args:
            ctr: predicted CTR in [0, 1], ``(ads,)``.
            clicks: 0 or 1, or clicks divided by an exposure: finite and no less than 0.
            weights: of the ads, no less than 0 and not all 0; only their ratios matter.

        >>> Platt.fit([0.2, 0.2, 0.8, 0.8, 0.8], [0, 0.5, 0, 1, 0.5])([0.2, 0.8]).round(2)
        array([0.25, 0.5 ])
        """
        ctr = _numbers("ctr", ctr, most=1)
        if len(ctr) == 0:
            raise InputError("must have at least one ad to calibrate on, found 0", argument="ctr")
        clicks = _numbers("clicks", clicks, like=ctr)
        weight = np.ones(len(ctr)) if weights is None else _numbers("weights", weights, like=ctr)
        if not weight.any():
            raise InputError(f"must not all be 0, found {len(weight)} zeros", argument="weights")
        seen = weight > 0
        logits, label, mass = _by_score(_logit(ctr[seen]), clicks[seen], weight[seen] / weight[seen].mean())
        ads, clicked = mass.sum(), (mass * label).sum()
        one_class = not 0 < clicked < ads
        if one_class or logits[-1] - logits[0] < ONE_CTR:
            rate = (min(clicked, ads) + 1) / (ads + 2) if one_class else clicked / ads
            return cls(1.0, _shift(logits, mass / ads, rate))
        share = mass / ads
        centre = (share * logits).sum()
        scale = np.sqrt((share * (logits - centre) ** 2).sum())
        standard = (logits - centre) / scale  # so that the first Newton steps are well conditioned
        if _separable(standard, label, share):
            low, high = 1 / (ads - clicked + 2), (clicked + 1) / (clicked + 2)
            label = np.minimum(low + label * (high - low), high)
        rate = (share * label).sum()
        if (share * standard * (label - rate)).sum() <= 0:  # the likelihood's derivative at slope 0, and it is concave
            return cls(0.0, float(_logit(rate)))
        parts, start = np.stack([standard, np.ones(len(standard))]), np.array([0.0, float(_logit(rate))])
        slope, level = _likeliest(parts, np.zeros(len(standard)), label, share, start)
        return cls(float(slope / scale), float(level - slope * centre / scale))

    def __call__(self, ctr: ArrayLike) -> Floats:
        return _sigmoid(self.slope * _logit(_numbers("ctr", ctr, most=1)) + self.intercept)


def rows_of(weights: Floats, labels: Floats) -> float:
    """How many rows a weight of 1 counts in a likelihood: Σ w e² / Σ w² e², e the distances of labels from their mean.

    The likelihood is then as steep as it varies, as over rows without weights. If one of ten rows without a click is
    kept, with weight 10, clicks are nearly all that varies, and one with weight 1 counts as one row.

    >>> rows_of(np.array([8.0, 8.0, 8.0]), np.array([0.0, 1.0, 0.0]))
    0.125
    """
    squares = weights * (labels - np.average(labels, weights=weights)) ** 2
    return float(squares.sum() / (weights * squares).sum() if squares.any() else 1 / weights.mean())


def shrunk_line(logits: Floats, labels: Floats, weights: Floats | None = None) -> tuple[float, float]:
    """Slope and intercept of logits, drawn towards 1 and 0 by a prior worth ``_CLICKS`` clicks.

    The intercept, and both, are fitted only if that lowers the summed log loss of ads that they were not fitted on by
    more than ``GAIN`` each: chance alone would make one of few ads.

    >>> shrunk_line(np.zeros(6), np.array([1.0, 0, 0, 0, 0, 0]))
    (1.0, 0.0)
    """
    weights = np.ones(len(logits)) if weights is None else weights * rows_of(weights, labels)
    fold = np.random.default_rng(0).permutation(len(logits)) % FOLDS
    best, line = np.inf, (1.0, 0.0)
    for free in (0, 1, 2):
        loss = 0.0
        for held_out in range(FOLDS if free else 1):
            seen, other = (fold != held_out, fold == held_out) if free else (fold < 0, fold >= 0)
            slope, intercept = _shrunk(logits[seen], labels[seen], weights[seen], free)
            z = slope * logits[other] + intercept
            loss += float((weights[other] * (np.logaddexp(0, z) - labels[other] * z)).sum())
        if loss + GAIN * free < best:
            best, line = loss + GAIN * free, _shrunk(logits, labels, weights, free)
    return line


def _shrunk(logits: Floats, labels: Floats, weights: Floats, free: int) -> tuple[float, float]:
    """Slope and intercept; nothing, the intercept or both are ``free``."""
    if not free or not len(logits):
        return 1.0, 0.0
    share = weights / weights.sum()
    centre = float((share * logits).sum())
    spread = float((share * (logits - centre) ** 2).sum())
    prior = _CLICKS / weights.sum() * np.array([1.0, max(spread, 1e-12)])[:free]
    parts = np.stack([np.ones(len(logits)), logits - centre])[:free]  # shift and slope - 1
    shift, tilt = (*_likeliest(parts, logits, labels, share, np.zeros(free), prior).tolist(), 0.0)[:2]
    return 1 + tilt, shift - tilt * centre


def _likeliest(
    parts: Floats, offset: Floats, label: Floats, share: Floats, start: Floats, prior: Floats | float = 0.0
) -> Floats:
    """The numbers x with the greatest likelihood of sigmoid(offset + x parts), less prior x^2 / 2, by Newton's method
    with step halving."""

    def likelihood(x: Floats) -> float:
        z = offset + x @ parts
        softplus = np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))
        return float((share * (label * z - softplus)).sum() - (prior * x * x).sum() / 2)

    x, reached = start, likelihood(start)
    for _ in range(NEWTON_STEPS):
        ctr = _sigmoid(offset + x @ parts)
        gradient = parts @ (share * (label - ctr)) - prior * x
        curvature = share * ctr * (1 - ctr)
        hessian = (parts * curvature) @ parts.T + np.diag(np.broadcast_to(prior, len(x)))
        if not np.linalg.det(hessian) > 0:
            break
        step = np.linalg.solve(hessian, gradient)
        promise = gradient @ step  # twice the likelihood still to gain
        while likelihood(x + step) < reached - 1e-13 and np.abs(step).max() > 1e-13:
            step = step / 2
        x = x + step
        reached = likelihood(x)
        if promise < 1e-20 * curvature.sum():  # the mean of the output was right to ten digits before this step
            break
    return x


def _by_score(scores: Floats, clicks: Floats, weights: Floats) -> tuple[Floats, Floats, Floats]:
    """The distinct scores, rising, with the mean label and the summed weight of each.

    >>> _by_score(np.array([0.5, 0.1, 0.5]), np.array([1.0, 0.0, 0.0]), np.ones(3))
    (array([0.1, 0.5]), array([0. , 0.5]), array([1., 2.]))
    """
    order = np.argsort(scores)
    scores, clicks, weights = scores[order], clicks[order], weights[order]
    first = np.flatnonzero(np.concatenate([[True], scores[1:] > scores[:-1]]))
    mass = np.add.reduceat(weights, first)
    return scores[first], np.add.reduceat(weights * clicks, first) / mass, mass


def _separable(x: Floats, label: Floats, share: Floats) -> bool:
    """Whether the likelihood of sigmoid(slope x + level) grows for ever with a growing slope.

    Along slope (x - t) it falls at the rate  sum_{x < t} y (t - x) + sum_{x > t} (1 - y) (x - t), piecewise linear in
    t with kinks at the scores, and a maximum exists if that is above 0 at all of them. For labels in [0, 1] it is
    0 only if t separates labels 0 from labels 1; all terms are then 0 exactly, as no sum here subtracts.
    """
    step = np.diff(x)
    below = np.cumsum(np.cumsum(share * label)[:-1] * step)
    above = np.cumsum(np.cumsum((share * (1 - label))[::-1])[:-1] * step[::-1])[::-1]
    return bool((np.append(0, below) + np.append(above, 0) <= 0).any())


def _shift(logits: Floats, share: Floats, rate: float) -> float:
    """The intercept with  sum share sigmoid(logits + intercept) = rate, by bisection."""
    low, high = float(_logit(rate)) - logits[-1], float(_logit(rate)) - logits[0]
    while high - low > 1e-12 * max(1, abs(low)):
        middle = (low + high) / 2
        if (share * _sigmoid(logits + middle)).sum() < rate:
            low = middle
        else:
            high = middle
    return float((low + high) / 2)


def _sigmoid(logits: Floats) -> Floats:
    small = np.exp(-np.abs(logits))  # never overflows, and keeps the digits of a small CTR
    result: Floats = np.where(logits < 0, small, 1.0) / (1 + small)
    return result


def _logit(ctr: ArrayLike) -> Floats:
    inside = np.clip(np.asarray(ctr, dtype=np.float64), EDGE, 1 - EDGE)
    logits: Floats = np.log(inside) - np.log1p(-inside)
    return logits


def _numbers(argument: str, found: ArrayLike, *, like: Floats | None = None, most: float = np.inf) -> Floats:
    """``found`` as float64 ``(ads,)``, finite and in ``[0, most]``, as many as ``like``."""
    numbers = ad_numbers(argument, found, like=None if like is None else torch.from_numpy(like)).cpu()
    if most < np.inf:
        check_between(argument, numbers, 0, most)
    else:
        check_not_negative(argument, numbers)
    array: Floats = numbers.numpy()
    return array
