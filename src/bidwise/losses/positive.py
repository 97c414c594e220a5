"""Positive and order gaps: pairs with v_i > v_j, by a tree over values."""

from __future__ import annotations

import torch
from torch import Tensor

from bidwise.losses.definition import PairInputs, PairOptions, PairSums, direct
from bidwise.losses.prefix_sums import Arrangement, runs_of_equal, sort_inside
from bidwise.losses.signed import segment_sums
from bidwise.segments import Auctions

# nodes up to this size are left to `direct`
LEAF = {"logistic": 256, "hinge": 64, "indicator": 64}


def dominance(ads: PairInputs, auctions: Auctions, options: PairOptions, *, gradient: bool) -> PairSums:
    """Pairs with v_i > v_j, cut by halves of the values: O(n log n) times the cost of a sum over all pairs.

    Each level of the tree cuts the ads of a node into those of higher and of lower value; between the two the gap is
    v_i - v_j or 1, and `segment_sums` adds up the pairs. Ads of equal value are never parted, and the more ads
    share a value the earlier they leave the tree: with clicks as values the first cuts are clicked x unclicked.
    """
    cost = torch.zeros_like(ads.ecpm)
    slope = torch.zeros_like(ads.ecpm) if gradient else None
    code, peers, bits = _codes(ads.value, auctions)
    rows = sort_inside(ads.ecpm, auctions)
    sizes = auctions.sizes

    def add(found: PairSums, rows: Tensor) -> None:
        cost.index_add_(0, rows, found[0])
        if slope is not None and found[1] is not None:
            slope.index_add_(0, rows, found[1])

    for bit in reversed(range(bits)):
        sizes = sizes[sizes > 0]
        splits = peers[rows[sizes.cumsum(0) - sizes]] < sizes
        small = splits & (sizes <= LEAF[options.surrogate])
        large = splits & ~small
        if bool(small.any()):
            leaves = rows[small.repeat_interleave(sizes)]
            add(direct(ads.at(leaves), Auctions.of_sizes(sizes[small]), options, gradient=gradient), leaves)
        if not bool(large.any()):
            break
        rows, sizes = rows[large.repeat_interleave(sizes)], sizes[large]
        nodes, some = Auctions.of_sizes(sizes), ads.at(rows)
        upper = (code[rows] >> bit & 1).bool()
        lower_value = torch.where(upper, 0, some.value)
        pivot = some.value.new_zeros(nodes.count).scatter_reduce_(0, nodes.of_ad, lower_value, "amax")
        add(segment_sums(Arrangement(some, nodes, upper, pivot), options, gradient), rows)
        rows, sizes = _partition(rows, upper, nodes)
    return cost, slope


def _codes(value: Tensor, auctions: Auctions) -> tuple[Tensor, Tensor, int]:
    """A code per ad whose leading bits cut an auction into halves by value, the ads of equal value, and its bits.

    The code is the middle of the run of equal values in the order of values, as a fraction of the auction: rising with
    value, different for different values, and a run of half the ads is alone after two cuts.
    """
    order = sort_inside(value, auctions)
    first, length = runs_of_equal(value[order], auctions)
    begin, size = auctions.offsets[:-1], auctions.sizes
    auction = auctions.of_ad[first]
    middle = 2 * (first - begin[auction]) + length - 1  # twice the middle position, from 0 to 2 size - 2
    bits = int(size.max()).bit_length() if len(size) else 0
    run_code = (middle << bits) // (2 * size[auction])
    code, peers = torch.empty_like(order), torch.empty_like(order)
    code[order] = run_code.repeat_interleave(length)
    peers[order] = length.repeat_interleave(length)
    return code, peers, bits


def _partition(rows: Tensor, upper: Tensor, nodes: Auctions) -> tuple[Tensor, Tensor]:
    """Every node cut into lower and upper, each still in the order of eCPM; the new rows and sizes."""
    before = torch.nn.functional.pad(upper.cumsum(0), (1, 0))
    start, end = nodes.offsets[:-1], nodes.offsets[1:]
    high = before[end] - before[start]
    low = nodes.sizes - high
    rank = before[:-1] - before[start][nodes.of_ad]  # upper ads before this one in its node
    seat = torch.arange(len(rows), device=rows.device)
    seat = torch.where(upper, (start + low)[nodes.of_ad] + rank, seat - rank)
    return torch.empty_like(rows).index_copy_(0, seat, rows), torch.stack([low, high], dim=1).view(-1)
