"""The pairwise loss family: its definition, and the method that evaluates every pair.

For one auction of n ads with eCPM s and value v,

    L = sum_i sum_j  w_ij gap(v_i - v_j) phi(s_i - s_j)

where gap says what is at stake when ad j is shown for ad i, phi stands for the indicator of that mistake, and
w_ij = left_i right_j weighs the pair. Equations 3 to 7 of the paper are members of this family.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from bidwise.segments import Auctions

GAPS = ("signed", "positive", "order")
SURROGATES = ("logistic", "hinge", "indicator")

# 1 MiB of float32 a matrix stays in the cache of a CPU; a GPU wants few launches, and gets the 64 MB that are promised
PAIRS_AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 24}
pair_evaluations = 0  # pairs evaluated so far by `pair_block`, the only code that sees pairs; tests read it


def gap_of(difference: Tensor, gap: str) -> Tensor:
    """Welfare at stake for v_i - v_j: ``signed`` x, ``positive`` max(x, 0), ``order`` 1{x > 0}."""
    if gap == "signed":
        return difference
    if gap == "positive":
        return difference.clamp(min=0)
    return (difference > 0).to(difference.dtype)


def surrogate_of(margin: Tensor, surrogate: str, sigma: float) -> Tensor:
    """phi(s_i - s_j): ``logistic`` log(1 + e^(-sigma x)), ``hinge`` max(-sigma x, 0), ``indicator`` 1{x <= 0}."""
    if surrogate == "logistic":
        return -torch.nn.functional.logsigmoid(sigma * margin)
    if surrogate == "hinge":
        return (-sigma * margin).clamp(min=0)
    return (margin <= 0).to(margin.dtype)


def pair_sum(
    ecpm: Tensor,
    value: Tensor,
    *,
    gap: str = "signed",
    surrogate: str = "logistic",
    sigma: float = 1.0,
    weights: Tensor | None = None,
) -> Tensor:
    """L = sum_ij w_ij gap(v_i - v_j) phi(s_i - s_j) of one auction: the definition, with all n x n pairs.

    Made to be read and to be compared with; :func:`bidwise.pairwise_welfare_loss` is made to be used.

    >>> pair_sum(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 0.0]), surrogate="indicator")
    tensor(2.)
    """
    margin = ecpm[:, None] - ecpm[None, :]
    stake = gap_of(value[:, None] - value[None, :], gap)
    pairs = stake * surrogate_of(margin, surrogate, sigma)
    return (pairs if weights is None else weights * pairs).sum()


@dataclass(frozen=True)
class Ads:
    """What a pairwise method sees of flat ads: eCPM s, value v and the factors of w_ij = left_i right_j.

    ``None`` stands for a factor of ones.
    """

    ecpm: Tensor
    value: Tensor
    left: Tensor | None = None
    right: Tensor | None = None

    def __getitem__(self, rows: Tensor | slice | tuple[slice, slice]) -> Ads:
        left, right = self.left, self.right
        return Ads(
            self.ecpm[rows],
            self.value[rows],
            None if left is None else left[rows],
            None if right is None else right[rows],
        )


@dataclass(frozen=True)
class Family:
    """A member of the family: which gap, which surrogate, its slope."""

    gap: str
    surrogate: str
    sigma: float


# Every method returns two numbers per ad j:
#   cost_j  = right_j sum_i left_i gap(v_i - v_j) phi(s_i - s_j), so that L is the sum of costs,
#   slope_j = dL / ds_j with the weights held fixed; None where no gradient is asked for.
PairSums = tuple[Tensor, Tensor | None]


BlockSums = tuple[Tensor, Tensor | None, Tensor | None]  # cost_j, slope_i, slope_j of pairs i x j


class Method(Protocol):
    """A way to compute a member of the family."""

    def __call__(self, ads: Ads, auctions: Auctions, family: Family, *, gradient: bool) -> PairSums: ...


def direct(ads: Ads, auctions: Auctions, family: Family, *, gradient: bool) -> PairSums:
    """Cost and slope of every ad from all pairs, a fixed number of pairs in memory at a time."""
    if auctions.count == 1:
        return _one_auction(ads, family, gradient)
    cost = ads.ecpm.new_zeros(auctions.ads + 1)  # the last place takes what padding holds
    slope = torch.zeros_like(cost) if gradient else None
    for block in auctions.blocks():
        table = ads[block.rows]
        i, j = (table, table) if block.filled is None else _padded(table, block.filled, family.gap)
        rows = _at_stake(i.value, family.gap)
        if rows is not None:
            i = Ads(*(None if x is None else x.gather(-1, rows) for x in (i.ecpm, i.value, i.left, i.right)))  # type: ignore[arg-type]
        block_cost, slope_i, slope_j = _chunked(i, j, family, gradient)
        if rows is not None and slope_i is not None and slope_j is not None:
            slope_i = torch.zeros_like(slope_j).scatter_(-1, rows, slope_i)
        seats = block.rows if block.filled is None else block.rows.where(block.filled, auctions.ads)
        cost[seats] = block_cost
        if slope is not None and slope_i is not None and slope_j is not None:
            slope[seats] = slope_i + slope_j
    return cost[:-1], None if slope is None else slope[:-1]


def _padded(table: Ads, filled: Tensor, gap: str) -> tuple[Ads, Ads]:
    """``table`` as ads i and as ads j, with nothing at stake in pairs with padding."""
    if gap != "signed":
        lowest, highest = table.value.where(filled, -torch.inf), table.value.where(filled, torch.inf)
        return replace(table, value=lowest), replace(table, value=highest)
    ones = filled.to(table.ecpm.dtype)
    left = ones if table.left is None else table.left * ones
    right = ones if table.right is None else table.right * ones
    table = Ads(table.ecpm, table.value, left, right)
    return table, table


def _at_stake(value: Tensor, gap: str) -> Tensor | None:
    """Ads i of ``(auctions, ads)`` that can lose something, or ``None`` where looking for them does not pay.

    Nothing is at stake for an ad of least value, which with clicks is every ad that was not clicked.
    """
    if gap == "signed" or value.device.type != "cpu" or not value.numel():
        return None
    most = int((value > value.amin(-1, keepdim=True)).sum(-1).max())
    if 4 * most >= 3 * value.shape[-1]:
        return None
    return value.topk(max(most, 1), -1, sorted=False).indices


def _one_auction(ads: Ads, family: Family, gradient: bool) -> PairSums:
    rows = _at_stake(ads.value, family.gap)
    higher = ads if rows is None else ads[rows]
    cost, slope_i, slope_j = _chunked(higher, ads, family, gradient)
    if slope_i is None or slope_j is None:
        return cost, None
    return cost, slope_j + slope_i if rows is None else slope_j.index_add_(0, rows, slope_i)


def _chunked(i: Ads, j: Ads, family: Family, gradient: bool) -> BlockSums:
    """`pair_block` in chunks of `PAIRS_AT_ONCE` pairs; ads of shape ``(ads,)`` or ``(auctions, ads)``."""
    height, width = i.ecpm.shape[-1], j.ecpm.shape[-1]
    at_once = PAIRS_AT_ONCE.get(i.ecpm.device.type, PAIRS_AT_ONCE["cpu"])
    if i.ecpm.numel() * width <= at_once:
        return pair_block(i, j, family, gradient, i.ecpm.new_empty(3, i.ecpm.numel() * width))
    cost = torch.zeros_like(j.ecpm)
    slope_i, slope_j = (torch.zeros_like(x.ecpm) if gradient else None for x in (i, j))
    count = i.ecpm.numel() // height
    auctions_at_once = max(1, at_once // (height * width))
    rows_at_once = min(height, max(1, at_once // width))
    scratch = i.ecpm.new_empty(3, min(count, auctions_at_once) * rows_at_once * width)
    for first in range(0, count, auctions_at_once):
        some = slice(None) if j.ecpm.dim() == 1 else slice(first, first + auctions_at_once)
        for row in range(0, height, rows_at_once):
            rows = slice(row, row + rows_at_once)
            part = rows if j.ecpm.dim() == 1 else (some, rows)
            chunk_cost, chunk_i, chunk_j = pair_block(i[part], j[some], family, gradient, scratch)
            cost[some] += chunk_cost
            if slope_i is not None and slope_j is not None and chunk_i is not None and chunk_j is not None:
                slope_i[part] = chunk_i
                slope_j[some] += chunk_j
    return cost, slope_i, slope_j


def pair_block(i: Ads, j: Ads, family: Family, gradient: bool, scratch: Tensor) -> BlockSums:
    """Cost of ads j and slopes of ads i and j over all pairs i x j; leading dimensions = auctions.

    Written for few passes over the pairs and no memory but ``scratch``, three rows with a place for each pair: memory
    that comes and goes costs more than the arithmetic. `pair_sum` is the same in plain words.
    """
    global pair_evaluations
    pairs = i.ecpm.numel() * j.ecpm.shape[-1]
    pair_evaluations += pairs
    stake, work, spare = scratch[:, :pairs].view(3, *i.ecpm.shape, j.ecpm.shape[-1]).unbind()
    _stake(i, j, family.gap, out=stake)  # (..., i, j): w_ij gap(v_i - v_j)
    s_i, s_j = i.ecpm.unsqueeze(-1), j.ecpm.unsqueeze(-2)
    if family.surrogate == "indicator":
        cost = torch.le(s_i, s_j, out=work).mul_(stake).sum(-2)
        return cost, *((torch.zeros_like(i.ecpm), torch.zeros_like(j.ecpm)) if gradient else (None, None))
    if family.surrogate == "logistic":
        cost, pull = _logistic_pairs(family.sigma * s_i, family.sigma * s_j, stake, gradient, work, spare)
        scale = family.sigma
    else:
        # max(x, 0) = x (1 + sign x) / 2, and the derivative of that is 1/2 at 0
        lag = torch.sub(s_j, s_i, out=work)
        pull, scale = stake.addcmul_(stake, torch.sign(lag, out=spare)), family.sigma / 2
        cost = lag.mul_(pull).sum(-2).mul_(scale)
    if not gradient:
        return cost, None, None
    return cost, pull.sum(-1).mul_(-scale), pull.sum(-2).mul_(scale)


def _logistic_pairs(
    x_i: Tensor, x_j: Tensor, stake: Tensor, gradient: bool, work: Tensor, spare: Tensor
) -> tuple[Tensor, Tensor]:
    """Sum over i of stake * softplus(x), and stake * sigmoid(x), for x = x_j - x_i."""
    if x_j.device.type == "cpu" and x_j.numel():
        low, high = (bound.item() for bound in x_j.aminmax())  # ads i are among ads j
        if high - low < 80:  # e^x is a product then: one exponential per ad, and a logarithm is all a pair costs
            middle = (low + high) / 2
            odds = torch.mul((x_j - middle).exp_(), (middle - x_i).exp_(), out=work)
            cost = torch.log1p(odds, out=spare).mul_(stake).sum(-2)
            return cost, odds.div_(torch.add(odds, 1, out=spare)).mul_(stake) if gradient else odds
    lag = torch.sub(x_j, x_i, out=work)
    # torch's own threshold of 20 would cost float64 its last digits
    cost = torch.nn.functional.softplus(lag, threshold=40.0).mul_(stake).sum(-2)
    return cost, lag.sigmoid_().mul_(stake) if gradient else lag


def _stake(i: Ads, j: Ads, gap: str, out: Tensor) -> None:
    torch.sub(i.value.unsqueeze(-1), j.value.unsqueeze(-2), out=out)
    if gap == "order":
        out.sign_()
    if gap != "signed":
        out.clamp_(min=0)
    if i.left is not None:
        out *= i.left.unsqueeze(-1)
    if j.right is not None:
        out *= j.right.unsqueeze(-2)
