"""Logistic regression over categories to its optimum: L-BFGS over all ads, in place of Adam over batches.

The penalty of each column can be found from the training ads (MacKay, 1992): weights of a column are normal around 0
with a variance of its own, the one that makes these clicks most likely. A column without predictive value gets a
variance near 0, and so no weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bidwise.data.ads import Ads
from bidwise.evaluation.calibration import rows_of
from bidwise.losses.api import cross_entropy
from bidwise.losses.named import BidWeightedLogLoss
from bidwise.models.categorical import SparseLogisticRegression
from bidwise.models.embeddings import Prior
from bidwise.training.validation import METRICS, Best, Fit, Metric, logits_across
from bidwise.values import MISSING

PASSES = 100  # over the ads, at most; some fifty are usual
CHUNK = 2**15  # ads per look-up: their weights stay in a cache
KEPT = 2**27  # ids of ads that stay in memory as rows of the table; of more they are made in each pass
HISTORY = 10  # gradients that L-BFGS remembers
MOST = 5_000_000  # weights: 160 bytes of memory each
LEAST = 1e-9  # change of the mean loss that is worth another step
ROUNDS = 3  # of solving and of finding variances from the solution
SHORT = 30  # passes of a round but the last
VARIANCES = (1e-3, 3.0)  # of the weights of a column, the smallest and the largest
FIRST = 0.05  # variance that the rounds begin with
POWERS = (0.0, 0.5, 1.0)  # of the number of values in a bag: their sum, between, their mean
SAMPLE = 2**15  # ads that choose among them


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
    if model.table.bags and l2 is None and prior is None:
        _choose_power(model, ads, loss)
    problem = _Problem(model, ads, loss, show)
    found = None
    if prior is not None:
        problem.solve(prior.precision / (2 * problem.rows), prior.mean)
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


def _choose_power(model: SparseLogisticRegression, ads: Ads, loss: nn.Module) -> None:
    """Of bags: the power with the least loss of each half of a sample by the weights that are fitted to the other."""
    step, losses = -(-len(ads) // SAMPLE), {}
    one, other = (ads.take(slice(at, None, 2 * step)) for at in (0, step))
    for power in POWERS:
        model.power.fill_(power)
        losses[power] = sum(_loss_of_others(model, *parts, loss=loss) for parts in ((one, other), (other, one)))
    model.power.fill_(min(POWERS, key=lambda power: losses[power]))


def _loss_of_others(model: SparseLogisticRegression, ads: Ads, others: Ads, *, loss: nn.Module) -> float:
    """The summed loss of others by weights that are fitted to the ads; those of the model stay."""
    start = {name: values.clone() for name, values in model.state_dict().items()}
    fitted, other = (_Problem(model, part, loss, lambda share: None) for part in (ads, others))
    fitted.evident(rounds=2)
    value = other.measured(fitted.point, torch.zeros(()), None)[0] * other.rows
    model.load_state_dict(start)
    return value


class _Part(NamedTuple):
    """Some ads: rows of the table one ad after the other, equally many each or ``sizes``; the share of each row, labels
    and how much each ad counts."""

    rows: Tensor
    fields: int
    sizes: Tensor | None
    share: Tensor | None
    labels: Tensor
    worth: Tensor

    def logits(self, bias: Tensor, weight: Tensor) -> Tensor:
        looked_up = weight.index_select(0, self.rows)
        if self.sizes is None:
            return bias + looked_up.view(-1, self.fields).sum(1)
        looked_up = looked_up if self.share is None else looked_up * self.share
        return bias + torch.segment_reduce(looked_up, "sum", lengths=self.sizes)

    def spread(self, values: Tensor) -> Tensor:
        """Values of the ads at each of their rows."""
        if self.sizes is None:
            return values[:, None].expand(-1, self.fields).flatten()
        return values.repeat_interleave(self.sizes)


class _Problem:
    """Mean loss + Σ_j penalty_j (w_j - centre_j)² as a function of bias and weights, with its gradient; of the ads some
    at a time."""

    def __init__(self, model: SparseLogisticRegression, ads: Ads, function: Any, show: Callable[[float], None]):
        self.model, self.ads, self.function, self.show = model, ads, function, show
        self.passes, self.loss = 0, math.nan
        self.kept = [*self._parts()] if ads.features.numel() <= KEPT else None
        labels, worth = (torch.cat(parts) for parts in zip(*((x.labels, x.worth) for x in self.parts()), strict=True))
        self.rows = rows_of(worth.cpu().numpy(), labels.cpu().numpy()) * len(ads)  # whose likelihood this is
        # no slope is larger: |worth (sigmoid(z) - label)| <= worth max(1, label)
        steepest = float((worth * labels.clamp(min=1)).max())
        places = len(ads) * len(model.table.starts)
        self.scale = 2.0 ** (61 - math.ceil(math.log2(places * max(steepest, 1e-30))))

    @property
    def weights(self) -> Tensor:
        return self.point[1:]

    @property
    def point(self) -> Tensor:
        """Bias and weights."""
        return torch.cat([self.model.bias.detach().view(1), self.model.table.weight.detach().view(-1)]).double()

    def evident(self, passes: int = PASSES, rounds: int = ROUNDS) -> Prior:
        """Solve with the penalty of each column that the ads speak for: γ_f = Σ_j (1 - posterior_j / variance_f) of its
        weights are determined by the ads, and variance_f = Σ_j w_j² / γ_f."""
        fields = self.model.table.field_of_rows()

        def total(values: Tensor) -> Tensor:
            return values.new_zeros(len(self.model.table.values)).index_add_(0, fields, values)

        variances = torch.full_like(total(self.weights), FIRST)
        for number in range(rounds):
            last = number == ROUNDS - 1
            self.solve(1 / (2 * self.rows * variances)[fields], most=passes if last else SHORT)
            known = self.information()
            if not last:
                determined = total(known / (known + 1 / variances[fields])).clamp(min=1e-3)
                variances = (total(self.weights.square()) / determined).clamp(*VARIANCES)
        return Prior(self.weights, known + 1 / variances[fields])

    def information(self) -> Tensor:
        """Of each weight, Σ ctr (1 - ctr) over the rows that have its value."""
        sums = torch.zeros_like(self.weights)
        for part in self.parts():
            ctr = torch.sigmoid(part.logits(self.point[0], self.weights))
            known = part.spread(ctr * (1 - ctr) * part.worth)
            sums.index_add_(0, part.rows, known if part.share is None else known * part.share**2)
        return sums * (self.rows / len(self.ads))

    def solve(self, penalty: Tensor, centre: Tensor | None = None, most: int = PASSES) -> None:
        model = self.model
        point = nn.Parameter(self.point)
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
        for part in self.parts():
            logits = part.logits(bias, weight)
            total += float(cross_entropy(logits, part.labels, part.worth, "sum"))
            slope = (torch.sigmoid(logits) - part.labels) * part.worth * self.scale
            whole = slope.round().long()
            sums[0] += whole.sum()
            whole = part.spread(whole) if part.share is None else (part.spread(slope) * part.share).round_().long()
            sums[1:].index_add_(0, part.rows, whole)
        gradient = sums.double() / (self.scale * len(self.ads))
        away = weight if centre is None else weight - centre
        gradient[1:] += 2 * penalty * away
        self.passes += 1
        self.loss = total / len(self.ads)
        self.show(min(0.99, self.passes / PASSES))
        return self.loss + float((penalty * away.square()).sum()), gradient

    def parts(self) -> Iterable[_Part]:
        """Some ads after the other."""
        return self._parts() if self.kept is None else self.kept

    def _parts(self) -> Iterator[_Part]:
        ads, model, table, loss = self.ads, self.model, self.model.table, self.function
        first = torch.tensor([x for slots in table.slots for x in [True] + [False] * (slots - 1)])
        for begin in range(0, len(ads), CHUNK):
            some = slice(begin, begin + CHUNK)
            given = (ads.clicks, ads.exposure, ads.bids, ads.teacher, ads.weights)
            columns: list[Any] = [None if x is None else x[some].to(table.starts.device, torch.float64) for x in given]
            clicks, exposure, bids, teacher, weights = columns
            labels = clicks if exposure is None else clicks / exposure
            labels = labels if teacher is None or loss.value == "clicks" else teacher
            worth = bids**loss.power if weights is None else bids**loss.power * weights
            ids = ads.features[some].to(table.starts.device)
            rows, sizes, share = ids + table.starts, None, None
            if table.bags:  # of unused slots only the first of a bag without values
                of_columns = model.fields.argmax(1)
                counts = model.counts(ids).double()[:, of_columns]
                used = (ids != MISSING) | ((counts == 0) & first.to(ids.device))
                rows, sizes = rows[used], used.sum(1)
                share = None if model.power == 0 else counts[used].clamp(min=1) ** -model.power.double()
            yield _Part(rows.flatten(), len(table.slots), sizes, share, labels, worth)
