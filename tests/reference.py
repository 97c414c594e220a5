"""The losses as slow loops over plain numbers: the definition that every tensor implementation is held to.

Nothing here knows tensors. Every function takes lists of floats and returns the loss beside its gradient with
respect to the logits, each written out by hand.
"""

from itertools import pairwise as neighbours
from math import exp, fsum, log1p
from typing import NamedTuple


class Loss(NamedTuple):
    """A loss, its gradient per ad, and the sum of its absolute terms: what a rounded sum is accurate to."""

    loss: float
    gradient: list[float]
    magnitude: float


def sigmoid(x):
    """1 / (1 + e^-x) without overflow.

    >>> sigmoid(0.0), sigmoid(1e4), sigmoid(-1e4)
    (0.5, 1.0, 0.0)
    """
    return 1 / (1 + exp(-x)) if x >= 0 else exp(x) / (1 + exp(x))


def softplus(x):
    """log(1 + e^x) without overflow.

    >>> softplus(1e4), softplus(-1e4)
    (10000.0, 0.0)
    """
    return max(x, 0.0) + log1p(exp(-abs(x)))


def gap_of(x, gap):
    """Welfare at stake for x = v_i - v_j."""
    return {"signed": x, "positive": max(x, 0.0), "order": float(x > 0)}[gap]


def surrogate_of(x, surrogate, sigma):
    """phi(x) and phi'(x) for x = s_i - s_j.

    >>> surrogate_of(0.0, "hinge", 2.0)  # at a tie half of the slope
    (0.0, -1.0)
    """
    if surrogate == "logistic":
        return softplus(-sigma * x), -sigma * sigmoid(-sigma * x)
    if surrogate == "hinge":
        below = 1.0 if x < 0 else 0.5 if x == 0 else 0.0
        return sigma * max(0.0, -x), -sigma * below
    return float(x <= 0), 0.0


def auction_loss(
    logits, clicks, bids, teacher=None, *, value, gap, surrogate, sigma=1.0, weighting=None, pair_mean=True
):
    """L = sum_ij w_ij gap(v_i - v_j) phi(s_i - s_j) of one auction, over n^2 where ``pair_mean``.

    >>> auction_loss([0.0, 0.0], [1, 0], [2.0, 4.0], value="clicks", gap="positive", surrogate="hinge")
    Loss(loss=0.5, gradient=[-0.25, 0.5], magnitude=0.5)
    """
    n = len(logits)
    ecpm = [b * sigmoid(z) for b, z in zip(bids, logits, strict=True)]
    values = [b * y for b, y in zip(bids, teacher if value == "teacher" else clicks, strict=True)]
    left, right, right_slope = [1.0] * n, [1.0] * n, [0.0] * n
    if weighting is not None:
        left = [sigmoid(weighting * b * p) for b, p in zip(bids, teacher, strict=True)]
        right = [sigmoid(weighting * s) for s in ecpm]
        right_slope = [weighting * sigmoid(weighting * s) * sigmoid(-weighting * s) for s in ecpm]
    terms = []
    slopes = [[] for _ in range(n)]  # contributions to dL / ds
    for i in range(n):
        for j in range(n):
            stake = gap_of(values[i] - values[j], gap)
            phi, slope = surrogate_of(ecpm[i] - ecpm[j], surrogate, sigma)
            terms.append(left[i] * right[j] * stake * phi)
            pull = left[i] * right[j] * stake * slope
            slopes[i].append(pull)
            slopes[j].append(-pull)
            slopes[j].append(left[i] * right_slope[j] * stake * phi)
    share = 1 / n**2 if pair_mean and n else 1.0
    gradient = [
        share * b * sigmoid(z) * sigmoid(-z) * fsum(slope) for b, z, slope in zip(bids, logits, slopes, strict=True)
    ]
    return Loss(share * fsum(terms), gradient, share * fsum(map(abs, terms)))


def pairwise(logits, clicks, bids, offsets=None, teacher=None, **member):
    """`auction_loss` of every auction.

    >>> member = dict(value="clicks", gap="signed", surrogate="indicator")
    >>> [one.loss for one in pairwise([0.0] * 3, [1, 0, 1], [1.0, 4.0, 9.0], [0, 2, 2, 3], **member)]
    [0.25, 0.0, 0.0]
    """
    bounds = [0, len(logits)] if offsets is None else offsets
    return [
        auction_loss(logits[a:b], clicks[a:b], bids[a:b], None if teacher is None else teacher[a:b], **member)
        for a, b in neighbours(bounds)
    ]


def log_loss(logits, clicks, weights=None):
    """w (y log(1 + e^-z) + (1 - y) log(1 + e^z)) of every ad, and its derivative.

    >>> log_loss([-1e4, 1e4], [1, 1])
    ([10000.0, 0.0], [-1.0, 0.0])
    """
    weights = [1.0] * len(logits) if weights is None else weights
    ads = list(zip(logits, clicks, weights, strict=True))
    losses = [w * (y * softplus(-z) + (1 - y) * softplus(z)) for z, y, w in ads]
    gradient = [w * ((1 - y) * sigmoid(z) - y * sigmoid(-z)) for z, y, w in ads]
    return losses, gradient


def mean_log_loss(logits, clicks, weights=None):
    """Sum of the weighted log losses over the number of ads (not over the sum of the weights)."""
    losses, gradient = log_loss(logits, clicks, weights)
    ads = max(len(logits), 1)
    return fsum(losses) / ads, [slope / ads for slope in gradient]


def welfare_loss(
    logits, clicks, bids, offsets=None, teacher=None, *, lam=3.0, reduction="mean", unit=1.0, weights=None, **member
):
    """Rank term plus lam times the log loss: both means (rank: of L / n^2), or both literal sums.

    The rank term takes bids in ``unit``, or in their mean for ``batch``, and an auction counts the mean weight of its
    ads.
    """
    mean, ads = reduction == "mean", len(logits)
    weights = [1.0] * ads if weights is None else weights
    unit = fsum(bids) / max(ads, 1) if unit == "batch" else unit
    auctions = pairwise(logits, clicks, [b / unit for b in bids], offsets, teacher, pair_mean=mean, **member)
    bounds = [0, ads] if offsets is None else offsets
    counts = [fsum(weights[a:b]) / max(b - a, 1) for a, b in neighbours(bounds)]
    counts = [count / max(len(auctions), 1) if mean else count for count in counts]
    losses, slopes = log_loss(logits, clicks, weights)
    per_ad = lam / max(ads, 1) if mean else lam
    rank = fsum(count * one.loss for count, one in zip(counts, auctions, strict=True))
    pulls = [count * slope for count, one in zip(counts, auctions, strict=True) for slope in one.gradient]
    return rank + per_ad * fsum(losses), [a + per_ad * b for a, b in zip(pulls, slopes, strict=True)]
