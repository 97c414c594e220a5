"""Kernels that evaluate pairs, of `fused_pairs` and `fused_panels`.

Ads a program owns are k, their partners i; a tile of pairs is (k, i).

They are compiled without fusing products into sums (`fma` is explicit): a fused b_i f_i - s_j differs
from s_i - s_j in the last digit, and two equal ads would no longer tie.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import inspect
from typing import Any

from bidwise.kernels.triton_or_none import jit, tl


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
def _pairs_of_table(
    table, k, start, end, share, shares, last, ads, sigma,
    SCALE: tl.constexpr, GAP: tl.constexpr, WEIGHTED: tl.constexpr, COMPILED: tl.constexpr, ADS: tl.constexpr,
    PARTNERS: tl.constexpr,
):  # fmt: skip
    """Logistic cost and slope of ads k of a table of sigma eCPM log2(e) / SCALE, value, left and right factor."""
    s_k = tl.load(table + k) * SCALE
    v_k = tl.load(table + ads + k)
    cost, shown, lost = _add_share(
        table, table, table, table, s_k, v_k, start, end, share, shares, last, ads, SCALE, 1.0,
        GAP, "logistic", WEIGHTED, True, True, COMPILED, True, ADS, PARTNERS,
    )  # fmt: skip
    left_k = s_k
    right_k = s_k
    if WEIGHTED:  # loaded here: before the loops they would take registers from them
        left_k = tl.load(table + 2 * ads + k)
        right_k = tl.load(table + 3 * ads + k)
    return _over_partners(cost, shown, lost, left_k, right_k, sigma, "logistic", WEIGHTED)


@jit
def list_clicks(
    read, counts, clicked, places, t, value, left, right, ad, ads,
    WEIGHTED: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Copies clicked ads to their list; how many there are before each ad, and up to it."""
    begin = tl.program_id(0) * TILE
    block = begin // BLOCK  # clicked ads were counted in earlier blocks, and are seen in its own
    earlier = block * BLOCK + tl.arange(0, BLOCK)
    before = (tl.load(read + ads + earlier, mask=earlier < begin, other=0.0) > 0).to(tl.int32)
    bottom = block * 0
    while bottom < block:
        other = bottom + tl.arange(0, BLOCK)
        before += tl.load(counts + other, mask=other < block, other=0)
        bottom += BLOCK
    flag = (value > 0).to(tl.int32)
    upto = tl.sum(before, axis=0) + tl.cumsum(flag, axis=0)
    place = upto - flag
    tl.store(places + ad, place, mask=value > 0)
    tl.store(clicked + place, t * 1.4426950408889634, mask=value > 0)  # for exp2
    tl.store(clicked + ads + place, value, mask=value > 0)
    if WEIGHTED:
        tl.store(clicked + 2 * ads + place, left, mask=value > 0)
        tl.store(clicked + 3 * ads + place, right, mask=value > 0)
    return place, upto


