"""The kernels of :mod:`bidwise.training.rows`. Names of arguments in capitals are known when a kernel is compiled.

Numbers of ads are not specialised: the last, shorter batch of an epoch would compile kernels of its own for every
width, for no faster code.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

from bidwise.kernels.triton_or_none import jit, tl


@jit
def tick(
    step,
    numbers,
    rates,
    rate,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    LOG1: tl.constexpr,
    LOG2: tl.constexpr,
    STEPS: tl.constexpr,
):
    t = tl.load(step) + 1
    now = tl.load(rate)
    tl.store(step, t)
    tl.store(rates + t % STEPS, now)
    tl.store(numbers, (now / _correction(LOG1, t)).to(tl.float32))
    tl.store(numbers + 1, tl.sqrt(_correction(LOG2, t)).to(tl.float32))


@jit
def update_all(
    parameters, gradients, means, squares, counts, numbers, TENSORS: tl.constexpr, SIZE: tl.constexpr,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * SIZE
    at = first + tl.arange(0, SIZE)
    for k in tl.static_range(TENSORS):
        if tl.program_id(1) == k and first < counts[k]:
            here = at < counts[k]
            g = tl.load(gradients[k] + at, mask=here, other=0.0)
            m = tl.load(means[k] + at, mask=here, other=0.0)
            v = tl.load(squares[k] + at, mask=here, other=0.0)
            w = tl.load(parameters[k] + at, mask=here, other=0.0)
            m += (1 - BETA1) * (g - m)
            v = BETA2 * v + (1 - BETA2) * g * g
            w -= tl.load(numbers) * m / (tl.sqrt(v) / tl.load(numbers + 1) + EPS)
            tl.store(parameters[k] + at, w, mask=here)
            tl.store(means[k] + at, m, mask=here)
            tl.store(squares[k] + at, v, mask=here)


@jit
def _correction(LOG: tl.constexpr, t):
    """1 - β^t in float64: β2 is so near 1 that float32 would leave four digits of it."""
    return 1 - tl.exp(t.to(tl.float64) * LOG)


@jit
def _exponent(peak, bits, PEAKS: tl.constexpr):
    """k such that 2^bits gradients as large as the largest, in units of 2^-k, stay below 2^61."""
    largest = tl.max(tl.load(peak + tl.arange(0, PEAKS)), 0)
    return tl.minimum(61 - bits - ((largest >> 23) - 126), 126)


@jit
def _power_of_two(exponent):
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@jit
def _first(row, here, ADS: tl.constexpr):
    """Which ads are the first of their tile to look up their row."""
    lane = tl.arange(0, ADS)
    earlier = (row[:, None] == row[None, :]) & (lane[None, :] < lane[:, None])  # those past the end are last
    return here & (tl.sum(earlier.to(tl.int32), 1) == 0)


@jit(do_not_specialize=["ads", "bits"])
def add(
    ids, starts, gradient, total, owner, peak, ads, fields, stride, width, bits,
    ADS: tl.constexpr, COLUMNS: tl.constexpr, PEAKS: tl.constexpr,
):  # fmt: skip
    """Gradients of one field and some ads; the first ad of a row in the tile adds for all that share it."""
    lane = tl.arange(0, ADS)
    ad = tl.program_id(0) * ADS + lane
    field = tl.program_id(1)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    here = ad < ads
    entry = ad.to(tl.int64) * fields + field
    row = tl.load(ids + ad.to(tl.int64) * stride + field, mask=here, other=0).to(tl.int32) + tl.load(starts + field)
    there = here[:, None] & (column < width)[None, :]
    g = tl.load(gradient + entry[:, None] * width + column[None, :], mask=there, other=0.0)
    same = row[:, None] == row[None, :]
    g = tl.dot(same.to(tl.float32), g, input_precision="ieee")
    first = _first(row, here, ADS)
    units = (g * _power_of_two(_exponent(peak, bits, PEAKS))).to(tl.int64)
    seat = total + row.to(tl.int64)[:, None] * width + column[None, :]
    tl.atomic_add(seat, units, mask=there & first[:, None], sem="relaxed")
    if tl.program_id(2) == 0:
        tl.atomic_min(owner + row, ad, mask=first, sem="relaxed")


@jit(do_not_specialize=["ads", "bits"])
def update(
    ids, starts, total, owner, stamp, peak, weight, mean, square, step, numbers, ads, stride, bits, decay,
    ADS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, PEAKS: tl.constexpr,
    DENSE: tl.constexpr,
):  # fmt: skip
    """m <- β1 m + (1 - β1) g, v <- β2 v + (1 - β2) g², w <- w - rate m̂ / (√v̂ + EPS), for every row once."""
    ad = tl.program_id(0) * ADS + tl.arange(0, ADS)
    field = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    row = tl.load(ids + ad.to(tl.int64) * stride + field, mask=ad < ads, other=0).to(tl.int32) + tl.load(starts + field)
    mine = tl.load(owner + row, mask=ad < ads, other=-1) == ad
    there = mine[:, None] & (column < WIDTH)[None, :]
    seat = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    units = tl.load(total + seat, mask=there, other=0)
    tl.debug_barrier()  # other threads of the program read the same places
    tl.store(owner + row, 0x7FFFFFFF, mask=mine)  # no one's
    tl.store(total + seat, tl.zeros_like(units), mask=there)
    if DENSE:
        tl.store(stamp + row, tl.load(step), mask=mine)
    g = units.to(tl.float32) * _power_of_two(-_exponent(peak, bits, PEAKS))
    w = tl.load(weight + seat, mask=there, other=0.0)
    m = tl.load(mean + seat, mask=there, other=0.0)
    v = tl.load(square + seat, mask=there, other=0.0)
    g += decay * w
    m += (1 - BETA1) * (g - m)
    v = BETA2 * v + (1 - BETA2) * g * g
    w -= tl.load(numbers) * m / (tl.sqrt(v) / tl.load(numbers + 1) + EPS)
    tl.store(weight + seat, w, mask=there)
    tl.store(mean + seat, m, mask=there)
    tl.store(square + seat, v, mask=there)


@jit(do_not_specialize=["ads"])
def claim(ids, starts, owner, ads, stride, ADS: tl.constexpr):
    """Rows belong to the first ad that looks them up."""
    ad = tl.program_id(0) * ADS + tl.arange(0, ADS)
    field = tl.program_id(1)
    row = tl.load(ids + ad.to(tl.int64) * stride + field, mask=ad < ads, other=0).to(tl.int32) + tl.load(starts + field)
    tl.atomic_min(owner + row, ad, mask=ad < ads, sem="relaxed")


@jit(do_not_specialize=["count"])
def catch_up(
    ids, starts, owner, stamp, weight, mean, square, step, rates, count, stride,
    ADS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    BETA1: tl.constexpr, BETA2: tl.constexpr, LOG1: tl.constexpr, LOG2: tl.constexpr, EPS: tl.constexpr,
    RECENT: tl.constexpr, STEPS: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """The steps that rows have missed, for the rows of ``ids`` or for all rows."""
    ad = tl.program_id(0) * ADS + tl.arange(0, ADS)
    column = tl.arange(0, COLUMNS)
    t = tl.load(step)
    if LISTED:
        field = tl.program_id(1)
        row = tl.load(ids + ad.to(tl.int64) * stride + field, mask=ad < count, other=0).to(tl.int32)
        row += tl.load(starts + field)
        mine = tl.load(owner + row, mask=ad < count, other=-1) == ad
    else:
        row = ad
        mine = ad < count
    before = tl.load(stamp + row, mask=mine, other=0)
    tl.debug_barrier()  # other threads of the program read the same places
    if LISTED:
        tl.store(owner + row, 0x7FFFFFFF, mask=mine)  # no one's
    tl.store(stamp + row, t, mask=mine)
    there = mine[:, None] & (column < WIDTH)[None, :]
    seat = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    w = tl.load(weight + seat, mask=there, other=0.0)
    m = tl.load(mean + seat, mask=there, other=0.0)
    v = tl.load(square + seat, mask=there, other=0.0)
    w, m, v = _caught_up(w, m, v, tl.where(mine, before, t), t, rates, BETA1, BETA2, LOG1, LOG2, EPS, RECENT, STEPS)
    tl.store(weight + seat, w, mask=there)
    tl.store(mean + seat, m, mask=there)
    tl.store(square + seat, v, mask=there)


@jit
def _caught_up(
    w, m, v, before, now, rates,
    BETA1: tl.constexpr, BETA2: tl.constexpr, LOG1: tl.constexpr, LOG2: tl.constexpr, EPS: tl.constexpr,
    RECENT: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Rows that stand at step ``before`` after the steps up to ``now`` without a gradient.

    Rows that were never looked up have no moments, and stay. After `RECENT` steps only the moments go on.
    """
    missed = tl.where(before > 0, now - before, 0)
    most = tl.minimum(tl.max(missed), RECENT)
    first = _correction(LOG1, before).to(tl.float32)
    second = _correction(LOG2, before).to(tl.float32)
    k = 0
    while k < most:
        k += 1
        goes = k <= missed
        first = BETA1 * first + (1 - BETA1)  # 1 - β^(t + 1) from 1 - β^t
        second = BETA2 * second + (1 - BETA2)
        rate = tl.load(rates + (before + k) % STEPS)
        m = tl.where(goes[:, None], BETA1 * m, m)
        v = tl.where(goes[:, None], BETA2 * v, v)
        size = tl.sqrt(v) / tl.sqrt(second)[:, None] + EPS
        w = tl.where(goes[:, None], w - (rate / first)[:, None] * m / size, w)
    rest = tl.maximum(missed - RECENT, 0).to(tl.float32)
    m = m * tl.exp(rest * LOG1)[:, None]
    v = v * tl.exp(rest * LOG2)[:, None]
    return w, m, v
