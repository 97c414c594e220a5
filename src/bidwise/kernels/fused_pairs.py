"""The family of losses as Triton kernels: a batch in a few launches, without waiting for the GPU.

`pairs` gives every ad its cost and slope over the pairs it is in, `finish` turns them into the loss and its gradient
and adds the log loss. Every number is added in an order that depends only on shapes, so a result repeats bit for bit.

Kernels are compiled without fusing products into sums (`fma` is explicit): a fused b_i f_i - s_j differs from s_i - s_j
in the last digit, and two equal ads would no longer tie.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bidwise.kernels import interpreted
from bidwise.kernels.triton_or_none import jit, tl, triton
from bidwise.segments import Auctions

if TYPE_CHECKING:
    from bidwise.losses.definition import LossInputs, PairOptions

PREPARE_FROM = 1024  # ads: fewer are read as they came by every program, more are turned into eCPM and value once
ONE_PROGRAM_TO = 4096  # ads that one program of `finish` takes, and so writes their loss itself


# How `pairs` is cut. A thread has one partner and all ads of its program, with two or three sums for each pair of them:
# 16 ads leave enough registers for 16 warps on a multiprocessor.
_ADS, REGISTERS, MOST_SHARES = 16, 128, 32
# by the usual size of an auction, at most: partners at a time, warps, and programs wanted
CUTS = {48: (32, 2, 1), 1024: (64, 4, 128), 4096: (128, 4, 1056), 1 << 31: (128, 4, 2112)}


def fused_loss(
    batch: LossInputs, options: PairOptions, lam: float, gradient: bool, stage: str = "pairs"
) -> tuple[Tensor, Tensor | None]:
    """Rank term plus ``lam`` times the log loss, and the derivative for every logit, ``(..., ads)``.

    ``stage`` is the source of the pair sums: ``pairs``; ``covariance`` for the signed, unweighted gap; ``panels`` for
    signed logistic. ``reduction="none"`` has no log loss.
    """
    logits, offsets, reduction = batch.logits, batch.offsets, options.reduction
    if offsets is not None and len(offsets) == 2:
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
    kappa = options.weighting
    with torch.cuda.device(z.device) if z.is_cuda else nullcontext():
        if stage == "pairs":
            sums = _pair_sums(flat, options, n, gradient)
        else:
            sums = _other_sums(stage, flat, options, Auctions.of(logits, offsets))
        share = 1 / auctions if reduction == "mean" else 1.0
        if options.pair_mean and offsets is None:
            share /= n * n
        block = triton.next_power_of_2(min(n, ONE_PROGRAM_TO))
        if n > ONE_PROGRAM_TO:  # many programs, but no more than the second axis of a grid has
            block = max(min(1024, block), triton.next_power_of_2(-(-n // 65535)))
        blocks = -(-n // block)
        slope = z.new_empty(ads, dtype=torch.float32) if gradient else None
        costs = z.new_empty(ads, dtype=torch.float32) if not summed else None
        loss = z.new_empty(repeats, dtype=torch.float32)
        parts = loss if blocks == 1 else z.new_empty(repeats * blocks, dtype=torch.float64)
        perhaps = (z if x is None else x for x in (slope, costs))
        finish[(repeats, blocks)](
            *(z, flat.clicks, flat.bids, z if flat.offsets is None else flat.offsets, sums, *perhaps, parts),
            *(ads, n, auctions, _steps(flat), sums.shape[0], share, float(kappa or 0)),
            float(lam) / n if reduction == "mean" else float(lam),
            WEIGHTED=kappa is not None, RAGGED=options.pair_mean and offsets is not None, LOG=lam != 0 and summed,
            GRADIENT=gradient, PER_AD=not summed, BLOCK=block,
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
    if stage == "panels":
        from bidwise.kernels.fused_panels import panel_sums

        return panel_sums(z, label, bids, teacher, auctions.bounds, auctions.size, options)
    # `bidwise.losses.without_pairs.covariance`, of one auction in each repeat
    v, s = ((bids * x).view(auctions.count, -1) for x in (label, z.sigmoid()))
    slope = (v - v.mean(-1, keepdim=True)) * (-options.sigma * v.shape[-1])
    return torch.stack([slope * (s - s.mean(-1, keepdim=True)), slope]).view(1, 2, -1)


# The kernels. Ads a program owns are k, their partners i; a tile of pairs is (k, i).


def _kernel(function: Any) -> Any:
    """``function`` as a kernel; numbers are not built into it, or every batch size would need a compilation."""
    numbers = ("ads", "per_repeat", "auctions", "steps", "parts", "blocks")
    return jit(do_not_specialize=[x for x in inspect.signature(function).parameters if x in numbers])(function)


@jit
def _exp(x):
    """e^x for x <= 0. The whole part of x log2(e) is split off: rounded together with it, -20 would cost 4 bits."""
    x = tl.maximum(x, -150.0)  # 0 in float32
    whole = tl.floor(x * 1.4426950408889634 + 0.5)
    rest = (x - whole * 0.693359375) + whole * 2.12194440e-4  # the first has few bits: its products are exact
    return tl.exp2(whole) * tl.exp2(rest * 1.4426950408889634)


@jit
def _sigmoid(x):
    """sigmoid(x) and sigmoid(-x), both without cancellation."""
    e = _exp(-tl.abs(x))
    r = tl.div_rn(1.0, 1.0 + e)
    return tl.where(x >= 0, r, e * r), tl.where(x >= 0, e * r, r)


@jit
def _log2_1p(e):
    """log2(1 + e) / e on [0, 1], relative error 1.4e-7: small results keep their digits, unlike with a logarithm.

    Degree 8 with the least maximal relative error 3e-8, by least squares in Chebyshev polynomials of 2 e - 1 that are
    reweighted until the extremes are equal; the rest is rounding.
    """
    y = tl.fma(e, 0.007549172732979059, -0.04256702587008476)
    y = tl.fma(e, y, 0.11285613477230072)
    y = tl.fma(e, y, -0.19711892306804657)
    y = tl.fma(e, y, 0.27564138174057007)
    y = tl.fma(e, y, -0.35840848088264465)
    y = tl.fma(e, y, 0.48069295287132263)
    y = tl.fma(e, y, -0.7213401794433594)
    return tl.fma(e, y, 1.4426950216293335)


@jit
def _bounds(k, offsets, per_repeat, auctions, steps, RAGGED: tl.constexpr):
    """First row of the auction of each ad, and the row after its last."""
    start = k // per_repeat * per_repeat
    end = start + per_repeat
    if RAGGED:
        row = k - start
        low = row * 0
        high = low + auctions
        for _ in range(steps):  # offsets[low] <= row < offsets[high]
            middle = (low + high) // 2
            before = tl.load(offsets + middle) <= row
            low = tl.where(before, middle, low)
            high = tl.where(before, high, middle)
        end = start + tl.minimum(tl.load(offsets + low + 1).to(tl.int32), per_repeat)
        start += tl.maximum(tl.load(offsets + low).to(tl.int32), 0)
    return start, end


@jit
def auction_of_ads(ad, offsets, auctions, size, STEPS: tl.constexpr):
    """Auction of each ad: the last that begins at it or before."""
    if offsets is None:
        low = ad // size
    else:
        low = tl.zeros_like(ad)
        high = low + auctions
        for _ in tl.static_range(STEPS):
            middle = (low + high) // 2
            before = tl.load(offsets + middle) <= ad
            low = tl.where(before, middle, low)
            high = tl.where(before, high, middle)
    return low


@jit
def bounds_of(auction, offsets, size):
    """First ad of each auction, and the ad after its last."""
    if offsets is None:
        begin = auction * size
        end = begin + size
    else:
        begin = tl.load(offsets + auction).to(tl.int32)
        end = tl.load(offsets + auction + 1).to(tl.int32)
    return begin, end


@jit
def _ads(
    z, label, bid, teacher, k, ads, scale, kappa, WEIGHTED: tl.constexpr, PREPARED: tl.constexpr, EXACT: tl.constexpr
):
    """eCPM times ``scale``, value, left and right factor of the ads k."""
    if PREPARED:
        ecpm = tl.load(z + k)
        value = tl.load(z + ads + k)
        left = ecpm
        right = ecpm
        if WEIGHTED:
            left = tl.load(z + 2 * ads + k)
            right = tl.load(z + 3 * ads + k)
    else:
        b = tl.load(bid + k).to(tl.float32)
        if EXACT:  # in a large auction many ads are within the last digit of each other, so a slope may jump
            ctr = 1 / (1 + tl.exp(-tl.load(z + k).to(tl.float64)))
            ecpm = (b.to(tl.float64) * ctr).to(tl.float32)
        else:
            near, _ = _sigmoid(tl.load(z + k).to(tl.float32))
            ecpm = b * near
        value = b * tl.load(label + k).to(tl.float32)
        left = ecpm
        right = ecpm
        if WEIGHTED:
            left, _ = _sigmoid(b * tl.load(teacher + k).to(tl.float32) * kappa)
            right, _ = _sigmoid(kappa * ecpm)
        ecpm = ecpm * scale
    return ecpm, value, left, right


@_kernel
def prepare_ads(z, label, bid, teacher, table, ads, scale, kappa, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr):
    """`_ads` of all ads as rows of ``table``."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.minimum(row, ads - 1)
    ecpm, value, left, right = _ads(z, label, bid, teacher, k, ads, scale, kappa, WEIGHTED, False, True)
    tl.store(table + k, ecpm, mask=row < ads)
    tl.store(table + ads + k, value, mask=row < ads)
    if WEIGHTED:
        tl.store(table + 2 * ads + k, left, mask=row < ads)
        tl.store(table + 3 * ads + k, right, mask=row < ads)


