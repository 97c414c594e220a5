"""DCN as the paper trains it, and the models of its experiment by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, chain

import torch
from torch import Tensor, nn

from bidwise import models
from bidwise.checks import InputError, check_whole
from bidwise.models.embeddings import Embeddings, Values, values_and_slots
from bidwise.models.layers import Perceptron, glorot


class GroupedEmbeddings(nn.Module):
    """Vectors of a width that depends on the field, side by side: ids ``(ads, columns) -> (ads, sum of widths)``.

    Fields of one width share a table; the columns are those of the tables in turn.
    """

    static = True

    order: Tensor

    def __init__(
        self, cardinalities: Sequence[Values], widths: Sequence[int], *, std: float, random: torch.Generator
    ) -> None:
        super().__init__()
        if not widths:
            raise InputError("cardinalities must have one number for each field, found none")
        self.groups = [[f for f, w in enumerate(widths) if w == width] for width in sorted(set(widths))]
        ends = [0, *accumulate(values_and_slots(cardinalities)[1])]
        self.columns = [[at for f in group for at in range(ends[f], ends[f + 1])] for group in self.groups]
        self.width = sum(widths)
        tables = [Embeddings([cardinalities[f] for f in g], widths[g[0]], std=std, random=random) for g in self.groups]
        for table, own in zip(tables, self.columns, strict=True):
            table.columns = own
        self.tables = nn.ModuleList(tables)
        self.register_buffer("order", torch.tensor(list(chain(*self.columns))), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """The vectors of ids, side by side."""
        if ids.dim() != 2 or ids.shape[1] != len(self.order):
            raise InputError(f"features must have shape (ads, {len(self.order)}), found {tuple(ids.shape)}")
        parts = torch.split(ids.index_select(1, self.order), [len(own) for own in self.columns], dim=1)
        return torch.cat([table(part).flatten(1) for table, part in zip(self.tables, parts, strict=True)], dim=1)


def embedding_width(values: int) -> int:
    """6 ⌊values^¼⌋: what DeepCTR makes of the 6 values^¼ that the paper prints.

    >>> [embedding_width(values) for values in (3, 16, 81, 10_000, 1_000_000)]
    [6, 12, 18, 60, 186]
    """
    check_whole("cardinalities", values, 1)
    return 6 * math.isqrt(math.isqrt(values))  # exact, where values**0.25 may miss a whole number


class Cross(nn.Module):
    """Cross layers of DCN: x_{l+1} = x_0 (x_l · w_l) + b_l + x_l, ``(ads, width) -> (ads, width)``."""

    static = True

    def __init__(self, width: int, layers: int, *, random: torch.Generator) -> None:
        super().__init__()
        check_whole("cross", layers, 1)
        self.weights = nn.ParameterList(glorot(width, 1, random) for _ in range(layers))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(layers))

    def forward(self, inputs: Tensor) -> Tensor:
        crossed = inputs
        for weight, bias in zip(self.weights, self.biases, strict=True):
            crossed = torch.addcmul(crossed + bias, inputs, crossed @ weight)
        return crossed


class DCN(nn.Module):
    """Cross layers and a perceptron side by side over the same embeddings, ids ``(ads, columns) -> (ads,)``.

    logit = w · [cross(x); perceptron(x)] + w_0,  x_{l+1} = x_0 (x_l · w_l) + b_l + x_l   (Wang et al., 2017, eqs. 3-5)

    Args:
        cardinalities: values of each field, ``(values, slots)`` of a bag (:mod:`bidwise.models.embeddings`).
        widths: of their vectors; ``None``: :func:`embedding_width`.
        cross: cross layers.
        hidden: units of the hidden layers, with batch norm and ReLU.
        dropout: share of the hidden units that a step leaves out.
        std: of the initial embeddings; DeepCTR's is 1e-4, as is ours.
        first_order: add a weight for every value, as DeepCTR does.
        seed: of the initial weights and of the dropout.

    >>> DCN([3, 20], hidden=(8,)).eval()(torch.tensor([[0, 1], [2, 19]])).shape
    torch.Size([2])
    """

    static = True

    def __init__(
        self,
        cardinalities: Sequence[Values],
        *,
        widths: Sequence[int] | None = None,
        cross: int = 6,
        hidden: Sequence[int] = (1024, 1024),
        dropout: float = 0.0,
        std: float = 1e-4,
        first_order: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        widths = list(map(embedding_width, values_and_slots(cardinalities)[0])) if widths is None else list(widths)
        self.tables = GroupedEmbeddings(cardinalities, widths, std=std, random=random)
        self.cross = Cross(self.tables.width, cross, random=random)
        self.deep = Perceptron(self.tables.width, hidden, dropout=dropout, batch_norm=True, seed=seed, random=random)
        self.last = glorot(self.tables.width + [self.tables.width, *hidden][-1], 1, random)
        self.bias = nn.Parameter(torch.zeros(()))
        self.first = Embeddings(cardinalities, 1, std=std, random=random) if first_order else None

    def forward(self, features: Tensor) -> Tensor:
        vectors = self.tables(features)
        both = torch.cat([self.cross(vectors), self.deep(vectors)], dim=1)
        logits = (both @ self.last).squeeze(-1) + self.bias
        return logits if self.first is None else logits + self.first(features).sum((1, 2))


#: Models of the experiment by name, each called as ``MODELS[name](cardinalities, seed=0)``.
MODELS: dict[str, Callable[..., nn.Module]] = {**models.MODELS, "dcn": DCN}
