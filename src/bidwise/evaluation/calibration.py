"""Calibrators: monotone maps from predicted CTR to observed CTR, fitted on clicks.

A calibrator never reverses two CTRs, yet if bids differ it can change who wins: the auction ranks bid x CTR, and a
curved map changes ratios of CTRs. Welfare is therefore worth reading before and after calibration.

Every fit is linear in the label, so the mean label of each distinct score is all it needs, and a label may also be a
click divided by its exposure, which can exceed 1. Outputs are in [0, 1]; all arithmetic is float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike

from bidwise.auctions import ad_numbers
from bidwise.checks import InputError, check_between, check_name, check_not_negative
from bidwise.evaluation.fitting import (
    by_score,
    last_of,
    likeliest_line,
    logit,
    pooled,
    rows_of,
    separable,
    shift,
    sigmoid,
)
from bidwise.values import Floats

FOLDS = 5
PRIOR = 30.0  # clicks that a calibration of 1 and 0 is worth
GAIN = 2.0  # of summed log loss, for each number that is fitted
SAME = 1e-9  # logits all within this are one prediction, which does not determine a slope
TINY = 1e-290  # isotonic CTRs below are 0: neighbours there are so near that the slope between them overflows


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
    def fit(cls, ctr: Floats, clicks: Floats, weights: Floats) -> Self:
        logits, label, mass = by_score(logit(ctr), clicks, weights)
        ads, clicked = mass.sum(), (mass * label).sum()
        one_class = not 0 < clicked < ads
        if one_class or logits[-1] - logits[0] < SAME:
            rate = (min(clicked, ads) + 1) / (ads + 2) if one_class else clicked / ads
            return cls(1.0, shift(logits, mass / ads, rate))
        share = mass / ads
        centre = (share * logits).sum()
        scale = np.sqrt((share * (logits - centre) ** 2).sum())
        standard = (logits - centre) / scale  # so that the first Newton steps are well conditioned
        if separable(standard, label, share):
            low, high = 1 / (ads - clicked + 2), (clicked + 1) / (clicked + 2)
            label = np.minimum(low + label * (high - low), high)
        rate = (share * label).sum()
        if (share * standard * (label - rate)).sum() <= 0:  # the likelihood's derivative at slope 0, and it is concave
            return cls(0.0, float(logit(rate)))
        slope, level = likeliest_line(standard, label, share)
        return cls(float(slope / scale), float(level - slope * centre / scale))

    def __call__(self, ctr: ArrayLike) -> Floats:
        return sigmoid(self.slope * logit(_numbers("ctr", ctr, most=1)) + self.intercept)


@dataclass(frozen=True)
class Isotonic:
    """The monotone step function nearest to the labels in weighted least squares.

        argmin_g  sum_i w_i (y_i - g(ctr_i))^2,   g never falling

    by pooling adjacent violators; straight lines join the steps and both ends continue flat. The mean of the output
    over the training ads is their mean label, unless a step is above 1 and is cut there. Steps tie the ads on them.

    >>> steps = calibrator("isotonic", [0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1])
    >>> steps([0.1, 0.15, 0.3, 0.4])
    array([0.  , 0.25, 0.5 , 1.  ])
    """

    scores: tuple[float, ...]
    rates: tuple[float, ...]

    @classmethod
    def fit(cls, ctr: Floats, clicks: Floats, weights: Floats) -> Self:
        scores, label, mass = by_score(np.where(ctr < TINY, 0.0, ctr), clicks, weights)
        first = pooled(mass * label, mass)
        last = last_of(first, len(scores))
        rate = np.add.reduceat(mass * label, first) / np.add.reduceat(mass, first)
        ends = np.stack([first, last], axis=1).ravel()
        once = np.concatenate([[True], np.diff(ends) > 0])  # a step of one score has one end
        rates = np.repeat(rate, 2)[once].clip(0, 1)
        return cls(tuple(scores[ends[once]].tolist()), tuple(rates.tolist()))

    def __call__(self, ctr: ArrayLike) -> Floats:
        ctr = _numbers("ctr", ctr, most=1)
        ctr = np.where(ctr < TINY, 0.0, ctr)
        rates: Floats = np.interp(ctr, np.asarray(self.scores), np.asarray(self.rates))
        return rates.clip(0, 1)  # rounding


Calibrator = Platt | Isotonic  # a map from CTR to CTR: call it with predictions ``(ads,)`` in [0, 1]
CALIBRATORS: dict[str, type[Calibrator]] = {"platt": Platt, "isotonic": Isotonic}


def calibrator(kind: str, ctr: ArrayLike, clicks: ArrayLike, *, weights: ArrayLike | None = None) -> Calibrator:
    """A calibrator fitted on these ads.

    Args:
        kind: ``platt`` or ``isotonic``, see :data:`CALIBRATORS`.
        ctr: predicted CTR in [0, 1], ``(ads,)``.
        clicks: 0 or 1, or clicks divided by an exposure: finite and no less than 0.
        weights: of the ads, no less than 0 and not all 0; only their ratios matter.

    >>> halved = calibrator("platt", [0.2, 0.2, 0.8, 0.8, 0.8], [0, 0.5, 0, 1, 0.5])
    >>> halved([0.2, 0.8]).round(2)
    array([0.25, 0.5 ])
    """
    check_name("kind", kind, CALIBRATORS)
    ctr, clicks, weights = _ads(ctr, clicks, weights)
    if not weights.any():
        raise InputError(f"weights must not all be 0, found {len(weights)} zeros")
    return _fitted(kind, ctr, clicks, weights)


def shrunk_line(logits: Floats, labels: Floats, weights: Floats | None = None) -> tuple[float, float]:
    """Slope and intercept of logits, drawn towards 1 and 0 by a prior worth ``PRIOR`` clicks.

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
            slope, intercept = _likeliest(logits[seen], labels[seen], weights[seen], free)
            z = slope * logits[other] + intercept
            loss += float((weights[other] * (np.logaddexp(0, z) - labels[other] * z)).sum())
        if loss + GAIN * free < best:
            best, line = loss + GAIN * free, _likeliest(logits, labels, weights, free)
    return line


