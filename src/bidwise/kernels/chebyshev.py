"""Chebyshev series of a kernel in the places of a target and of a source: what all sums by panels are made of."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache
def chebyshev(degree: int) -> tuple[Tensor, Tensor]:
    """Nodes in [-1, 1], and the matrix from values at them to coefficients of T_0 ... T_(degree - 1), in float64."""
    k = torch.arange(degree, dtype=torch.float64, device="cpu")  # whatever the default device is now
    angle = torch.pi * (k + 0.5) / degree
    analysis = torch.cos(k[:, None] * angle) * 2 / degree
    analysis[0] /= 2
    return torch.cos(angle), analysis


def coefficients(kernel: Tensor) -> Tensor:
    """Of values ``(..., target, source)`` at the nodes: coefficients ``(..., degree of the source, of the target)``."""
    _, analysis = chebyshev(kernel.shape[-1])
    return analysis @ kernel.mT @ analysis.T