@jit
def shares_of(
    number, auctions, PROGRAMS: tl.constexpr, SHARES: tl.constexpr, ADS: tl.constexpr, PARTNERS: tl.constexpr
):
    """Into how many shares the partners of each of ``number`` ads are cut, so that all programs have work."""
    few = PROGRAMS // tl.maximum(tl.cdiv(number, ADS), 1)
    return tl.maximum(tl.minimum(tl.minimum(few, number // auctions // PARTNERS), SHARES), 1)


@jit
def pairs_of_list(
    table, owners, bounds, parts, ads, auctions, room, sigma,
    WEIGHTED: tl.constexpr, COMPILED: tl.constexpr, PROGRAMS: tl.constexpr, SHARES: tl.constexpr, ADS: tl.constexpr,
    PARTNERS: tl.constexpr,
):  # fmt: skip
    """`pairs` of the positive gap for a list with a length on the GPU: a task has a share of the partners."""
    number = tl.load(bounds + 2 * auctions)
    tiles = tl.cdiv(number, ADS)
    shares = shares_of(number, auctions, PROGRAMS, SHARES, ADS, PARTNERS)
    task = tl.program_id(0)
    while task < tiles * shares:
        share = task // tiles
        row = (task - share * tiles) * ADS + tl.arange(0, ADS)[:, None]
        k = tl.minimum(row, number - 1)
        auction = tl.load(owners + k)
        start = tl.load(bounds + auction)
        end = tl.load(bounds + auctions + auction)
        cost, slope = _pairs_of_table(
            table, k, start, end, share, shares, number - 1, ads, sigma,
            1.0, "positive", WEIGHTED, COMPILED, ADS, PARTNERS,
        )  # fmt: skip
        here = parts + share * number + row
        tl.store(here, cost, mask=row < number)
        tl.store(here + room, slope, mask=row < number)
        task += tl.num_programs(0)


@jit
def pairs_of_wide(
    read, state, sums, offsets, ads, auctions, size, sigma,
    GAP: tl.constexpr, WEIGHTED: tl.constexpr, COMPILED: tl.constexpr, STEPS: tl.constexpr, ADS: tl.constexpr,
    PARTNERS: tl.constexpr,
):  # fmt: skip
    """All pairs of auctions too wide for their panels; one look if there are none."""
    begin = tl.program_id(0) * ADS
    any_wide = tl.load(state + 4 * auctions)
    while (begin < ads) & (any_wide != 0):
        row = begin + tl.arange(0, ADS)[:, None]
        k = tl.minimum(row, ads - 1)
        auction = auction_of_ads(k, offsets, auctions, size, STEPS)
        mine = (row < ads) & (tl.load(state + 4 * auction + 3) != 0)
        start, end = bounds_of(auction, offsets, size)
        start = tl.where(mine, start, end)
        cost, slope = _pairs_of_table(
            read, k, start, end, 0, 1, ads - 1, ads, sigma,
            1.4426950408889634, GAP, WEIGHTED, COMPILED, ADS, PARTNERS,
        )  # fmt: skip
        tl.store(sums + row, cost, mask=mine)
        tl.store(sums + ads + row, slope, mask=mine)
        begin += tl.num_programs(0) * ADS


@jit
def _chained(loss, slope, ecpm, miss, kappa, WEIGHTED: tl.constexpr, GRADIENT: tl.constexpr):
    """Cost with its factor right, and the slope by the logit instead of the eCPM."""
    if WEIGHTED:
        right, rest = _sigmoid(kappa * ecpm)
        loss *= right
        slope = tl.fma(kappa * rest, loss, slope)  # d right_k / ds_k = kappa right_k (1 - right_k)
    if GRADIENT:
        slope *= ecpm * miss  # ds/dz = b f (1 - f)
    return loss, slope


@jit
def _log_loss(logit, ctr, miss, y):
    """Cross-entropy, and its derivative."""
    e = _exp(-tl.abs(logit))
    small = 0.6931471805599453 * e * _log2_1p(e)
    entropy = y * (tl.maximum(-logit, 0.0) + small) + (1 - y) * (tl.maximum(logit, 0.0) + small)
    return entropy, (1 - y) * ctr - y * miss


@_kernel
def small(
    z, click, label, bid, teacher, slopes, parts, ads, per_repeat, share, scale, sigma, kappa, lam,
    GAP: tl.constexpr, SURROGATE: tl.constexpr, WEIGHTED: tl.constexpr, LOG: tl.constexpr, GRADIENT: tl.constexpr,
    COMPILED: tl.constexpr, BK: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    """`pairs` and `finish` in one, for auctions that are repeats with at most BI ads."""
    row = tl.program_id(1) * BK + tl.arange(0, BK)[:, None]
    column = tl.arange(0, BI)[None, :]
    first = tl.program_id(0) * per_repeat
    k = first + tl.minimum(row, per_repeat - 1)
    i = first + tl.minimum(column, per_repeat - 1)
    s_k, v_k, left_k, right_k = _ads(z, label, bid, teacher, k, ads, scale, kappa, WEIGHTED, False, False)
    s_i, v_i, left, right = _ads(z, label, bid, teacher, i, ads, scale, kappa, WEIGHTED, False, False)
    adds: tl.constexpr = tl.float64 if SURROGATE == "product" else tl.float32
    cost = tl.zeros([BK, BI], adds)
    shown = tl.zeros([BK, BI], adds)
    lost = tl.zeros([BK, BI], tl.float32)
    stake = tl.where(column < per_repeat, v_i - v_k, 0.0)
    cost, shown, lost = _add_tile(
        s_k - s_i, stake, left, right, cost, shown, lost, GAP, SURROGATE, WEIGHTED, GRADIENT, COMPILED
    )
    loss, slope = _over_partners(cost, shown, lost, left_k, right_k, sigma, SURROGATE, WEIGHTED)
    logit = tl.load(z + k).to(tl.float32)
    ctr, miss = _sigmoid(logit)
    ecpm = tl.load(bid + k).to(tl.float32) * ctr
    loss, slope = _chained(loss, slope, ecpm, miss, kappa, WEIGHTED, GRADIENT)
    loss *= share
    slope *= share
    if LOG:
        entropy, pull = _log_loss(logit, ctr, miss, tl.load(click + k).to(tl.float32))
        loss = tl.fma(entropy, lam, loss)
        slope = tl.fma(pull, lam, slope)
    if GRADIENT:
        tl.store(slopes + k, slope, mask=row < per_repeat)
    sum_of_losses = tl.sum(tl.where(row < per_repeat, loss, 0.0).to(tl.float64))
    tl.store(parts + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), sum_of_losses)


@_kernel
def finish(
    z, click, bid, worth, offsets, sums, slopes, costs, losses, ads, per_repeat, auctions, steps, parts, share, kappa,
    lam,
    RANK: tl.constexpr, WEIGHTED: tl.constexpr, RAGGED: tl.constexpr, LOG: tl.constexpr, WORTH: tl.constexpr,
    GRADIENT: tl.constexpr, PER_AD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Loss and gradient of a block of ads of one repeat, from the parts of their sums."""
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = row < per_repeat
    k = tl.program_id(0) * per_repeat + tl.minimum(row, per_repeat - 1)
    logit = tl.load(z + k).to(tl.float32)
    ctr, miss = _sigmoid(logit)
    loss = tl.zeros([BLOCK], tl.float32)
    slope = tl.zeros([BLOCK], tl.float32)
    if RANK:
        ecpm = tl.load(bid + k).to(tl.float32) * ctr
        for part in range(parts):
            loss += tl.load(sums + part * 2 * ads + k)
            if GRADIENT:
                slope += tl.load(sums + part * 2 * ads + ads + k)
        loss, slope = _chained(loss, slope, ecpm, miss, kappa, WEIGHTED, GRADIENT)
        if RAGGED:
            start, end = _bounds(k, offsets, per_repeat, auctions, steps, True)
            size = (end - start).to(tl.float32)
            share = tl.div_rn(share, size * size)
        loss *= share
        slope *= share
    if LOG:
        entropy, pull = _log_loss(logit, ctr, miss, tl.load(click + k).to(tl.float32))
        if WORTH:
            worth_k = tl.load(worth + k).to(tl.float32)
            entropy *= worth_k
            pull *= worth_k
        loss = tl.fma(entropy, lam, loss)
        slope = tl.fma(pull, lam, slope)
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