def _likeliest(logits: Floats, labels: Floats, weights: Floats, free: int) -> tuple[float, float]:
    """By Newton's method: nothing, the intercept or both are ``free``."""
    if not free or not len(logits):
        return 1.0, 0.0
    centre = float((weights * logits).sum() / weights.sum())
    parts = np.stack([np.ones(len(logits)), logits - centre])[:free]  # shift and slope - 1
    spread = float((weights * (logits - centre) ** 2).sum() / weights.sum())
    prior, change = PRIOR * np.array([1.0, max(spread, 1e-12)])[:free], np.zeros(free)
    for _ in range(50):
        ctr = sigmoid(logits + change @ parts)
        slope = parts @ (weights * (ctr - labels)) + prior * change
        curve = (parts * (weights * ctr * (1 - ctr))) @ parts.T + np.diag(prior)
        step = np.linalg.solve(curve, slope)
        change -= np.clip(step, -1, 1)
        if np.abs(step).max() < 1e-10:
            break
    tilt = float(change[1]) if free == 2 else 0.0
    return 1 + tilt, float(change[0]) - tilt * centre


def _fitted(kind: str, ctr: Floats, clicks: Floats, weights: Floats) -> Calibrator:
    if not weights.all():
        seen = weights > 0
        ctr, clicks, weights = ctr[seen], clicks[seen], weights[seen]
    return CALIBRATORS[kind].fit(ctr, clicks, weights / weights.mean())


def _ads(ctr: ArrayLike, clicks: ArrayLike, weights: ArrayLike | None) -> tuple[Floats, Floats, Floats]:
    """Checked columns ``(ads,)``, at least one ad; without weights all are 1."""
    ctr = _numbers("ctr", ctr, most=1)
    if len(ctr) == 0:
        raise InputError("must have at least one ad to calibrate on, found 0", argument="ctr")
    clicks = _numbers("clicks", clicks, like=ctr)
    return ctr, clicks, np.ones(len(ctr)) if weights is None else _numbers("weights", weights, like=ctr)


def _numbers(argument: str, found: ArrayLike, *, like: Floats | None = None, most: float = np.inf) -> Floats:
    """``found`` as float64 ``(ads,)``, finite and in ``[0, most]``, as many as ``like``."""
    numbers = ad_numbers(argument, found, like=None if like is None else torch.from_numpy(like)).cpu()
    if most < np.inf:
        check_between(argument, numbers, 0, most)
    else:
        check_not_negative(argument, numbers)
    array: Floats = numbers.numpy()
    return array
