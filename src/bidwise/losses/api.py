"""`pairwise_welfare_loss`, one signature for several methods, with its autograd function; `log_loss`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from bidwise.checks import (
    InputError,
    check_ads,
    check_between,
    check_bids,
    check_logits,
    check_name,
    check_offsets,
    check_weights,
    no_second_derivative,
    warn_of_ctr,
)
from bidwise.losses.definition import REDUCTIONS, LossInputs, PairInputs, PairOptions, ctr_of
from bidwise.losses.dispatch import kernel_stage, method_for
from bidwise.segments import Auctions

# a loss, and the derivative for every logit of the loss it takes part in, if requested
Computed = tuple[Tensor, Tensor | None]

TORCHS = {"none": 0, "mean": 1, "sum": 2}  # torch's numbers of reductions

_Loss = TypeVar("_Loss", bound=Callable[..., Tensor])


def outside_graphs(loss: _Loss) -> _Loss:
    """``loss``, at which a compiled step breaks its graph: the number of tiles and nodes depends on the data."""

    @wraps(loss)
    def called(*arguments: Any, **options: Any) -> Tensor:
        if torch.compiler.is_compiling():  # only then: it imports the compiler, which takes as long as torch itself
            return torch.compiler.disable(loss)(*arguments, **options)  # type: ignore[no-untyped-call, no-any-return]
        return loss(*arguments, **options)

    return cast(_Loss, called)


@outside_graphs
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
    """The pairwise ranking loss on eCPM: the welfare an auction risks by showing ad j instead of ad i.

    With eCPM s = bids * sigmoid(logits) and value v = bids * clicks (or bids * teacher), an auction of n ads costs

        L = sum_i sum_j w_ij gap(v_i - v_j) phi(s_i - s_j)                       (equations 3, 5, 6, 7, 13)

    Args:
        logits: model output ``(..., ads)``; the only argument that receives a gradient. Half precision is computed
            in float32. Leading dimensions are repeats with the same offsets, trained at once: sum their losses.
        clicks: 0 or 1 per ad, or soft labels between.
        bids: cost-per-click bids, finite and above 0.
        offsets: bounds of the auctions, int64 ``(auctions + 1,)``; ``None``: all ads are one auction.
        teacher: another model's CTR in [0, 1]; needed by ``value="teacher"`` and by ``weighting``.
        value: stands for the true eCPM: ``clicks`` or ``teacher``.
        gap: ``signed`` x, ``positive`` max(x, 0) or ``order`` 1{x > 0}.
        surrogate: ``logistic`` log(1 + e^(-sigma x)), ``hinge`` max(-sigma x, 0) (slope -sigma / 2 at 0) or
            ``indicator`` 1{x <= 0}, with gradient 0.
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
    tensor(0.2311, grad_fn=<_KnownGradientBackward>)
    >>> loss.backward()
    >>> logits.grad
    tensor([-0.2500,  0.1966])
    """
    options = PairOptions(value, gap, surrogate, sigma, weighting, pair_mean, reduction, method, validate)
    return composite_loss(LossInputs(logits, clicks, bids, offsets, teacher), options)


@outside_graphs
def composite_loss(
    batch: LossInputs, options: PairOptions, lam: float | None = None, unit: float | str = 1.0
) -> Tensor:
    """`pairwise_welfare_loss` of a batch, plus ``lam`` times the log loss if lam is given.

    Bids are divided by ``unit``, or by the mean bid of each repeat for ``"batch"``.
    """
    check_batch(batch, options.validate, options.needs_teacher)
    kind, gradient = batch.logits.device.type, batch.logits.requires_grad and torch.is_grad_enabled()
    with torch.no_grad(), torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
        if unit != 1:
            bids = _floating(batch.bids)
            if bids.is_cuda:  # which adds up numbers that are not adjacent in another order: one mean for all strides
                bids = bids.contiguous()
            if not isinstance(unit, str):
                bids = bids / unit
            else:
                bids = bids / (bids.mean() if bids.dim() == 1 else bids.mean(-1, keepdim=True))
            batch = batch._replace(bids=bids)
        stage = kernel_stage(options, batch.logits, batch.offsets)
        if stage is None:
            loss, slope = loss_and_gradient(batch, options, lam, gradient)
        else:
            from bidwise.kernels.fused_pairs import fused_loss

            loss, slope = fused_loss(batch, options, lam or 0.0, options.reduction, gradient, stage)
    return loss if slope is None else known_gradient(batch, loss, slope, options.reduction)


def check_batch(batch: LossInputs, validate: bool | None, needs_teacher: str | None) -> None:
    """Raise unless shapes and, if requested, values are valid; by default on the CPU, where checking is cheap."""
    logits, clicks, bids, offsets, teacher, weights = batch
    check_logits(logits, offsets)
    values = _checks_values(logits) if validate is None else validate
    check_ads("clicks", clicks, logits)
    check_ads("bids", bids, logits)
    if offsets is not None:
        check_offsets(offsets, logits.shape[-1], logits.device, values=values)
    if teacher is not None:
        check_ads("teacher", teacher, logits)
    elif needs_teacher is not None:
        raise InputError(f"teacher must be given for {needs_teacher}, found None")
    if weights is not None:
        check_ads("weights", weights, logits)
    if values:
        check_values(logits, clicks, bids, teacher if needs_teacher else None, weights)


def _checks_values(logits: Tensor) -> bool:
    return logits.is_cpu and not torch.compiler.is_compiling()


def check_values(
    logits: Tensor, clicks: Tensor, bids: Tensor | None, teacher: Tensor | None = None, weights: Tensor | None = None
) -> None:
    """Raise unless numbers are in their ranges; warn of logits that look like CTRs."""
    check_between("clicks", clicks, 0, 1)
    if bids is not None:
        check_bids(bids)
    if teacher is not None:
        check_between("teacher", teacher, 0, 1)
    if weights is not None:
        check_weights(weights)
    warn_of_ctr(logits, clicks)


def loss_and_gradient(batch: LossInputs, options: PairOptions, lam: float | None, gradient: bool) -> Computed:
    """The reduced loss and its gradient, without kernels; called without autograd."""
    logits, clicks, bids, offsets, teacher, _ = batch
    auctions = Auctions.of(logits, offsets)
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32

    def flat(per_ad: Tensor) -> Tensor:
        return _constant(per_ad if per_ad.dim() == 1 else per_ad.reshape(-1), dtype)

    z, y, b = flat(logits), flat(clicks), flat(bids)
    p = None if teacher is None else flat(teacher)
    ctr, miss = ctr_of(z), z.neg().sigmoid_()
    s = b * ctr
    v = b * (y if p is None or options.value == "clicks" else p)
    kappa, left, right = options.weighting, None, None
    if kappa is not None and p is not None:
        left, right = (b * p).mul_(kappa).sigmoid_(), (kappa * s).sigmoid_()

    ads = PairInputs(s, v, left, right)
    cost, slope = method_for(options, ads, auctions)(ads, auctions, options, gradient=gradient)

    per_repeat = 1 if offsets is None else len(offsets) - 1
    share: float | Tensor = 1 / max(per_repeat, 1) if options.reduction == "mean" else 1.0
    if options.pair_mean and auctions.size is not None:
        share = share / max(auctions.size, 1) ** 2
    elif options.pair_mean:
        share = share / auctions.sizes.clamp(min=1).to(dtype).square()
    if logits.dim() == 1 and per_repeat == 1 and options.reduction != "none":
        loss = cost.sum().mul_(share)
    else:
        loss = auctions.sum(cost).mul_(share).view(*logits.shape[:-1], per_repeat)
        loss = loss if options.reduction == "none" else loss.sum(-1)
    if slope is not None:
        if kappa is not None:  # d right_j / ds_j = kappa right_j (1 - right_j), without cancellation
            slope.addcmul_((-kappa * s).sigmoid_(), cost, value=kappa)
        slope.mul_(s.mul_(miss))  # ds/dz = b f (1 - f)
        slope.mul_(share if isinstance(share, float) else auctions.spread(share))
    if lam is not None:
        whole = (z, y) if logits.dim() == 1 else (z.view(logits.shape), y.view(logits.shape))
        loss.add_(cross_entropy(*whole, None, options.reduction), alpha=lam)
        if slope is not None:  # (1 - y) f - y (1 - f), exact if y is 0 or 1
            each = lam / max(logits.shape[-1], 1) if options.reduction == "mean" else lam
            slope.add_(torch.lerp(ctr, miss.neg_(), y), alpha=each)
    return loss, slope if slope is None or logits.dim() == 1 else slope.view(logits.shape)


def kernel_log_loss(batch: LossInputs, reduction: str) -> Tensor:
    """`cross_entropy` of the clicks, with the weights of the batch, in a kernel."""
    from bidwise.kernels.fused_pairs import fused_loss

    gradient = batch.logits.requires_grad and torch.is_grad_enabled()
    loss, slope = fused_loss(batch, None, 1.0, reduction, gradient)
    return loss if slope is None else known_gradient(batch, loss, slope, reduction)


def known_gradient(batch: LossInputs, loss: Tensor, slope: Tensor, reduction: str) -> Tensor:
    """``loss`` with the gradient ``slope``."""
    result: Tensor = _KnownGradient.apply(batch.logits, (loss, slope), batch.offsets, reduction)  # type: ignore[no-untyped-call]
    return result


class _KnownGradient(torch.autograd.Function):
    """A loss that comes with its gradient: n numbers, which backward multiplies."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, known: tuple[Tensor, Tensor], offsets: Tensor | None, reduction: str
    ) -> Tensor:
        loss, slope = known  # a tuple: a tensor that is returned as it came could not be changed in place
        ctx.save_for_backward(slope)
        ctx.offsets, ctx.reduction, ctx.dtype = offsets, reduction, logits.dtype
        return loss

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (slope,), offsets = ctx.saved_tensors, ctx.offsets
        if ctx.reduction == "none" and offsets is not None:
            upstream = upstream.repeat_interleave(offsets.diff(), dim=-1, output_size=slope.shape[-1])
        elif ctx.reduction != "none" and upstream.dim():
            upstream = upstream.unsqueeze(-1)
        return (slope * upstream).to(ctx.dtype), None, None, None


