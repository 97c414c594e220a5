"""`pairwise_welfare_loss`: one signature, several methods, one autograd function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from bidwise.checks import check_ads, check_between, check_bids, check_logits, check_name, check_offsets, check_positive
from bidwise.losses.definition import GAPS, SURROGATES, Ads, Family
from bidwise.losses.dispatch import METHODS, choose, kernel_stage
from bidwise.losses.pointwise import REDUCTIONS, cross_entropy
from bidwise.segments import Auctions

VALUES = ("clicks", "teacher")


def pairwise_welfare_loss(
    logits: Tensor,
    clicks: Tensor,
    bids: Tensor,
    offsets: Tensor | None = None,
    *,
    teacher: Tensor | None = None,
    value: str = "clicks",
    gap: str = "signed",
    surrogate: str = "logistic",
    sigma: float = 1.0,
    weighting: float | None = None,
    pair_mean: bool = True,
    reduction: str = "mean",
    method: str = "auto",
    validate: bool | None = None,
) -> Tensor:
    """The pairwise ranking loss on eCPM: what an auction stands to lose by showing ad j for ad i.

    With eCPM s = bids * sigmoid(logits) and value v = bids * clicks (or bids * teacher), an auction of n ads costs

        L = sum_i sum_j w_ij gap(v_i - v_j) phi(s_i - s_j)                              (equations 3 to 7)

    Args:
        logits: model output ``(..., ads)``; the only argument that receives a gradient. Half precision is computed
            in float32. Leading dimensions are repeats with the same offsets, trained at once: sum their losses.
        clicks: 0 or 1 per ad, or soft labels between.
        bids: cost-per-click bids, finite and above 0.
        offsets: bounds of the auctions, int64 ``(auctions + 1,)``; ``None``: all ads are one auction.
        teacher: another model's CTR in [0, 1]; needed by ``value="teacher"`` and by ``weighting``.
        value: what stands for the true eCPM, ``clicks`` or ``teacher``.
        gap: ``signed`` x, ``positive`` max(x, 0) or ``order`` 1{x > 0}.
        surrogate: ``logistic`` log(1 + e^(-sigma x)), ``hinge`` max(-sigma x, 0) (slope -sigma / 2 at 0) or
            ``indicator`` 1{x <= 0}, whose gradient is 0.
        sigma: slope of the surrogate, above 0.
        weighting: ``None``: w_ij = 1; a number kappa: w_ij = sigmoid(kappa b_i teacher_i) sigmoid(kappa s_j).
        pair_mean: divide each auction's L by n^2.
        reduction: over auctions: ``none`` gives ``(..., auctions)``, ``sum`` and ``mean`` give ``(...)``. An auction
            without pairs costs 0, and ``mean`` counts it.
        method: ``direct`` evaluates all pairs; ``fast`` never does, it is sub-quadratic (on a GPU, of a signed logistic
            loss, unless sigma * eCPM of an auction spans thousands); ``triton`` computes in kernels on a GPU, in
            float32, with pairs or without; ``auto`` takes the fastest for these sizes.
        validate: check values, which would make a GPU wait; ``None``: on for CPU tensors.

    The two ads of this auction are in the wrong order: the one that was clicked has the lower eCPM.

    >>> logits = torch.tensor([0.0, 1.0], requires_grad=True)
    >>> clicks, bids = torch.tensor([1.0, 0.0]), torch.tensor([2.0, 2.0])
    >>> loss = pairwise_welfare_loss(logits, clicks, bids, gap="positive", surrogate="hinge")
    >>> loss
    tensor(0.2311, grad_fn=<_PairLossBackward>)
    >>> loss.backward()
    >>> logits.grad
    tensor([-0.2500,  0.1966])
    """
    if torch.compiler.is_compiling():
        words = {"value": value, "gap": gap, "surrogate": surrogate, "reduction": reduction, "method": method}
        numbers = {"sigma": sigma, "weighting": weighting, "pair_mean": pair_mean, "validate": validate}
        return composite_loss(logits, clicks, bids, offsets, teacher, None, words | numbers)
    member = checked_options(gap, surrogate, sigma, value, weighting, pair_mean, reduction, method)
    return _checked_loss(logits, clicks, bids, offsets, teacher, None, member, validate)


def composite_loss(
    logits: Tensor,
    clicks: Tensor,
    bids: Tensor,
    offsets: Tensor | None,
    teacher: Tensor | None,
    lam: float | None,
    options: dict[str, Any],
) -> Tensor:
    """`pairwise_welfare_loss` with ``options``, all of them, plus ``lam`` times the log loss where lam is given."""
    if torch.compiler.is_compiling():
        loss: Tensor = _outside_graph(logits, clicks, bids, offsets, teacher, lam, options)
        return loss
    member = checked_options(*(options[name] for name in OPTIONS))
    return _checked_loss(logits, clicks, bids, offsets, teacher, lam, member, options["validate"])


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _outside_graph(*call: Any) -> Tensor:
    """The number of tiles and nodes depends on the data, so a compiled step breaks its graph here, once."""
    return composite_loss(*call)


def _checked_loss(
    logits: Tensor,
    clicks: Tensor,
    bids: Tensor,
    offsets: Tensor | None,
    teacher: Tensor | None,
    lam: float | None,
    member: Member,
    validate: bool | None,
) -> Tensor:
    if validate is None:
        validate = isinstance(logits, Tensor) and logits.device.type == "cpu"
    logits = check_logits(logits, offsets)
    clicks = check_ads("clicks", clicks, logits)
    bids = check_ads("bids", bids, logits)
    if offsets is not None:
        offsets = check_offsets(offsets, logits.shape[-1], logits.device, values=validate)
    if teacher is not None:
        teacher = check_ads("teacher", teacher, logits)
    elif member.value == "teacher":
        raise ValueError('teacher must be given for value="teacher", found None')
    elif member.weighting is not None:
        raise ValueError("teacher must be given for weighting, found None")
    if validate:
        check_between("clicks", clicks, 0, 1)
        check_bids(bids)
        if teacher is not None:
            check_between("teacher", teacher, 0, 1)
    if torch.is_autocast_enabled(logits.device.type):
        with torch.autocast(logits.device.type, enabled=False):
            return _evaluate(logits, clicks, bids, offsets, teacher, lam, member)
    return _evaluate(logits, clicks, bids, offsets, teacher, lam, member)


@dataclass(frozen=True)
class Member:
    """The options of one call."""

    family: Family
    value: str
    weighting: float | None
    pair_mean: bool
    reduction: str
    method: str


OPTIONS = ("gap", "surrogate", "sigma", "value", "weighting", "pair_mean", "reduction", "method")


def checked_options(*options: Any) -> Member:
    """The options of one call, or an error that names the wrong one."""
    try:
        return _member(*options)
    except TypeError:  # an option that cannot be a key of the cache: the checks say which
        return _member.__wrapped__(*options)


@lru_cache(typed=True)
def _member(
    gap: str,
    surrogate: str,
    sigma: float,
    value: str,
    weighting: float | None,
    pair_mean: bool,
    reduction: str,
    method: str,
) -> Member:
    """The options, checked; kept, because checking takes longer than a small batch."""
    check_name("value", value, VALUES)
    check_name("gap", gap, GAPS)
    check_name("surrogate", surrogate, SURROGATES)
    check_name("reduction", reduction, REDUCTIONS)
    check_name("method", method, METHODS)
    check_positive("sigma", sigma)
    if weighting is not None:
        check_positive("weighting", weighting)
    if not isinstance(pair_mean, bool):
        raise TypeError(f"pair_mean must be True or False, found {pair_mean!r}")
    kappa = None if weighting is None else float(weighting)
    return Member(Family(gap, surrogate, float(sigma)), value, kappa, pair_mean, reduction, method)


def _evaluate(
    logits: Tensor,
    clicks: Tensor,
    bids: Tensor,
    offsets: Tensor | None,
    teacher: Tensor | None,
    lam: float | None,
    member: Member,
) -> Tensor:
    stage = kernel_stage(member.method, member.family, member.value, member.weighting is not None, logits, offsets)
    if stage is not None:
        return kernel_loss(logits, clicks, bids, offsets, teacher, None, member, lam or 0.0, member.reduction, stage)
    compute = partial(loss_and_gradient, logits, clicks, bids, offsets, teacher, member)
    rank = _differentiable(logits, offsets, member.reduction, compute)
    return rank if lam is None else rank + lam * cross_entropy(logits, clicks, None, member.reduction)


def kernel_loss(
    logits: Tensor,
    clicks: Tensor,
    bids: Tensor,
    offsets: Tensor | None,
    teacher: Tensor | None,
    weights: Tensor | None,
    member: Member | None,
    lam: float,
    reduction: str,
    stage: str = "pairs",
) -> Tensor:
    """`bidwise.kernels.fused_pairs.fused_loss` of logits that receive a gradient."""
    from bidwise.kernels.fused_pairs import fused_loss

    tensors = (logits, clicks, bids, offsets, teacher, weights)
    compute = partial(fused_loss, *tensors, member, lam=lam, reduction=reduction, stage=stage)
    plain = None if member is not None else partial(cross_entropy, clicks=clicks, weights=weights, reduction=reduction)
    return _differentiable(logits, offsets, reduction, compute, plain)


Computed = tuple[Tensor, Tensor | None]  # a loss and the derivative for every logit


def _differentiable(
    logits: Tensor,
    offsets: Tensor | None,
    reduction: str,
    compute: Callable[..., Computed],
    plain: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The loss of ``compute``, whose gradient is known; ``plain`` is the same in torch, for second derivatives."""
    if logits.requires_grad and torch.is_grad_enabled():
        result: Tensor = _PairLoss.apply(logits, offsets, reduction, compute, plain)  # type: ignore[no-untyped-call]
        return result
    return compute(gradient=False)[0]


