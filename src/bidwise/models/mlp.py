"""Perceptrons, one or many in parallel: a leading dimension of every parameter is one model of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from bidwise.checks import InputError, check_name, check_whole

INITS = ("torch", "glorot")


class MLP(nn.Module):
    """A perceptron with ReLU between layers, returning logits ``(*members, ads)``.

    Args:
        width: numbers per ad, the last dimension of the features.
        hidden: units of each hidden layer; the paper's network is ``(50,)``.
        members: leading dimensions of all parameters: that many models, which never interact. Features ``(*repeats,
            ads, width)`` broadcast over them: members ``(6, 30)`` are six variants of each of 30 repeats.
        init: ``torch`` starts as `torch.nn.Linear` does, weights and biases uniform in ±1 / √inputs; ``glorot`` as
            Keras does, weights uniform in ±√(6 / (inputs + outputs)) and no bias.
        seed: of the initial weights, one for all or one for each entry of the last member dimension; a single model and
            the same model among others start alike, and variants of one repeat start alike.

    >>> model = MLP(3, hidden=(4,), members=(2, 5), seed=range(5))
    >>> model(torch.zeros(5, 7, 3)).shape
    torch.Size([2, 5, 7])
    """

    static = True

    def __init__(
        self,
        width: int,
        hidden: Sequence[int] = (50,),
        *,
        members: Sequence[int] = (),
        init: str = "torch",
        seed: int | Sequence[int] = 0,
    ) -> None:
        super().__init__()
        check_whole("width", width, 1)
        check_name("init", init, INITS)
        for name, numbers in (("hidden", hidden), ("members", members)):
            for number in numbers:
                check_whole(name, number, 1)
        self.members = torch.Size(members)
        repeats = self.members[-1] if self.members else 1
        seeds = [int(k) for k in seed] if isinstance(seed, Iterable) else [int(seed)]
        if len(seeds) not in (1, repeats):
            raise InputError(f"seed must be one number or {repeats}, one per repeat, found {len(seeds)}")
        randoms = [torch.Generator().manual_seed(k) for k in seeds]
        self.made_of = f"{width=}, hidden={tuple(hidden)}, members={tuple(members)}, {init=}, seed={seeds}"
        sizes = pairwise([width, *hidden, 1])
        self.layers = nn.ModuleList(_Layer(m, n, self.members, init, randoms) for m, n in sizes)

    def extra_repr(self) -> str:
        return self.made_of

    def forward(self, features: Tensor) -> Tensor:
        active = features
        for layer in self.layers[:-1]:
            active = layer(active).relu_()
        logits: Tensor = self.layers[-1].single(active)  # type: ignore[operator]
        return logits


class LogisticRegression(MLP):
    """A linear logit: the student that cannot represent interactions; options as in :class:`MLP`.

    >>> LogisticRegression(3)(torch.zeros(7, 3)).shape
    torch.Size([7])
    """

    static = True

    def __init__(self, width: int, **options: Any) -> None:
        super().__init__(width, (), **options)


class _Layer(nn.Module):
    static = True

    def __init__(
        self, inputs: int, outputs: int, members: torch.Size, init: str, randoms: list[torch.Generator]
    ) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs) if init == "torch" else math.sqrt(6 / (inputs + outputs))
        shape = (inputs + 1, outputs)
        drawn = torch.stack([torch.rand(shape, generator=r, dtype=torch.float32, device="cpu") for r in randoms])
        drawn = (bound * (2 * drawn - 1)).to(torch.get_default_device(), torch.get_default_dtype())
        if not members:
            drawn = drawn.squeeze(0)
        drawn = drawn.expand(*members, inputs + 1, outputs)
        self.weight = nn.Parameter(drawn[..., :-1, :].clone())  # (*members, inputs, outputs)
        self.bias = nn.Parameter(drawn[..., -1:, :].clone())  # (*members, 1, outputs)
        if init == "glorot":
            nn.init.zeros_(self.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.dim() == self.weight.dim() == 3:
            return torch.baddbmm(self.bias, inputs, self.weight)  # one pass less over the activations
        return inputs @ self.weight + self.bias

    def single(self, inputs: Tensor) -> Tensor:
        """The only output: ``(..., ads, inputs) -> (..., ads)``."""
        if self.weight.dim() == inputs.dim() + 1:  # variants of each repeat: columns of one product
            columns = self.weight.squeeze(-1).movedim(0, -1)
            return (inputs @ columns).movedim(-1, 0) + self.bias.squeeze(-1)
        # a batched product with a column is five times slower on a CPU than multiplying and adding up
        return (inputs * self.weight.mT).sum(-1) + self.bias.squeeze(-1)
