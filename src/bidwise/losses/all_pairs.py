"""`direct`: the cost and slope of every ad from all pairs, a fixed number of pairs in memory at a time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bidwise.losses.definition import PairInputs, PairOptions, PairSums
from bidwise.segments import Auctions

# 1 MiB of float32 a matrix stays in the cache of a CPU; a GPU needs few launches, and gets the 64 MB that are promised
PAIRS_AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 24}

# cost of ads j, and how much ads i are pulled down and ads j up, but for a factor; None without a gradient
BlockSums = tuple[Tensor, Tensor | None, Tensor | None]


def direct(ads: PairInputs, auctions: Auctions, options: PairOptions, *, gradient: bool) -> PairSums:
    """Cost and slope of every ad from all pairs."""
    if auctions.count == 1:
        return _table_sums(ads, ads, options, gradient)
    cost = ads.ecpm.new_zeros(auctions.ads + 1)  # the last place collects padding
    slope = torch.zeros_like(cost) if gradient else None
    for block in auctions.blocks():
        table = ads.at(block.rows)
        i, j = (table, table) if block.filled is None else _padded(table, block.filled, options.gap)
        costs, slopes = _table_sums(i, j, options, gradient)
        seats = block.rows if block.filled is None else block.rows.where(block.filled, auctions.ads)
        cost[seats] = costs
        if slope is not None and slopes is not None:
            slope[seats] = slopes
    return cost[:-1], None if slope is None else slope[:-1]


def _padded(table: PairInputs, filled: Tensor, gap: str) -> tuple[PairInputs, PairInputs]:
    """``table`` as ads i and as ads j, with no stake in pairs with padding."""
    if gap != "signed":
        lowest, highest = table.value.where(filled, -torch.inf), table.value.where(filled, torch.inf)
        return table._replace(value=lowest), table._replace(value=highest)
    ones = filled.to(table.ecpm.dtype)
    left = ones if table.left is None else table.left * ones
    right = ones if table.right is None else table.right * ones
    table = table._replace(left=left, right=right)
    return table, table


def _table_sums(i: PairInputs, j: PairInputs, options: PairOptions, gradient: bool) -> PairSums:
    """Cost and slope of one auction ``(ads,)``, or of auctions of equal size ``(auctions, ads)``, as ads i and as j."""
    if not i.ecpm.shape[-1]:
        return torch.zeros_like(j.ecpm), torch.zeros_like(j.ecpm) if gradient else None
    i, rows = _at_stake(i, j, options)
    pairs, at_once = i.ecpm.numel() * j.ecpm.shape[-1], PAIRS_AT_ONCE["cuda" if i.ecpm.device.type == "cuda" else "cpu"]
    if pairs <= at_once:
        memory = i.ecpm.new_empty(3, *i.ecpm.shape, j.ecpm.shape[-1])
        cost, pulled, slope = pair_block(i, j, options, gradient, memory)
    else:
        cost, pulled, slope = _in_chunks(i, j, options, gradient, at_once)
    if pulled is None or slope is None:
        return cost, None
    if rows is None:
        slope.sub_(pulled)
    else:
        slope.scatter_add_(-1, rows, pulled.neg_())
    scale = options.sigma / 2 if options.surrogate == "hinge" else options.sigma
    return cost, slope if scale == 1 else slope.mul_(scale)


def _at_stake(i: PairInputs, j: PairInputs, options: PairOptions) -> tuple[PairInputs, Tensor | None]:
    """The ads i without the ads of least value, which have no stake, and their rows if some were dropped.

    With clicks as values these are the ads without a click. On a GPU the host would have to wait for their number.
    """
    if options.gap == "signed" or options.value != "clicks" or i.value.device.type != "cpu":
        return i, None
    clicked = (i.value > j.value.amin(-1, keepdim=True)).sum(-1)
    most = int(clicked.max() if clicked.dim() else clicked)
    if 4 * most >= 3 * i.value.shape[-1]:
        return i, None
    value, rows = i.value.topk(max(most, 1), -1, sorted=False)
    return PairInputs(i.ecpm.gather(-1, rows), value, None if i.left is None else i.left.gather(-1, rows)), rows


def _in_chunks(i: PairInputs, j: PairInputs, options: PairOptions, gradient: bool, at_once: int) -> BlockSums:
    """`pair_block` over some ads i of some auctions at a time."""
    height, width, shapes = i.ecpm.shape[-1], j.ecpm.shape[-1], (i.ecpm.shape, j.ecpm.shape)
    i, j = (PairInputs(*(None if x is None else x.view(-1, x.shape[-1]) for x in ads)) for ads in (i, j))  # type: ignore[arg-type]
    cost = torch.zeros_like(j.ecpm)
    pulled, slope = (torch.zeros_like(x.ecpm) if gradient else None for x in (i, j))
    auctions, rows = max(1, at_once // (height * width)), min(height, max(1, at_once // width))
    scratch = i.ecpm.new_empty(3, min(len(i.ecpm), auctions), rows, width)
    for first in range(0, len(i.ecpm), auctions):
        some = slice(first, first + auctions)
        ads_j = j.at(some)
        for row in range(0, height, rows):
            part = some, slice(row, row + rows)
            ads_i = i.at(part)
            memory = scratch[:, : ads_i.ecpm.shape[0], : ads_i.ecpm.shape[1]]
            costs, pulls, slopes = pair_block(ads_i, ads_j, options, gradient, memory)
            cost[some] += costs
            if pulled is not None and slope is not None and pulls is not None and slopes is not None:
                pulled[part] = pulls
                slope[some] += slopes
    if pulled is None or slope is None:
        return cost.view(shapes[1]), None, None
    return cost.view(shapes[1]), pulled.view(shapes[0]), slope.view(shapes[1])


def pair_block(i: PairInputs, j: PairInputs, options: PairOptions, gradient: bool, scratch: Tensor) -> BlockSums:
    """Sums over all pairs i x j.

    The only code that sees pairs: written for few passes over them and no memory but ``scratch``, ``(3, ..., i, j)``:
    memory that comes and goes costs more than the arithmetic. `paper.theory.pair_sum` is the same in plain words.
    """
    stake, work, spare = scratch.unbind()
    torch.sub(i.value.unsqueeze(-1), j.value.unsqueeze(-2), out=stake)  # w_ij gap(v_i - v_j)
    if options.gap == "order":
        stake.sign_()
    if options.gap != "signed":
        stake.clamp_(min=0)
    if i.left is not None:
        stake *= i.left.unsqueeze(-1)
    if j.right is not None:
        stake *= j.right.unsqueeze(-2)
    if options.surrogate == "indicator":
        cost = torch.le(i.ecpm.unsqueeze(-1), j.ecpm.unsqueeze(-2), out=work).mul_(stake).sum(-2)
        return cost, *((torch.zeros_like(i.ecpm), torch.zeros_like(j.ecpm)) if gradient else (None, None))
    if options.surrogate == "hinge":
        # max(x, 0) = x (1 + sign x) / 2, and the derivative of that is 1/2 at 0
        lag = torch.sub(j.ecpm.unsqueeze(-2), i.ecpm.unsqueeze(-1), out=work)
        pull = stake.addcmul_(stake, torch.sign(lag, out=spare))
        cost = lag.mul_(pull).sum(-2).mul_(options.sigma / 2)
        return cost, *((pull.sum(-1), pull.sum(-2)) if gradient else (None, None))
    x_i, x_j = (x.ecpm if options.sigma == 1 else options.sigma * x.ecpm for x in (i, j))
    if x_j.is_cpu and x_j.numel() and max(abs(bound.item()) for bound in x_j.aminmax()) < 80:  # ads i are among ads j
        # e^x is a product then: one exponential per ad, and a logarithm is all a pair costs
        odds = torch.mul(x_j.exp().unsqueeze(-2), x_i.neg().exp_().unsqueeze(-1), out=work)
        cost = torch.log1p(odds, out=spare).mul_(stake).sum(-2)
        pull = odds.div_(torch.add(odds, 1, out=spare)).mul_(stake) if gradient else odds
    else:
        lag = torch.sub(x_j.unsqueeze(-2), x_i.unsqueeze(-1), out=work)
        cost = softplus(lag, threshold=40.0).mul_(stake).sum(-2)  # torch's own 20 would cost float64 its last digits
        pull = lag.sigmoid_().mul_(stake) if gradient else lag
    return cost, *((pull.sum(-1), pull.sum(-2)) if gradient else (None, None))
