"""The family without pairs.

Signed gap: a covariance, or sums that are linear in the ads, after a sort where one is needed. Positive and order gaps:
pairs with v_i > v_j, by a tree over values.
"""

from __future__ import annotations

import heapq
import math
from functools import lru_cache

import torch
from torch import Tensor

from bidwise.losses.definition import PairInputs, PairOptions, PairSums, Part, direct
from bidwise.losses.panels import chebyshev, coefficients, logistic_sums
from bidwise.losses.prefix_sums import Arrangement, runs_of_equal, sort_inside, step_sums
from bidwise.segments import Auctions

LEAF_PAIRS = 75  # pairs of a leaf that take as long as one ad of a larger node
LEAF = {"logistic": 256, "hinge": 64, "indicator": 64}  # nodes up to this size are left to `direct`
ONE_PANEL = {torch.float32: (1e-8, 96), torch.float64: (1e-12, 128)}  # error, and the largest degree worth it


def covariance(
    ads: PairInputs, auctions: Auctions, options: PairOptions, *, gradient: bool, part: Part | None = None
) -> PairSums:
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
    return _of_part((slope * ecpm, slope if gradient else None), part)  # centred: plain sums lose digits in float32


def _of_part(found: PairSums, part: Part | None) -> PairSums:
    """The sums of a part's own ads, and 0 for those of others: what is linear in the ads is not worth sharing out."""
    for sums in () if part is None else found:
        if sums is not None:
            sums[: part.begin] = sums[part.end :] = 0  # type: ignore[union-attr]
    return found


def signed_sums(
    ads: PairInputs, auctions: Auctions, options: PairOptions, *, gradient: bool, part: Part | None = None
) -> PairSums:
    """Signed gap over all pairs, weighted or not."""
    if options.surrogate == "logistic" and auctions.size and auctions.count:
        table = one_panel(options.sigma * ads.ecpm, auctions)
        if table is not None:
            return _of_part(one_panel_sums(ads, auctions, options, *table, gradient), part)
    rows = sort_inside(ads.ecpm, auctions)
    if options.surrogate == "logistic":  # far and near panels add up to all pairs, so that centring saves digits
        pivot = auctions.sum(ads.value) / auctions.sizes.clamp(min=1)
    else:
        pivot = ads.value.new_zeros(auctions.count)
    found = segment_sums(Arrangement(ads.at(rows), auctions, None, pivot), options, gradient)
    cost, slope = (x if x is None else torch.empty_like(x).index_copy_(0, rows, x) for x in found)
    assert cost is not None
    return _of_part((cost, slope), part)


def segment_sums(arranged: Arrangement, options: PairOptions, gradient: bool) -> PairSums:
    """Cost and slope of arranged ads over all pairs (i, j) of their segments, with gap v_i - v_j, or 1 for `order`."""
    sums = logistic_sums if options.surrogate == "logistic" else step_sums
    return sums(arranged, options, gradient)


def one_panel(t: Tensor, auctions: Auctions) -> tuple[Tensor, Tensor] | None:
    """Where each ad stands in the range of sigma * eCPM of its auction, in [-1, 1], and the kernels on that range.

    ``None`` where the widest range asks for more Chebyshev polynomials than panels do.
    """
    table = t.view(auctions.count, -1)
    low, high = table.aminmax(dim=-1, keepdim=True)
    half = (high - low).max().item() / 2
    if not half < 1e3:
        return None
    half = 2 ** (math.ceil(4 * math.log2(max(half, 0.5))) / 4)  # a coarse grid: few kernels, made once each
    error, most = ONE_PANEL[t.dtype]
    # softplus is analytic in a strip of half-width pi, so its series on [-half, half] falls as rho^-degree
    rho = (math.pi + math.hypot(math.pi, half)) / half
    degree = math.ceil(math.log(error) / -math.log(rho)) + 2
    if degree > most:
        return None
    u = (table - (low + high) / 2).div_(half).clamp_(-1, 1)
    return u, _kernels(half, degree, t.dtype, t.device)


