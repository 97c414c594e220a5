"""Sums without pairs in the order of eCPM: the arrangement of ads for them, and the sums of hinge and indicator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bidwise.losses.definition import PairInputs, PairOptions, PairSums
from bidwise.segments import Auctions, auction_of


def sort_inside(keys: Tensor, auctions: Auctions) -> Tensor:
    """Rows in the order (auction, key), stable."""
    if auctions.count == 1:
        # whole numbers in the same order, which torch sorts ten times as fast if there are many
        whole = keys.view(torch.int32 if keys.dtype == torch.float32 else torch.int64)
        kind = torch.iinfo(whole.dtype)
        return (whole ^ (whole >> kind.bits - 1 & kind.max)).argsort(stable=True)
    if auctions.size is not None:
        order = keys.view(auctions.count, auctions.size).argsort(dim=-1, stable=True)
        return (order + auctions.offsets[:-1, None]).view(-1)
    order = keys.argsort(stable=True)
    return order[auctions.of_ad[order].argsort(stable=True)]


def runs_of_equal(keys: Tensor, segments: Auctions) -> tuple[Tensor, Tensor]:
    """First rows and lengths of the runs of equal neighbours; no run continues in the next segment."""
    fresh = torch.ones(len(keys), dtype=torch.bool, device=keys.device)
    fresh[1:] = keys[1:] != keys[:-1]
    fresh[segments.starts] = True
    first = fresh.nonzero().squeeze(1)
    return first, torch.cat([first[1:], first.new_tensor([len(keys)])]) - first


@dataclass(frozen=True)
class Arrangement:
    """Ads in the order (segment, eCPM) and the bounds of their segments.

    A segment is an auction if every ad takes both parts of a pair, i and j; it is a node of a tree over values if
    its ads are cut into ads i, marked by ``upper``, and ads j with v_i > v_j. ``pivot`` is a value per segment, v_i >=
    pivot >= v_j if parts are taken: v_i - v_j = (v_i - pivot) + (pivot - v_j) then adds up without cancellation.
    """

    ads: PairInputs
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


def step_sums(arranged: Arrangement, options: PairOptions, gradient: bool) -> PairSums:
    """Hinge and indicator: every sum over {i: s_i < s_j} is a prefix sum in the order of eCPM, kept in float64."""
    segments, dtype = arranged.segments, arranged.ads.ecpm.dtype
    s, left, right = (x.double() for x in (arranged.ads.ecpm, arranged.left, arranged.right))
    lowest = s.new_zeros(segments.count)
    lowest[segments.sizes > 0] = s[segments.starts]
    s = s - segments.spread(lowest)  # margins keep their digits if eCPM differs little
    above = arranged.ads.value.double() - segments.spread(arranged.pivot.double())
    ordered = options.gap == "order"
    start, length = runs_of_equal(arranged.ads.ecpm, segments)
    of_ad = slice(None) if len(start) == len(s) else auction_of(torch.nn.functional.pad(length.cumsum(0), (1, 0)))
    first, last = (bound[of_ad] + segments.of_ad for bound in (start, start + length))  # of the ties, in prefix sums
    end = (segments.offsets[1:] + torch.arange(segments.count, device=s.device)).repeat_interleave(segments.sizes)

    def gaps(mass: Tensor, stake: Tensor) -> Tensor:
        """sum_i left_i (v_i - v_j) from sums of left_i and left_i (v_i - pivot), or sum_i left_i."""
        return mass if ordered else stake - above * mass

    if options.surrogate == "indicator":
        mass, stake = segments.prefix(torch.stack([left, left * above]))
        cost = right * gaps(mass.index_select(0, last), stake.index_select(0, last))
        return cost.to(dtype), torch.zeros_like(arranged.ads.ecpm) if gradient else None

    charges = [left, left * above, left * s, left * above * s]
    if gradient:
        charges += [right, right * above]
    mass, stake, lever, stake_lever, *others = segments.prefix(torch.stack(charges))
    cost = s * gaps(mass.index_select(0, first), stake.index_select(0, first)) - gaps(
        lever.index_select(0, first), stake_lever.index_select(0, first)
    )
    cost = (options.sigma * right * cost).to(dtype)
    if not gradient:
        return cost, None

    def half_tied(prefix: Tensor) -> Tensor:
        return 0.5 * (prefix.index_select(0, first) + prefix.index_select(0, last))

    pulled_up = right * gaps(half_tied(mass), half_tied(stake))
    mass_j, stake_j = (prefix.index_select(0, end) - half_tied(prefix) for prefix in others)  # over {j: s_j > s_i}
    pulled_down = left * (mass_j if ordered else above * mass_j - stake_j)
    return cost, (options.sigma * (pulled_up - pulled_down)).to(dtype)