def loss_and_gradient(
    logits: Tensor,
    clicks: Tensor,
    bids: Tensor,
    offsets: Tensor | None,
    teacher: Tensor | None,
    member: Member,
    *,
    gradient: bool,
) -> Computed:
    """The reduced loss, and for every logit the derivative of the loss it takes part in, ``(..., ads)``."""
    auctions = Auctions.of(logits, offsets)
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32

    def flat(per_ad: Tensor) -> Tensor:
        if per_ad.requires_grad:
            per_ad = per_ad.detach()
        if per_ad.dim() != 1:
            per_ad = per_ad.reshape(-1)
        return per_ad if per_ad.dtype == dtype else per_ad.to(dtype)

    z, b = flat(logits), flat(bids)
    p = None if teacher is None else flat(teacher)
    s = b * torch.sigmoid(z)
    v = b * (flat(clicks) if member.value == "clicks" or p is None else p)
    kappa, left, right = member.weighting, None, None
    if kappa is not None and p is not None:
        left, right = (b * p).mul_(kappa).sigmoid_(), (kappa * s).sigmoid_()

    compute = choose(member.method, member.family, kappa is not None, auctions)
    cost, slope = compute(Ads(s, v, left, right), auctions, member.family, gradient=gradient)

    if right is not None and kappa is not None and slope is not None:
        rest = (-kappa * s).sigmoid_()  # 1 - right without cancellation
        slope = torch.addcmul(slope, rest, cost, value=kappa)  # d right_j / ds_j = kappa right_j (1 - right_j)
    per_repeat = 1 if offsets is None else len(offsets) - 1
    share: float | Tensor = 1 / max(per_repeat, 1) if member.reduction == "mean" else 1.0
    if member.pair_mean and auctions.size is not None:
        share = share / max(auctions.size, 1) ** 2
    elif member.pair_mean:
        share = share / auctions.sizes.clamp(min=1).to(dtype).square()
    loss = (auctions.sum(cost) * share).view(*logits.shape[:-1], per_repeat)
    if member.reduction != "none":
        loss = loss.sum(-1)
    if slope is not None:
        slope = (slope * s).mul_(z.neg().sigmoid_())  # ds/dz = b f (1 - f)
        slope = slope.mul_(share if isinstance(share, float) else auctions.spread(share)).view(logits.shape)
    return loss, slope


