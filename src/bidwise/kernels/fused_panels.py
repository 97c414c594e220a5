"""The signed logistic pair loss without pairs on a GPU: the panels of `panels.py` as five Triton kernels.

Nothing is sorted and nothing waits for the host: grids depend on shapes alone, so that a CUDA graph can hold them all.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bidwise.kernels.triton_or_none import jit, tl, triton
from bidwise.losses.panels import chebyshev, coefficients

if TYPE_CHECKING:
    from bidwise.losses.definition import PairOptions

DEGREE = 8  # of the Chebyshev series: interpolation errs by 12.6^-DEGREE
REACH = 17  # panels farther apart see softplus(y) as y or 0: an error of e^-REACH
CHARGES = 4  # left, left v, right, right v
FIELDS = 6  # softplus of left, left v; sigmoid of left, left v; mirrored sigmoid of right, right v
MOST_PANELS = 8192  # of one auction
LEAST_PANELS = 32  # of an auction among many, which share
ALL_PANELS = 65_536
READ_TILE, MOMENT_TILE, VALUE_TILE = 512, 64, 128  # ads of a program
PAIR_TILE, OTHERS, PAIR_WORKERS = 64, 32, 2048  # pairs at a time, and programs, where panels do not reach
FIELD_WORKERS = 2048  # programs that go through the panels of all auctions
HOT_PANELS = 4  # panels that a program adds up before it writes: without it, a million ads queue for one address


class Panels:
    """Memory and grids of one call: what `panel_sums` and `fused_clicks.click_sums` share.

    Args:
        z: logits, flat.
        offsets: bounds of the auctions, int64 on the device; ``None``: auctions of ``size`` ads.
        width: moments of a panel.
        fields: Chebyshev series of a panel.
    """

    def __init__(self, z: Tensor, offsets: Tensor | None, size: int | None, width: int, fields: int) -> None:
        if triton is None:
            raise RuntimeError("these sums need triton, which is not installed")
        self.ads = len(z)
        self.auctions = len(offsets) - 1 if offsets is not None else self.ads // size if size else 0
        self.panels, self.bits, self.steps, self.workers = cut(self.ads, max(self.auctions, 1))
        cells = self.auctions * self.panels
        zeros = torch.zeros(cells * width + 2 * self.auctions + 1, dtype=torch.int64, device=z.device)
        self.moments, self.state = zeros[: cells * width], zeros[cells * width :].view(torch.int32)
        self.fields = torch.empty(cells * fields * DEGREE, dtype=torch.float64, device=z.device)
        self.read = z.new_empty(4, self.ads)  # t, v, left, right
        self.where = (offsets, self.ads, self.auctions, size or 0)

    def tiles(self, tile: int) -> tuple[int]:
        """Grid of programs that take ``tile`` ads each."""
        return (triton.cdiv(self.ads, tile),)

    def read_ads(self, columns: tuple[Tensor | None, ...], options: PairOptions, counts: Tensor | None = None) -> None:
        """`_read_ads` of logits, labels, bids and teacher."""
        _read_ads[self.tiles(READ_TILE)](
            *columns, self.read, self.state, counts, *self.where, options.sigma, options.weighting,
            self.steps, self.panels, READ_TILE,
        )  # fmt: skip

    def take_pairs(self, sums: Tensor, options: PairOptions) -> None:
        """`_take_pairs`, of auctions too wide for panels."""
        workers = min(PAIR_WORKERS, *self.tiles(PAIR_TILE))
        _take_pairs[(workers,)](
            self.read, self.state, sums, *self.where, options.sigma, workers,
            options.gap == "positive", self.steps, PAIR_TILE, OTHERS, num_warps=8,
        )  # fmt: skip


def panel_sums(
    z: Tensor,
    label: Tensor,
    bids: Tensor,
    teacher: Tensor | None,
    offsets: Tensor | None,
    size: int | None,
    options: PairOptions,
) -> Tensor:
    """Cost and slope of every ad without pairs, ``(1, 2, ads)`` float32; the cost still lacks its factor right_k.

    With s = b sigmoid(z), t = sigma s and v = b label, ad k gets

        cost_k  = sum_i left_i (v_i - v_k) softplus(t_k - t_i)
        slope_k = sigma (right_k sum_i left_i (v_i - v_k) sigmoid(t_k - t_i)
                         - left_k sum_j right_j (v_k - v_j) sigmoid(t_j - t_k))

    where left = sigmoid(kappa b teacher) and right = sigmoid(kappa s), or 1 without kappa. All per-ad tensors are flat,
    contiguous float32. ``offsets`` are the auctions' bounds, int64 on the device; ``None``: auctions of ``size`` ads.

    Linear in the ads as long as sigma * eCPM of an auction stays below its number of panels: 8,192 for one auction,
    65,536 divided among many, at least 32. An auction beyond that, or with numbers that are not finite or below 0, is
    evaluated pair by pair on the device. Equal input gives equal bits: charges are added up as integers.
    """
    call = Panels(z, offsets, size, CHARGES * DEGREE, FIELDS)
    sums = z.new_empty(1, 2, call.ads)
    if call.ads == 0 or call.auctions == 0:
        return sums
    call.read_ads((z, label, bids, teacher), options)
    _add_moments[call.tiles(MOMENT_TILE)](
        call.read, call.state, call.moments, *call.where, 2.0**call.bits,
        call.steps, call.panels, DEGREE, CHARGES, HOT_PANELS, MOMENT_TILE, num_warps=8,
    )  # fmt: skip
    _find_fields[(call.auctions * call.workers,)](
        call.moments, call.state, _tables(z.device), call.fields, 0.5**call.bits, call.workers,
        call.panels, DEGREE, CHARGES, FIELDS, REACH, 64, 128,
    )  # fmt: skip
    _take_values[call.tiles(VALUE_TILE)](
        call.read, call.state, call.fields, sums, *call.where, options.sigma,
        call.steps, call.panels, DEGREE, FIELDS, VALUE_TILE,
    )  # fmt: skip
    call.take_pairs(sums, options)
    return sums


def cut(ads: int, auctions: int) -> tuple[int, int, int, int]:
    """Panels of an auction, bits of a charge after the point, steps to find an ad's auction, programs of an auction.

    A sum of charges, none above 1, over all ads fits into int64.
    """
    panels = max(LEAST_PANELS, min(MOST_PANELS, ALL_PANELS // auctions))
    return panels, min(48, 62 - ads.bit_length()), (auctions - 1).bit_length(), max(8, FIELD_WORKERS // auctions)


@lru_cache
def _tables(device: torch.device) -> Tensor:
    """Chebyshev coefficients of softplus(y) and sigmoid(y), y = d + (u - u') / 2 from source to target, in float64.

    (function, d + reach, degree in u', degree in u). Made on the CPU by the first call, which no graph can capture.
    """
    node, _ = chebyshev(DEGREE)
    d = torch.arange(-REACH, REACH + 1, dtype=torch.float64, device="cpu")
    y = d[:, None, None] + (node[:, None] - node[None, :]) / 2  # (d, u, u')
    kernels = torch.stack([-torch.nn.functional.logsigmoid(-y), torch.sigmoid(y)])
    return coefficients(kernels).contiguous().to(device)


@jit
def _auction(ad, offsets, auctions, size, STEPS: tl.constexpr):
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
def _bounds_of(auction, offsets, size):
    """First ad of each auction, and the ad after its last."""
    if offsets is None:
        begin = auction * size
        end = begin + size
    else:
        begin = tl.load(offsets + auction).to(tl.int32)
        end = tl.load(offsets + auction + 1).to(tl.int32)
    return begin, end


@jit
def _scaled(value, state, auction, inside):
    """Value from 0 to 1 in its auction, and the power of two that takes it back; the least value becomes 0."""
    highest = tl.load(state + 4 * auction, mask=inside, other=0).to(tl.float32, bitcast=True)
    lowest = (0x7F800000 - tl.load(state + 4 * auction + 1, mask=inside, other=0x7F800000)).to(tl.float32, bitcast=True)
    exponent = (highest - lowest).to(tl.int32, bitcast=True) >> 23
    power = tl.maximum(exponent + 1, 1) << 23
    shrink = (253 - exponent) << 23
    return (value - lowest) * shrink.to(tl.float32, bitcast=True), power.to(tl.float32, bitcast=True)


@jit
def _read_ads(
    z, label, bids, teacher, read, state, counts, offsets, ads, auctions, size, sigma, kappa,
    STEPS: tl.constexpr, PANELS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """t, v, left, right of every ad, and the state of every auction.

    That is: bits of its largest v, of its smallest, its last panel, whether it is too wide; last, whether any is.
    ``counts`` gets the number of ads of each program whose v is above 0.
    """
    ad = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = ad < ads
    b = tl.load(bids + ad, mask=inside, other=0.0)
    s = b * tl.sigmoid(tl.load(z + ad, mask=inside, other=0.0))
    t, v = sigma * s, b * tl.load(label + ad, mask=inside, other=0.0)
    fits = (t >= 0) & (t < PANELS) & (v >= 0) & (v < 1e37)
    tl.store(read + ad, t, mask=inside)
    tl.store(read + ads + ad, v, mask=inside)
    if counts is not None:
        tl.store(counts + tl.program_id(0), tl.sum((inside & (v > 0)).to(tl.int32), axis=0))
    if kappa is None:
        tl.store(read + 2 * ads + ad, tl.full([TILE], 1.0, tl.float32), mask=inside)
        tl.store(read + 3 * ads + ad, tl.full([TILE], 1.0, tl.float32), mask=inside)
    else:
        left = tl.sigmoid(kappa * b * tl.load(teacher + ad, mask=inside, other=0.0))
        right = tl.sigmoid(kappa * s)
        fits &= (left >= 0) & (right >= 0)  # false for NaN
        tl.store(read + 2 * ads + ad, left, mask=inside)
        tl.store(read + 3 * ads + ad, right, mask=inside)

    auction = _auction(tl.minimum(ad, ads - 1), offsets, auctions, size, STEPS)
    usable = inside & fits
    bits = tl.abs(tl.where(usable, v, 0.0)).to(tl.int32, bitcast=True)  # floats from 0 up are ordered as their bits
    complement = tl.where(usable, 0x7F800000 - bits, 0)
    panel = tl.where(usable, t, 0.0).to(tl.int32)
    wide = (inside & ~fits).to(tl.int32)
    if tl.max(wide, axis=0) != 0:
        tl.atomic_max(state + 4 * auctions, 1, sem="relaxed")
    first = tl.min(auction, axis=0)
    if first == tl.max(auction, axis=0):
        here = state + 4 * first
        tl.atomic_max(here, tl.max(bits, axis=0), sem="relaxed")
        tl.atomic_max(here + 1, tl.max(complement, axis=0), sem="relaxed")
        tl.atomic_max(here + 2, tl.max(panel, axis=0), sem="relaxed")
        tl.atomic_max(here + 3, tl.max(wide, axis=0), sem="relaxed")
    else:
        each = state + 4 * auction
        tl.atomic_max(each, bits, mask=inside, sem="relaxed")
        tl.atomic_max(each + 1, complement, mask=inside, sem="relaxed")
        tl.atomic_max(each + 2, panel, mask=inside, sem="relaxed")
        tl.atomic_max(each + 3, wide, mask=inside, sem="relaxed")


@jit
def _add_moments(
    read, state, moments, offsets, ads, auctions, size, scale,
    STEPS: tl.constexpr, PANELS: tl.constexpr, DEGREE: tl.constexpr, CHARGES: tl.constexpr, HOT: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """sum of q T_k(u) over every panel, as integers: (auction, panel, k, charge)."""
    place = tl.arange(0, TILE)
    ad = tl.program_id(0) * TILE + place
    inside = ad < ads
    auction = _auction(tl.minimum(ad, ads - 1), offsets, auctions, size, STEPS)
    rest = inside & (tl.load(state + 4 * auction + 3) == 0)
    t = tl.load(read + ad, mask=rest, other=0.0)
    v, _power = _scaled(tl.load(read + ads + ad, mask=rest, other=0.0), state, auction, rest)
    left = tl.load(read + 2 * ads + ad, mask=rest, other=0.0)
    right = tl.load(read + 3 * ads + ad, mask=rest, other=0.0)
    panel = t.to(tl.int32)
    u = 2 * (t - panel.to(tl.float32)) - 1
    cell = auction.to(tl.int64) * PANELS + panel

    column = tl.arange(0, DEGREE * CHARGES)[None, :]
    charge = column % CHARGES
    product = tl.where(charge < 2, left[:, None], right[:, None]) * scale
    product = tl.where(charge % 2 == 0, product, product * v[:, None])
    basis = _basis(u, column // CHARGES, DEGREE, TILE, DEGREE * CHARGES)
    fixed = (product * basis).to(tl.int64)  # (ads, k and charge)
    _add_up(moments, cell, fixed, rest, HOT, TILE, DEGREE * CHARGES)


@jit
def _basis(u, power, DEGREE: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """T_power(u), ``(ads, WIDTH)``, power being that of a column: T_(k + 1) = 2 u T_k - T_(k - 1)."""
    basis = tl.full([TILE, WIDTH], 1.0, tl.float32)
    before, now = tl.full([TILE], 1.0, tl.float32), u
    for k in tl.static_range(1, DEGREE):
        basis = tl.where(power == k, now[:, None], basis)
        before, now = now, 2 * u * now - before
    return basis


@jit
def _add_up(moments, cell, fixed, rest, HOT: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """Add the numbers of every ad in ``rest`` to those of its cell, ``(cell, WIDTH)``; ads of full cells together."""
    place = tl.arange(0, TILE)
    for _ in tl.static_range(HOT):  # the cell of the first ad left is likely to be a full one
        first = tl.min(tl.where(rest, place, TILE), axis=0)
        if first < TILE:
            hot = tl.max(tl.where(place == first, cell, 0), axis=0)
            there = rest & (cell == hot)
            total = tl.sum(tl.where(there[:, None], fixed, 0), axis=0)
            tl.atomic_add(moments + hot * WIDTH + tl.arange(0, WIDTH), total, sem="relaxed")
            rest = rest & (cell != hot)
    column = tl.arange(0, WIDTH)[None, :]
    tl.atomic_add(moments + cell[:, None] * WIDTH + column, fixed, mask=rest[:, None], sem="relaxed")


@jit
def _find_fields(
    moments, state, tables, fields, unit, workers,
    PANELS: tl.constexpr, DEGREE: tl.constexpr, CHARGES: tl.constexpr, FIELDS: tl.constexpr, REACH: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Chebyshev series of what all ads of an auction do to those of a panel: (auction, panel, field, k)."""
    auction = tl.program_id(0) // workers
    last = tl.load(state + 4 * auction + 2)
    wide = tl.load(state + 4 * auction + 3)
    begin = moments + auction.to(tl.int64) * PANELS * (DEGREE * CHARGES)
    out = fields + auction.to(tl.int64) * PANELS * (FIELDS * DEGREE)
    k = tl.arange(0, DEGREE)
    zeroth = (k == 0).to(tl.float64)
    panel = tl.program_id(0) % workers
    while (panel <= last) & (wide == 0):
        if tl.load(begin + panel * (DEGREE * CHARGES)) != 0:  # left is never 0, so an empty panel alone has none
            d = tl.arange(0, WINDOW) - REACH
            source = panel - d
            near = (d <= REACH) & (source >= 0) & (source <= last)
            softplus_left = tl.zeros([WINDOW, DEGREE], tl.float64)
            softplus_value = tl.zeros([WINDOW, DEGREE], tl.float64)
            sigmoid_left = tl.zeros([WINDOW, DEGREE], tl.float64)
            sigmoid_value = tl.zeros([WINDOW, DEGREE], tl.float64)
            mirror_right = tl.zeros([WINDOW, DEGREE], tl.float64)
            mirror_value = tl.zeros([WINDOW, DEGREE], tl.float64)
            for l in tl.static_range(DEGREE):
                row = begin + source * (DEGREE * CHARGES) + l * CHARGES
                left = tl.load(row, mask=near, other=0).to(tl.float64)[:, None]
                left_value = tl.load(row + 1, mask=near, other=0).to(tl.float64)[:, None]
                right = tl.load(row + 2, mask=near, other=0).to(tl.float64)[:, None]
                right_value = tl.load(row + 3, mask=near, other=0).to(tl.float64)[:, None]
                entry = tables + ((d + REACH) * DEGREE + l)[:, None] * DEGREE + k[None, :]
                softplus = tl.load(entry, mask=near[:, None], other=0.0)
                sigmoid = tl.load(entry + (2 * REACH + 1) * DEGREE * DEGREE, mask=near[:, None], other=0.0)
                softplus_left += softplus * left
                softplus_value += softplus * left_value
                sigmoid_left += sigmoid * left
                sigmoid_value += sigmoid * left_value
                mirror = -sigmoid  # sigmoid(-y) = 1 - sigmoid(y)
                if l == 0:
                    mirror += zeroth[None, :]
                mirror_right += mirror * right
                mirror_value += mirror * right_value

            # softplus(y) = y = (panel - source) + (u - u') / 2 and sigmoid(y) = 1 from far below
            mass_left = tl.zeros([CHUNK], tl.float64)
            mass_value = tl.zeros([CHUNK], tl.float64)
            lever_left = tl.zeros([CHUNK], tl.float64)
            lever_value = tl.zeros([CHUNK], tl.float64)
            bottom = panel * 0
            while bottom < panel - REACH:
                below = bottom + tl.arange(0, CHUNK)
                far = below < panel - REACH
                cell = begin + below * (DEGREE * CHARGES)
                mass = tl.load(cell, mask=far, other=0).to(tl.float64)
                skew = tl.load(cell + CHARGES, mask=far, other=0).to(tl.float64)
                mass_left += mass
                lever_left += (panel - below) * mass - 0.5 * skew
                mass = tl.load(cell + 1, mask=far, other=0).to(tl.float64)
                skew = tl.load(cell + CHARGES + 1, mask=far, other=0).to(tl.float64)
                mass_value += mass
                lever_value += (panel - below) * mass - 0.5 * skew
                bottom += CHUNK

            # sigmoid(-y) = 1 from far above
            mass_right = tl.zeros([CHUNK], tl.float64)
            mass_right_value = tl.zeros([CHUNK], tl.float64)
            low = panel + REACH + 1
            while low <= last:
                above = low + tl.arange(0, CHUNK)
                there = begin + above * (DEGREE * CHARGES)
                mass_right += tl.load(there + 2, mask=above <= last, other=0).to(tl.float64)
                mass_right_value += tl.load(there + 3, mask=above <= last, other=0).to(tl.float64)
                low += CHUNK

            half = (k == 1).to(tl.float64) * 0.5
            left_far, value_far = tl.sum(mass_left, axis=0), tl.sum(mass_value, axis=0)
            found = tl.sum(softplus_left, axis=0) + zeroth * tl.sum(lever_left, axis=0) + half * left_far
            here = out + panel * (FIELDS * DEGREE) + k
            tl.store(here, found * unit)
            found = tl.sum(softplus_value, axis=0) + zeroth * tl.sum(lever_value, axis=0) + half * value_far
            tl.store(here + DEGREE, found * unit)
            tl.store(here + 2 * DEGREE, (tl.sum(sigmoid_left, axis=0) + zeroth * left_far) * unit)
            tl.store(here + 3 * DEGREE, (tl.sum(sigmoid_value, axis=0) + zeroth * value_far) * unit)
            found = tl.sum(mirror_right, axis=0) + zeroth * tl.sum(mass_right, axis=0)
            tl.store(here + 4 * DEGREE, found * unit)
            found = tl.sum(mirror_value, axis=0) + zeroth * tl.sum(mass_right_value, axis=0)
            tl.store(here + 5 * DEGREE, found * unit)
        panel += workers


@jit
def _series(coefficients, u, mask, DEGREE: tl.constexpr):
    """sum_k c_k T_k(u) by Clenshaw's recurrence, in float64."""
    now, after = tl.zeros_like(u), tl.zeros_like(u)
    for k in tl.static_range(DEGREE - 1, 0, -1):
        now, after = tl.load(coefficients + k, mask=mask, other=0.0) + 2 * u * now - after, now
    return tl.load(coefficients, mask=mask, other=0.0) + u * now - after


@jit
def _take_values(
    read, state, fields, sums, offsets, ads, auctions, size, sigma,
    STEPS: tl.constexpr, PANELS: tl.constexpr, DEGREE: tl.constexpr, FIELDS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The series of its panel at every ad, in float64: the two terms of a signed sum cancel."""
    ad = tl.program_id(0) * TILE + tl.arange(0, TILE)
    auction = _auction(tl.minimum(ad, ads - 1), offsets, auctions, size, STEPS)
    mine = (ad < ads) & (tl.load(state + 4 * auction + 3) == 0)
    t = tl.load(read + ad, mask=mine, other=0.0)
    v, power = _scaled(tl.load(read + ads + ad, mask=mine, other=0.0), state, auction, mine)
    left = tl.load(read + 2 * ads + ad, mask=mine, other=0.0)
    right = tl.load(read + 3 * ads + ad, mask=mine, other=0.0)
    panel = t.to(tl.int32)
    u = (2 * (t - panel.to(tl.float32)) - 1).to(tl.float64)
    here = fields + (auction.to(tl.int64) * PANELS + panel) * (FIELDS * DEGREE)
    cost = _series(here + DEGREE, u, mine, DEGREE) - v * _series(here, u, mine, DEGREE)
    tl.store(sums + ad, (cost * power).to(tl.float32), mask=mine)
    as_j = _series(here + 3 * DEGREE, u, mine, DEGREE) - v * _series(here + 2 * DEGREE, u, mine, DEGREE)
    as_i = _series(here + 5 * DEGREE, u, mine, DEGREE) - v * _series(here + 4 * DEGREE, u, mine, DEGREE)
    slope = (right * as_j + left * as_i) * power * sigma
    tl.store(sums + ads + ad, slope.to(tl.float32), mask=mine)


@jit
def _take_pairs(
    read, state, sums, offsets, ads, auctions, size, sigma, workers,
    CLICKS: tl.constexpr, STEPS: tl.constexpr, TILE: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """The definition, pair by pair, for auctions too wide for their panels; where there are none, one look.

    ``CLICKS``: of the positive gap, and without the pairs of two ads that both have a value above 0.
    """
    start = tl.program_id(0) * TILE
    any_wide = tl.load(state + 4 * auctions)
    while (start < ads) & (any_wide != 0):
        ad = start + tl.arange(0, TILE)
        auction = _auction(tl.minimum(ad, ads - 1), offsets, auctions, size, STEPS)
        mine = (ad < ads) & (tl.load(state + 4 * auction + 3) != 0)
        begin, end = _bounds_of(auction, offsets, size)
        t = tl.load(read + ad, mask=mine, other=0.0)[:, None]
        v = tl.load(read + ads + ad, mask=mine, other=0.0)[:, None]
        left = tl.load(read + 2 * ads + ad, mask=mine, other=0.0)
        right = tl.load(read + 3 * ads + ad, mask=mine, other=0.0)
        cost = tl.zeros([TILE], tl.float64)
        as_j = tl.zeros([TILE], tl.float64)
        as_i = tl.zeros([TILE], tl.float64)
        first = tl.min(tl.where(mine, begin, ads), axis=0)
        last = tl.max(tl.where(mine, end, 0), axis=0)
        while first < last:
            other = first + tl.arange(0, OTHERS)
            known = other < last
            pair = (other[None, :] >= begin[:, None]) & (other[None, :] < end[:, None])
            y = tl.where(pair, t - tl.load(read + other, mask=known, other=0.0)[None, :], 0.0)
            value = tl.load(read + ads + other, mask=known, other=0.0)[None, :]
            left_gap = value - v
            right_gap = left_gap
            if CLICKS:
                pair = pair & ~((value > 0) & (v > 0))
                right_gap = tl.where(left_gap > 0, 0.0, left_gap)  # keeps what is not a number
                left_gap = tl.where(left_gap < 0, 0.0, left_gap)
            left_other = tl.load(read + 2 * ads + other, mask=known, other=0.0)[None, :]
            right_other = tl.load(read + 3 * ads + other, mask=known, other=0.0)[None, :]
            left_gap = tl.where(pair, left_gap * left_other, 0.0)
            right_gap = tl.where(pair, right_gap * right_other, 0.0)
            small = tl.exp(-tl.abs(y))
            log = tl.where(small < 2e-4, small - 0.5 * small * small, tl.log(1 + small))
            sigmoid = tl.where(y >= 0, 1.0, small) / (1 + small)
            mirror = tl.where(y >= 0, small, 1.0) / (1 + small)
            cost += tl.sum(left_gap * (tl.maximum(y, 0.0) + log), axis=1).to(tl.float64)
            as_j += tl.sum(left_gap * sigmoid, axis=1).to(tl.float64)
            as_i += tl.sum(right_gap * mirror, axis=1).to(tl.float64)
            first += OTHERS
        tl.store(sums + ad, cost.to(tl.float32), mask=mine)
        tl.store(sums + ads + ad, ((right * as_j + left * as_i) * sigma).to(tl.float32), mask=mine)
        start += workers * TILE
