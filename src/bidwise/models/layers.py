"""Building blocks of models over categories: crosses, perceptrons and batch norm, each as its formula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bidwise import distributed
from bidwise.checks import InputError, check_whole, no_second_derivative
from bidwise.kernels import available
from bidwise.models.embeddings import normal


def is_static(part: nn.Module) -> bool:
    """Whether the class of a part declares ``static``: its forward pass does the same in every step, on ids or numbers
    that are the ads' features. Subclasses may do anything, so they declare it again."""
    return "static" in vars(type(part))


def paired(vectors: Tensor) -> Tensor:
    """Sum of the inner products of all pairs of fields, ``(ads, fields, width) -> (ads,)``: the factorization machine.

    Σ_{f<g} <v_f, v_g> = ½ Σ_k [(Σ_f v_fk)² − Σ_f v_fk²], in time linear in the fields.

    >>> paired(torch.tensor([[[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]]]))
    tensor([17.])
    """
    return 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(-1)


class Cross(nn.Module):
    """Cross layers of DCNv2: x_{l+1} = x_0 ⊙ (W_l x_l + b_l) + x_l, ``(ads, width) -> (ads, width)``."""

    static = True

    def __init__(self, width: int, layers: int, *, random: torch.Generator) -> None:
        super().__init__()
        check_whole("cross", layers, 1)
        self.weights = nn.ParameterList(glorot(width, width, random) for _ in range(layers))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(layers))

    def forward(self, inputs: Tensor) -> Tensor:
        crossed = inputs
        for weight, bias in zip(self.weights, self.biases, strict=True):
            crossed = torch.addcmul(crossed, inputs, torch.addmm(bias, crossed, weight))
        return crossed


class Perceptron(nn.Module):
    """Hidden layers: affine, or linear and batch norm; ReLU, dropout; ``(ads, inputs) -> (ads, hidden[-1])``.

    Batch norm cancels a bias before it: its gradient would be rounding error, which Adam turns into full steps.

    Which units are dropped depends on ``seed`` and on how many steps were made, a number in the state of the model: a
    resumed run drops the same units, and the global random state is neither read nor set.
    """

    static = True

    steps: Tensor

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        *,
        dropout: float = 0.0,
        batch_norm: bool = False,
        seed: int,
        random: torch.Generator,
    ) -> None:
        super().__init__()
        for units in hidden:
            check_whole("hidden", units, 1)
        if not 0 <= dropout < 1:
            raise InputError(f"dropout must be in [0, 1), found {dropout}")
        self.weights = nn.ParameterList(glorot(m, n, random) for m, n in pairwise([inputs, *hidden]))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(units)) for units in hidden if not batch_norm)
        self.norms = nn.ModuleList(BatchNorm(units) for units in hidden) if batch_norm else None
        self.hidden, self.dropout, self.seed = tuple(hidden), float(dropout), seed
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.dtype == torch.float32 and available(inputs.device):
            return self._fused(inputs)
        active = inputs
        masks = self._masks(inputs) if self.training and self.dropout else None
        for k, weight in enumerate(self.weights):
            if self.norms is None:
                active = torch.addmm(self.biases[k], active, weight).relu_()
            else:
                active = self.norms[k](active @ weight).relu_()
            if masks is not None:
                active = active * masks[k]
        return active

    def _fused(self, inputs: Tensor) -> Tensor:
        """The same on a GPU, with random numbers of its own: bias, ReLU and dropout of a layer are one kernel."""
        from bidwise.kernels.embedding_kernels import activated, product

        active, dropout = inputs, self.dropout if self.training else 0.0
        begin = distributed.position_in_batch(inputs)[1] if dropout else 0
        for k, weight in enumerate(self.weights):
            seed = self.seed * 1_000_003 % 2**44 + (k << 48)
            active = product(active, weight)
            if self.norms is None:
                bias: Tensor = self.biases[k]
            else:
                active, bias = self.norms[k](active), active.new_zeros(active.shape[1])
            active = activated(active, bias, dropout, seed, self.steps, begin)
        if dropout:
            self.steps += 1
        return active

    def _masks(self, like: Tensor) -> Sequence[Tensor]:
        """For each layer 0 or 1 / (1 - dropout), drawn at once."""
        random = torch.Generator(like.device).manual_seed((self.seed * 1_000_003 + int(self.steps)) % 2**32)
        self.steps += 1
        ads, begin = distributed.position_in_batch(like)
        # drawn for the whole batch: the same on any number of ranks
        drawn = torch.rand(ads, sum(self.hidden), generator=random, device=like.device, dtype=torch.float32)
        drawn = drawn[begin : begin + len(like)]
        kept = (drawn >= self.dropout).to(like.dtype).mul_(1 / (1 - self.dropout))
        return torch.split(kept, list(self.hidden), dim=1)

    def extra_repr(self) -> str:
        return f"hidden={self.hidden}, dropout={self.dropout}, batch_norm={self.norms is not None}, seed={self.seed}"