@jit
def _exp2(x, COMPILED: tl.constexpr):
    if COMPILED:  # one instruction; numbers below 1e-38 become 0
        y = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    else:
        y = tl.exp2(x)
    return y


@jit
def _reciprocal(x, COMPILED: tl.constexpr):
    if COMPILED:  # one instruction, 1 ulp
        y = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    else:
        y = 1.0 / x
    return y


@jit
def _add_tile(
    lag, stake, left, right, cost, shown, lost,
    GAP: tl.constexpr, SURROGATE: tl.constexpr, WEIGHTED: tl.constexpr, GRADIENT: tl.constexpr, COMPILED: tl.constexpr,
):  # fmt: skip
    """Adds pairs to ``cost`` and to the slopes of k ``shown`` for i and of k ``lost`` to i.

    ``lag`` = s_k - s_i, ``stake`` = v_i - v_k. Factors of k wait for the end; without weights both slopes are one sum.
    """
    slopes: tl.constexpr = GRADIENT and SURROGATE != "indicator"
    if SURROGATE == "product":  # phi(-x) - phi(x) = x: half of it to each of the two orders of a pair
        cost += (stake * lag).to(tl.float64)
        if slopes:
            shown += stake.to(tl.float64)
    else:
        if SURROGATE == "logistic":
            e = _exp2(-tl.abs(lag), COMPILED)
            phi = tl.fma(e, _log2_1p(e), tl.maximum(lag, 0.0))
        elif SURROGATE == "hinge":
            phi = tl.maximum(lag, 0.0)
        else:
            phi = tl.where(lag >= 0, 1.0, 0.0)
        if GAP == "signed":
            at_stake = stake
            risked = stake
        elif GAP == "positive":
            at_stake = tl.maximum(stake, 0.0)
            risked = tl.minimum(stake, 0.0)
        else:
            at_stake = tl.where(stake > 0, 1.0, 0.0)
            risked = tl.where(stake < 0, -1.0, 0.0)
        if WEIGHTED:
            at_stake *= left
            risked *= right
        cost = tl.fma(at_stake, phi, cost)
        if slopes:
            if WEIGHTED:
                if SURROGATE == "logistic":
                    r = _reciprocal(1.0 + e, COMPILED)
                    up = tl.where(lag >= 0, r, e * r)
                    down = tl.where(lag >= 0, e * r, r)
                else:
                    up = tl.where(lag > 0, 1.0, tl.where(lag < 0, 0.0, 0.5))
                    down = 1.0 - up
                shown = tl.fma(at_stake, up, shown)
                lost = tl.fma(risked, down, lost)
            else:  # one of the two roles has no stake
                if SURROGATE == "logistic":
                    r = _reciprocal(1.0 + e, COMPILED)
                    slope = tl.where(stake * lag >= 0, r, e * r)
                else:
                    lag = tl.where(stake > 0, lag, -lag)
                    slope = tl.where(lag > 0, 1.0, tl.where(lag < 0, 0.0, 0.5))
                if GAP == "order":
                    shown += tl.where(stake > 0, slope, tl.where(stake < 0, -slope, 0.0))
                else:
                    shown = tl.fma(stake, slope, shown)
    return cost, shown, lost


