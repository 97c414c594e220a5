"""The family and the log loss as Triton kernels: a batch in a few launches, without waiting for the GPU.

`pairs` gives every ad its cost and slope over the pairs it is in, `finish` turns them into the loss and its gradient
and adds the log loss. Every number is added in an order that depends only on shapes, so a result repeats bit for bit.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bidwise.kernels import interpreted
from bidwise.kernels.pair_kernels import finish, pairs, prepare_ads, small, total
from bidwise.kernels.triton_or_none import triton
from bidwise.segments import Auctions

if TYPE_CHECKING:
    from bidwise.losses.definition import LossInputs, PairOptions

PREPARE_FROM = 1024  # ads: fewer are read as they came by every program, more are turned into eCPM and value once
SMALL_TO, SMALL_ADS = 512, 2  # auctions up to this size see all partners at once; ads of a program then
ONE_PROGRAM_TO = 4096  # ads that one program of `finish` takes, and so writes their loss itself


# How `pairs` is cut. A thread has one partner and all ads of its program, with two or three sums for each pair of them:
# 16 ads leave enough registers for 16 warps on a multiprocessor.
_ADS, REGISTERS, MOST_SHARES = 16, 128, 32
# by the usual size of an auction, at most: partners at a time, warps, and programs wanted
CUTS = {48: (32, 2, 1), 1024: (64, 4, 128), 4096: (128, 4, 1056), 1 << 31: (128, 4, 2112)}


def fused_loss(
    batch: LossInputs,
    options: PairOptions | None,
    lam: float,
    reduction: str,
    gradient: bool,
    stage: str = "pairs",
) -> tuple[Tensor, Tensor | None]:
    """Rank term plus ``lam`` times the log loss, and the derivative for every logit, ``(..., ads)``.

    ``options`` are None for the log loss only, and the weights of the batch multiply the log loss of each ad.
    ``stage`` is the source of the pair sums: ``pairs``; ``covariance`` for the signed, unweighted gap; ``panels`` for
    signed logistic; ``clicks`` for positive logistic if few ads have a value.
    ``reduction="none"`` applies to the rank term only.
    """
    logits, offsets = batch.logits, batch.offsets
    if options is None or (offsets is not None and len(offsets) == 2):
        offsets = None  # one auction of all ads
    n, lead = logits.shape[-1], logits.shape[:-1]
    auctions = 1 if offsets is None else len(offsets) - 1
    summed = reduction != "none"
    shape = lead if summed else (*lead, auctions)
    if logits.numel() == 0 or auctions == 0:
        slopes = torch.zeros_like(logits, dtype=torch.float32) if gradient else None
        return logits.new_zeros(shape, dtype=torch.float32), slopes
    given = batch._replace(offsets=offsets)
    # in their own dtypes: kernels convert their inputs to float32
    flat = type(batch)(*(None if x is None else x.detach().reshape(-1).contiguous() for x in given))  # type: ignore[arg-type]
    z, ads, repeats = flat.logits, logits.numel(), logits.numel() // n
    each = float(lam) / n if reduction == "mean" else float(lam)
    with torch.cuda.device(z.device) if z.is_cuda else nullcontext():
        sums, kappa, pair_mean = None, None, False
        if options is not None:
            kappa, pair_mean = options.weighting, options.pair_mean
            if stage == "pairs" and offsets is None and n <= SMALL_TO and summed:
                loss, slope = _small_loss(flat, options, n, each, gradient)
                return loss.view(shape), None if slope is None else slope.view(logits.shape)
            if stage == "pairs":
                sums = _pair_sums(flat, options, n, gradient)
            else:
                sums = _other_sums(stage, flat, options, Auctions.of(logits, offsets))
        share = 1 / auctions if reduction == "mean" else 1.0
        if pair_mean and offsets is None:
            share /= n * n
        block = triton.next_power_of_2(min(n, ONE_PROGRAM_TO))
        if n > ONE_PROGRAM_TO:  # many programs, but no more than the second axis of a grid has
            block = max(min(1024, block), triton.next_power_of_2(-(-n // 65535)))
        blocks = -(-n // block)
        slope = z.new_empty(ads, dtype=torch.float32) if gradient else None
        costs = z.new_empty(ads, dtype=torch.float32) if not summed else None
        loss = z.new_empty(repeats, dtype=torch.float32)
        parts = loss if blocks == 1 else z.new_empty(repeats * blocks, dtype=torch.float64)
        perhaps = (flat.weights, flat.offsets, sums, slope, costs)
        finish[(repeats, blocks)](
            *(z, flat.clicks, flat.bids, *(z if x is None else x for x in perhaps), parts),
            *(ads, n, auctions, _steps(flat), 1 if sums is None else sums.shape[0], share, float(kappa or 0), each),
            RANK=sums is not None, WEIGHTED=kappa is not None, RAGGED=pair_mean and offsets is not None,
            LOG=lam != 0 and summed, WORTH=flat.weights is not None, GRADIENT=gradient, PER_AD=not summed, BLOCK=block,
            num_warps=min(max(block // 128, 1), 16), enable_fp_fusion=False,
        )  # fmt: skip
        if blocks > 1 and summed:
            total[(repeats,)](parts, loss, blocks, BLOCK=1024, num_warps=4)
    if costs is not None:
        loss = Auctions.of(logits, offsets).sum(costs)
    return loss.view(shape), None if slope is None else slope.view(logits.shape)


def _columns(batch: LossInputs, options: PairOptions) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, labels, bids and teacher as kernels take them; something has to stand for a teacher that is not there."""
    teacher = batch.logits if batch.teacher is None else batch.teacher
    return batch.logits, teacher if options.value == "teacher" else batch.clicks, batch.bids, teacher


