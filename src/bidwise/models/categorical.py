"""Models over categories: DeepFM, the logistic regression that is its first-order part, deep & cross networks; and the
mean of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bidwise.checks import InputError, check_whole
from bidwise.models.embeddings import Embeddings, Values
from bidwise.models.layers import Cross, Perceptron, glorot, paired
from bidwise.values import MISSING

# part of an L2 penalty that first-order weights bear: the best for them is that much smaller
DEEPFM_FIRST, DCN_FIRST = 1e-3, 3e-4


class SparseLogisticRegression(nn.Module):
    """logit = w_0 + Σ_f w_f[x_f]: a weight for each value of each field, ids ``(ads, columns) -> (ads,)``.

    A bag of n values has n^-power Σ_k w_f[x_fk]: their sum, or with ``power`` 1 their mean.

    >>> SparseLogisticRegression([3, 2])(torch.tensor([[0, 1], [2, 0]])).shape
    torch.Size([2])
    """

    static = True

    power: Tensor
    fields: Tensor

    def __init__(self, cardinalities: Sequence[Values], *, std: float = 1e-4, seed: int = 0) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.bias = nn.Parameter(torch.zeros(()))
        self.table = Embeddings(cardinalities, 1, std=std, random=random)
        self.seed = seed
        self.register_buffer("power", torch.zeros(()))
        columns = np.repeat(np.eye(len(self.table.slots)), self.table.slots, axis=0)  # the field of each
        fields = torch.from_numpy(columns).to(self.bias.device, self.bias.dtype)
        self.register_buffer("fields", fields, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        weights: Tensor = self.table(features).squeeze(-1)
        if self.table.bags:  # of which there is the mean
            weights = weights * self.counts(features).clamp(min=1) ** (1 - self.power)
        return self.bias + weights.sum(1)

    def counts(self, features: Tensor) -> Tensor:
        """How many values each field has, ``(ads, fields)``; 0 if it is missing."""
        return (features != MISSING).to(self.fields) @ self.fields

    def extra_repr(self) -> str:
        return f"seed={self.seed}"


class DeepFM(nn.Module):
    """A factorization machine and a perceptron over the same embeddings, ids ``(ads, columns) -> (ads,)``.

    logit = w_0 + Σ_f w_f[x_f] + Σ_{f<g} <v_f, v_g> + perceptron(v_1, ..., v_F)     (Guo et al., 2017, eqs. 1-4)

    Args:
        cardinalities: values of each field, ``(values, slots)`` of a bag (:mod:`bidwise.models.embeddings`).
        embedding: width of the vectors v.
        hidden: units of the hidden layers, with ReLU.
        dropout: share of the hidden units that a step drops.
        std: of the initial embeddings and first-order weights; DeepCTR's is 1e-4, as is ours.
        seed: of the initial weights and of the dropout.

    >>> DeepFM([3, 2], embedding=4, hidden=(8,))(torch.tensor([[0, 1], [2, 0]])).shape
    torch.Size([2])
    >>> DeepFM([3, (9, 2)], embedding=4, hidden=(8,))(torch.tensor([[0, 5, 8], [2, 7, 1]])).shape  # up to two keywords
    torch.Size([2])
    """

    static = True

    def __init__(
        self,
        cardinalities: Sequence[Values],
        *,
        embedding: int = 10,
        hidden: Sequence[int] = (400, 400, 400),
        dropout: float = 0.5,
        std: float = 1e-4,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_whole("embedding", embedding, 1)
        random = torch.Generator().manual_seed(seed)
        self.bias = nn.Parameter(torch.zeros(()))
        # w_f next to v_f
        self.table = Embeddings(cardinalities, 1 + embedding, std=std, random=random, first=DEEPFM_FIRST)
        self.deep = Perceptron(embedding * len(cardinalities), hidden, dropout=dropout, seed=seed, random=random)
        self.last = glorot([embedding * len(cardinalities), *hidden][-1], 1, random)

    def forward(self, features: Tensor) -> Tensor:
        if self.table.adds_up() and not self.table.bags:
            from bidwise.kernels.embedding_kernels import factorized

            self.table.check(features)
            # for products on tensor cores
            padded = bool(self.deep.hidden) and torch.get_float32_matmul_precision() != "highest"
            linear, flat = factorized(self.table.weight, features, self.table.starts, self.table.sums, padded=padded)
            wide = self.bias + linear
        else:
            looked_up: Tensor = self.table(features)
            vectors, flat = looked_up[..., 1:], looked_up[..., 1:].flatten(1)
            wide = self.bias + looked_up[..., 0].sum(1) + paired(vectors)
        logits: Tensor = wide + (self.deep(flat) @ self.last).squeeze(-1)
        return logits


class DCNv2(nn.Module):
    """First-order weights, cross layers and a perceptron over the same embeddings, ids ``(ads, columns) -> (ads,)``.

    logit = w_0 + Σ_f w_f[x_f] + w · [cross(x); perceptron(x)],  x_{l+1} = x_0 ⊙ (W_l x_l + b_l) + x_l   (Wang et al.,
    2021, eq. 1), with first-order weights added, as in DeepFM.

    Args:
        embedding: width of the vectors; a matrix costs the square of their sum.
        cross: cross layers.
        hidden: units of the hidden layers, with batch norm and ReLU; other arguments as in :class:`DeepFM`.

    >>> DCNv2([3, 20], hidden=(8,)).eval()(torch.tensor([[0, 1], [2, 19]])).shape
    torch.Size([2])
    """

    static = True

    def __init__(
        self,
        cardinalities: Sequence[Values],
        *,
        embedding: int = 16,
        cross: int = 3,
        hidden: Sequence[int] = (400, 400),
        dropout: float = 0.0,
        std: float = 1e-4,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_whole("embedding", embedding, 1)
        random = torch.Generator().manual_seed(seed)
        width = embedding * len(cardinalities)
        self.table = Embeddings(cardinalities, 1 + embedding, std=std, random=random, first=DCN_FIRST)
        self.cross = Cross(width, cross, random=random)
        self.deep = Perceptron(width, hidden, dropout=dropout, batch_norm=True, seed=seed, random=random)
        self.last = glorot(width + [width, *hidden][-1], 1, random)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        looked_up: Tensor = self.table(features)
        vectors = looked_up[..., 1:].flatten(1)
        both = torch.cat([self.cross(vectors), self.deep(vectors)], dim=1)
        return (both @ self.last).squeeze(-1) + looked_up[..., 0].sum(1) + self.bias


class Ensemble(nn.Module):
    """slope · mean_k logit_k + intercept: the mean logit of its members, calibrated (Platt, 1999).

    Of members of several classes, such as four networks and a regression, every class counts the same. An ensemble of
    one with a slope and an intercept is a calibrated model.

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
        logits: dict[type, list[Any]] = {}
        for model, width in zip(self.models, self.widths, strict=True):
            logits.setdefault(type(model), []).append(model(features if width is None else features[:, :width]))
        mean: Tensor = sum(sum(each) / len(each) for each in logits.values()) / len(logits)
        return mean * self.slope.to(mean) + self.intercept.to(mean)