class _PairLoss(torch.autograd.Function):
    """Loss and gradient in one forward pass; backward multiplies n stored numbers."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        offsets: Tensor | None,
        reduction: str,
        compute: Callable[..., Computed],
        plain: Callable[[Tensor], Tensor] | None,
    ) -> Tensor:
        loss, slope = compute(gradient=True)
        assert slope is not None
        ctx.save_for_backward(slope, logits)
        ctx.offsets, ctx.reduction, ctx.dtype, ctx.plain = offsets, reduction, logits.dtype, plain
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (slope, logits), offsets = ctx.saved_tensors, ctx.offsets
        if torch.is_grad_enabled() and ctx.plain is not None:  # create_graph=True
            again = torch.autograd.grad(ctx.plain(logits), logits, upstream, create_graph=True)
            return *again, None, None, None, None
        if ctx.reduction == "none" and offsets is not None:
            upstream = upstream.repeat_interleave(offsets.diff(), dim=-1, output_size=slope.shape[-1])
        elif ctx.reduction != "none" and upstream.dim():
            upstream = upstream.unsqueeze(-1)
        gradient = (slope * upstream).to(ctx.dtype)
        if torch.is_grad_enabled():
            gradient = _OnceOnly.apply(gradient, logits)  # type: ignore[no-untyped-call]
        return gradient, None, None, None, None


class _OnceOnly(torch.autograd.Function):
    """A gradient that refuses to be differentiated: it is a stored constant, a penalty on it would do nothing."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, logits: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError("pairwise_welfare_loss has no second derivative")
