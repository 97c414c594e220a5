"""Logistic regression over categories to its optimum: L-BFGS over all ads, in place of Adam over batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from bidwise.data.ads import Ads
from bidwise.losses.named import BidWeightedLogLoss, unchecked
from bidwise.models.bags import all_shares
from bidwise.models.categorical import SparseLogisticRegression
from bidwise.training.validation import METRICS, Best, Fit, Metric, logits_across

PASSES = 100  # over the ads, at most; some fifty are usual
CHUNK = 2**15  # ads per look-up: their weights stay in a cache
HISTORY = 10  # gradients that L-BFGS remembers
MOST = 5_000_000  # weights: 160 bytes of memory each
LEAST = 1e-9  # change of the mean loss that is worth another step


def solvable(model: nn.Module, loss: nn.Module) -> bool:
    """Whether there is one optimum, a logistic regression with a log loss of each ad, and memory for the way there."""
    if not isinstance(model, SparseLogisticRegression) or not isinstance(loss, BidWeightedLogLoss):
        return False
    return model.table.weight.numel() <= MOST


def fit_exact(
    model: SparseLogisticRegression,
    ads: Ads,
    *,
    loss: nn.Module,
    valid: Ads | None = None,
    metric: str | Sequence[str | Metric] = "log_loss",
    l2: float = 0.0,
    show: Callable[[float], None] = lambda share: None,
) -> Fit:
    """The weights with the least mean loss + l2 Σ w², in ``model`` itself; an epoch of the history is a pass.

    All is computed in float64 from the model's own weights on. Gradients of values are added up as whole numbers,
    which have the same sum in any order: on any number of cores, and on a GPU, a run can be repeated bit by bit.
    """
    problem = _Problem(model, ads, unchecked(loss), l2, show)
    problem.solve()
    metrics = [METRICS[m] if isinstance(m, str) else m for m in ([metric] if isinstance(metric, str) else metric)]
    record: dict[str, Any] = {"epoch": problem.passes, "loss": problem.loss}
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    best = {}
    if valid is not None:
        logits = logits_across(model, valid.features)
        for each in metrics:
            record[each.name] = each.of(logits, valid).double().cpu()
            best[each.name] = Best(torch.tensor(problem.passes), record[each.name], state)
    return Fit(model, best, state, [record])


class _Problem:
    """Mean loss + l2 Σ w² as a function of bias and weights, with its gradient; of the ads some at a time."""

    def __init__(self, model: SparseLogisticRegression, ads: Ads, loss: Any, l2: float, show: Callable[..., None]):
        self.model, self.ads, self.function, self.show = model, ads, copy(loss), show
        self.function.reduction = "sum"
        self.passes, self.loss = 0, math.nan
        self.penalty = l2 * model.table.penalty.double()
        # no slope is larger: |weight (sigmoid(z) - label)| <= weight max(1, label)
        steepest = max(float((self._worth(part) * part[0].clamp(min=1)).max()) for _, part in self._parts())
        places = len(ads) * len(model.table.starts)
        self.scale = 2.0 ** (61 - math.ceil(math.log2(places * max(steepest, 1e-30))))

    def solve(self) -> None:
        model = self.model
        start = torch.cat([model.bias.detach().view(1), model.table.weight.detach().view(-1)]).double()
        point = nn.Parameter(start)
        steps = torch.optim.LBFGS(
            [point],
            max_iter=PASSES,
            max_eval=PASSES,
            history_size=HISTORY,
            tolerance_change=LEAST,
            line_search_fn="strong_wolfe",
        )

        def measured() -> float:
            value, point.grad = self.measured(point.detach())
            return value

        steps.step(measured)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            model.bias.copy_(point[0])
            model.table.weight.copy_(point[1:].view_as(model.table.weight))

    def measured(self, point: Tensor) -> tuple[float, Tensor]:
        """The value at bias and weights, and its gradient."""
        bias, weight = point[0], point[1:]
        total = 0.0
        sums = torch.zeros(1 + len(weight), dtype=torch.int64, device=point.device)
        for (ids, share), (labels, bids, teacher, weights) in self._parts():
            looked_up = weight[ids] if share is None else weight[ids] * share
            logits = (bias + looked_up.sum(1)).requires_grad_()
            loss = self.function(logits, labels, bids, None, teacher, weights)
            loss.backward()
            assert logits.grad is not None
            slope = logits.grad * self.scale
            whole = slope.round().long()
            sums[0] += whole.sum()
            if share is None:
                whole = whole.repeat_interleave(ids.shape[1])
            else:
                whole = (slope[:, None] * share).round_().long().flatten()
            sums[1:].index_add_(0, ids.flatten(), whole)
            total += float(loss.detach())
        gradient = sums.double() / (self.scale * len(self.ads))
        gradient[1:] += 2 * self.penalty * weight
        self.passes += 1
        self.loss = total / len(self.ads)
        self.show(min(0.99, self.passes / PASSES))
        return self.loss + float((self.penalty * weight.square()).sum()), gradient

    def _parts(self) -> Iterator[tuple[tuple[Tensor, Tensor | None], tuple[Any, ...]]]:
        """Rows of the table, with their weights in bags, and labels, bids, teacher and weights, of some
        ads after the other."""
        ads, table, starts = self.ads, self.model.table, self.model.table.starts
        for begin in range(0, len(ads), CHUNK):
            some = slice(begin, begin + CHUNK)
            given = (ads.clicks, ads.exposure, ads.bids, ads.teacher, ads.weights)
            columns = (None if x is None else x[some].to(starts.device, torch.float64) for x in given)
            clicks, exposure, *others = columns
            assert clicks is not None
            labels = clicks if exposure is None else clicks / exposure
            ids = ads.features[some].to(starts.device)
            share = all_shares(ids, table.slots, torch.float64) if table.bags else None
            yield (ids + starts, share), (labels, *others)

    def _worth(self, columns: tuple[Any, ...]) -> Tensor:
        """How much ads count."""
        labels, bids, _, weights = columns
        worth: Tensor = bids**self.function.power if self.function.power else torch.ones_like(labels)
        return worth if weights is None else worth * weights
