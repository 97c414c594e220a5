"""The family of pairwise losses, to be read beside the paper, and `direct`, which evaluates every pair.

In an auction of n ads an ad has the eCPM s = b f (bid times predicted CTR) and the value v = b y (bid times click) or
v = b p (bid times a teacher's CTR). Showing ad j for ad i costs the auction v_i - v_j, and

    L = sum_i sum_j  w_ij gap(v_i - v_j) phi(s_i - s_j)

adds these costs up, with phi for the indicator of the mistake s_i <= s_j and a weight w_ij = left_i right_j:

    equation                      value    gap       surrogate phi                     weights
    3   the loss l                clicks   signed    indicator 1{x <= 0}               1
    5   l^log                     clicks   signed    logistic  log(1 + e^(-sigma x))   1, or Section 4.2
    6   l^hinge                   clicks   signed    hinge     max(-sigma x, 0)        1
    4.2 l^log with a teacher      teacher  signed    logistic                          Section 4.2
    7   l^(hinge,+), teacher      teacher  positive  hinge                             Section 4.2
    13  l^+                       clicks   positive  indicator                         1

Section 4.2 weighs a pair by sigmoid(kappa b_i p_i) sigmoid(kappa s_j).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from bidwise.checks import check_name, check_positive
from bidwise.segments import Auctions

VALUES = ("clicks", "teacher")
GAPS = ("signed", "positive", "order")
SURROGATES = ("logistic", "hinge", "indicator")
REDUCTIONS = ("none", "sum", "mean")
METHODS = ("auto", "direct", "fast", "triton")

# 1 MiB of float32 a matrix stays in the cache of a CPU; a GPU wants few launches, and gets the 64 MB that are promised
PAIRS_AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 24}


@dataclass(frozen=True)
class PairOptions:
    """The options of :func:`bidwise.pairwise_welfare_loss`, which says what they mean; checked when made."""

    value: str = "clicks"
    gap: str = "signed"
    surrogate: str = "logistic"
    sigma: float = 1.0
    weighting: float | None = None
    pair_mean: bool = True
    reduction: str = "mean"
    method: str = "auto"
    validate: bool | None = None

    def __post_init__(self) -> None:
        check_name("value", self.value, VALUES)
        check_name("gap", self.gap, GAPS)
        check_name("surrogate", self.surrogate, SURROGATES)
        check_name("reduction", self.reduction, REDUCTIONS)
        check_name("method", self.method, METHODS)
        check_positive("sigma", self.sigma)
        if self.weighting is not None:
            check_positive("weighting", self.weighting)
            object.__setattr__(self, "weighting", float(self.weighting))
        if not isinstance(self.pair_mean, bool):
            raise TypeError(f"pair_mean must be True or False, found {self.pair_mean!r}")
        object.__setattr__(self, "sigma", float(self.sigma))

    @property
    def needs_teacher(self) -> str | None:
        """The option that looks at a teacher's CTR, where one does."""
        return 'value="teacher"' if self.value == "teacher" else "weighting" if self.weighting is not None else None


class Batch(NamedTuple):
    """The tensors of a call: per ad ``(..., ads)``, and the bounds of the auctions ``(auctions + 1,)``."""

    logits: Tensor
    clicks: Tensor
    bids: Tensor
    offsets: Tensor | None = None
    teacher: Tensor | None = None
    weights: Tensor | None = None  # of the log loss of each ad


class PairInputs(NamedTuple):
    """What the pairs are made of: eCPM s, value v and the factors of w_ij = left_i right_j, ``None`` for ones."""

    ecpm: Tensor
    value: Tensor
    left: Tensor | None = None
    right: Tensor | None = None

    def at(self, rows: Any) -> PairInputs:
        if isinstance(rows, Tensor) and rows.dim() == 1:  # torch selects rows three times as fast as it indexes
            return PairInputs(*(None if x is None else x.index_select(0, rows) for x in self))  # type: ignore[arg-type]
        return PairInputs(*(None if x is None else x[rows] for x in self))  # type: ignore[arg-type]


# Every method returns two numbers per ad j:
#   cost_j  = right_j sum_i left_i gap(v_i - v_j) phi(s_i - s_j), so that L is the sum of costs,
#   slope_j = dL / ds_j with the weights held fixed; None where no gradient is asked for.
PairSums = tuple[Tensor, Tensor | None]


class Method(Protocol):
    """A way to compute the costs and slopes of all ads."""

    def __call__(self, ads: PairInputs, auctions: Auctions, options: PairOptions, *, gradient: bool) -> PairSums: ...


def ctr_of(logits: Tensor) -> Tensor:
    """sigmoid(logits), equal for equal logits, so that equal ads tie, in losses and predictions; without a gradient."""
    if logits.device.type != "cpu" or logits.dtype not in (torch.float32, torch.float64):
        return torch.sigmoid(logits.detach())
    # torch rounds the last few numbers of a tensor differently from the rest
    odds = np.negative(logits.detach().numpy())
    with np.errstate(over="ignore"):
        np.exp(odds, out=odds)
    odds += 1
    return torch.from_numpy(np.reciprocal(odds, out=odds))


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
        return -logsigmoid(sigma * margin)
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


