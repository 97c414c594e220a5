"""Ads cut into auctions of one size: at random, as the paper does, or neighbours of ads that are in random order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bidwise.checks import InputError, check_seed, check_whole
from bidwise.data.ads import Ads


@dataclass(frozen=True)
class AuctionCuts:
    """Rows of the ads, auction after auction and cut after cut; ads of an incomplete last auction are left out.

    >>> cuts = AuctionCuts.at_random(7, 3, cuts=2)
    >>> cuts.rows.shape, cuts.offsets, cuts.left_out
    (torch.Size([12]), tensor([ 0,  3,  6,  9, 12]), 1)
    >>> AuctionCuts.of_neighbours(7, 3).rows
    slice(0, 6, None)
    """

    rows: Tensor | slice  # to index any column of the ads by
    size: int
    auctions: int  # of all cuts together
    left_out: int  # ads, by each cut

    @staticmethod
    def at_random(ads: int, size: int, *, cuts: int = 1, seed: int = 0) -> AuctionCuts:
        """The ads shuffled and cut, ``cuts`` times, so that each ad meets other rivals; the same for all models."""
        check_whole("resample", cuts, 1)
        check_seed("seed", seed)
        auctions = _auctions(ads, size)
        random = np.random.default_rng(seed)
        rows = np.concatenate([random.permutation(ads)[: auctions * size] for _ in range(cuts)])
        return AuctionCuts(torch.from_numpy(rows), size, cuts * auctions, ads - auctions * size)

    @staticmethod
    def of_neighbours(ads: int, size: int, split: str | None = None) -> AuctionCuts:
        """Every ``size`` neighbours an auction; ``split`` is what an error calls the ads."""
        auctions = _auctions(ads, size, split)
        return AuctionCuts(slice(0, auctions * size), size, auctions, ads - auctions * size)

    @property
    def offsets(self) -> Tensor:
        """Bounds of the auctions, on the CPU, where a common size is looked for."""
        return self.size * torch.arange(self.auctions + 1)

    def of(self, ads: Ads) -> Ads:
        """The ads in these auctions."""
        return ads.take(self.rows, self.offsets)

    def to(self, device: torch.device | str) -> AuctionCuts:
        """The same rows on a device."""
        return replace(self, rows=self.rows.to(device)) if isinstance(self.rows, Tensor) else self


def _auctions(ads: int, size: int, split: str | None = None) -> int:
    check_whole("auction_size", size, 1)
    if size > ads:
        where = "" if split is None else f" of {split}"
        raise InputError(f"auction_size must be at most the {ads:,} ads{where}, found {size}")
    return ads // size