def _steps(batch: LossInputs) -> int:
    """How often the offsets are halved until the auction of an ad is found."""
    return 0 if batch.offsets is None else (len(batch.offsets) - 1).bit_length()


def _small_loss(
    batch: LossInputs, options: PairOptions, n: int, each: float, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """`fused_loss` of small auctions, each a repeat: their programs see all partners at once, and finish themselves."""
    (z, label, bids, teacher), kappa = _columns(batch, options), options.weighting
    ads, (surrogate, scale), blocks = z.numel(), _surrogate(options), -(-n // SMALL_ADS)
    slope = z.new_empty(ads, dtype=torch.float32) if gradient else None
    parts = z.new_empty(ads // n * blocks, dtype=torch.float64)
    loss = z.new_empty(ads // n, dtype=torch.float32)
    small[(ads // n, blocks)](
        *(z, batch.clicks, label, bids, teacher, z if slope is None else slope, parts, ads, n),
        *(1 / n**2 if options.pair_mean else 1.0, scale, options.sigma, float(kappa or 0), each),
        GAP=options.gap, SURROGATE=surrogate, WEIGHTED=kappa is not None, LOG=each != 0, GRADIENT=gradient,
        COMPILED=not interpreted(), BK=SMALL_ADS, BI=max(16, triton.next_power_of_2(n)),
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    total[(ads // n,)](parts, loss, blocks, BLOCK=triton.next_power_of_2(blocks), num_warps=1)
    return loss, slope


def _surrogate(options: PairOptions) -> tuple[str, float]:
    """The surrogate's name in the kernels, and their factor of eCPM."""
    if options.gap == "signed" and options.weighting is None and options.surrogate != "indicator":
        return "product", 1.0
    return options.surrogate, options.sigma * 1.4426950408889634 if options.surrogate == "logistic" else 1.0


def _pair_sums(batch: LossInputs, options: PairOptions, per_repeat: int, gradient: bool) -> Tensor:
    """Cost and slope of every ad in parts, ``(parts, 2, ads)``: `PairSums` but for right_k, which costs lack."""
    columns, offsets, kappa = _columns(batch, options), batch.offsets, options.weighting
    z, (surrogate, scale) = batch.logits, _surrogate(options)
    ads, auctions = z.numel(), 1 if offsets is None else len(offsets) - 1
    weighted, prepared = kappa is not None, ads >= PREPARE_FROM
    if prepared:
        table = z.new_empty((4, ads), dtype=torch.float32)
        prepare_ads[(-(-ads // 512),)](
            *columns, table, ads, scale, float(kappa or 0), WEIGHTED=weighted, BLOCK=512, enable_fp_fusion=False
        )
        columns = (table, table, table, table)
    usual = per_repeat // max(auctions, 1)
    partners, warps, programs = next(cut for size, cut in CUTS.items() if usual <= size)
    shares = max(1, min(programs // -(-ads // _ADS), usual // partners, MOST_SHARES))
    sums = z.new_empty((shares, 2, ads), dtype=torch.float32)
    pairs[(-(-ads // _ADS), shares)](
        *(*columns, z if offsets is None else offsets, sums, ads, per_repeat, auctions, _steps(batch)),
        *(scale, options.sigma, float(kappa or 0)),
        GAP=options.gap, SURROGATE=surrogate, WEIGHTED=weighted, RAGGED=offsets is not None, PREPARED=prepared,
        GRADIENT=gradient, COMPILED=not interpreted(), BK=_ADS, BI=partners,
        num_warps=warps, maxnreg=REGISTERS, enable_fp_fusion=False,
    )  # fmt: skip
    return sums


def _other_sums(stage: str, batch: LossInputs, options: PairOptions, auctions: Auctions) -> Tensor:
    """The same sums without pairs, or with few."""
    z, label, bids, teacher = (x.float() for x in _columns(batch, options))
    if stage in ("panels", "clicks"):
        from bidwise.kernels.fused_panels import panel_sums

        return panel_sums(z, label, bids, teacher, auctions.bounds, auctions.size, options)
    # `bidwise.losses.without_pairs.covariance`, of one auction in each repeat
    v, s = ((bids * x).view(auctions.count, -1) for x in (label, z.sigmoid()))
    slope = (v - v.mean(-1, keepdim=True)) * (-options.sigma * v.shape[-1])
    return torch.stack([slope * (s - s.mean(-1, keepdim=True)), slope]).view(1, 2, -1)
