"""The fits of calibrators: pooling of adjacent violators, and the likeliest line between logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidwise.values import Floats

EDGE = 1e-12  # CTRs are moved into [EDGE, 1 - EDGE] before their logit is taken: |logit| <= 27.6
NEWTON_STEPS = 100  # about 8 are taken, some dozens if one more ad would separate the classes


def rows_of(weights: Floats, labels: Floats) -> float:
    """How many rows a weight of 1 counts in a likelihood: Σ w e² / Σ w² e², e the distances of labels from their mean.

    The likelihood is then as steep as it varies, as over rows without weights. If one of ten rows without a click is
    kept, with weight 10, clicks are nearly all that varies, and one with weight 1 counts as one row.

    >>> rows_of(np.array([8.0, 8.0, 8.0]), np.array([0.0, 1.0, 0.0]))
    0.125
    """
    squares = weights * (labels - np.average(labels, weights=weights)) ** 2
    return float(squares.sum() / (weights * squares).sum() if squares.any() else 1 / weights.mean())


def by_score(scores: Floats, clicks: Floats, weights: Floats) -> tuple[Floats, Floats, Floats]:
    """The distinct scores, rising, with the mean label and the summed weight of each.

    >>> by_score(np.array([0.5, 0.1, 0.5]), np.array([1.0, 0.0, 0.0]), np.ones(3))
    (array([0.1, 0.5]), array([0. , 0.5]), array([1., 2.]))
    """
    if (scores[1:] < scores[:-1]).any():
        order = np.argsort(scores)
        scores, clicks, weights = scores[order], clicks[order], weights[order]
    first = np.flatnonzero(np.concatenate([[True], scores[1:] > scores[:-1]]))
    mass = np.add.reduceat(weights, first)
    return scores[first], np.add.reduceat(weights * clicks, first) / mass, mass


def pooled(totals: Floats, mass: Floats) -> NDArray[np.intp]:
    """The starts of blocks after pooling adjacent violators: the means ``totals / mass`` of blocks rise.

    Neighbours with means that do not rise end in one block in any order of pooling, so each pass pools every run
    at once. Labels of ads need a few passes.

    >>> pooled(np.array([1.0, 3.0, 2.0, 4.0]), np.ones(4))
    array([0, 1, 3])
    """
    first = np.arange(len(mass))
    while True:
        means = totals / mass
        runs = np.flatnonzero(np.append(True, means[1:] > means[:-1]))
        if len(runs) == len(first):
            return first
        first, totals, mass = first[runs], np.add.reduceat(totals, runs), np.add.reduceat(mass, runs)


def last_of(first: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """The ends of blocks that begin at ``first``: ``[0, 2], 5 -> [1, 4]``."""
    return np.append(first[1:], count) - 1


def separable(x: Floats, label: Floats, share: Floats) -> bool:
    """Whether the likelihood of sigmoid(slope x + level) grows for ever with a growing slope.

    Along slope (x - t) it falls at the rate  sum_{x < t} y (t - x) + sum_{x > t} (1 - y) (x - t), piecewise linear in
    t with kinks at the scores, and a maximum exists if that is above 0 at all of them. For labels in [0, 1] it is
    0 only if t separates labels 0 from labels 1; all terms are then 0 exactly, as no sum here subtracts.
    """
    step = np.diff(x)
    below = np.cumsum(np.cumsum(share * label)[:-1] * step)
    above = np.cumsum(np.cumsum((share * (1 - label))[::-1])[:-1] * step[::-1])[::-1]
    return bool((np.append(0, below) + np.append(above, 0) <= 0).any())


def likeliest_line(x: Floats, label: Floats, share: Floats) -> tuple[float, float]:
    """Slope and level of sigmoid(slope x + level) with the greatest likelihood, by Newton with step halving."""

    def likelihood(line: Floats) -> float:
        z = line[0] * x + line[1]
        softplus = np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))
        return float((share * (label * z - softplus)).sum())

    line = np.array([0.0, float(logit((share * label).sum()))])
    reached = likelihood(line)
    for _ in range(NEWTON_STEPS):
        ctr = sigmoid(line[0] * x + line[1])
        residual = share * (label - ctr)
        gradient = np.array([(residual * x).sum(), residual.sum()])
        curvature = share * ctr * (1 - ctr)
        mixed = (curvature * x).sum()
        hessian = np.array([[(curvature * x * x).sum(), mixed], [mixed, curvature.sum()]])
        if not np.linalg.det(hessian) > 0:
            break
        step = np.linalg.solve(hessian, gradient)
        promise = gradient @ step  # twice the likelihood still to gain
        while likelihood(line + step) < reached - 1e-13 and np.abs(step).max() > 1e-13:
            step = step / 2
        line = line + step
        reached = likelihood(line)
        if promise < 1e-20 * curvature.sum():  # the mean of the output was right to ten digits before this step
            break
    return float(line[0]), float(line[1])


def shift(logits: Floats, share: Floats, rate: float) -> float:
    """The intercept with  sum share sigmoid(logits + intercept) = rate, by bisection."""
    low, high = float(logit(rate)) - logits[-1], float(logit(rate)) - logits[0]
    while high - low > 1e-12 * max(1, abs(low)):
        middle = (low + high) / 2
        if (share * sigmoid(logits + middle)).sum() < rate:
            low = middle
        else:
            high = middle
    return float((low + high) / 2)


def sigmoid(logits: Floats) -> Floats:
    small = np.exp(-np.abs(logits))  # never overflows, and keeps the digits of a small CTR
    result: Floats = np.where(logits < 0, small, 1.0) / (1 + small)
    return result


def logit(ctr: ArrayLike) -> Floats:
    inside = np.clip(np.asarray(ctr, dtype=np.float64), EDGE, 1 - EDGE)
    logits: Floats = np.log(inside) - np.log1p(-inside)
    return logits