def direct(ads: PairInputs, auctions: Auctions, options: PairOptions, *, gradient: bool) -> PairSums:
    """Cost and slope of every ad from all pairs, a fixed number of pairs in memory at a time."""
    if auctions.count == 1:
        return _table_sums(ads, ads, options, gradient)
    cost = ads.ecpm.new_zeros(auctions.ads + 1)  # the last place takes what padding holds
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
    """``table`` as ads i and as ads j, with nothing at stake in pairs with padding."""
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
    rows = None
    if options.gap != "signed" and options.value == "clicks" and i.value.device.type == "cpu":
        # nothing is at stake for an ad i of least value: for all that were not clicked
        able = (i.value > j.value.amin(-1, keepdim=True)).sum(-1)
        most = int(able.max() if able.dim() else able)
        if 4 * most < 3 * i.value.shape[-1]:
            value, rows = i.value.topk(max(most, 1), -1, sorted=False)
            left = None if i.left is None else i.left.gather(-1, rows)
            i = PairInputs(i.ecpm.gather(-1, rows), value, left)
    height, width = i.ecpm.shape[-1], j.ecpm.shape[-1]
    at_once = PAIRS_AT_ONCE["cuda" if i.value.device.type == "cuda" else "cpu"]
    if i.ecpm.numel() * width <= at_once:
        cost, pulled, slope = pair_block(i, j, options, gradient, i.ecpm.new_empty(3, *i.ecpm.shape, width))
    else:
        cost = torch.zeros_like(j.ecpm)
        pulled, slope = (torch.zeros_like(x.ecpm) if gradient else None for x in (i, j))
        auctions_at_once, rows_at_once = max(1, at_once // (height * width)), min(height, max(1, at_once // width))
        scratch = i.ecpm.new_empty(3, min(i.ecpm.numel() // height, auctions_at_once), rows_at_once, width)
        for auction_at in range(0, i.ecpm.numel() // height, auctions_at_once):
            some = ... if i.ecpm.dim() == 1 else slice(auction_at, auction_at + auctions_at_once)
            for row in range(0, height, rows_at_once):
                part = some, slice(row, row + rows_at_once)
                chunk_i, chunk_j = i.at(part), j.at(some)
                auction = 0 if i.ecpm.dim() == 1 else slice(len(chunk_j.ecpm))
                memory = scratch[:, auction, : chunk_i.ecpm.shape[-1]]
                chunk_cost, chunk_pulled, chunk_slope = pair_block(chunk_i, chunk_j, options, gradient, memory)
                cost[some] += chunk_cost
                if pulled is not None and slope is not None and chunk_pulled is not None and chunk_slope is not None:
                    pulled[part] = chunk_pulled
                    slope[some] += chunk_slope
    if pulled is None or slope is None:
        return cost, None
    if rows is None:
        slope.sub_(pulled)
    else:
        slope.scatter_add_(-1, rows, pulled.neg_())
    scale = options.sigma / 2 if options.surrogate == "hinge" else options.sigma
    return cost, slope if scale == 1 else slope.mul_(scale)


def pair_block(
    i: PairInputs, j: PairInputs, options: PairOptions, gradient: bool, scratch: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Sums over all pairs i x j: the cost of ads j, and how much ads i are pulled down and ads j up, but for a factor.

    The only code that sees pairs: written for few passes over them and no memory but ``scratch``, ``(3, ..., i, j)``:
    memory that comes and goes costs more than the arithmetic. `pair_sum` is the same in plain words.
    """
    stake, work, spare = scratch[0], scratch[1], scratch[2]
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
    low, high = 0.0, torch.inf
    if x_j.device.type == "cpu" and x_j.numel():
        low, high = (bound.item() for bound in x_j.aminmax())  # ads i are among ads j
    if high - low < 80:  # e^x is a product then: one exponential per ad, and a logarithm is all a pair costs
        middle = (low + high) / 2
        odds = torch.mul((x_j - middle).exp_().unsqueeze(-2), (middle - x_i).exp_().unsqueeze(-1), out=work)
        cost = torch.log1p(odds, out=spare).mul_(stake).sum(-2)
        pull = odds.div_(torch.add(odds, 1, out=spare)).mul_(stake) if gradient else odds
    else:
        lag = torch.sub(x_j.unsqueeze(-2), x_i.unsqueeze(-1), out=work)
        cost = softplus(lag, threshold=40.0).mul_(stake).sum(-2)  # torch's own 20 would cost float64 its last digits
        pull = lag.sigmoid_().mul_(stake) if gradient else lag
    return cost, *((pull.sum(-1), pull.sum(-2)) if gradient else (None, None))