def log_loss(logits: Tensor, clicks: Tensor, *, weights: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """Cross entropy of clicks, -y log f - (1 - y) log(1 - f) with f = sigmoid(logits).

    ``clicks`` may be soft labels in [0, 1]: with a teacher's CTR this is distillation. ``weights`` multiply each
    ad's term (the bid, or its square root, gives the weighted baselines of the paper); ``mean`` divides by the number
    of ads, not by the sum of weights. Reductions go over the last dimension. Half precision is computed in
    float32. Computed by torch, to a rounding of the logit: in float32 the value of an ad with a CTR of 1e-7 has no
    correct digit, though its gradient does.

    >>> log_loss(torch.zeros(4), torch.tensor([0.0, 1.0, 1.0, 0.0]))
    tensor(0.6931)
    """
    logits = check_logits(logits)
    check_name("reduction", reduction, REDUCTIONS)
    clicks = check_ads("clicks", clicks, logits)
    if weights is not None:
        weights = check_ads("weights", weights, logits)
    if _checks_values(logits):
        check_values(logits, clicks, None, weights=weights)
    return cross_entropy(logits, clicks, weights, reduction)


def cross_entropy(logits: Tensor, clicks: Tensor, weights: Tensor | None, reduction: str) -> Tensor:
    """`log_loss` without its checks. Clicks and weights are constants to the gradient."""
    z = _floating(logits)
    y, weights = _constant(clicks, z.dtype), None if weights is None else _constant(weights, z.dtype)
    if z.dim() != 1 or not len(z):  # torch would also reduce leading dimensions
        loss = torch.binary_cross_entropy_with_logits(z, y, weights, None, TORCHS["none"])
        return loss if reduction == "none" else loss.sum(-1) / (max(z.shape[-1], 1) if reduction == "mean" else 1)
    # what torch.nn.functional calls after checks, which take as long as the loss of 256 ads
    return torch.binary_cross_entropy_with_logits(z, y, weights, None, TORCHS[reduction])


def _constant(column: Tensor, dtype: torch.dtype) -> Tensor:
    column = column.detach() if column.requires_grad else column
    return column if column.dtype == dtype else column.to(dtype)


def _floating(numbers: Tensor) -> Tensor:
    """Numbers in float64 if they are, otherwise in float32."""
    return numbers if numbers.dtype in (torch.float32, torch.float64) else numbers.float()