@lru_cache
def _kernels(half: float, degree: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Coefficients of softplus(y) and sigmoid(y) in target (rows) and source (columns), target minus source = y."""
    node, _ = chebyshev(degree)
    y = half * (node[:, None] - node[None, :])
    kernels = torch.stack([-torch.nn.functional.logsigmoid(-y), torch.sigmoid(y)])
    return coefficients(kernels).mT.contiguous().to(device, dtype)


def one_panel_sums(
    ads: PairInputs, auctions: Auctions, options: PairOptions, u: Tensor, kernels: Tensor, gradient: bool
) -> PairSums:
    """The signed logistic as `logistic_sums` has it, with a single panel per auction: few operations, no sort.

    For auctions of equal size whose eCPM spreads over a few dozen units of 1 / sigma: most batches people train on.
    """
    shape, degree = u.shape, kernels.shape[-1]
    basis = torch.arange(degree, dtype=u.dtype, device=u.device) * u.acos().unsqueeze(-1)
    basis.cos_()  # (auctions, ads, degree): T_k(u) = cos(k arccos u)
    above = ads.value.view(shape)
    above = above - above.mean(-1, keepdim=True)
    left = torch.ones_like(u) if ads.left is None else ads.left.view(shape)
    right = torch.ones_like(u) if ads.right is None else ads.right.view(shape)
    charges = torch.stack([left, left * above, right, right * above], dim=-1)
    moments = basis.mT @ charges  # (auctions, degree, 4)
    softplus, sigmoid = kernels
    on_j, on_i = moments[..., :2], moments[..., 2:]
    fields = [softplus @ on_j]
    if gradient:
        fields += [sigmoid @ on_j, sigmoid.T @ on_i]  # sigmoid(-y) is sigmoid(y) with target and source exchanged
    sums = (basis @ torch.cat(fields, dim=-1)).unbind(-1)
    cost = right * torch.addcmul(sums[1], sums[0], above, value=-1)
    if not gradient:
        return cost.view(-1), None
    slope = right * torch.addcmul(sums[3], sums[2], above, value=-1)
    slope -= left * torch.addcmul(-sums[5], sums[4], above)
    return cost.view(-1), slope.mul_(options.sigma).view(-1)


def dominance(
    ads: PairInputs, auctions: Auctions, options: PairOptions, *, gradient: bool, part: Part | None = None
) -> PairSums:
    """Pairs with v_i > v_j, cut by halves of the values: O(n log n) times the cost of a sum over all pairs.

    Each level of the tree cuts the ads of a node into those of higher and of lower value; between the two the gap is
    v_i - v_j or 1, and `segment_sums` adds up the pairs. Ads of equal value are never parted, and the more ads
    share a value the earlier they leave the tree: with clicks as values the first cuts are clicked x unclicked.

    Ranks share out the levels and the leaves, each to the one that has the least work so far; their sums add up.
    """
    cost = torch.zeros_like(ads.ecpm)
    slope = torch.zeros_like(ads.ecpm) if gradient else None
    code, peers, bits = _codes(ads.value, auctions)
    rows = sort_inside(ads.ecpm, auctions)
    sizes = auctions.sizes
    loads = [(0, rank) for rank in range(1 if part is None else part.ranks)]

    def mine(works: list[int]) -> list[bool]:
        """Which of the parts that take so much work this rank adds up."""
        return [_least(loads, work) == (0 if part is None else part.rank) for work in works]

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
            if part is not None:
                small[small.clone()] = torch.tensor(mine((sizes[small] ** 2 // LEAF_PAIRS).tolist()))
            leaves = rows[small.repeat_interleave(sizes)]
            if len(leaves):
                add(direct(ads.at(leaves), Auctions.of_sizes(sizes[small]), options, gradient=gradient), leaves)
        if not bool(large.any()):
            break
        rows, sizes = rows[large.repeat_interleave(sizes)], sizes[large]
        nodes, upper = Auctions.of_sizes(sizes), (code[rows] >> bit & 1).bool()
        if all(mine([len(rows)])):
            some = ads.at(rows)
            lower_value = torch.where(upper, 0, some.value)
            pivot = some.value.new_zeros(nodes.count).scatter_reduce_(0, nodes.of_ad, lower_value, "amax")
            add(segment_sums(Arrangement(some, nodes, upper, pivot), options, gradient), rows)
        rows, sizes = _partition(rows, upper, nodes)
    return cost, slope


def _least(loads: list[tuple[int, int]], work: int) -> int:
    """The rank with the least work, which has this much more from now on; ``loads`` are a heap."""
    load, rank = loads[0]
    heapq.heapreplace(loads, (load + work, rank))
    return rank


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
