"""Ads in the order that sums without pairs need: by segment, and inside a segment by rising eCPM.

A segment is an auction where every ad takes both parts of a pair, i and j; it is a node of a tree over values where
its ads are cut into ads i and ads j with v_i > v_j.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bidwise.losses.definition import Ads
from bidwise.segments import Auctions


def sort_inside(keys: Tensor, auctions: Auctions) -> Tensor:
    """Rows in the order (auction, key), stable."""
    if auctions.size is not None:
        order = keys.view(auctions.count, auctions.size).argsort(dim=-1, stable=True)
        return (order + auctions.offsets[:-1, None]).view(-1)
    order = keys.argsort(stable=True)
    return order[auctions.of_ad[order].argsort(stable=True)]


@dataclass(frozen=True)
class Arrangement:
    """Ads in the order (segment, eCPM) and the bounds of their segments.

    ``upper`` marks the ads that take the part of i, the others take j; ``None``: every ad takes both. ``pivot`` is a
    value per segment, v_i >= pivot >= v_j where parts are taken: v_i - v_j = (v_i - pivot) + (pivot - v_j) then
    adds up without cancellation.
    """

    ads: Ads
    segments: Auctions
    upper: Tensor | None
    pivot: Tensor

    @cached_property
    def left(self) -> Tensor:
        """left_i, 0 for ads that do not take the part of i."""
        left = torch.ones_like(self.ads.ecpm) if self.ads.left is None else self.ads.left
        return left if self.upper is None else left * self.upper

    @cached_property
    def right(self) -> Tensor:
        """right_j, 0 for ads that do not take the part of j."""
        right = torch.ones_like(self.ads.ecpm) if self.ads.right is None else self.ads.right
        return right if self.upper is None else right * ~self.upper

    @cached_property
    def above(self) -> Tensor:
        """v - pivot."""
        return self.ads.value - self.segments.spread(self.pivot)
