"""Welfare and revenue of every auction that could have been: all draws of m ads from a pool, in closed form.

Where ads were not logged in real auctions, an auction is m ads drawn from a pool of N. With r ads of lower eCPM, an ad
is drawn and takes slot k with probability

    P_k = C(r, m - k) C(N - 1 - r, k - 1) / C(N, m)

so one sort gives the mean over all C(N, m) auctions: no random cut, no seed, and every click counts. The mean is a
U-statistic: with h_i the mean over the auctions that ad i takes part in, its jackknife standard error is
m sd(h) sqrt(N - 1) / (N - m). All sums have positive terms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bidwise.auctions.columns import ad_numbers, slot_multipliers
from bidwise.auctions.pricing import PRICINGS
from bidwise.auctions.ranking import power
from bidwise.checks import InputError, check_between, check_bids, check_name, check_not_negative, check_whole

SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680)  # of Stirling's correction, in odd powers of 1 / x
EXACT_BELOW = 16.0  # where the series has too few terms
NEGLIGIBLE = math.log(1e-18) - math.log(1e8)  # logarithm of a chance that up to 1e8 ads together do not notice


@dataclass(frozen=True, eq=False)
class Pooled:
    """The mean over all auctions of ``size`` ads from a pool, and over those that each ad takes part in."""

    mean: float
    per_ad: Tensor  # h, (ads,)
    size: int

    def __sub__(self, other: Pooled) -> Pooled:
        """The difference of two models over the same ads, pair by pair."""
        return Pooled(self.mean - other.mean, self.per_ad - other.per_ad, self.size)

    @property
    def standard_error(self) -> float:
        """m sd(h) sqrt(N - 1) / (N - m); infinite where the whole pool is one auction."""
        ads = len(self.per_ad)
        if ads <= self.size:
            return math.inf
        spread = float((self.per_ad - self.per_ad.mean()).square().mean().sqrt())
        return self.size * spread * math.sqrt(ads - 1) / (ads - self.size)


def pooled_welfare(
    ctr: ArrayLike,
    truth: ArrayLike,
    bids: ArrayLike,
    size: int,
    *,
    slots: Sequence[float] = (1.0,),
    weights: ArrayLike | None = None,
) -> float:
    """Mean welfare of an auction of ``size`` ads, over all auctions that could be drawn from these ads.

        sum_k alpha_k sum_i b_i truth_i P_k(i)

    Ties in eCPM are broken at random: each ad of a run of equal eCPM has the mean probability of the run.

    Args:
        ctr: predicted CTR in [0, 1], ``(ads,)``; numpy, torch or anything numpy reads, on any device.
        truth: clicks or true CTR in [0, 1].
        bids: cost-per-click bids, above 0.
        size: ads of an auction, m.
        slots: position multipliers, the first 1, then positive and never rising.
        weights: how many ads each one stands for, such as 10 for negatives sampled at 1/10: it also competes so often.

    >>> ctr, clicks, bids = [0.5, 0.4, 0.1], [0, 1, 1], [1.0, 1.0, 1.0]
    >>> pooled_welfare(ctr, clicks, bids, 2)  # of three pairs, one shows a clicked ad
    0.3333333333333333
    >>> pooled_welfare(ctr, clicks, bids, 2, slots=(1.0, 0.5))
    0.8333333333333334
    """
    ctr, truth, bids = _columns(ctr, truth, bids)
    if weights is not None:
        w = ad_numbers("weights", weights, like=ctr)
        check_not_negative("weights", w)
        return _weighted(bids * ctr, bids * truth, w, size, slot_multipliers(slots).to(ctr.device))
    return Pool(bids * ctr, size, len(slots)).welfare(bids * truth, slots).mean


def pooled_revenue(
    ctr: ArrayLike,
    truth: ArrayLike,
    bids: ArrayLike,
    size: int,
    *,
    slots: Sequence[float] = (1.0,),
    pricing: str = "gsp",
    squash: float = 1.0,
) -> float:
    """Mean revenue of an auction of ``size`` ads, over all auctions that could be drawn from these ads.

    Prices are those of :func:`bidwise.run_auction` without a reserve.

    >>> pooled_revenue([0.5, 0.4, 0.1], [1, 1, 1], [1.0, 1.0, 1.0], 2)  # prices 0.8, 0.2 and 0.25 per click
    0.4166666666666667
    """
    ctr, truth, bids = _columns(ctr, truth, bids)
    quality = power(ctr, squash)
    pool = Pool(bids * quality, size, len(slots) + 1)
    return pool.revenue(truth, bids, quality, slots, pricing).mean


def _columns(ctr: ArrayLike, truth: ArrayLike, bids: ArrayLike) -> tuple[Tensor, Tensor, Tensor]:
    ctr = ad_numbers("ctr", ctr)
    truth, bids = ad_numbers("truth", truth, like=ctr), ad_numbers("bids", bids, like=ctr)
    check_between("ctr", ctr, 0, 1)
    check_not_negative("truth", truth)
    check_bids(bids)
    return ctr, truth, bids


class Pool:
    """Ads in the order of their score, and the chances of their ranks in an auction of ``size`` of them.

    Only ads that may be among the first ``depth`` of an auction are looked at: with large auctions a small part of the
    pool. The others could change a mean by 1e-18 of it.

    Args:
        score: what the auction ranks, float64, ``(ads,)``.
        size: ads of an auction.
        depth: places of an auction that matter: the slots, and the rival below them.
    """

    def __init__(self, score: Tensor, size: int, depth: int = 2) -> None:
        check_whole("size", size, 1)
        self.ads, self.size = len(score), int(size)
        if self.size > self.ads:
            raise InputError(f"must be at most the number of ads, {self.ads:,}, found {size:,}", argument="size")
        ranked, order = score.sort(stable=True)
        self.auctions = float(_log_choose(_one(self.ads - 1), self.size - 1))  # log of those with a given ad
        first = self._first(min(depth, self.size))
        first = int(torch.searchsorted(ranked, ranked[first]))  # a run of ties stays whole
        self.score, self.order = ranked[first:], order[first:]
        self.rank = torch.arange(first, self.ads, dtype=torch.float64, device=score.device)
        values, self.run, self.count = torch.unique_consecutive(self.score, return_inverse=True, return_counts=True)
        self.tied = len(values) < len(self.score)

    def _first(self, depth: int) -> int:
        """The lowest rank with a chance of a place down to ``depth`` that counts, by bisection."""
        low, high = 0, self.ads - depth  # the chance rises up to about there
        while low < high:
            middle = (low + high) // 2
            chance = _log_choose(_one(self.ads - 1 - middle), depth - 1) + _log_choose(_one(middle), self.size - depth)
            low, high = (low, middle) if float(chance) - self.auctions > NEGLIGIBLE else (middle + 1, high)
        return low

    def in_order(self, numbers: Tensor) -> Tensor:
        """Numbers per ad from the lowest score to the highest; those of a run of ties are their mean."""
        return self.run_mean(numbers[self.order])

    def run_mean(self, numbers: Tensor) -> Tensor:
        """The mean over each run of ties, at every place of it."""
        if not self.tied:
            return numbers
        means: Tensor = torch.segment_reduce(numbers, "mean", lengths=self.count)
        return means[self.run]

    def chance(self, above: int, below: int, *, of_above: int = 0, of_below: int = 0) -> Tensor:
        """C(N - 1 - r - of_above, above) C(r - of_below, below) / C(N - 1, m - 1) for the ad of each rank r."""
        if above < 0 or below < 0:
            return torch.zeros_like(self.rank)
        higher = _log_choose(self.ads - 1 - of_above - self.rank, above)
        return (higher + _log_choose(self.rank - of_below, below) - self.auctions).exp()

    def welfare(self, value: Tensor, slots: Sequence[float]) -> Pooled:
        """Mean of sum_k alpha_k value of the ad in slot k; ``value`` = b truth, ``(ads,)``."""
        m, mean_value = self.size, self.in_order(value)
        own, others = torch.zeros_like(self.rank), torch.zeros_like(self.rank)
        for k, alpha in enumerate(slot_multipliers(slots).tolist(), 1):
            own += alpha * self.chance(k - 1, m - k)
            others += alpha * _after(mean_value * self.chance(k - 1, m - k - 1, of_below=1))  # of ads above this one
            others += alpha * _before(mean_value * self.chance(k - 2, m - k, of_above=1))
        return self._pooled(mean_value, value, own, others)

    def revenue(
        self, truth: Tensor, bids: Tensor, quality: Tensor, slots: Sequence[float], pricing: str = "gsp"
    ) -> Pooled:
        """Mean of sum_k alpha_k truth price of the ad in slot k."""
        check_name("pricing", pricing, PRICINGS)
        if pricing == "first_price":
            return self.welfare(bids * truth, slots)
        per_score = (truth / quality).where(quality > 0, 0.0)  # clicks for each unit of a rival's score
        alpha = slot_multipliers(slots).tolist()
        drops = [a - b for a, b in zip(alpha, [*alpha[1:], 0.0], strict=True)]
        pairs = {}
        for l in range(1, len(alpha) + 1):
            if pricing == "gsp":
                pairs[l, l + 1] = alpha[l - 1]
            else:  # the ads of slots 1 .. l pay for what the ad below slot l would have had
                pairs |= {(k, l + 1): drops[l - 1] for k in range(1, l + 1)}
        mean_value = self.in_order(per_score)
        own, others = torch.zeros_like(self.rank), torch.zeros_like(self.rank)
        for (k, rival), factor in pairs.items():
            if factor and rival <= self.size:
                for total, part in zip((own, others), self._paid(mean_value, k, rival), strict=True):
                    total += factor * part
        return self._pooled(mean_value, per_score, own, others)

    def _paid(self, value: Tensor, k: int, rival: int) -> tuple[Tensor, Tensor]:
        """E[value of the k-th ad times score of the rival's | an ad takes part]: what it has as the k-th, per unit of
        its own value, and what is paid with it in other places.

        C(a - b - 1, g) x_b summed over b below a is the (g + 1)-fold sum of x: g ads stand between the two.
        """
        m, between = self.size, rival - k - 1
        score = self.score.clamp(min=0)
        low = _log_choose(self.rank, m - rival) - self.auctions
        x = score * low.exp()
        high = _log_choose(self.ads - 1 - self.rank, k - 1).exp()
        y = value * high
        below = [_before(x)]  # x summed over b below a, with 0, 1, ... ads between them
        above = [_after(y)]
        for _ in range(between):
            below.append(_before(below[-1]))
            above.append(_after(above[-1]))
        own = high * below[between]
        others = x * above[between]  # as the rival
        if k > 1:  # above both
            others = others + _before(value * _log_choose(self.ads - 2 - self.rank, k - 2).exp() * below[between])
        if m > rival:  # below both
            fewer = (_log_choose(self.rank - 1, m - rival - 1) - self.auctions).exp()
            others = others + _after(score * fewer * above[between])
        for c in range(between):  # between them
            others = others + above[c] * below[between - 1 - c]
        return own, others

    def _pooled(self, mean_value: Tensor, value: Tensor, own: Tensor, others: Tensor) -> Pooled:
        mean = float((mean_value * own).sum()) * self.size / self.ads
        # an ad that never counts sees the mean of what the others do: their sum over all ads is that of the means
        here = value[self.order] * self.run_mean(own) + self.run_mean(others)
        left = self.ads - len(here)
        rest = (mean * self.ads - float(here.sum())) / left if left else 0.0
        per_ad = torch.full((self.ads,), rest, dtype=torch.float64, device=here.device)
        per_ad[self.order] = here
        return Pooled(mean, per_ad, self.size)


def _weighted(score: Tensor, value: Tensor, weights: Tensor, size: int, alpha: Tensor) -> float:
    """Welfare where an ad of weight w competes w times: F_k(a), the chance that the k-th highest of m ads is among the
    lowest a of them, differs by P_k from one ad to the next.

        F_k(a) = sum_{j < k} C(A - a, j) C(a, m - j) / C(A, m),   A = sum of weights
    """
    check_whole("size", size, 1)
    total = float(weights.sum())
    if size > total:
        raise InputError(f"must be at most the sum of weights, {total:g}, found {size:,}", argument="size")
    ranked, order = score.sort(stable=True)
    w, worth = weights[order], (weights * value)[order]
    _, count = torch.unique_consecutive(ranked, return_counts=True)
    w, worth = (torch.segment_reduce(x, "sum", lengths=count) for x in (w, worth))
    bounds = torch.cat([w.new_zeros(1), w.cumsum(0)]).clamp(max=total)
    all_auctions = _log_choose(bounds[-1:], size)
    mean, chance = 0.0, torch.zeros_like(bounds)
    for k, a in enumerate(alpha.tolist()):
        if k < size:
            chance = chance + (_log_choose(total - bounds, k) + _log_choose(bounds, size - k) - all_auctions).exp()
            mean += a * float((worth / w).where(w > 0, 0.0) @ chance.diff())
    return mean


def _one(number: float) -> Tensor:
    return torch.tensor([float(number)], dtype=torch.float64)


def _log_choose(a: Tensor, q: int) -> Tensor:
    """log C(a, q), elementwise, with an error near 1e-12 where lgamma alone errs by 1e-7; -inf below q.

    log Γ(x) - log Γ(y) by Stirling's series, with log(x / y) taken as log1p: x = a + 1, y = x - q.
    """
    if q == 0:
        return torch.zeros_like(a).masked_fill(a < 0, -math.inf)
    x, y = a + 1, (a - q + 1).clamp(min=1)
    found = (y - 0.5) * torch.log1p(q / y) + q * x.log() - q + _correction(x) - _correction(y)
    found = torch.where(y < EXACT_BELOW, torch.lgamma(x) - torch.lgamma(y), found)
    return (found - math.lgamma(q + 1)).masked_fill(a < q - 1e-9, -math.inf)


def _correction(x: Tensor) -> Tensor:
    inverse = 1 / x
    square = inverse * inverse
    total = torch.zeros_like(x)
    for factor in reversed(SERIES):
        total = total * square + factor
    return total * inverse


def _before(x: Tensor) -> Tensor:
    """The sum over all lower ranks."""
    return x.cumsum(0) - x


def _after(x: Tensor) -> Tensor:
    """The sum over all higher ranks."""
    return x.flip(0).cumsum(0).flip(0) - x
