"""The auction itself: numbers per ad as users have them, the ads shown, and their prices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bidwise.checks import (
    InputError,
    check_between,
    check_bids,
    check_name,
    check_not_negative,
    check_offsets,
    check_positive,
)
from bidwise.segments import Auctions

CHUNK = 1 << 18  # ads ranked at once, so that they stay in the processor's cache
CHUNK_ON_DEVICE = 1 << 26  # elsewhere: half a gigabyte


class Sale(NamedTuple):
    """The ingredients of prices; tables are ``(auctions, slots)``."""

    bid: Tensor
    quality: Tensor  # ctr^squash of the ad in slot k
    rival: Tensor  # score of the ad in slot k + 1, 0 below the last
    alpha: Tensor
    reserve: float


def _enough(rival: Tensor, quality: Tensor, reserve: float) -> Tensor:
    """t_l: the bid that reaches the score ``rival``, and the reserve."""
    return (rival / quality).where(quality > 0, 0.0).clamp(min=reserve)


def _vcg(sale: Sale) -> Tensor:
    total = torch.zeros_like(sale.bid)
    drops = sale.alpha - torch.nn.functional.pad(sale.alpha[1:], (0, 1))
    for l, drop in enumerate(drops, start=1):  # paid by the ads of slots 1 .. l
        total[:, :l] += drop * _enough(sale.rival[:, l - 1 : l], sale.quality[:, :l], sale.reserve)
    return (total / sale.alpha).clamp(min=sale.reserve)  # which rounding can undercut


PRICINGS: dict[str, Callable[[Sale], Tensor]] = {
    "gsp": lambda sale: _enough(sale.rival, sale.quality, sale.reserve),
    "vcg": _vcg,
    "first_price": lambda sale: sale.bid,
}


class Ties(NamedTuple):
    """Slots that several ads of equal score compete for: an entry for each slot and each ad that may be shown there."""

    slot: tuple[Tensor, Tensor]  # auction and slot of each entry
    rows: Tensor
    price: Tensor  # of a click on this ad in this slot
    ads: Tensor  # how many compete, (auctions, slots); 0 in auctions without ties

    def mean(self, numbers: Tensor, table: Tensor) -> Tensor:
        """``table`` of shape ``(auctions, slots)`` with the mean of the entries' numbers if several ads compete."""
        total = torch.zeros_like(table).index_put_(self.slot, numbers, accumulate=True)
        return (total / self.ads).where(self.ads > 1, table)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The ads shown, their slots and prices, made by :func:`run_auction`; every table is ``(auctions, slots)``.

    ``winners`` break ties by bid, then by CTR, the higher first; ads with the same bid and CTR are the same ad to the
    auction, and the lowest row stands for them. The methods take the mean over all orders of tied ads, so the order
    of rows does not matter. They are measured with a ``truth`` per ad: true CTR (expectations), clicks (what
    happened), or clicks over the exposure of the slot they were logged in, so any finite number from 0 up.
    """

    winners: Tensor  # row of the ad in each slot, -1 if the slot is empty
    price_per_click: Tensor  # price of a click on that ad; NaN if the slot is empty
    payment: Tensor  # expected payment, alpha_k ctr price by the predicted CTR; NaN if empty
    slots: Tensor  # the position multipliers alpha, (slots,)
    ads: int  # that took part
    tied: Tensor  # whether ads of equal score compete for a slot, (auctions,)
    ties: Ties | None = field(default=None, repr=False)  # the ads that do, None without ties

    def welfare(self, truth: ArrayLike, bids: ArrayLike) -> Tensor:
        """Sum over slots of alpha_k b truth, ``(auctions,)``.

        >>> run_auction([0.1, 0.1], [3.0, 3.0], None).welfare([0.0, 1.0], [3.0, 3.0])  # either of two
        tensor([1.5000], dtype=torch.float64)
        """
        truth, bids = self._numbers("truth", truth), self._numbers("bids", bids)
        check_not_negative("truth", truth)
        check_bids(bids)
        per_click = _take(truth, self.winners) * _take(bids, self.winners)
        return self._sum(per_click, self.ties and truth[self.ties.rows] * bids[self.ties.rows])

    def revenue(self, truth: ArrayLike) -> Tensor:
        """Sum over slots of alpha_k truth price, ``(auctions,)``."""
        truth = self._numbers("truth", truth)
        check_not_negative("truth", truth)
        per_click = _take(truth, self.winners) * self.price_per_click
        return self._sum(per_click, self.ties and truth[self.ties.rows] * self.ties.price)

    def surplus(self, truth: ArrayLike, bids: ArrayLike) -> Tensor:
        """Welfare minus revenue: the advertisers' share, ``(auctions,)``."""
        return self.welfare(truth, bids) - self.revenue(truth)

    def _numbers(self, argument: str, values: ArrayLike) -> Tensor:
        return one_per_ad(argument, ad_numbers(argument, values), self.ads).to(self.winners.device)

    def _sum(self, per_click: Tensor, of_tied: Tensor | None) -> Tensor:
        if self.ties is not None and of_tied is not None:
            per_click = self.ties.mean(of_tied, per_click)
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
    """Sell the slots of every auction: the ad in each slot, and its price per click.

        slot k shows the ad with the k-th highest score b ctr^squash, among ads with b >= reserve

    Of equal scores the higher bid goes first, see :class:`Outcome` for ties. An auction with fewer ads than slots
    leaves the last ones empty. With K slots and alpha_{K+1} = 0, the ad in slot k needs a bid of t_l to stay in
    slot l or above, and pays per click

        t_l  =  max(score of the ad in slot l + 1 / ctr^squash, reserve)
        gsp          t_k
        vcg          sum_{l = k .. K} (alpha_l - alpha_{l+1}) t_l / alpha_k
        first_price  b

    and never more than its bid. Below the last ad the score is 0; if ctr^squash is 0, so is the quotient.

    Args:
        ctr: predicted CTR in [0, 1], ``(ads,)``.
        bids: cost-per-click bids, finite and above 0.
        offsets: bounds of the auctions, integers, ``(auctions + 1,)``; ``None`` for a single auction.
        slots: position multipliers alpha, the first 1, then positive and never rising.
        pricing: ``gsp`` (generalised second price), ``vcg`` (Vickrey-Clarke-Groves) or ``first_price``.
        reserve: least price of a click, no less than 0; ads that bid less leave first.
        squash: no less than 0; 1 ranks by eCPM, 0 by bid (0^0 = 1).

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

    quality = quality_of(ctr, squash)
    score = bids * quality
    if reserve > 0:
        score.masked_fill_(bids < reserve, -torch.inf)
    rows, best = highest(score, auctions, len(alpha) + 1)
    winners, rivals = rows[:, :-1].contiguous(), best[:, 1:].clamp(min=0)

    def prices(shown: Tensor, rivals: Tensor) -> Tensor:
        bid = _take(bids, shown)
        return PRICINGS[pricing](Sale(bid, _take(quality, shown), rivals, alpha, float(reserve))).minimum(bid)

    tied = ((best[:, 1:] == best[:, :-1]) & (rows[:, 1:] >= 0)).any(1)
    ties = None
    if bool(tied.any()):
        least = best[:, -2].clamp(min=0).masked_fill(~tied, torch.inf)  # score of the last ad that may be shown
        rows = ranked((score, bids, ctr), auctions, score >= auctions.spread(least))
        auction = auctions.of_ad[rows]
        place = torch.arange(len(rows), device=rows.device) - torch.searchsorted(auction, auction)
        shown = place < len(alpha)
        winners[auction[shown], place[shown]] = rows[shown]
        competes = score[rows, None] == best[auction, :-1]
        ad, slot = competes.nonzero(as_tuple=True)
        price = prices(rows[:, None].expand_as(competes), rivals[auction])[competes]
        count = torch.zeros_like(rivals).index_put_((auction[ad], slot), torch.ones_like(price), accumulate=True)
        ties = Ties((auction[ad], slot), rows[ad], price, count)
    price = prices(winners, rivals).where(winners >= 0, torch.nan)
    return Outcome(winners, price, alpha * _take(ctr, winners) * price, alpha, auctions.ads, tied, ties)


def _take(numbers: Tensor, winners: Tensor) -> Tensor:
    """The number of each winner; undefined if the slot is empty."""
    if len(numbers) == 0:
        return numbers.new_zeros(winners.shape)
    return numbers[winners.clamp(min=0)]


def quality_of(ctr: Tensor, squash: float) -> Tensor:
    """ctr^squash, equal for equal CTRs."""
    if squash == 1:
        return ctr
    if ctr.device.type == "cpu":
        # torch rounds the last few numbers of a tensor differently from the rest: equal ads would no longer tie
        return torch.from_numpy(np.power(ctr.numpy(), float(squash)))
    return ctr**squash


def highest(score: Tensor, auctions: Auctions, places: int) -> tuple[Tensor, Tensor]:
    """Rows and scores of the ``places`` highest scores of each auction, ``(auctions, places)``, best first.

    Ties go to the lowest row; -1 and -inf after the last ad. An ad with the score -inf does not take part.

    >>> score = torch.tensor([1.0, 3.0, 2.0, 5.0, 5.0])
    >>> highest(score, Auctions.of(score, torch.tensor([0, 3, 4, 5])), 2)
    (tensor([[ 1,  2],
            [ 3, -1],
            [ 4, -1]]), tensor([[3., 2.],
            [5., -inf],
            [5., -inf]]))
    """
    best = score.new_full((auctions.count, places), -torch.inf)
    rows = torch.full_like(best, -1, dtype=torch.int64)
    for block in auctions.blocks():
        width = block.rows.shape[1]
        if width == 0:
            continue
        step = max((CHUNK if score.device.type == "cpu" else CHUNK_ON_DEVICE) // width, 1)
        for first in range(0, len(block.rows), step):
            chunk = slice(first, first + step)
            ads = block.rows[chunk]
            table = score[ads]
            if block.filled is not None:
                table.masked_fill_(~block.filled[chunk], -torch.inf)
            values, seats = _highest_in_rows(table, min(places, width))
            auction = torch.searchsorted(auctions.offsets, ads[:, 0].contiguous(), right=True) - 1
            best[auction, : values.shape[1]] = values
            rows[auction, : values.shape[1]] = ads.gather(1, seats)
    return rows.masked_fill_(best == -torch.inf, -1), best


def _highest_in_rows(table: Tensor, places: int) -> tuple[Tensor, Tensor]:
    """The ``places`` highest numbers of each row and their columns, ties to the first; overwrites ``table``."""
    if places > 2 * table.shape[1].bit_length():  # a pass over a row costs half a level of sorting it, or less
        ranked = table.sort(dim=1, descending=True, stable=True)
        return ranked.values[:, :places], ranked.indices[:, :places]
    highest = [table.max(dim=1, keepdim=True)]  # the first of equals
    for _ in range(places - 1):
        table.scatter_(1, highest[-1].indices, -torch.inf)
        highest.append(table.max(dim=1, keepdim=True))
    return torch.cat([each.values for each in highest], dim=1), torch.cat([each.indices for each in highest], dim=1)


def ranked(keys: Sequence[Tensor], auctions: Auctions, some: Tensor) -> Tensor:
    """Rows of ``some`` ads, auction by auction, the highest first key first; equals by the next key, then by row.

    >>> score, bids = torch.tensor([1.0, 3.0, 3.0, 5.0, 5.0]), torch.tensor([1.0, 1.0, 2.0, 2.0, 2.0])
    >>> ranked((score, bids), Auctions.of(score, torch.tensor([0, 3, 5])), score > 1)
    tensor([2, 1, 3, 4])
    """
    rows = some.nonzero().squeeze(1)
    for key in reversed(keys):
        rows = rows[key[rows].argsort(descending=True, stable=True)]
    return rows[auctions.of_ad[rows].argsort(stable=True)]


def slot_multipliers(slots: Sequence[float]) -> Tensor:
    """``slots`` as a float64 tensor: alpha_1 = 1 >= alpha_2 >= ... > 0.

    >>> slot_multipliers([1.0, 0.5])
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    alpha = _tensor("slots", slots)
    if alpha.dim() != 1 or len(alpha) == 0:
        raise InputError(f"must have one multiplier per slot, found shape {tuple(alpha.shape)}", argument="slots")
    if alpha[0] != 1:
        raise InputError(f"must start with 1, found {alpha[0].item():g}", argument="slots")
    falling = bool((alpha.diff() <= 0).all())
    if not falling or not alpha[-1] > 0:
        raise InputError(f"must be positive and must not rise, found {tuple(alpha.tolist())}", argument="slots")
    return alpha


