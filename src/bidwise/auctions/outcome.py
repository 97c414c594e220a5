"""The auction itself: who is shown, and what they pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bidwise.auctions.columns import ad_numbers, auctions_of, one_per_ad, slot_multipliers
from bidwise.auctions.pricing import PRICINGS, Sale
from bidwise.auctions.ranking import highest, power
from bidwise.checks import check_between, check_bids, check_name, check_not_negative, check_positive


@dataclass(frozen=True, eq=False)
class Outcome:
    """Who is shown where and what they pay, made by :func:`run_auction`; every table is ``(auctions, slots)``.

    Attributes:
        winners: row of the ad in each slot, -1 where the slot is empty.
        price_per_click: what that ad pays for a click; NaN where the slot is empty.
        payment: what the platform expects it to pay, alpha_k ctr price by the predicted CTR; NaN where empty.
        slots: the position multipliers alpha, ``(slots,)``.
        ads: how many ads took part.

    The methods measure what was sold by a ``truth`` per ad: true CTR (expectations), clicks (what happened), or
    clicks over the exposure of the slot they were logged in, so any finite number from 0 up.
    """

    winners: Tensor
    price_per_click: Tensor
    payment: Tensor
    slots: Tensor
    ads: int

    def welfare(self, truth: ArrayLike, bids: ArrayLike) -> Tensor:
        """Sum over slots of alpha_k b truth, ``(auctions,)``.

        >>> run_auction([0.1, 0.4], [10.0, 2.0], None).welfare([0.2, 0.4], [10.0, 2.0])
        tensor([2.], dtype=torch.float64)
        """
        truth, bids = self._numbers("truth", truth), self._numbers("bids", bids)
        check_not_negative("truth", truth)
        check_bids(bids)
        return self._sum(_take(truth, self.winners) * _take(bids, self.winners))

    def revenue(self, truth: ArrayLike) -> Tensor:
        """Sum over slots of alpha_k truth price, ``(auctions,)``.

        >>> run_auction([0.1, 0.4], [10.0, 2.0], None).revenue([0.2, 0.4])
        tensor([1.6000], dtype=torch.float64)
        """
        truth = self._numbers("truth", truth)
        check_not_negative("truth", truth)
        return self._sum(_take(truth, self.winners) * self.price_per_click)

    def surplus(self, truth: ArrayLike, bids: ArrayLike) -> Tensor:
        """Welfare minus revenue: what the advertisers keep, ``(auctions,)``.

        >>> run_auction([0.1, 0.4], [10.0, 2.0], None).surplus([0.2, 0.4], [10.0, 2.0])
        tensor([0.4000], dtype=torch.float64)
        """
        return self.welfare(truth, bids) - self.revenue(truth)

    def _numbers(self, argument: str, values: ArrayLike) -> Tensor:
        return one_per_ad(argument, ad_numbers(argument, values), self.ads).to(self.winners.device)

    def _sum(self, per_click: Tensor) -> Tensor:
        return (self.slots * per_click).where(self.winners >= 0, 0.0).sum(-1)


def run_auction(
    ctr: ArrayLike,
    bids: ArrayLike,
    offsets: ArrayLike | None,
    *,
    slots: Sequence[float] = (1.0,),
    pricing: str = "gsp",
    reserve: float = 0.0,
    squash: float = 1.0,
) -> Outcome:
    """Sell the slots of every auction: who is shown in which, and what a click costs them.

        slot k shows the ad with the k-th highest score b ctr^squash, among ads with b >= reserve

    Ties go to the lowest row; an auction with fewer ads than slots leaves the last ones empty. With K slots and
    alpha_{K+1} = 0, the ad in slot k needs a bid of t_l to stay in slot l or above, and pays per click

        t_l  =  max(score of the ad in slot l + 1 / ctr^squash, reserve)
        gsp          t_k
        vcg          sum_{l = k .. K} (alpha_l - alpha_{l+1}) t_l / alpha_k
        first_price  b

    and never more than its bid. Below the last ad the score is 0; where ctr^squash is 0, so is the quotient.

    Args:
        ctr: predicted CTR in [0, 1], ``(ads,)``.
        bids: cost-per-click bids, finite and above 0.
        offsets: bounds of the auctions, integers, ``(auctions + 1,)``; ``None`` for a single auction.
        slots: position multipliers alpha, the first 1, then positive and never rising.
        pricing: ``gsp`` (generalised second price), ``vcg`` (Vickrey-Clarke-Groves) or ``first_price``.
        reserve: least price of a click, no less than 0; ads that bid less leave first.
        squash: no less than 0; 1 ranks by eCPM, 0 by bid alone (0^0 = 1).

    >>> ctr, bids = [0.1, 0.4, 0.9], [10.0, 2.0, 0.5]  # Example 2.1
    >>> sold = run_auction(ctr, bids, None, slots=(1.0, 0.9))
    >>> sold.winners, sold.price_per_click
    (tensor([[0, 1]]), tensor([[8.0000, 1.1250]], dtype=torch.float64))
    >>> run_auction(ctr, bids, None, slots=(1.0, 0.9), pricing="vcg", reserve=1.0).price_per_click
    tensor([[1.7000, 1.0000]], dtype=torch.float64)
    """
    check_name("pricing", pricing, PRICINGS)
    check_positive("reserve", reserve, or_zero=True)
    check_positive("squash", squash, or_zero=True)
    ctr = ad_numbers("ctr", ctr)
    bids = ad_numbers("bids", bids, like=ctr)
    check_between("ctr", ctr, 0, 1)
    check_bids(bids)
    alpha = slot_multipliers(slots).to(ctr.device)
    auctions = auctions_of(ctr, offsets)

    quality = power(ctr, squash)
    score = bids * quality
    if reserve > 0:
        score.masked_fill_(bids < reserve, -torch.inf)
    rows, best = highest(score, auctions, len(alpha) + 1)
    winners = rows[:, :-1].contiguous()
    bid = _take(bids, winners)
    sale = Sale(bid, _take(quality, winners), best[:, 1:].clamp(min=0), alpha, float(reserve))
    price = PRICINGS[pricing](sale).minimum(bid).where(winners >= 0, torch.nan)
    return Outcome(winners, price, alpha * _take(ctr, winners) * price, alpha, auctions.ads)


def _take(numbers: Tensor, winners: Tensor) -> Tensor:
    """The number of each winner; anything where the slot is empty."""
    if len(numbers) == 0:
        return numbers.new_zeros(winners.shape)
    return numbers[winners.clamp(min=0)]
