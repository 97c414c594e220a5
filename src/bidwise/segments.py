"""Auctions of different sizes in flat tensors: all ragged logic lives here.

Ads are flat ``(ads,)`` tensors and auctions are contiguous; ``offsets`` contains their bounds, so auction ``k`` is
the rows ``offsets[k]:offsets[k + 1]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

LADDER = torch.tensor([0, 1, 2, 4, 8, 16, 24, *(m * 2**k for k in range(3, 48) for m in (4, 5, 6, 7))])


def summed(numbers: Tensor) -> float:
    """Their sum, the same for any number of threads: torch adds up a part for each, numpy rounds in one order."""
    return float(numbers.detach().numpy().sum() if numbers.device.type == "cpu" else numbers.sum())


def auction_of(offsets: Tensor) -> Tensor:
    """Auction of every ad: ``[0, 2, 5] -> [0, 0, 1, 1, 1]``.

    >>> auction_of(torch.tensor([0, 2, 5]))
    tensor([0, 0, 1, 1, 1])
    """
    sizes = offsets.diff()
    return torch.arange(len(sizes), device=offsets.device).repeat_interleave(sizes)


@dataclass(frozen=True)
class Auctions:
    """How flat ads are cut into auctions: ``count`` auctions over ``ads`` rows.

    ``size`` is the common size if all auctions are known to have one: then no row is ragged and ``bounds``, the
    offsets, may be missing. Made by :meth:`of` and :meth:`of_sizes`.
    """

    count: int
    ads: int
    size: int | None
    bounds: Tensor | None
    device: torch.device

    @staticmethod
    def of_sizes(sizes: Tensor) -> Auctions:
        """Auctions of these sizes, one after the other."""
        bounds = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
        ads = int(bounds[-1])
        return Auctions(len(sizes), ads, ads if len(sizes) == 1 else None, bounds, sizes.device)

    @staticmethod
    def of(logits: Tensor, offsets: Tensor | None) -> Auctions:
        """The auctions of ``logits`` of shape ``(..., ads)``; leading dimensions repeat the same offsets.

        >>> Auctions.of(torch.zeros(2, 3), torch.tensor([0, 1, 3])).offsets
        tensor([0, 1, 3, 4, 6])
        """
        ads = logits.shape[-1]
        repeats = logits.shape[:-1].numel()
        if offsets is None:
            return Auctions(repeats, repeats * ads, ads, None, logits.device)
        if repeats != 1:
            starts = ads * torch.arange(repeats, device=offsets.device)
            offsets = torch.cat([offsets[:1], (starts[:, None] + offsets[1:]).flatten()])
        return Auctions(len(offsets) - 1, repeats * ads, _common_size(offsets), offsets, logits.device)

    @cached_property
    def offsets(self) -> Tensor:
        """Bounds of the auctions, ``(auctions + 1,)``."""
        if self.bounds is not None:
            return self.bounds
        assert self.size is not None
        return self.size * torch.arange(self.count + 1, device=self.device)

    @cached_property
    def sizes(self) -> Tensor:
        """Ads of every auction."""
        return self.offsets.diff()

    @cached_property
    def starts(self) -> Tensor:
        """First row of every auction that has ads."""
        return self.offsets[:-1][self.sizes > 0]

    @cached_property
    def of_ad(self) -> Tensor:
        """Auction of every ad."""
        return auction_of(self.offsets)

    def sum(self, per_ad: Tensor) -> Tensor:
        """Sum of ``per_ad`` over each auction: ``(ads,) -> (auctions,)``.

        >>> Auctions.of(torch.zeros(5), torch.tensor([0, 2, 2, 5])).sum(torch.ones(5))
        tensor([2., 0., 3.])
        """
        if self.count == 1:
            return per_ad.sum(0, keepdim=True)  # in parallel, unlike a row of a table
        if self.size is not None:
            return per_ad.view(self.count, self.size).sum(-1)
        # one after the other: in float32 that would lose digits
        total = torch.segment_reduce(per_ad.double(), "sum", offsets=self.offsets, unsafe=True)
        return total.to(per_ad.dtype)

    def prefix(self, per_ad: Tensor) -> Tensor:
        """Prefix sums inside each auction, a 0 in front of each: ``(..., ads) -> (..., ads + auctions)``.

        Auctions do not share a running sum, so one with bids of 1e8 costs its neighbours no digits. The sum of the ads
        of auction ``k`` before row ``r`` stands at ``r + k``.

        >>> Auctions.of(torch.zeros(5), torch.tensor([0, 2, 5])).prefix(torch.ones(5))
        tensor([0., 1., 2., 0., 1., 2., 3.])
        """
        lead = per_ad.shape[:-1]
        if self.size is not None:
            sums = per_ad.view(*lead, self.count, self.size).cumsum(-1)
            return torch.nn.functional.pad(sums, (1, 0)).view(*lead, -1)
        out = per_ad.new_zeros(*lead, self.ads + self.count + 1)
        for rows, seats in self._prefix_seats:
            sums = per_ad.gather(-1, rows.view(-1).expand(*lead, -1)).view(*lead, *rows.shape).cumsum(-1)
            out.scatter_(-1, seats.expand(*lead, -1), sums.flatten(-2))
        return out[..., :-1]

    @cached_property
    def _prefix_seats(self) -> list[tuple[Tensor, Tensor]]:
        """Of each block its ads and the place of their prefix sums; the last place collects padding."""
        found = []
        for block in self.blocks():
            seats = block.rows + self.of_ad[block.rows[:, :1]] + 1
            if block.filled is not None:
                seats = seats.where(block.filled, self.ads + self.count)
            found.append((block.rows, seats.view(-1)))
        return found

    def mean(self, per_ad: Tensor) -> Tensor:
        """Mean of each auction at every one of its ads: ``(ads,) -> (ads,)``."""
        return self.spread(self.sum(per_ad) / self.sizes.clamp(min=1))

    def spread(self, per_auction: Tensor) -> Tensor:
        """Each auction's number at every one of its ads: ``(auctions,) -> (ads,)``."""
        if self.size is not None:
            return per_auction[:, None].expand(self.count, self.size).reshape(-1)
        return per_auction.index_select(0, self.of_ad)

    def pairs(self) -> int:
        """Ordered pairs of ads, the sum of squared sizes."""
        return self.count * self.size**2 if self.size is not None else int(self.sizes.square().sum())

    def blocks(self) -> Iterator[_Rectangle]:
        """The auctions grouped by size and padded inside a group, as rectangular blocks of ads."""
        if self.size is not None:
            rows = torch.arange(self.ads, device=self.device).view(self.count, self.size)
            yield _Rectangle(rows, None)
            return
        sizes = self.sizes
        width = _padded_size(sizes)
        order = width.argsort(stable=True)
        groups, counts = (x.tolist() for x in torch.unique_consecutive(width[order], return_counts=True))
        for m, members in zip(groups, torch.split(order, counts), strict=True):
            if m == 0:
                continue
            column = torch.arange(m, device=self.device)
            filled = column < sizes[members, None]
            rows = self.offsets[members, None] + torch.where(filled, column, 0)
            yield _Rectangle(rows, None if bool(filled.all()) else filled)


def _common_size(offsets: Tensor) -> int | None:
    """The size of all auctions if they share one; not computed on a GPU, which would have to wait for it."""
    if offsets.device.type != "cpu" or len(offsets) < 2:
        return None
    sizes = offsets.diff()
    size = int(sizes[0])
    return size if bool((sizes == size).all()) else None


@dataclass(frozen=True)
class _Rectangle:
    """Auctions of similar size as a rectangle: ``rows`` of shape ``(auctions, width)`` into the flat ads.

    ``filled`` marks the real ads; ``None`` if there is no padding. Padded places repeat the first ad.
    """

    rows: Tensor
    filled: Tensor | None


def _padded_size(sizes: Tensor) -> Tensor:
    """Sizes rounded up to 0, 1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, ...: few groups and little padding.

    >>> _padded_size(torch.tensor([0, 1, 5, 9, 17]))
    tensor([ 0,  1,  8, 16, 24])
    """
    ladder = LADDER.to(sizes.device)
    return ladder[torch.searchsorted(ladder, sizes)]