def ad_numbers(argument: str, values: ArrayLike, *, like: Tensor | None = None) -> Tensor:
    """``values`` as float64, one number per ad, ``(ads,)``; as many and on the same device as ``like``.

    >>> ad_numbers("bids", [1, 2])
    tensor([1., 2.], dtype=torch.float64)
    """
    numbers = _tensor(argument, values)
    if numbers.dim() != 1:
        raise InputError(f"must have shape (ads,), found {tuple(numbers.shape)}", argument=argument)
    if like is None:
        return numbers
    return one_per_ad(argument, numbers, len(like)).to(like.device)


def one_per_ad(argument: str, numbers: Tensor, ads: int) -> Tensor:
    if len(numbers) != ads:
        raise InputError(f"must have one number per ad, {ads}, found {len(numbers)}", argument=argument)
    return numbers


def _tensor(argument: str, values: ArrayLike) -> Tensor:
    if isinstance(values, Tensor):
        if values.is_complex():
            raise TypeError(f"{argument} must be real, found {values.dtype}")
        return values.detach().to(torch.float64)
    array = np.asarray(values)
    if array.dtype.kind not in "fiub" and array.size:
        raise TypeError(f"{argument} must contain numbers, found {array.dtype}")
    # no copy of arrays that torch can read in place: writable, in order, float64
    return torch.from_numpy(np.require(array, np.float64, ["C", "W"]))


def auctions_of(ctr: Tensor, offsets: ArrayLike | None) -> Auctions:
    """The auctions that ``offsets``, integers of any kind, cut the ads into; ``None`` for a single one.

    >>> auctions_of(torch.zeros(3), [0, 1, 3]).sizes
    tensor([1, 2])
    """
    if offsets is None:
        return Auctions.of(ctr, None)
    if not isinstance(offsets, Tensor):
        array = np.asarray(offsets)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"offsets must contain integers, found {array.dtype}; of ids, pass bidwise.offsets(ids)")
        offsets = torch.from_numpy(array.astype(np.int64 if array.dtype.kind in "iu" else array.dtype))
    if not (offsets.is_floating_point() or offsets.is_complex() or offsets.dtype == torch.bool):
        offsets = offsets.long()
    return Auctions.of(ctr, check_offsets(offsets.to(ctr.device), len(ctr), ctr.device, values=True))
