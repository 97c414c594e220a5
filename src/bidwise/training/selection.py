"""Early stopping: the best epoch of every member by each metric, and the weights it had then."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bidwise.training.validation import Metric

State = dict[str, Tensor]
NEAR = 1e-9  # of an epoch: what sums of fractions may miss


@dataclass
class Best:
    """The best epoch of every member by one metric, and the weights it had then."""

    epoch: Tensor  # (*members) int64, float64 where a run is evaluated inside of epochs
    value: Tensor  # (*members) float64
    state: State = field(repr=False)


@dataclass
class Fit:
    """A trained model and how it came about.

    ``model`` has the weights of its best epoch by the first metric, or the last ones where nothing was validated;
    ``best`` has the best weights by each metric, ``last`` the last ones. ``history`` has one entry for each evaluated
    epoch: ``epoch``, ``loss`` (mean over its batches) and every metric, ``(*members)``.
    """

    model: nn.Module
    best: dict[str, Best] = field(default_factory=dict)
    last: State = field(default_factory=dict, repr=False)
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)

    def state(self) -> State:
        """A copy of the weights as they are now."""
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def keep(self, metric: Metric, value: Tensor, epoch: Tensor, patience: float | None) -> None:
        """Take this epoch for the members to which it is the best so far and whose patience has not run out."""
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
        """Members whose patience with a metric had run out before: they keep what they would have alone."""
        best = self.best[name]
        if patience is None or not self.history:
            return torch.zeros_like(best.epoch, dtype=torch.bool)
        done: float = self.history[-1]["epoch"]
        return best.epoch.double() <= done - patience + NEAR
