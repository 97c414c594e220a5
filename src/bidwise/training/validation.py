"""How good models are on held-out ads, one number for each member of a batch, and the best epoch by that."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bidwise import distributed
from bidwise.checks import InputError
from bidwise.data.ads import Ads
from bidwise.evaluation.auc import auc
from bidwise.evaluation.pooled import pooled_welfare
from bidwise.losses.api import cross_entropy
from bidwise.losses.definition import ctr_of
from bidwise.models.embeddings import Prior
from bidwise.segments import Auctions

State = dict[str, Tensor]
EPOCH_TOLERANCE = 1e-9  # for sums of fractions
ALONE = 2**14  # numbers that torch leaves to one thread: several would round sums, and the ends of their parts, apart
NUMBERS_AT_ONCE = {"cpu": 2**21, "cuda": 2**27}  # features and activations in flight while predicting


def logits_of(model: nn.Module, features: Tensor) -> Tensor:
    """Logits of all ads, ``(..., ads, width) -> (*members, ads)``, some ads at a time and without a gradient."""
    parameter = next(model.parameters())
    members = getattr(model, "members", torch.Size())
    wide = max([features.shape[-1], *(p.shape[-1] for p in model.parameters() if p.dim())])
    count = max(members.numel(), features.shape[:-2].numel())
    at_once = max(256, NUMBERS_AT_ONCE.get(parameter.device.type, 2**24) // (wide * count))
    with mode(model, training=False), torch.no_grad():
        parts = []
        for part in torch.split(features, at_once, dim=-2):
            moved = part.to(parameter.device)
            logits = model(moved.to(parameter.dtype) if moved.is_floating_point() else moved)
            parts.append(one_number_per_ad(logits, part.shape[-2]))
    return torch.cat(parts, dim=-1)


def logits_across(model: nn.Module, features: Tensor) -> Tensor:
    """The same on several ranks: each computes its part, and all get all logits."""
    ranks, here = distributed.count(), distributed.rank()
    if ranks == 1:
        return logits_of(model, features)
    bounds = [features.shape[-2] * part // ranks for part in range(ranks + 1)]
    sizes = [stop - start for start, stop in pairwise(bounds)]
    return distributed.concatenated(logits_of(model, features.narrow(-2, bounds[here], sizes[here])), sizes)


@contextmanager
def mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """``model`` in training or evaluation mode; afterwards every part of it has the mode it had before."""
    before = [(part, part.training) for part in model.modules()]
    if model.training != training:  # else leave it: some of its parts may be frozen on purpose
        model.train(training)
    try:
        yield
    finally:
        for part, was_training in before:
            part.training = was_training


def one_number_per_ad(logits: object, ads: int, members: torch.Size | None = None) -> Tensor:
    """``logits``, if a model of these members may return them."""
    if not isinstance(logits, Tensor):
        raise InputError(f"model must return a tensor with one logit per ad, found {type(logits).__name__}")
    right = logits.shape[-1:] == (ads,) if members is None else logits.shape == (*members, ads)
    if not right:
        expected = f"(..., {ads})" if members is None else f"{(*members, ads)}"
        hint = "; end its forward with .squeeze(-1)" if logits.shape[-2:] == (ads, 1) else ""
        raise InputError(f"model must return one logit per ad, {expected}, found {tuple(logits.shape)}{hint}")
    return logits


def predict(model: nn.Module, features: Tensor | Ads) -> Tensor:
    """The model's CTR of every ad, ``(..., ads, width) -> (*members, ads)``; ``Ads`` stand for their features.

    >>> from bidwise.models import LogisticRegression
    >>> predict(LogisticRegression(2), torch.zeros(3, 2)).shape
    torch.Size([3])
    """
    if not isinstance(features, Tensor | Ads):
        found = type(features).__name__
        raise InputError(f"features must be a tensor or Ads, found {found}; torch.as_tensor makes one of an array")
    return ctr_of(logits_of(model, features.features if isinstance(features, Ads) else features))


def mean_welfare(logits: Tensor, worth: Tensor, bids: Tensor, offsets: Tensor | None) -> Tensor:
    """Mean welfare per auction for one slot, ``(..., ads) -> (...)``: :func:`bidwise.welfare` for many models at once.

    ``worth`` is b times clicks or true CTR, and broadcasts with the logits as bids do. Of several ads with the highest
    eCPM, each is as likely to be shown.

    >>> mean_welfare(torch.tensor([0.0, 1.0]), torch.tensor([3.0, 5.0]), torch.ones(2), None)
    tensor(5., dtype=torch.float64)
    """
    ecpm = ctr_of(logits) * bids
    if offsets is not None:
        offsets = offsets.cpu()  # needed to find a common size
    auctions = Auctions.of(ecpm[(0,) * (ecpm.dim() - 1)], offsets)  # the same for all models
    total = ecpm.new_zeros(ecpm.shape[:-1], dtype=torch.float64)
    for block in auctions.blocks():
        if not block.rows.numel():
            continue
        if auctions.size is not None:
            table, gain = (x.reshape(*x.shape[:-1], auctions.count, auctions.size) for x in (ecpm, worth))
        else:
            table, gain = ecpm[..., block.rows], worth[..., block.rows]
        if block.filled is not None:
            table = table.where(block.filled.to(table.device), -torch.inf)
        top, winner = table.max(-1, keepdim=True)
        won = gain.expand(table.shape).gather(-1, winner).squeeze(-1).double()
        shown = ~(table < top)  # all ads if one is NaN
        if int(torch.count_nonzero(shown)) > won.numel():
            won = (gain.double() * shown).sum(-1) / shown.sum(-1)
        total += won.sum(-1)
    return total / max(auctions.count, 1)


@dataclass(frozen=True)
class Metric:
    """A number to select models by."""

    name: str
    higher_is_better: bool
    of: Callable[[Tensor, Ads], Tensor]  # logits (*members, ads) and ads -> (*members)


def _members(logits: Tensor, *columns: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """The columns as each member of ``logits`` sees them, ``None`` if there is none."""
    number = logits.shape[:-1].numel()
    rows = ([None] * number if x is None else x.expand_as(logits).reshape(number, -1) for x in columns)
    return zip(*rows, strict=True)


def _numbers(logits: Tensor, found: list[float]) -> Tensor:
    return torch.tensor(found, dtype=torch.float64, device=logits.device).view(logits.shape[:-1])


def _welfare(logits: Tensor, ads: Ads, labels: Tensor | None = None) -> Tensor:
    """In the auctions of the ads, or in every possible one."""
    labels = ads.labels if labels is None else labels
    size, weights = ads.auction_size, ads.weights
    if size is None:
        return mean_welfare(logits, ads.bids * labels * _counts(ads), ads.bids, ads.offsets)
    weights = weights if weights is None else weights / weights.mean(-1, keepdim=True, dtype=torch.float64)
    rows = _members(logits, ctr_of(logits.double()), labels, ads.bids, weights)
    return _numbers(logits, [pooled_welfare(ctr, y, b, size, weights=w) for ctr, y, b, w in rows])


def _counts(ads: Ads) -> Tensor | float:
    """How much the auction of each ad counts, the mean weight of its ads; on average 1."""
    if ads.weights is None:
        return 1.0
    weights = ads.weights.double()
    means = Auctions.of(weights, ads.offsets).mean(weights.reshape(-1)).view(weights.shape)
    one = weights[(0,) * (weights.dim() - 1)]  # every repeat has the same auctions, and an average of its own
    firsts = means[..., Auctions.of(one, ads.offsets).starts]
    return (means / firsts.mean(-1, keepdim=True)).to(ads.bids)


def _expected_welfare(logits: Tensor, ads: Ads) -> Tensor:
    if ads.truth is None:
        raise InputError("valid must have truth for metric='expected_welfare'; 'welfare' takes the clicks")
    return _welfare(logits, ads, ads.truth)


def _log_loss(logits: Tensor, ads: Ads) -> Tensor:
    weights = ads.weights
    if weights is not None:  # float64: a sum of weights of millions of ads
        weights = (weights / weights.mean(-1, keepdim=True, dtype=torch.float64)).expand_as(logits)
    columns = (logits, ads.labels.expand_as(logits), weights)
    if logits.device.type != "cpu":
        return cross_entropy(*columns, "mean").double()
    at_once = max(1, ALONE // max(logits.shape[:-1].numel(), 1))  # and added up in float64
    parts = zip(*(itertools.repeat(None) if x is None else torch.split(x, at_once, -1) for x in columns), strict=False)
    total = torch.zeros(logits.shape[:-1], dtype=torch.float64)
    for z, labels, counts in parts:
        total += cross_entropy(z, labels, counts, "none").double().sum(-1)
    return total / max(logits.shape[-1], 1)


def _auc(logits: Tensor, ads: Ads) -> Tensor:
    rows = _members(logits, *(None if x is None else x.cpu() for x in (logits, ads.clicks, ads.weights)))
    return _numbers(logits, [auc(z, y, weights=w) for z, y, w in rows])


METRICS = {
    "welfare": Metric("welfare", True, _welfare),  # clicked, per auction
    "expected_welfare": Metric("expected_welfare", True, _expected_welfare),  # by the true CTR
    "log_loss": Metric("log_loss", False, _log_loss),
    "auc": Metric("auc", True, _auc),
}


@dataclass
class Best:
    """The best epoch of every member by one metric, and its weights then."""

    epoch: Tensor  # (*members) int64, float64 if a run is evaluated within epochs
    value: Tensor  # (*members) float64
    state: State = field(repr=False)


@dataclass
class Fit:
    """A trained model and its training.

    ``model`` has the weights of its best epoch by the first metric, or the last ones without validation;
    ``best`` has the best weights by each metric, ``last`` the last ones. ``history`` has one entry for each evaluated
    epoch: ``epoch``, ``loss`` (mean over its batches) and every metric, ``(*members)``.
    """

    model: nn.Module
    best: dict[str, Best] = field(default_factory=dict)
    last: State = field(default_factory=dict, repr=False)
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)
    folder: Path | None = field(default=None, repr=False)  # of the run, with its checkpoint
    prior: Prior | None = field(default=None, repr=False)  # for the next fit, of a regression solved by its evidence

    def state(self) -> State:
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def keep(self, metric: Metric, value: Tensor, epoch: Tensor, patience: float | None) -> None:
        """Keep this epoch for members with patience left for which it is the best so far."""
        best = self.best.get(metric.name)
        if best is None:
            self.best[metric.name] = Best(epoch.expand(value.shape).clone(), value, self.state())
            return
        sign = 1 if metric.higher_is_better else -1
        better = (sign * value > sign * best.value) & ~self.stopped(metric.name, patience)
        if not bool(better.any()):
            return
        best.value = torch.where(better, value, best.value)
        best.epoch = torch.where(better, epoch, best.epoch)
        for key, parameter in self.model.state_dict().items():
            mask = better.to(parameter.device)
            mask = mask.view(mask.shape + (1,) * (parameter.dim() - mask.dim()))
            best.state[key] = torch.where(mask, parameter.detach(), best.state[key])

    def stopped(self, name: str, patience: float | None) -> Tensor:
        """Members without patience left for a metric: they keep the weights they would have if trained separately."""
        best = self.best[name]
        if patience is None or not self.history:
            return torch.zeros_like(best.epoch, dtype=torch.bool)
        done: float = self.history[-1]["epoch"]
        return best.epoch.double() <= done - patience + EPOCH_TOLERANCE
