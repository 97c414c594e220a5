"""Welfare and revenue of every auction that could have been: all draws of m ads from a pool, in closed form.

Without real auctions in the log, an auction is m ads drawn from a pool of N. With r ads of lower eCPM, an ad
is drawn and takes slot k with probability

    P_k = C(r, m - k) C(N - 1 - r, k - 1) / C(N, m)

so one sort gives the mean over all C(N, m) auctions: no random cut, no seed, and every click counts. The mean is a
U-statistic: with h_i the mean over the auctions that ad i takes part in, its jackknife standard error is
m sd(h) sqrt(N - 1) / (N - m). All sums have positive terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bidwise.auctions.outcome import PRICINGS, ad_numbers, quality_of, slot_multipliers
from bidwise.checks import (
    InputError,
    check_between,
    check_bids,
    check_name,
    check_not_negative,
    check_positive,
    check_whole,
)
from bidwise.segments import summed

SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680)  # of Stirling's correction, in odd powers of 1 / x
EXACT_BELOW = 16.0  # below, the series has too few terms
NEGLIGIBLE = math.log(1e-18) - math.log(1e8)  # logarithm of a chance that up to 1e8 ads together do not notice


@dataclass(frozen=True, eq=False)
class Pooled:
    """The mean over every possible auction, and the part of each ad in it; columns are ``(ads,)``.

    Attributes:
        mean: of an auction.
        values: jackknife pseudo-values, with (weighted) mean ``mean`` and its error as spread. Without the
            ad the mean of the n - 1 others is (n theta - m h) / (n - m), so they are theta + stretch (h - theta), with
            stretch = m (n - 1) / (n - m); NaN if n = m.
        own: the ad's own contribution to the mean.
    """

    mean: float
    values: Tensor
    own: Tensor

    def __add__(self, other: Pooled) -> Pooled:
        return Pooled(self.mean + other.mean, self.values + other.values, self.own + other.own)

    def __sub__(self, other: Pooled) -> Pooled:
        return Pooled(self.mean - other.mean, self.values - other.values, self.own - other.own)


def pooled_welfare(
    ctr: ArrayLike,
    truth: ArrayLike,
    bids: ArrayLike,
    size: int,
    *,
    slots: Sequence[float] = (1.0,),
    reserve: float = 0.0,
    squash: float = 1.0,
    weights: ArrayLike | None = None,
) -> float:
    """Mean welfare of an auction of ``size`` ads, over every possible auction of these ads.

        sum_k alpha_k sum_i b_i truth_i P_k(i)

    Ties in eCPM are broken at random: each ad of a run of equal eCPM has the mean probability of the run.

    Args:
        ctr: predicted CTR in [0, 1], ``(ads,)``; numpy, torch or anything numpy reads, on any device.
        truth: clicks or true CTR in [0, 1].
        bids: cost-per-click bids, above 0.
        size: ads of an auction, m.
        slots: position multipliers, the first 1, then positive and never rising.
        reserve, squash: rules of the auction, as in :func:`bidwise.run_auction`.
        weights: how many ads each one stands for, such as 10 for negatives sampled at 1/10: it also competes so often.

    >>> ctr, clicks, bids = [0.5, 0.4, 0.1], [0, 1, 1], [1.0, 1.0, 1.0]
    >>> pooled_welfare(ctr, clicks, bids, 2)  # of three pairs, one shows a clicked ad
    0.3333333333333333
    >>> pooled_welfare(ctr, clicks, bids, 2, slots=(1.0, 0.5))
    0.8333333333333334
    """
    pool, truth, bids, _ = _drawn(ctr, truth, bids, size, len(slots), reserve, squash, weights)
    return pool.mean_welfare((bids * truth).where(bids >= reserve, 0.0), slots)


def pooled_revenue(
    ctr: ArrayLike,
    truth: ArrayLike,
    bids: ArrayLike,
    size: int,
    *,
    slots: Sequence[float] = (1.0,),
    pricing: str = "gsp",
    reserve: float = 0.0,
    squash: float = 1.0,
    weights: ArrayLike | None = None,
) -> float:
    """Mean revenue of an auction of ``size`` ads, over every possible auction of these ads.

    Prices are as in :func:`bidwise.run_auction`, except ``vcg`` of several slots.

    >>> pooled_revenue([0.5, 0.4, 0.1], [1, 1, 1], [1.0, 1.0, 1.0], 2)  # prices 0.8, 0.2 and 0.25 per click
    0.4166666666666667
    """
    pool, truth, bids, quality = _drawn(ctr, truth, bids, size, len(slots) + 1, reserve, squash, weights)
    return pool.revenue(truth, bids, quality, slots, pricing, reserve).mean


def _drawn(
    ctr: ArrayLike,
    truth: ArrayLike,
    bids: ArrayLike,
    size: int,
    depth: int,
    reserve: float,
    squash: float,
    weights: ArrayLike | None,
) -> tuple[Pool | WeightedPool, Tensor, Tensor, Tensor]:
    """The pool of checked columns, truth, bids and ctr^squash."""
    ctr = ad_numbers("ctr", ctr)
    truth, bids = ad_numbers("truth", truth, like=ctr), ad_numbers("bids", bids, like=ctr)
    check_between("ctr", ctr, 0, 1)
    check_not_negative("truth", truth)
    check_bids(bids)
    check_positive("reserve", reserve, or_zero=True)
    check_positive("squash", squash, or_zero=True)
    weights = None if weights is None else ad_numbers("weights", weights, like=ctr)
    quality = quality_of(ctr, squash)
    return pool_of(ranking_score(bids, quality, reserve), size, depth, weights=weights), truth, bids, quality


def ranking_score(bids: Tensor, quality: Tensor, reserve: float) -> Tensor:
    """The scores that the auction ranks; ads that bid less than the reserve take part but are never shown."""
    return (bids * quality).masked_fill(bids < reserve, -math.inf)


def pool_of(score: Tensor, size: int, depth: int = 2, *, weights: Tensor | None = None) -> Pool | WeightedPool:
    """The ads in the order of their scores, ready to be measured.

    Args:
        score: ranked by the auction, float64, ``(ads,)``; -inf is never shown.
        size: ads of an auction, m.
        depth: places of an auction that matter: the slots, and the rival below them.
        weights: how many ads each one stands for.
    """
    return Pool(score, size, depth) if weights is None else WeightedPool(score, weights, size)


class _Ranked:
    """Ads from the lowest score to the highest."""

    def __init__(self, score: Tensor, size: int, first: int = 0) -> None:
        self.ads, self.size = len(score), int(size)
        self.order = _ascending(score, first)
        self.score = score[self.order]
        # runs of equal score
        begins = torch.ones_like(self.score, dtype=torch.bool)
        begins[1:] = self.score[1:] != self.score[:-1]
        self.run = begins.cumsum(0) - 1
        self.count = torch.bincount(self.run)
        self.tied = len(self.count) < len(self.score)

    def welfare(self, value: Tensor, slots: Sequence[float]) -> Pooled:
        """Mean of sum_k alpha_k value of the ad in slot k; ``value`` = b truth, ``(ads,)``."""
        raise NotImplementedError

    _second_prices: Callable[..., Pooled]

    def revenue(
        self,
        truth: Tensor,
        bids: Tensor,
        quality: Tensor,
        slots: Sequence[float],
        pricing: str = "gsp",
        reserve: float = 0.0,
    ) -> Pooled:
        """Mean of sum_k alpha_k truth price of the ad in slot k."""
        check_closed_form(pricing, len(slots))
        truth = truth.where(bids >= reserve, 0.0)
        if pricing == "first_price":
            return self.welfare(bids * truth, slots)
        return self._second_prices(truth, quality, slots, reserve)


class Pool(_Ranked):
    """Every auction of ``size`` ads, exactly, with :func:`pool_of`'s arguments.

    Only ads that may be among the first ``depth`` of an auction are looked at: with large auctions a small part. The
    others could change a mean by 1e-18 of it.
    """

    def __init__(self, score: Tensor, size: int, depth: int = 2) -> None:
        check_whole("size", size, 1)
        if size > len(score):
            raise InputError(f"must be at most the number of ads, {len(score):,}, found {size:,}", argument="size")
        super().__init__(score, size, _first(len(score), size, min(depth, size)))
        self.rank = torch.arange(self.ads - len(self.order), self.ads, dtype=torch.float64, device=score.device)
        self.auctions = _log_choose(_one(self.ads - 1), self.size - 1).to(score.device)  # log of those with a given ad

    def run_mean(self, numbers: Tensor) -> Tensor:
        """The mean over each run of ties, at every place of it."""
        if not self.tied:
            return numbers
        means: Tensor = torch.segment_reduce(numbers, "mean", lengths=self.count)
        return means[self.run]

    def chance(self, above: int, below: int, *, of_above: int = 0, of_below: int = 0) -> Tensor:
        """C(n - 1 - r - of_above, above) C(r - of_below, below) / C(n - 1, m - 1) for the ad of each rank r."""
        if above < 0 or below < 0:
            return torch.zeros_like(self.rank)
        higher = _log_choose(self.ads - 1 - of_above - self.rank, above)
        return (higher + _log_choose(self.rank - of_below, below) - self.auctions).exp()

    def _shown(self, slots: Sequence[float]) -> Tensor:
        """sum_k alpha_k P(in slot k | takes part), ties not yet shared."""
        alpha = enumerate(slot_multipliers(slots).tolist(), 1)
        return torch.stack([a * self.chance(k - 1, self.size - k) for k, a in alpha]).sum(0)

    def mean_welfare(self, value: Tensor, slots: Sequence[float]) -> float:
        """Only the mean, in half the time."""
        return summed(self.run_mean(value[self.order]) * self._shown(slots)) * self.size / self.ads

    def welfare(self, value: Tensor, slots: Sequence[float]) -> Pooled:
        m, value = self.size, value[self.order]
        mean_value = self.run_mean(value)
        higher, lower = torch.zeros_like(self.rank), torch.zeros_like(self.rank)
        for k, alpha in enumerate(slot_multipliers(slots).tolist(), 1):
            higher += alpha * self.chance(k - 1, m - k - 1, of_below=1)  # of an ad above this one to be shown
            lower += alpha * self.chance(k - 2, m - k, of_above=1)
        others = _after(mean_value * higher) + _before(mean_value * lower)
        if self.tied:  # an ad is not among the others of its run: they have the mean without it
            count = self.count[self.run]
            place = torch.arange(len(value), device=value.device) - (self.count.cumsum(0) - self.count)[self.run]
            inside = self.run_mean(place * higher + (count - 1 - place) * lower)
            others = self.run_mean(others) + inside * (mean_value - value) / (count - 1).clamp(min=1)
        return self._pooled(value * self.run_mean(self._shown(slots)), others, shared=True)

    def _second_prices(self, truth: Tensor, quality: Tensor, slots: Sequence[float], reserve: float) -> Pooled:
        own, others = torch.zeros_like(self.rank), torch.zeros_like(self.rank)
        bill = _Bill(self, truth, quality, reserve)
        for k, alpha in enumerate(slot_multipliers(slots).tolist()[: self.size - 1], 1):
            for total, part in zip((own, others), bill.paid(k), strict=True):
                total += alpha * part
        paid = self._pooled(own, others)
        return paid + self.welfare(reserve * truth, slots) if reserve > 0 else paid

    def _pooled(self, own: Tensor, others: Tensor, *, shared: bool = False) -> Pooled:
        """``own``: the contribution of an ad that takes part; ``others``: of the rest of its auctions, by places of a
        run of ties unless it is ``shared`` out among the ads already."""
        mean = summed(own) * self.size / self.ads
        here = own + (others if shared else self.run_mean(others))
        # an ad that never counts sees the mean of the others: their sum over all ads is the sum of the means
        left = self.ads - len(here)
        rest = (mean * self.ads - summed(here)) / left if left else 0.0
        spare = self.ads - self.size
        stretch = self.size * (self.ads - 1) / spare if spare else math.nan
        back = partial(_scattered, order=self.order, ads=self.ads)
        values = back(mean + stretch * (here - mean), rest=mean + stretch * (rest - mean))
        return Pooled(mean, values, back(own * (self.size / self.ads)))


class _Bill:
    """The payment of the k-th ad of an auction for the rival below it, beyond the reserve.

    clicks / quality (score of the rival - floor)^+,   floor = reserve quality
    """

    def __init__(self, pool: Pool, truth: Tensor, quality: Tensor, reserve: float) -> None:
        self.pool = pool
        truth, quality = truth[pool.order], quality[pool.order]
        self.value = (truth / quality).where(quality > 0, 0.0)
        self.mean_value = pool.run_mean(self.value)
        self.score = pool.score.clamp(min=0)
        self.flat = None  # value times floor
        if reserve > 0:
            self.flat = (truth * reserve).where(quality > 0, 0.0)
            self.mean_flat = pool.run_mean(self.flat)
            floor = (reserve * quality).minimum(pool.score)
            self.at = torch.searchsorted(pool.score, floor)  # rivals from here on are above the floor

    def paid(self, k: int) -> tuple[Tensor, Tensor]:
        """E[payment of the k-th ad | an ad takes part]: its own as the k-th, and others'."""
        pool, m = self.pool, self.pool.size
        low = (_log_choose(pool.rank, m - k - 1) - pool.auctions).exp()
        high = _log_choose(pool.ads - 1 - pool.rank, k - 1).exp()
        below = _before(self.score * low)  # of the rivals below an ad
        own = self.value * pool.run_mean(high * below)
        due = self.score * _after(self.mean_value * high)  # to an ad as the rival, by the ads above it
        further = self.mean_value * below  # by an ad, for any k
        if self.flat is not None:
            rivals, mean_high = _before(low), pool.run_mean(high)
            low_value, low_flat = self.value * below[self.at], self.flat * rivals[self.at]  # below the floor
            own += (low_flat - low_value) * mean_high - self.flat * pool.run_mean(high * rivals)
            further += pool.run_mean(low_flat - low_value) - self.mean_flat * rivals
            later = [torch.zeros_like(low).index_add(0, self.at, x * mean_high) for x in (self.value, self.flat)]
            due += _after(later[1] - self.mean_flat * high) - self.score * _after(later[0])
        others = low * due
        if k > 1:  # above both
            others = others + _before(further * _log_choose(pool.ads - 2 - pool.rank, k - 2).exp())
        if m > k + 1:  # below both
            fewer = (_log_choose(pool.rank - 1, m - k - 2) - pool.auctions).exp()
            others = others + _after(fewer * due)
        return own, others


