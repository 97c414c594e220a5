"""The logistic pair loss of large auctions on a GPU: the panels of `panels.py` as Triton kernels, and few pairs.

The signed gap needs no pairs. Of the positive gap, an ad without a click has value 0: a clicked and an unclicked ad
have the value of the clicked one at stake, and

    L = sum_(i clicked, j not) w_ij v_i phi(s_i - s_j)  +  sum_(i, j clicked) w_ij max(v_i - v_j, 0) phi(s_i - s_j)

The first sum is one of products of a source and a target, as for the signed gap. The second has a pair for every
two clicked ads: of 100,000 ads with 5 % clicks 25 million instead of 10 billion. An ad counts as clicked if its value
is above 0, be it a soft label or one above 1; the fewer, the faster.

There is no sort and no wait for the host: grids depend only on shapes, so a CUDA graph can contain them all.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bidwise.kernels import interpreted
from bidwise.kernels.pair_kernels import auction_of_ads, bounds_of, list_clicks, pairs_of_list, pairs_of_wide, shares_of
from bidwise.kernels.triton_or_none import jit, tl, triton
from bidwise.losses.panels import chebyshev, coefficients

if TYPE_CHECKING:
    from bidwise.losses.definition import PairOptions

DEGREE = 8  # of the Chebyshev series: interpolation errs by 12.6^-DEGREE
REACH = 17  # panels farther apart see softplus(y) as y or 0: an error of e^-REACH
TAIL = 128  # panels beyond reach that are added up at once; of clicks, their e^y counts: e^-145 of the last is 0
MOST_PANELS = 8192  # of one auction
LEAST_PANELS = 32  # of an auction among many, which share
ALL_PANELS = 65_536
READ_TILE, VALUE_TILE = 512, 128  # ads of a program
FIELD_WORKERS = 2048  # programs that go through the panels of all auctions
HOT_PANELS = 4  # panels that a program adds up before it writes: without it, a million ads queue for one address
PAIR_ADS, PARTNERS, PAIR_PROGRAMS, PAIR_REGISTERS = 16, 128, 2112, 128  # as `fused_pairs.CUTS` cuts large auctions
PAIR_SHARES = 32  # of an ad's partners, at most


def panel_sums(
    z: Tensor,
    label: Tensor,
    bids: Tensor,
    teacher: Tensor,
    offsets: Tensor | None,
    size: int | None,
    options: PairOptions,
) -> Tensor:
    """Cost and slope of every ad without pairs, ``(1, 2, ads)`` float32; the cost still lacks its factor right_k.

    With s = b sigmoid(z), t = sigma s and v = b label, ad k gets

        cost_k  = sum_i left_i gap(v_i - v_k) softplus(t_k - t_i)
        slope_k = sigma (right_k sum_i left_i gap(v_i - v_k) sigmoid(t_k - t_i)
                         - left_k sum_j right_j gap(v_k - v_j) sigmoid(t_j - t_k))

    where left = sigmoid(kappa b teacher) and right = sigmoid(kappa s), or 1 without kappa, and the gap is signed or
    positive. All per-ad tensors are flat, contiguous float32. ``offsets`` are the auctions' bounds, int64 on the
    device; ``None``: auctions of ``size`` ads.

    Linear in the ads, but for pairs of clicked ones, as long as sigma * eCPM of an auction is below its panels: 8,192
    for one auction, 65,536 divided among many, at least 32. An auction beyond that, or with numbers that are not finite
    or below 0, is evaluated pair by pair on the device. Charges are integers: equal input gives equal bits.

    If an auction is in order, clicked ads far above all others, every t_j - t_i is far below 0 and of a positive gap
    only sums of e^(t_j - t_i) are left. Panels beyond reach add them by a series of their own, in float64, and no sum
    over panels has terms of two signs: a small loss keeps its digits.
    """
    ads = len(z)
    auctions = len(offsets) - 1 if offsets is not None else ads // size if size else 0
    sums = z.new_empty(1, 2, ads)
    if ads == 0 or auctions == 0:
        return sums
    weighted, clicks = options.weighting is not None, options.gap == "positive"
    charges = 2 if clicks else 4  # of a panel: left v, right; and without clicks left, right v
    panels = max(LEAST_PANELS, min(MOST_PANELS, ALL_PANELS // auctions))
    bits = min(48, 62 - ads.bit_length())  # after the point of a charge: sums of charges up to 1 fit into int64
    steps, workers = (auctions - 1).bit_length(), max(8, FIELD_WORKERS // auctions)
    cells = auctions * panels * charges * DEGREE
    zeros = torch.zeros(cells + 2 * auctions + 1, dtype=torch.int64, device=z.device)
    moments, state = zeros[:cells], zeros[cells:].view(torch.int32)
    fields = torch.empty(3 * cells // 2, dtype=torch.float64, device=z.device)
    read = z.new_empty(4, ads)  # t, v, left, right
    where = (offsets, ads, auctions, size or 0)
    # of clicked ads: `read`; the place of each ad among them; their auctions; how many `_read_ads` counts; their bounds
    clicked = places = owners = counts = bounds = parts = None
    room = max(ads, min(PAIR_SHARES * ads, PAIR_PROGRAMS * PAIR_ADS))
    if clicks:
        clicked, parts = z.new_empty(4, ads), z.new_empty(2, room)
        # multiples of 4, or each batch would be compiled again
        lengths = [4 * triton.cdiv(x, 4) for x in (ads, ads, triton.cdiv(ads, READ_TILE), 2 * auctions + 1)]
        flat = torch.empty(sum(lengths), dtype=torch.int32, device=z.device)
        places, owners, counts, bounds = torch.split(flat, lengths)
    cuts = (PAIR_PROGRAMS, PAIR_SHARES, PAIR_ADS, PARTNERS)

    _read_ads[(triton.cdiv(ads, READ_TILE),)](
        z, label, bids, teacher, read, state, counts, *where, options.sigma, options.weighting,
        steps, panels, READ_TILE,
    )  # fmt: skip
    tile, warps = (128, 4) if clicks else (64, 8)
    _add_moments[(triton.cdiv(ads, tile),)](
        read, state, moments, counts, clicked, places, owners, bounds, *where, 2.0**bits,
        clicks, weighted, steps, panels, DEGREE, HOT_PANELS, READ_TILE, tile, num_warps=warps,
    )  # fmt: skip
    _find_fields[(auctions * workers,)](
        moments, state, _tables(z.device), fields, 0.5**bits, workers,
        clicks, panels, DEGREE, charges, REACH, 64, TAIL,
    )  # fmt: skip
    if clicks:
        pairs_of_list[(min(PAIR_PROGRAMS, PAIR_SHARES * triton.cdiv(ads, PAIR_ADS)),)](
            clicked, owners, bounds, parts, ads, auctions, room, options.sigma,
            weighted, not interpreted(), *cuts, num_warps=4, maxnreg=PAIR_REGISTERS, enable_fp_fusion=False,
        )  # fmt: skip
    _take_values[(triton.cdiv(ads, VALUE_TILE),)](
        read, state, fields, parts, places, bounds, sums, *where, options.sigma, room,
        clicks, steps, panels, DEGREE, *cuts, VALUE_TILE,
    )  # fmt: skip
    pairs_of_wide[(min(PAIR_PROGRAMS, triton.cdiv(ads, PAIR_ADS)),)](
        read, state, sums, *where, options.sigma,
        options.gap, weighted, not interpreted(), steps, PAIR_ADS, PARTNERS,
        num_warps=4, maxnreg=PAIR_REGISTERS, enable_fp_fusion=False,
    )  # fmt: skip
    return sums


@lru_cache
def _tables(device: torch.device) -> Tensor:
    """Chebyshev coefficients of softplus(y) and sigmoid(y), y = d + (u - u') / 2 from source to target, in float64.

    (function, d + reach, degree in u', degree in u); then e^-d of panels beyond reach, and the series of e^(u / 2) and
    e^(-u / 2). Made on the CPU by the first call, which no graph can capture.
    """
    node, analysis = chebyshev(DEGREE)
    d = torch.arange(-REACH, REACH + 1, dtype=torch.float64, device="cpu")
    y = d[:, None, None] + (node[:, None] - node[None, :]) / 2  # (d, u, u')
    kernels = torch.stack([-torch.nn.functional.logsigmoid(-y), torch.sigmoid(y)])
    decay = torch.exp(-torch.arange(REACH + 1, REACH + 1 + TAIL, dtype=torch.float64, device="cpu"))
    tails = [decay, analysis @ torch.exp(node / 2), analysis @ torch.exp(-node / 2)]
    # one copy, which is waited for: another stream may read the table as soon as it is there
    return torch.cat([coefficients(kernels).flatten(), *tails]).to(device)


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
    left = tl.full([TILE], 1.0, tl.float32)
    right = left
    fits = (t >= 0) & (t < PANELS) & (v >= 0) & (v < 1e37)
    if kappa is not None:
        left = tl.sigmoid(kappa * b * tl.load(teacher + ad, mask=inside, other=0.0))
        right = tl.sigmoid(kappa * s)
        fits &= (left >= 0) & (right >= 0)  # false for NaN
    tl.store(read + ad, tl.where(v == v, t, v), mask=inside)  # of NaN, all pairs are NaN
    tl.store(read + ads + ad, v, mask=inside)
    tl.store(read + 2 * ads + ad, left, mask=inside)
    tl.store(read + 3 * ads + ad, right, mask=inside)
    if counts is not None:
        tl.store(counts + tl.program_id(0), tl.sum((inside & (v > 0)).to(tl.int32), axis=0))

    auction = auction_of_ads(tl.minimum(ad, ads - 1), offsets, auctions, size, STEPS)
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
    read, state, moments, counts, clicked, places, owners, bounds, offsets, ads, auctions, size, scale,
    CLICKS: tl.constexpr, WEIGHTED: tl.constexpr, STEPS: tl.constexpr, PANELS: tl.constexpr, DEGREE: tl.constexpr,
    HOT: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """sum of q T_k(u) over every panel, as integers: (auction, panel, charge, k); and the list of clicked ads."""
    ad = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = ad < ads
    auction = auction_of_ads(tl.minimum(ad, ads - 1), offsets, auctions, size, STEPS)
    t = tl.load(read + ad, mask=inside, other=0.0)
    value = tl.load(read + ads + ad, mask=inside, other=0.0)
    left = tl.load(read + 2 * ads + ad, mask=inside, other=0.0)
    right = tl.load(read + 3 * ads + ad, mask=inside, other=0.0)
    if CLICKS:
        place, upto = list_clicks(read, counts, clicked, places, t, value, left, right, ad, ads, WEIGHTED, BLOCK, TILE)
        tl.store(owners + place, auction, mask=value > 0)
        first, end = bounds_of(auction, offsets, size)
        tl.store(bounds + auction, place, mask=inside & (ad == first))
        tl.store(bounds + auctions + auction, upto, mask=inside & (ad == end - 1))
        tl.store(bounds + 2 * auctions + 0 * ad, upto, mask=ad == ads - 1)

    rest = inside & (tl.load(state + 4 * auction + 3) == 0)
    v, _power = _scaled(value, state, auction, rest)  # of unclicked ads the least value is 0
    t = tl.where(rest, t, 0.0)
    panel = t.to(tl.int32)
    u = 2 * (t - panel.to(tl.float32)) - 1
    cell = auction.to(tl.int64) * PANELS + panel
    if CLICKS:
        cell = 2 * cell + (value <= 0).to(tl.int32)
        charge = tl.where(rest, tl.where(value > 0, left * v, right), 0.0) * scale
        column = tl.arange(0, DEGREE)[None, :]
        fixed = (charge[:, None] * _basis(u, column, DEGREE, TILE, DEGREE)).to(tl.int64)
        fixed = tl.where(column == 0, tl.maximum(fixed, 1), fixed)  # a panel with a tiny charge is not an empty one
        _add_up(moments, cell, fixed, rest, HOT, TILE, DEGREE)
    else:
        column = tl.arange(0, 4 * DEGREE)[None, :]
        charge = column // DEGREE  # left v, right, left, right v
        product = tl.where(charge % 2 == 0, left[:, None], right[:, None]) * scale
        product = tl.where(charge % 3 == 0, product * v[:, None], product)
        basis = _basis(u, column % DEGREE, DEGREE, TILE, 4 * DEGREE)
        _add_up(moments, cell, tl.where(rest[:, None], product * basis, 0.0).to(tl.int64), rest, HOT, TILE, 4 * DEGREE)


@jit
def _basis(u, power, DEGREE: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """T_power(u), ``(ads, WIDTH)``, with the power of its column: T_(k + 1) = 2 u T_k - T_(k - 1)."""
    basis = tl.full([TILE, WIDTH], 1.0, tl.float32)
    before, now = tl.full([TILE], 1.0, tl.float32), u
    for k in tl.static_range(1, DEGREE):
        basis = tl.where(power == k, now[:, None], basis)
        before, now = now, 2 * u * now - before
    return basis


@jit
def _add_up(moments, cell, fixed, rest, HOT: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """Add the numbers of every ad in ``rest`` to its cell, ``(cell, WIDTH)``; ads of full cells together."""
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
    CLICKS: tl.constexpr, PANELS: tl.constexpr, DEGREE: tl.constexpr, CHARGES: tl.constexpr, REACH: tl.constexpr,
    WINDOW: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Chebyshev series of the effect of all ads of an auction on the ads of a panel: (auction, panel, field, k).

    Fields: softplus of left v, sigmoid of left v, mirrored sigmoid of right; then softplus of left, sigmoid of left,
    mirrored sigmoid of right v, which clicks do not need.
    """
    auction = tl.program_id(0) // workers
    last = tl.load(state + 4 * auction + 2)
    wide = tl.load(state + 4 * auction + 3)
    values = moments + auction.to(tl.int64) * PANELS * (CHARGES * DEGREE)
    rights = values + DEGREE
    lefts = values + 2 * DEGREE
    right_values = values + 3 * DEGREE
    out = fields + auction.to(tl.int64) * PANELS * (3 * CHARGES // 2 * DEGREE)
    k, beyond = tl.arange(0, DEGREE), tl.arange(0, TAIL)
    zeroth = (k == 0).to(tl.float64)
    half = (k == 1).to(tl.float64) * 0.5
    if CLICKS:
        decays = tables + 2 * (2 * REACH + 1) * DEGREE * DEGREE
        decay = tl.load(decays + beyond)
        rising = tl.load(decays + TAIL + k)
        falling = tl.load(decays + TAIL + DEGREE + k)
    panel = tl.program_id(0) % workers
    while (panel <= last) & (wide == 0):
        filled = tl.load(rights + panel * (CHARGES * DEGREE))  # right is never 0, so only an empty panel has none
        if CLICKS:
            filled |= tl.load(values + panel * (CHARGES * DEGREE))
        if filled != 0:
            d = tl.arange(0, WINDOW) - REACH
            source = panel - d
            near = (d <= REACH) & (source >= 0) & (source <= last)
            cost = tl.zeros([WINDOW, DEGREE], tl.float64)
            up = tl.zeros([WINDOW, DEGREE], tl.float64)
            down = tl.zeros([WINDOW, DEGREE], tl.float64)
            cost_left = tl.zeros([WINDOW, DEGREE], tl.float64)
            up_left = tl.zeros([WINDOW, DEGREE], tl.float64)
            down_value = tl.zeros([WINDOW, DEGREE], tl.float64)
            for l in tl.static_range(DEGREE):
                at = source * (CHARGES * DEGREE) + l
                entry = tables + ((d + REACH) * DEGREE + l)[:, None] * DEGREE + k[None, :]
                softplus = tl.load(entry, mask=near[:, None], other=0.0)
                sigmoid = tl.load(entry + (2 * REACH + 1) * DEGREE * DEGREE, mask=near[:, None], other=0.0)
                mirror = -sigmoid  # sigmoid(-y) = 1 - sigmoid(y)
                if l == 0:
                    mirror += zeroth[None, :]
                value = _charge(values + at, near)[:, None]
                cost += softplus * value
                up += sigmoid * value
                down += mirror * _charge(rights + at, near)[:, None]
                if not CLICKS:
                    left = _charge(lefts + at, near)[:, None]
                    cost_left += softplus * left
                    up_left += sigmoid * left
                    down_value += mirror * _charge(right_values + at, near)[:, None]

            # softplus(y) = y = (panel - source) + (u - u') / 2 and sigmoid(y) = 1 from far below
            mass, lever = tl.zeros([TAIL], tl.float64), tl.zeros([TAIL], tl.float64)
            mass_left, lever_left = tl.zeros([TAIL], tl.float64), tl.zeros([TAIL], tl.float64)
            bottom = panel * 0
            while bottom < panel - REACH:
                below = bottom + beyond
                far = below < panel - REACH
                cell = below * (CHARGES * DEGREE)
                some = _charge(values + cell, far)
                mass += some
                lever += (panel - below) * some - 0.5 * _charge(values + cell + 1, far)
                if not CLICKS:
                    some = _charge(lefts + cell, far)
                    mass_left += some
                    lever_left += (panel - below) * some - 0.5 * _charge(lefts + cell + 1, far)
                bottom += TAIL

            # sigmoid(-y) = 1 from far above
            mass_right, mass_right_value = tl.zeros([TAIL], tl.float64), tl.zeros([TAIL], tl.float64)
            low = panel + REACH + 1
            while low <= last:
                above = low + beyond
                mass_right += _charge(rights + above * (CHARGES * DEGREE), above <= last)
                if not CLICKS:
                    mass_right_value += _charge(right_values + above * (CHARGES * DEGREE), above <= last)
                low += TAIL

            here = out + panel * (3 * CHARGES // 2 * DEGREE) + k
            value_far = tl.sum(mass, axis=0)
            cost_all = tl.sum(cost, axis=0) + zeroth * tl.sum(lever, axis=0) + half * value_far
            up_all = tl.sum(up, axis=0) + zeroth * value_far
            down_all = tl.sum(down, axis=0) + zeroth * tl.sum(mass_right, axis=0)
            if CLICKS:
                # far above, clicks: softplus(y) = sigmoid(y) = e^y; far below, no clicks: sigmoid(-y) = e^-y
                above = panel + REACH + 1 + beyond
                some = _charge(values + above[:, None] * (CHARGES * DEGREE) + k[None, :], (above <= last)[:, None])
                tail = rising * tl.sum(tl.sum(some * falling[None, :], axis=1) * decay, axis=0)
                cost_all += tail
                up_all += tail
                below = panel - REACH - 1 - beyond
                some = _charge(rights + below[:, None] * (CHARGES * DEGREE) + k[None, :], (below >= 0)[:, None])
                down_all += falling * tl.sum(tl.sum(some * rising[None, :], axis=1) * decay, axis=0)
            else:
                left_far = tl.sum(mass_left, axis=0)
                left_all = tl.sum(cost_left, axis=0) + zeroth * tl.sum(lever_left, axis=0) + half * left_far
                tl.store(here + 3 * DEGREE, left_all * unit)
                tl.store(here + 4 * DEGREE, (tl.sum(up_left, axis=0) + zeroth * left_far) * unit)
                right_all = tl.sum(down_value, axis=0) + zeroth * tl.sum(mass_right_value, axis=0)
                tl.store(here + 5 * DEGREE, right_all * unit)
            tl.store(here, cost_all * unit)
            tl.store(here + DEGREE, up_all * unit)
            tl.store(here + 2 * DEGREE, down_all * unit)
        panel += workers


@jit
def _charge(address, mask):
    return tl.load(address, mask=mask, other=0).to(tl.float64)


@jit
def _series(coefficients, u, mask, DEGREE: tl.constexpr):
    """sum_k c_k T_k(u) by Clenshaw's recurrence, in float64."""
    now, after = tl.zeros_like(u), tl.zeros_like(u)
    for k in tl.static_range(DEGREE - 1, 0, -1):
        now, after = tl.load(coefficients + k, mask=mask, other=0.0) + 2 * u * now - after, now
    return tl.load(coefficients, mask=mask, other=0.0) + u * now - after


@jit
def _take_values(
    read, state, fields, parts, places, bounds, sums, offsets, ads, auctions, size, sigma, room,
    CLICKS: tl.constexpr, STEPS: tl.constexpr, PANELS: tl.constexpr, DEGREE: tl.constexpr, PROGRAMS: tl.constexpr,
    SHARES: tl.constexpr, ADS: tl.constexpr, PARTNERS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The series of its panel at every ad, in float64: terms of a signed sum cancel. And the pairs of clicked ads."""
    ad = tl.program_id(0) * TILE + tl.arange(0, TILE)
    auction = auction_of_ads(tl.minimum(ad, ads - 1), offsets, auctions, size, STEPS)
    mine = (ad < ads) & (tl.load(state + 4 * auction + 3) == 0)
    t = tl.load(read + ad, mask=mine, other=0.0)
    value = tl.load(read + ads + ad, mask=mine, other=0.0)
    left = tl.load(read + 2 * ads + ad, mask=mine, other=0.0)
    right = tl.load(read + 3 * ads + ad, mask=mine, other=0.0)
    v, power = _scaled(value, state, auction, mine)
    panel = t.to(tl.int32)
    u = (2 * (t - panel.to(tl.float32)) - 1).to(tl.float64)
    cell = auction.to(tl.int64) * PANELS + panel
    if CLICKS:
        here = fields + cell * (3 * DEGREE)
        clicked = mine & (value > 0)
        cost = _series(here, u, mine & (value <= 0), DEGREE) * power
        slope = _series(here + tl.where(clicked, 2 * DEGREE, DEGREE), u, mine, DEGREE)
        slope *= tl.where(clicked, -left * value, right * power) * sigma
        number = tl.load(bounds + 2 * auctions)
        shares = shares_of(number, auctions, PROGRAMS, SHARES, ADS, PARTNERS)
        place = tl.load(places + ad, mask=clicked, other=0)
        share = number * 0
        while share < shares:
            cost += tl.load(parts + share * number + place, mask=clicked, other=0.0)
            slope += tl.load(parts + room + share * number + place, mask=clicked, other=0.0)
            share += 1
    else:
        here = fields + cell * (6 * DEGREE)
        cost = (_series(here, u, mine, DEGREE) - v * _series(here + 3 * DEGREE, u, mine, DEGREE)) * power
        as_j = _series(here + DEGREE, u, mine, DEGREE) - v * _series(here + 4 * DEGREE, u, mine, DEGREE)
        as_i = _series(here + 5 * DEGREE, u, mine, DEGREE) - v * _series(here + 2 * DEGREE, u, mine, DEGREE)
        slope = (right * as_j + left * as_i) * power * sigma
    tl.store(sums + ad, cost.to(tl.float32), mask=mine)
    tl.store(sums + ads + ad, slope.to(tl.float32), mask=mine)
