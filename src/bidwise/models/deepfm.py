"""DeepFM, and the logistic regression that is its first-order part: models over categories."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bidwise.checks import check_whole
from bidwise.models.layers import Embeddings, Perceptron, glorot, paired

FIRST = 1e-3  # part of an L2 penalty that first-order weights bear: the best for them is that much smaller


class SparseLogisticRegression(nn.Module):
    """logit = w_0 + Σ_f w_f[x_f]: a weight for each value of each field, ids ``(ads, fields) -> (ads,)``.

    >>> SparseLogisticRegression([3, 2])(torch.tensor([[0, 1], [2, 0]])).shape
    torch.Size([2])
    """

    def __init__(self, cardinalities: Sequence[int], *, std: float = 1e-4, seed: int = 0) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.bias = nn.Parameter(torch.zeros(()))
        self.table = Embeddings(cardinalities, 1, std=std, random=random)
        self.seed = seed

    def forward(self, features: Tensor) -> Tensor:
        """Logits of ads."""
        weights: Tensor = self.table(features)
        return self.bias + weights.sum((1, 2))

    def extra_repr(self) -> str:
        return f"seed={self.seed}"


class DeepFM(nn.Module):
    """A factorization machine and a perceptron over the same embeddings, ids ``(ads, fields) -> (ads,)``.

    logit = w_0 + Σ_f w_f[x_f] + Σ_{f<g} <v_f, v_g> + perceptron(v_1, ..., v_F)     (Guo et al., 2017, eqs. 1-4)

    Args:
        cardinalities: values of each field.
        embedding: width of the vectors v.
        hidden: units of the hidden layers, with ReLU.
        dropout: share of the hidden units that a step leaves out.
        std: of the initial embeddings and first-order weights; DeepCTR's is 1e-4, as is ours.
        seed: of the initial weights and of the dropout.

    >>> DeepFM([3, 2], embedding=4, hidden=(8,))(torch.tensor([[0, 1], [2, 0]])).shape
    torch.Size([2])
    """

    def __init__(
        self,
        cardinalities: Sequence[int],
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
        self.table = Embeddings(cardinalities, 1 + embedding, std=std, random=random, first=FIRST)  # w_f beside v_f
        self.deep = Perceptron(embedding * len(cardinalities), hidden, dropout=dropout, seed=seed, random=random)
        self.last = glorot([embedding * len(cardinalities), *hidden][-1], 1, random)

    def forward(self, features: Tensor) -> Tensor:
        """Logits of ads."""
        if self.table.adds_up():
            from bidwise.kernels.embedding_kernels import factorized

            self.table.check(features)
            linear, flat = factorized(self.table.weight, features, self.table.starts, self.table.sums)
            return self.bias + linear + self._deep(flat)
        looked_up: Tensor = self.table(features)
        first, vectors = looked_up[..., 0], looked_up[..., 1:]
        deep = self._deep(vectors.flatten(1))
        return self.bias + first.sum(1) + paired(vectors) + deep

    def _deep(self, flat: Tensor) -> Tensor:
        logits: Tensor = (self.deep(flat) @ self.last).squeeze(-1)
        return logits
