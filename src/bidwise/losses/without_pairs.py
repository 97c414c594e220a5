"""The family without pairs.

Signed gap: a covariance, or sums that are linear in the ads, after a sort if one is needed. Positive and order gaps:
pairs with v_i > v_j, by a tree over values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bidwise.losses.all_pairs import direct
from bidwise.losses.definition import PairInputs, PairOptions, PairSums
from bidwise.losses.panels import Arrangement, logistic_sums
from bidwise.segments import Auctions, auction_of

_AT_ONCE = 1 << 16  # ads of nodes that are added up at a time: a call takes as long as some 10,000 of them
LEAF = {"logistic": 256, "hinge": 64, "indicator": 64}  # nodes up to this size are left to `direct`


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


def covariance(ads: PairInputs, auctions: Auctions, options: PairOptions, *, gradient: bool) -> PairSums:
    """The signed, unweighted logistic or hinge pair sum without pairs.

    softplus(-x) - softplus(x) = -x, so both orders of a pair add up to -sigma (v_i - v_j)(s_i - s_j): logistic and
    hinge are the same loss, minus sigma n^2 times the covariance of value and eCPM.
    """
    if auctions.count == 1:  # the lines below without a mean per ad: a third of the time for a batch of 256
        value, ecpm = ads.value - ads.value.mean(), ads.ecpm - ads.ecpm.mean()
        sizes: int | Tensor = auctions.ads
    else:
        value, ecpm = ads.value - auctions.mean(ads.value), ads.ecpm - auctions.mean(ads.ecpm)
        sizes = auctions.spread(auctions.sizes.to(ecpm.dtype))
    slope = value * (-options.sigma * sizes)
    return slope * ecpm, slope if gradient else None  # centred: plain sums lose digits in float32


def signed_sums(ads: PairInputs, auctions: Auctions, options: PairOptions, *, gradient: bool) -> PairSums:
    """Signed gap over all pairs, weighted or not."""
    rows = sort_inside(ads.ecpm, auctions)
    if options.surrogate == "logistic":  # far and near panels add up to all pairs, so that centring saves digits
        pivot = auctions.sum(ads.value) / auctions.sizes.clamp(min=1)
    else:
        pivot = ads.value.new_zeros(auctions.count)
    cost, slope = segment_sums(Arrangement(ads.at(rows), auctions, None, pivot), options, gradient)
    cost = torch.empty_like(cost).index_copy_(0, rows, cost)
    return cost, None if slope is None else torch.empty_like(slope).index_copy_(0, rows, slope)


def segment_sums(arranged: Arrangement, options: PairOptions, gradient: bool) -> PairSums:
    """Cost and slope of arranged ads over all pairs (i, j) of their segments, with gap v_i - v_j, or 1 for `order`."""
    sums = logistic_sums if options.surrogate == "logistic" else step_sums
    return sums(arranged, options, gradient)


def dominance(ads: PairInputs, auctions: Auctions, options: PairOptions, *, gradient: bool) -> PairSums:
    """Pairs with v_i > v_j, cut by halves of the values: O(n log n) times the cost of a sum over all pairs.

    Each level of the tree cuts the ads of a node into ads of higher and of lower value; between the two the gap is
    v_i - v_j or 1, and `segment_sums` adds up the pairs. Ads of equal value are never parted, and the more ads
    share a value the earlier they leave the tree: with clicks as values the first cuts are clicked x unclicked.
    """
    cost = torch.zeros_like(ads.ecpm)
    slope = torch.zeros_like(ads.ecpm) if gradient else None
    leaf = LEAF[options.surrogate]
    levels: list[tuple[Tensor, Tensor, Tensor]] = []  # rows, sizes of nodes and upper ads, yet to be added up

    def add(found: PairSums, rows: Tensor) -> None:
        cost.index_add_(0, rows, found[0])
        if slope is not None and found[1] is not None:
            slope.index_add_(0, rows, found[1])

    def add_levels() -> None:
        rows, sizes, upper = (torch.cat(x) if len(x) > 1 else x[0] for x in zip(*levels, strict=True))
        some, nodes = ads.at(rows), Auctions.of_sizes(sizes)
        lower_value = torch.where(upper, 0, some.value)
        pivot = some.value.new_zeros(nodes.count).scatter_reduce_(0, nodes.of_ad, lower_value, "amax")
        costs, slopes = segment_sums(Arrangement(some, nodes, upper, pivot), options, gradient)
        begin = 0
        for rows, _, _ in levels:  # each by itself, an ad at most once: a GPU would add up in any order
            here = slice(begin, begin := begin + len(rows))
            add((costs[here], None if slopes is None else slopes[here]), rows)
        levels.clear()

    rows, sizes = sort_inside(ads.ecpm, auctions), auctions.sizes
    code, peers, bits = _codes(ads.value, sort_inside(ads.value, auctions), auctions)
    for bit in reversed(range(bits)):
        sizes = sizes[sizes > 0]
        splits = peers[rows[sizes.cumsum(0) - sizes]] < sizes
        small = splits & (sizes <= leaf)
        large = splits & ~small
        if bool(small.any()):
            leaves = rows if bool(small.all()) else rows[small.repeat_interleave(sizes)]
            add(direct(ads.at(leaves), Auctions.of_sizes(sizes[small]), options, gradient=gradient), leaves)
        if not bool(large.any()):
            break
        if not bool(large.all()):
            rows, sizes = rows[large.repeat_interleave(sizes)], sizes[large]
        upper = (code.index_select(0, rows) >> bit & 1).bool()
        levels.append((rows, sizes, upper))
        if sum(len(level[0]) for level in levels) >= _AT_ONCE:
            add_levels()
        rows, sizes = _partition(rows, upper, Auctions.of_sizes(sizes))
    if levels:
        add_levels()
    return cost, slope


def _codes(value: Tensor, order: Tensor, auctions: Auctions) -> tuple[Tensor, Tensor, int]:
    """A code per ad with leading bits that cut an auction into halves by value, the ads of equal value, and its bits.

    The code is the middle of the run of equal values in the order of values, as a fraction of the auction: rising with
    value, different for different values, and a run of half the ads has a node of its own after two cuts.
    """
    first, length = runs_of_equal(value.index_select(0, order), auctions)
    begin, size = auctions.offsets[:-1], auctions.sizes
    auction = auctions.of_ad[first]
    middle = 2 * (first - begin[auction]) + length - 1  # twice the middle position, from 0 to 2 size - 2
    bits = int(size.max()).bit_length() if len(size) else 0
    run_code = (middle << bits) // (2 * size[auction])
    code, peers = order.new_empty(2, len(value))
    code[order] = run_code.repeat_interleave(length)
    peers[order] = length.repeat_interleave(length)
    return code, peers, bits


def _partition(rows: Tensor, upper: Tensor, nodes: Auctions) -> tuple[Tensor, Tensor]:
    """Every node cut into lower and upper, each still in the order of eCPM; the new rows and sizes."""
    before = torch.nn.functional.pad(upper.cumsum(0), (1, 0))
    start, end = nodes.offsets[:-1], nodes.offsets[1:]
    high = before[end] - before[start]
    low = nodes.sizes - high
    rank = before[:-1] - nodes.spread(before[start])  # upper ads before this one in its node
    seat = torch.arange(len(rows), device=rows.device)
    seat = torch.where(upper, nodes.spread(start + low) + rank, seat - rank)
    return torch.empty_like(rows).scatter_(0, seat, rows), torch.stack([low, high], dim=1).view(-1)


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