class WeightedPool(_Ranked):
    """Auctions of ads that compete as often as they weigh, with :func:`pool_of`'s arguments.

    F_k(a), the chance that the k-th highest of m ads is among the lowest a, differs by P_k from one run of equal
    scores to the next:

        F_k(a) = sum_{j < k} C(A - a, j) C(a, m - j) / C(A, m),   A = sum of weights

    The part of an ad in the mean is the derivative by its weight (the infinitesimal jackknife).
    """

    def __init__(self, score: Tensor, weights: Tensor, size: int) -> None:
        check_whole("size", size, 1)
        check_not_negative("weights", weights)
        super().__init__(score, size)
        self.weights, total = weights[self.order], float(weights.sum())
        if self.size > total:
            raise InputError(f"must be at most the sum of weights, {total:g}, found {size:,}", argument="size")

    def _masses(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The weight of each run and of all ads up to it, and the sum of weights."""
        mass = weights.new_zeros(len(self.count)).index_add(0, self.run, weights)
        below = mass.cumsum(0)
        return mass, below, below[-1:]

    def mean_welfare(self, value: Tensor, slots: Sequence[float]) -> float:
        """Only the mean."""
        return summed(self._welfare(self.weights, value[self.order], slots))

    def welfare(self, value: Tensor, slots: Sequence[float]) -> Pooled:
        return self._pooled(lambda weights: self._welfare(weights, value[self.order], slots))

    def _second_prices(self, truth: Tensor, quality: Tensor, slots: Sequence[float], reserve: float) -> Pooled:
        alpha = slot_multipliers(slots).tolist()[: self.size]
        truth, quality = truth[self.order], quality[self.order]
        value = (truth / quality).where(quality > 0, 0.0)
        at = self.run[torch.searchsorted(self.score, (reserve * quality).minimum(self.score))]
        score, floor = self.score.clamp(min=0), reserve * quality

        def paid(weights: Tensor) -> Tensor:
            mass, top, total = self._masses(weights)
            bottom, everything = (top - mass).clamp(min=0), _log_choose(total, self.size)
            own = reserve * self._welfare(weights, truth, slots)
            for k, a in enumerate(alpha, 1):
                scale = _log_choose(total, k)
                upper = (_log_choose(total - bottom, k) - scale).exp()
                upper = upper - (_log_choose((total - top).clamp(min=0), k) - scale).exp()
                low, high = ((_log_choose(x, self.size - k) - everything + scale).exp() for x in (bottom, top))
                rivals = torch.zeros_like(low) if self.size == k else low  # all of them, below a run
                run_score = score.new_zeros(len(mass)).scatter(0, self.run, score)
                worth = run_score * (high - low)
                worth = worth.cumsum(0) - worth
                both = self._chance(k, bottom, top, total) - upper * rivals  # the rival is in the same run
                if self.size == k:
                    both = torch.zeros_like(both)
                run = self.run
                beyond = worth[run] - worth[at] - floor * (rivals[run] - rivals[at])
                share = weights * value / mass.clamp(min=1e-300)[run]
                own = own + a * share * (upper[run] * beyond + (score - floor).clamp(min=0) * both[run])
            return own

        return self._pooled(paid)

    def _chance(self, k: int, bottom: Tensor, top: Tensor, total: Tensor) -> Tensor:
        """P_k of each run."""

        def up_to(a: Tensor) -> Tensor:
            parts = [_log_choose((total - a).clamp(min=0), j) + _log_choose(a, self.size - j) for j in range(k)]
            return (torch.stack(parts) - _log_choose(total, self.size)).exp().sum(0)

        return up_to(top) - up_to(bottom)

    def _welfare(self, weights: Tensor, value: Tensor, slots: Sequence[float]) -> Tensor:
        """The contribution of each ad to the mean, in order; differentiable by the weights."""
        mass, top, total = self._masses(weights)
        bottom = (top - mass).clamp(min=0)
        shown = torch.zeros_like(mass)
        for k, a in enumerate(slot_multipliers(slots).tolist()[: self.size], 1):
            shown = shown + a * self._chance(k, bottom, top, total)
        return weights * value * (shown / mass.clamp(min=1e-300))[self.run]

    def _pooled(self, own: Callable[[Tensor], Tensor]) -> Pooled:
        weights = self.weights.clone().requires_grad_()
        parts = own(weights)
        (slope,) = torch.autograd.grad(parts.sum(), weights)
        parts, total = parts.detach(), summed(self.weights)
        mean = summed(parts)
        values = mean + total * slope - summed(self.weights * slope)
        back = partial(_scattered, order=self.order, ads=self.ads)
        return Pooled(mean, back(values), back(parts))


def _before(x: Tensor) -> Tensor:
    """The sum over all lower ranks."""
    return x.cumsum(0) - x


def _after(x: Tensor) -> Tensor:
    """The sum over all higher ranks."""
    return _before(x.flip(0)).flip(0)


def check_closed_form(pricing: str, slots: int) -> None:
    """Raise if there is no closed form for the mean revenue over all auctions; of one slot ``vcg`` is ``gsp``."""
    check_name("pricing", pricing, PRICINGS)
    if pricing == "vcg" and slots > 1:
        message = f"must be gsp or first_price without {{}}, found vcg with {slots} slots; name real auctions"
        raise InputError(message, argument="pricing", others=["auction"])


def _scattered(here: Tensor, order: Tensor, ads: int, rest: float = 0.0) -> Tensor:
    """Numbers in the order of the table, ``rest`` for ads that were not looked at."""
    found = torch.full((ads,), rest, dtype=torch.float64, device=here.device)
    found[order] = here
    return found


def _first(ads: int, size: int, depth: int) -> int:
    """The lowest rank with a chance of a place down to ``depth`` that counts, by bisection."""
    auctions = float(_log_choose(_one(ads - 1), size - 1))
    low, high = 0, ads - depth  # the chance rises up to about there
    while low < high:
        middle = (low + high) // 2
        chance = _log_choose(_one(ads - 1 - middle), depth - 1) + _log_choose(_one(middle), size - depth)
        low, high = (low, middle) if float(chance) - auctions > NEGLIGIBLE else (middle + 1, high)
    return low


def _ascending(score: Tensor, first: int) -> Tensor:
    """The ads from rank ``first`` on, with all that are tied with it, from the lowest to the highest.

    On a CPU numpy sorts faster, and only the part that is kept.
    """
    if score.device.type == "cpu":
        numbers = score.numpy()
        if not first:
            return torch.from_numpy(np.argsort(numbers))
        kept = np.flatnonzero(numbers >= np.partition(numbers, first)[first])
        return torch.from_numpy(kept[np.argsort(numbers[kept])])
    order = score.argsort()
    ranked = score[order]
    return order[int(torch.searchsorted(ranked, ranked[first])) :].clone() if first else order


def _one(number: float) -> Tensor:
    return torch.tensor([float(number)], dtype=torch.float64)


def _log_choose(a: Tensor, q: int) -> Tensor:
    """log C(a, q), elementwise, with an error near 1e-12 unlike with lgamma, 1e-7; -inf below q.

    log Γ(x) - log Γ(y) by Stirling's series, with log(x / y) taken as log1p: x = a + 1, y = x - q.
    """
    if q == 0:
        return torch.zeros_like(a).masked_fill(a < 0, -math.inf)
    x, y = a + 1, (a - q + 1).clamp(min=1)
    found = (y - 0.5) * torch.log1p(q / y) + q * x.log() - q + _correction(x) - _correction(y)
    small = y < EXACT_BELOW
    found = found.index_put((small,), torch.lgamma(x[small]) - torch.lgamma(y[small]))
    return (found - math.lgamma(q + 1)).masked_fill(a < q - 1e-9, -math.inf)


def _correction(x: Tensor) -> Tensor:
    inverse = 1 / x
    square = inverse * inverse
    total = torch.zeros_like(x)
    for factor in reversed(SERIES):
        total = total * square + factor
    return total * inverse
