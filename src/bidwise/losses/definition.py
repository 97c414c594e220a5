"""The family of pairwise losses, to be read next to the paper.

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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bidwise.checks import check_name, check_positive

VALUES = ("clicks", "teacher")
GAPS = ("signed", "positive", "order")
SURROGATES = ("logistic", "hinge", "indicator")
REDUCTIONS = ("none", "sum", "mean")
METHODS = ("auto", "direct", "fast", "triton")


@dataclass(frozen=True)
class PairOptions:
    """The options of :func:`bidwise.pairwise_welfare_loss`, which documents them; checked when made."""

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
        known = {"value": VALUES, "gap": GAPS, "surrogate": SURROGATES, "reduction": REDUCTIONS, "method": METHODS}
        for name, names in known.items():
            check_name(name, getattr(self, name), names)
        check_positive("sigma", self.sigma)
        if self.weighting is not None:
            check_positive("weighting", self.weighting)
            object.__setattr__(self, "weighting", float(self.weighting))
        if not isinstance(self.pair_mean, bool):
            raise TypeError(f"pair_mean must be True or False, found {self.pair_mean!r}")
        object.__setattr__(self, "sigma", float(self.sigma))

    @property
    def needs_teacher(self) -> str | None:
        """The option that needs a teacher's CTR, if any."""
        return 'value="teacher"' if self.value == "teacher" else "weighting" if self.weighting is not None else None


class LossInputs(NamedTuple):
    """The tensors of a call: per ad ``(..., ads)``, and the bounds of the auctions ``(auctions + 1,)``."""

    logits: Tensor
    clicks: Tensor
    bids: Tensor
    offsets: Tensor | None = None
    teacher: Tensor | None = None
    weights: Tensor | None = None  # of the log loss of each ad


class PairInputs(NamedTuple):
    """The ingredients of the pairs: eCPM s, value v and the factors of w_ij = left_i right_j, ``None`` for ones."""

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
#   slope_j = dL / ds_j with fixed weights; None if no gradient is needed.
PairSums = tuple[Tensor, Tensor | None]


# A way to compute them for all ads: method(ads, auctions, options, gradient=True).
Method = Callable[..., PairSums]


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
