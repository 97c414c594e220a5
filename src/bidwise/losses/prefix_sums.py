"""Hinge and indicator over all pairs i x j of a segment: prefix sums in the order of eCPM."""

from __future__ import annotations

import torch
from torch import Tensor

from bidwise.losses.arrangement import Arrangement
from bidwise.losses.definition import Family, PairSums


def step_sums(arranged: Arrangement, family: Family, gradient: bool) -> PairSums:
    """Hinge and indicator: every sum over {i: s_i < s_j} is a prefix sum in the order of eCPM, kept in float64."""
    segments, dtype = arranged.segments, arranged.ads.ecpm.dtype
    s, left, right = (x.double() for x in (arranged.ads.ecpm, arranged.left, arranged.right))
    lowest = s.new_zeros(segments.count)
    lowest[segments.sizes > 0] = s[segments.starts]
    s = s - segments.spread(lowest)  # margins keep their digits where eCPM differs little
    above = arranged.ads.value.double() - segments.spread(arranged.pivot.double())
    ordered = family.gap == "order"
    first, last = (bound + segments.of_ad for bound in _tie_runs(arranged))  # places in the prefix sums
    end = (segments.offsets[1:] + torch.arange(segments.count, device=s.device)).repeat_interleave(segments.sizes)

    def gaps(mass: Tensor, stake: Tensor) -> Tensor:
        """sum_i left_i (v_i - v_j) from sums of left_i and left_i (v_i - pivot), or sum_i left_i."""
        return mass if ordered else stake - above * mass

    if family.surrogate == "indicator":
        mass, stake = segments.prefix(torch.stack([left, left * above]))
        cost = right * gaps(mass[last], stake[last])
        return cost.to(dtype), torch.zeros_like(arranged.ads.ecpm) if gradient else None

    charges = [left, left * above, left * s, left * above * s]
    if gradient:
        charges += [right, right * above]
    mass, stake, lever, stake_lever, *others = segments.prefix(torch.stack(charges))
    cost = s * gaps(mass[first], stake[first]) - gaps(lever[first], stake_lever[first])
    cost = (family.sigma * right * cost).to(dtype)
    if not gradient:
        return cost, None

    def half_tied(prefix: Tensor) -> Tensor:
        return 0.5 * (prefix[first] + prefix[last])

    pulled_up = right * gaps(half_tied(mass), half_tied(stake))
    mass_j, stake_j = (prefix[end] - half_tied(prefix) for prefix in others)  # over {j: s_j > s_i}
    pulled_down = left * (mass_j if ordered else above * mass_j - stake_j)
    return cost, (family.sigma * (pulled_up - pulled_down)).to(dtype)


def _tie_runs(arranged: Arrangement) -> tuple[Tensor, Tensor]:
    """Bounds of the run of equal eCPM that each ad stands in."""
    s = arranged.ads.ecpm
    fresh = torch.ones(len(s), dtype=torch.bool, device=s.device)
    fresh[1:] = s[1:] != s[:-1]
    fresh[arranged.segments.starts] = True
    firsts = fresh.nonzero().squeeze(1)
    if len(firsts) == len(s):
        return firsts, firsts + 1
    run = fresh.cumsum(0) - 1
    lasts = torch.cat([firsts[1:], firsts.new_tensor([len(s)])])
    return firsts[run], lasts[run]
