"""Logistic regression over categories to its optimum: L-BFGS over all ads, in place of Adam over batches.

The penalty of each column can be found from the training ads (MacKay, 1992): weights of a column are normal around 0
with a variance of its own, the one that makes these clicks most likely. A column without predictive value gets a
variance near 0, and so no weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bidwise.data.ads import Ads
from bidwise.losses.api import cross_entropy
from bidwise.losses.named import BidWeightedLogLoss
from bidwise.models.bags import all_shares
from bidwise.models.categorical import SparseLogisticRegression
from bidwise.models.widening import Prior
from bidwise.training.validation import METRICS, Best, Fit, Metric, logits_across

PASSES = 100  # over the ads, at most; some fifty are usual
CHUNK = 2**15  # ads per look-up: their weights stay in a cache
HISTORY = 10  # gradients that L-BFGS remembers
MOST = 5_000_000  # weights: 160 bytes of memory each
LEAST = 1e-9  # change of the mean loss that is worth another step
ROUNDS = 4  # of solving and of finding variances from the solution
SHORT = 30  # passes of a round but the last
VARIANCES = (1e-4, 3.0)  # of the weights of a column, the smallest and the largest
FIRST = 0.05  # variance that the rounds begin with


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
    l2: float | None = 0.0,
    prior: Prior | None = None,
    passes: int = PASSES,
    show: Callable[[float], None] = lambda share: None,
) -> Fit:
    """The weights with the least mean loss + l2 Σ w², in ``model`` itself; an epoch of the history is a pass.

    Without ``l2`` the penalty of each column is found from the ads, and ``Fit.prior`` is the posterior of each
    weight; its last solution takes ``passes`` at most. With the ``prior`` of an earlier fit weights are drawn to their
    values there, each as much as it was known.

    All is computed in float64 from the model's own weights on. Gradients of values are added up as whole numbers,
    which have the same sum in any order: on any number of cores, and on a GPU, a run can be repeated bit by bit.
    """
    problem = _Problem(model, ads, loss, show)
    found = None
    if prior is not None:
        problem.solve(prior.precision / (2 * len(ads)), prior.mean)
        found = Prior(problem.weights, prior.precision + problem.information())
    elif l2 is None:
        found = problem.evident(passes)
    else:
        problem.solve(torch.full_like(problem.weights, l2))
    metrics = [METRICS[m] if isinstance(m, str) else m for m in ([metric] if isinstance(metric, str) else metric)]
    fit = Fit(model, history=[{"epoch": problem.passes, "loss": problem.loss}], prior=found)
    fit.last = fit.state()
    if valid is not None:
        logits = logits_across(model, valid.features)
        for each in metrics:
            value = fit.history[0][each.name] = each.of(logits, valid).double().cpu()
            fit.best[each.name] = Best(torch.tensor(problem.passes), value, fit.last)
    return fit


class _Problem:
    """Mean loss + Σ_j penalty_j (w_j - centre_j)² as a function of bias and weights, with its gradient; of the ads some
    at a time."""

    def __init__(self, model: SparseLogisticRegression, ads: Ads, function: Any, show: Callable[[float], None]):
        self.model, self.ads, self.function, self.show = model, ads, function, show
        self.passes, self.loss = 0, math.nan
        # no slope is larger: |worth (sigmoid(z) - label)| <= worth max(1, label)
        steepest = max(float((worth * labels.clamp(min=1)).max()) for _, _, labels, worth in self._parts())
        places = len(ads) * len(model.table.starts)
        self.scale = 2.0 ** (61 - math.ceil(math.log2(places * max(steepest, 1e-30))))

    @property
    def weights(self) -> Tensor:
        return self.model.table.weight.detach().view(-1).double()

    def evident(self, passes: int) -> Prior:
        """Solve with the penalty of each column that the ads speak for: γ_f = Σ_j (1 - posterior_j / variance_f) of its
        weights are determined by the ads, and variance_f = Σ_j w_j² / γ_f."""
        fields = self.model.table.field_of_rows()

        def total(values: Tensor) -> Tensor:
            return values.new_zeros(len(self.model.table.values)).index_add_(0, fields, values)

        variances = torch.full_like(total(self.weights), FIRST)
        for number in range(ROUNDS):
            last = number == ROUNDS - 1
            self.solve(1 / (2 * len(self.ads) * variances)[fields], most=passes if last else SHORT)
            known = self.information()
            if not last:
                determined = total(known / (known + 1 / variances[fields])).clamp(min=1e-3)
                variances = (total(self.weights.square()) / determined).clamp(*VARIANCES)
        return Prior(self.weights, known + 1 / variances[fields])

    def information(self) -> Tensor:
        """Of each weight, Σ ctr (1 - ctr) over the ads that have its value, each as often as it counts."""
        sums = torch.zeros_like(self.weights)
        for ids, share, _, worth in self._parts():
            ctr = torch.sigmoid(self._logits(self.model.bias.detach().double(), self.weights, ids, share))
            one = (ctr * (1 - ctr) * worth)[:, None].expand(ids.shape)
            sums.index_add_(0, ids.flatten(), (one if share is None else one * share.square()).flatten())
        return sums

    @staticmethod
    def _logits(bias: Tensor, weight: Tensor, ids: Tensor, share: Tensor | None) -> Tensor:
        looked_up = weight[ids] if share is None else weight[ids] * share
        return bias + looked_up.sum(1)

    def solve(self, penalty: Tensor, centre: Tensor | None = None, most: int = PASSES) -> None:
        model = self.model
        start = torch.cat([model.bias.detach().view(1), model.table.weight.detach().view(-1)]).double()
        point = nn.Parameter(start)
        steps = torch.optim.LBFGS(
            [point],
            max_iter=most,
            max_eval=most,
            history_size=HISTORY,
            tolerance_change=LEAST,
            line_search_fn="strong_wolfe",
        )

        def measured() -> float:
            value, point.grad = self.measured(point.detach(), penalty, centre)
            return value

        steps.step(measured)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            model.bias.copy_(point[0])
            model.table.weight.copy_(point[1:].view_as(model.table.weight))

    def measured(self, point: Tensor, penalty: Tensor, centre: Tensor | None) -> tuple[float, Tensor]:
        """The value at bias and weights, and its gradient."""
        bias, weight = point[0], point[1:]
        total = 0.0
        sums = torch.zeros(1 + len(weight), dtype=torch.int64, device=point.device)
        for ids, share, labels, worth in self._parts():
            logits = self._logits(bias, weight, ids, share)
            total += float(cross_entropy(logits, labels, worth, "sum"))
            slope = (torch.sigmoid(logits) - labels) * worth * self.scale
            whole = slope.round().long()
            sums[0] += whole.sum()
            if share is None:
                whole = whole.repeat_interleave(ids.shape[1])
            else:
                whole = (slope[:, None] * share).round_().long().flatten()
            sums[1:].index_add_(0, ids.flatten(), whole)
        gradient = sums.double() / (self.scale * len(self.ads))
        away = weight if centre is None else weight - centre
        gradient[1:] += 2 * penalty * away
        self.passes += 1
        self.loss = total / len(self.ads)
        self.show(min(0.99, self.passes / PASSES))
        return self.loss + float((penalty * away.square()).sum()), gradient

    def _parts(self) -> Iterator[tuple[Tensor, Tensor | None, Tensor, Tensor]]:
        """Rows of the table, their shares in bags, labels, and how much ads count, of some ads after the other."""
        ads, table, loss = self.ads, self.model.table, self.function
        for begin in range(0, len(ads), CHUNK):
            some = slice(begin, begin + CHUNK)
            given = (ads.clicks, ads.exposure, ads.bids, ads.teacher, ads.weights)
            columns: list[Any] = [None if x is None else x[some].to(table.starts.device, torch.float64) for x in given]
            clicks, exposure, bids, teacher, weights = columns
            labels = clicks if exposure is None else clicks / exposure
            worth = bids**loss.power
            ids = ads.features[some].to(table.starts.device)
            share = all_shares(ids, table.slots, torch.float64) if table.bags else None
            labels = labels if teacher is None or loss.value == "clicks" else teacher
            yield ids + table.starts, share, labels, worth if weights is None else worth * weights