class BatchNorm(nn.BatchNorm1d):
    """Batch norm over the ads of a batch on all ranks, ``(ads, units)``, on CPU and GPU.

    A batch of one ad, the rest of an epoch, is normed by the running mean and variance. In training all ranks must call
    it together, as with torch's SyncBatchNorm.
    """

    static = True

    def __init__(self, units: int) -> None:
        super().__init__(units)

    def forward(self, active: Tensor) -> Tensor:
        if self.training and distributed.several():
            return self._across(active)
        if self.training and len(active) < 2:
            return self._by_running(active)
        if self.training and active.device.type == "cpu":  # torch adds up a part per thread, and rounds accordingly
            found: list[Tensor] = _Normed.apply(active, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
            self._remember(found[1], found[2], len(active))
            return found[0]
        return super().forward(active)

    def _by_running(self, active: Tensor) -> Tensor:
        return F.batch_norm(active, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, ads: int) -> None:
        self.num_batches_tracked += 1  # type: ignore[operator, assignment]
        for running, new in ((self.running_mean, mean), (self.running_var, variance * ads / (ads - 1))):
            running.lerp_(new.to(running), self.momentum)  # type: ignore[union-attr, arg-type]

    def _across(self, active: Tensor) -> Tensor:
        """Mean and variance from the ranks': Σ (x - mean)² = Σ_r [Σ (x - mean_r)² + n_r (mean_r - mean)²]."""
        x = active.to(torch.promote_types(active.dtype, torch.float32))
        mean = x.sum(0) / max(len(x), 1)
        squares, size = (x - mean).square().sum(0), torch.full_like(mean, len(x))
        sizes, means, squares = distributed.gathered(torch.stack([size, mean, squares])).unbind(1)  # (ranks, units)
        ads = int(sizes[:, 0].sum())
        if ads < 2:
            return self._by_running(active)
        mean = (sizes * means).sum(0) / ads
        variance = (squares + sizes * (means - mean).square()).sum(0) / ads
        self._remember(mean, variance, ads)
        return ((x - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias).to(active.dtype)


class _Normed(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) * weight + bias, the same for any number of threads; mean and variance too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        mean = x.mean(0)
        centred = x - mean
        variance = centred.square().mean(0)
        scale = torch.rsqrt(variance + eps)
        ctx.save_for_backward(centred, scale, weight)
        ctx.mark_non_differentiable(mean, variance)
        return torch.addcmul(bias, centred, weight * scale), mean, variance

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        """dx = weight scale (g - mean(g) - normed mean(g normed)), normed = scale centred."""
        centred, scale, weight = ctx.saved_tensors
        slope, shift, steep = (g * centred).sum(0).mul_(scale), g.sum(0), weight * scale
        inner = torch.addcmul(steep * shift / -len(g), centred, steep * scale * slope / -len(g))
        return inner.addcmul_(g, steep), slope, shift, None


def glorot(inputs: int, outputs: int, random: torch.Generator) -> nn.Parameter:
    """Weights ``(inputs, outputs)``, normal with variance 2 / (inputs + outputs), as Keras' glorot_normal nearly is."""
    return nn.Parameter(normal((inputs, outputs), math.sqrt(2 / (inputs + outputs)), random))