@jit
def _add_share(
    z, label, bid, teacher, s_k, v_k, start, end, share, shares, last, ads, scale, kappa,
    GAP: tl.constexpr, SURROGATE: tl.constexpr, WEIGHTED: tl.constexpr, PREPARED: tl.constexpr, GRADIENT: tl.constexpr,
    COMPILED: tl.constexpr, APART: tl.constexpr, BK: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    """Sums of `_add_tile` for the ads k and one of ``shares`` of their partners, which go from ``start`` to ``end``.

    ``last`` is the last ad. ``APART``: eCPM of a table is not yet scaled, and NaN stays in its auction.
    """
    first = tl.min(start)
    after = tl.max(end)
    chunks = tl.cdiv(tl.cdiv(after - first, BI), shares)
    low = first + share * chunks * BI
    high = tl.minimum(after, low + chunks * BI)
    # in a block of one auction all whole chunks are pairs of it: no pair has to be looked at
    whole = low
    if tl.max(start) == first:
        whole += tl.maximum(high - low, 0) // BI * BI
    # of two orders of a pair only a difference is left: the sums are small compared with their terms
    adds: tl.constexpr = tl.float64 if SURROGATE == "product" else tl.float32
    cost = tl.zeros([BK, BI], adds)
    shown = tl.zeros([BK, BI], adds)
    lost = tl.zeros([BK, BI], tl.float32)
    column = tl.arange(0, BI)[None, :]
    for at in range(low, whole, BI):
        s_i, v_i, left, right = _ads(z, label, bid, teacher, at + column, ads, scale, kappa, WEIGHTED, PREPARED, False)
        if APART:
            s_i *= scale
        cost, shown, lost = _add_tile(
            s_k - s_i, v_i - v_k, left, right, cost, shown, lost, GAP, SURROGATE, WEIGHTED, GRADIENT, COMPILED
        )
    for at in range(whole, high, BI):
        i = at + column
        s_i, v_i, left, right = _ads(
            z, label, bid, teacher, tl.minimum(i, last), ads, scale, kappa, WEIGHTED, PREPARED, False
        )
        pair = (i >= start) & (i < end)
        stake = tl.where(pair, v_i - v_k, 0.0)
        if APART:
            lag = tl.where(pair, s_k - s_i * scale, 0.0)
            left = tl.where(pair, left, 0.0)
            right = tl.where(pair, right, 0.0)
        else:
            lag = s_k - s_i
        cost, shown, lost = _add_tile(
            lag, stake, left, right, cost, shown, lost, GAP, SURROGATE, WEIGHTED, GRADIENT, COMPILED
        )
    return cost, shown, lost


@_kernel
def pairs(
    z, label, bid, teacher, offsets, sums, ads, per_repeat, auctions, steps, scale, sigma, kappa,
    GAP: tl.constexpr, SURROGATE: tl.constexpr, WEIGHTED: tl.constexpr, RAGGED: tl.constexpr, PREPARED: tl.constexpr,
    GRADIENT: tl.constexpr, COMPILED: tl.constexpr, BK: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    """Cost and slope of BK ads over their share of the partners; the second axis of the grid counts the shares."""
    row = tl.program_id(0) * BK + tl.arange(0, BK)[:, None]
    k = tl.minimum(row, ads - 1)
    start, end = _bounds(k, offsets, per_repeat, auctions, steps, RAGGED)
    s_k, v_k, left_k, right_k = _ads(z, label, bid, teacher, k, ads, scale, kappa, WEIGHTED, PREPARED, False)
    cost, shown, lost = _add_share(
        z, label, bid, teacher, s_k, v_k, start, end, tl.program_id(1), tl.num_programs(1), ads - 1, ads, scale, kappa,
        GAP, SURROGATE, WEIGHTED, PREPARED, GRADIENT, COMPILED, False, BK, BI,
    )  # fmt: skip
    total, slope = _over_partners(cost, shown, lost, left_k, right_k, sigma, SURROGATE, WEIGHTED)
    here = sums + tl.program_id(1) * 2 * ads + row
    tl.store(here, total, mask=row < ads)
    if GRADIENT:
        tl.store(here + ads, slope, mask=row < ads)


@jit
def _over_partners(cost, shown, lost, left_k, right_k, sigma, SURROGATE: tl.constexpr, WEIGHTED: tl.constexpr):
    """Cost, but for right_k, and slope of the ads k from their pairs."""
    total = tl.sum(cost, 1, keep_dims=True)
    slope = tl.sum(shown, 1, keep_dims=True)
    if WEIGHTED:
        slope = slope * right_k + tl.sum(lost, 1, keep_dims=True) * left_k
    if SURROGATE == "logistic":
        total *= 0.6931471805599453  # eCPM was scaled for exp2
    elif SURROGATE == "hinge":
        total *= sigma
    elif SURROGATE == "product":
        total *= 0.5 * sigma
    return total.to(tl.float32), (slope * sigma).to(tl.float32)


@jit
def pairs_of_wide(
    read, state, sums, offsets, ads, auctions, size, sigma,
    WEIGHTED: tl.constexpr, COMPILED: tl.constexpr, STEPS: tl.constexpr, ADS: tl.constexpr, PARTNERS: tl.constexpr,
):  # fmt: skip
    """All pairs of auctions too wide for their panels, signed and logistic; one look if there are none."""
    begin = tl.program_id(0) * ADS
    any_wide = tl.load(state + 4 * auctions)
    while (begin < ads) & (any_wide != 0):
        row = begin + tl.arange(0, ADS)[:, None]
        k = tl.minimum(row, ads - 1)
        auction = auction_of_ads(k, offsets, auctions, size, STEPS)
        mine = (row < ads) & (tl.load(state + 4 * auction + 3) != 0)
        start, end = bounds_of(auction, offsets, size)
        start = tl.where(mine, start, end)
        scale = 1.4426950408889634  # for exp2
        s_k = tl.load(read + k) * scale
        v_k = tl.load(read + ads + k)
        cost, shown, lost = _add_share(
            read, read, read, read, s_k, v_k, start, end, 0, 1, ads - 1, ads, scale, 1.0,
            "signed", "logistic", WEIGHTED, True, True, COMPILED, True, ADS, PARTNERS,
        )  # fmt: skip
        left_k = s_k
        right_k = s_k
        if WEIGHTED:  # loaded here: before the loops they would take registers from them
            left_k = tl.load(read + 2 * ads + k)
            right_k = tl.load(read + 3 * ads + k)
        cost, slope = _over_partners(cost, shown, lost, left_k, right_k, sigma, "logistic", WEIGHTED)
        tl.store(sums + row, cost, mask=mine)
        tl.store(sums + ads + row, slope, mask=mine)
        begin += tl.num_programs(0) * ADS


@_kernel
def finish(
    z, click, bid, offsets, sums, slopes, costs, losses, ads, per_repeat, auctions, steps, parts, share, kappa, lam,
    WEIGHTED: tl.constexpr, RAGGED: tl.constexpr, LOG: tl.constexpr, GRADIENT: tl.constexpr, PER_AD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Loss and gradient of a block of ads of one repeat, from the parts of their sums."""
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = row < per_repeat
    k = tl.program_id(0) * per_repeat + tl.minimum(row, per_repeat - 1)
    logit = tl.load(z + k).to(tl.float32)
    ctr, miss = _sigmoid(logit)
    ecpm = tl.load(bid + k).to(tl.float32) * ctr
    loss = tl.zeros([BLOCK], tl.float32)
    slope = tl.zeros([BLOCK], tl.float32)
    for part in range(parts):
        loss += tl.load(sums + part * 2 * ads + k)
        if GRADIENT:
            slope += tl.load(sums + part * 2 * ads + ads + k)
    if WEIGHTED:
        right, rest = _sigmoid(kappa * ecpm)
        loss *= right
        slope = tl.fma(kappa * rest, loss, slope)  # d right_k / ds_k = kappa right_k (1 - right_k)
    if GRADIENT:
        slope *= ecpm * miss  # ds/dz = b f (1 - f)
    if RAGGED:
        start, end = _bounds(k, offsets, per_repeat, auctions, steps, True)
        size = (end - start).to(tl.float32)
        share = tl.div_rn(share, size * size)
    loss *= share
    slope *= share
    if LOG:
        y = tl.load(click + k).to(tl.float32)
        e = _exp(-tl.abs(logit))
        small = 0.6931471805599453 * e * _log2_1p(e)
        entropy = y * (tl.maximum(-logit, 0.0) + small) + (1 - y) * (tl.maximum(logit, 0.0) + small)
        loss = tl.fma(entropy, lam, loss)
        slope = tl.fma((1 - y) * ctr - y * miss, lam, slope)
    if GRADIENT:
        tl.store(slopes + k, slope, mask=inside)
    if PER_AD:
        tl.store(costs + k, loss, mask=inside)
    else:
        total = tl.sum(tl.where(inside, loss, 0.0).to(tl.float64))
        tl.store(losses + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), total)


@_kernel
def total(partial, loss, blocks, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.float64)
    for at in range(0, blocks, BLOCK):
        block = at + tl.arange(0, BLOCK)
        total += tl.load(partial + tl.program_id(0) * blocks + block, mask=block < blocks, other=0.0)
    tl.store(loss + tl.program_id(0), tl.sum(total))
