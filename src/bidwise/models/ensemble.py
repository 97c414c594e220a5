"""The served model: one calibrated model, or the mean of several."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bidwise.checks import InputError


class Ensemble(nn.Module):
    """slope · mean_k logit_k + intercept: the mean logit of its members, calibrated (Platt, 1999).

    An ensemble of one with a slope and an intercept is a calibrated model.

    Args:
        models: the members; each returns logits ``(ads,)`` of the same features.
        slope, intercept: of the calibration, kept with the weights.
        widths: how many of the features each member takes, the first ones; by default all of them.

    >>> from bidwise.models import SparseLogisticRegression
    >>> models = [SparseLogisticRegression([3, 2], seed=seed) for seed in range(4)]
    >>> Ensemble(models, intercept=-1.0)(torch.tensor([[0, 1], [2, 0]])).shape
    torch.Size([2])
    """

    static = True

    slope: Tensor
    intercept: Tensor

    def __init__(
        self,
        models: Sequence[nn.Module],
        *,
        slope: float = 1.0,
        intercept: float = 0.0,
        widths: Sequence[int | None] | None = None,
    ) -> None:
        super().__init__()
        if not models:
            raise InputError("models must contain at least one model, found none")
        self.models = nn.ModuleList(models)
        self.widths = [None] * len(models) if widths is None else list(widths)
        self.register_buffer("slope", torch.tensor(slope, dtype=torch.float64))
        self.register_buffer("intercept", torch.tensor(intercept, dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        pairs = zip(self.models, self.widths, strict=True)
        logits = [model(features if width is None else features[:, :width]) for model, width in pairs]
        mean: Tensor = sum(logits) / len(logits)
        return mean * self.slope.to(mean) + self.intercept.to(mean)
