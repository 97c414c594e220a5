"""The positive logistic pair loss of clicks on a GPU: pairs of clicked ads alone, all others by panels.

An ad without a click has value 0, so a clicked and an unclicked ad have the value of the clicked one at stake, and

    L = sum_(i clicked, j not) w_ij v_i phi(s_i - s_j)  +  sum_(i, j clicked) w_ij max(v_i - v_j, 0) phi(s_i - s_j)

The first sum is one of products of a source and a target: panels, as in `fused_panels`. The second has a pair for every
two clicked ads: of 100,000 ads with 5 % clicks 25 million instead of 10 billion. Clicked is whatever has a value
above 0, be it a soft label or one above 1; the fewer, the faster.

Nothing is sorted and nothing waits for the host: grids depend on shapes alone, and programs without work end at once.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bidwise.kernels import fused_panels
from bidwise.kernels.fused_panels import DEGREE, REACH, _add_up, _auction, _basis, _bounds_of, _scaled, _series
from bidwise.kernels.gpu import interpreted
from bidwise.kernels.pair_kernels import _add_tile, _ads
from bidwise.kernels.triton_or_none import jit, tl, triton
from bidwise.losses.panels import chebyshev

if TYPE_CHECKING:
    from bidwise.losses.definition import PairOptions

FIELDS = 3  # softplus and sigmoid of left v of clicked ads; mirrored sigmoid of right of the others
TAIL = 128  # panels beyond reach whose e^y counts: e^-145 of the last is 0 to a float32
MOMENT_TILE, VALUE_TILE = 128, 128  # ads of a program
PAIR_ADS, PARTNERS, PAIR_PROGRAMS, PAIR_REGISTERS = 16, 128, 2112, 128  # as `fused.TILES` cuts large auctions
SHARES = 32  # of an ad's partners, at most


def click_sums(
    z: Tensor,
    label: Tensor,
    bids: Tensor,
    teacher: Tensor | None,
    offsets: Tensor | None,
    size: int | None,
    options: PairOptions,
    own: tuple[int, int] | None = None,
) -> Tensor:
    """Cost and slope of every ad in two parts, ``(2, 2, ads)`` float32; the costs still lack their factor right_k.

    With t = sigma s and v = b label, the pairs of an ad k and all other i, j cost and slope

        cost_k  = sum_i left_i max(v_i - v_k, 0) softplus(t_k - t_i)
        slope_k = sigma (right_k sum_i left_i max(v_i - v_k, 0) sigmoid(t_k - t_i)
                         - left_k sum_j right_j max(v_k - v_j, 0) sigmoid(t_j - t_k))

    The first part has the pairs of a clicked and an unclicked ad, the second those of two clicked ads. Arguments, the
    width that panels reach and what happens beyond it are those of `fused_panels.panel_sums`. Pairs of two clicked ads
    are added up for the ads between ``own`` alone, where they are given: the sums of others mean nothing then.

    Where an auction is in order, clicked ads far above all others, every t_j - t_i is far below 0 and of the loss only
    sums of e^(t_j - t_i) are left. Panels beyond reach add them by a series of their own, in float64, and no sum of the
    first part has terms of two signs: a small loss keeps its digits.
    """
    call = fused_panels.Panels(z, offsets, size, 2 * DEGREE, FIELDS)
    ads, auctions = call.ads, call.auctions
    sums = z.new_empty(2, 2, ads)
    if ads == 0 or auctions == 0:
        return sums
    block = fused_panels.READ_TILE
    clicked = z.new_empty(4, ads)  # `read` of clicked ads, with t in units of log 2: as many columns as there are
    room = max(ads, min(SHARES * ads, PAIR_PROGRAMS * PAIR_ADS))
    parts = z.new_empty(2, room)  # cost and slope of the clicked ads, one share of their partners after the other
    # where each ad is among the clicked, and their auctions; how many each program of `_read_ads` has seen; how many
    # there are before each auction, up to its end, at all, before the own ads and up to their end. Multiples of 4, or
    # each batch would be compiled anew
    lengths = [4 * triton.cdiv(x, 4) for x in (ads, ads, triton.cdiv(ads, block), 2 * auctions + 3)]
    place, owner, counts, bounds = torch.split(torch.empty(sum(lengths), dtype=torch.int32, device=z.device), lengths)
    weighted = options.weighting is not None

    call.read_ads((z, label, bids, teacher), options, counts)
    _add_moments[call.tiles(MOMENT_TILE)](
        call.read, call.state, counts, call.moments, clicked, place, owner, bounds, *call.where, *(own or (0, ads)),
        2.0**call.bits, weighted, call.steps, call.panels, DEGREE, fused_panels.HOT_PANELS, block, MOMENT_TILE,
    )  # fmt: skip
    _find_fields[(auctions * call.workers,)](
        call.moments, call.state, _tables(z.device), call.fields, 0.5**call.bits, call.workers,
        call.panels, DEGREE, FIELDS, REACH, 64, TAIL,
    )  # fmt: skip
    programs = min(PAIR_PROGRAMS, SHARES * call.tiles(PAIR_ADS)[0])
    _pairs_of_clicks[(programs,)](
        clicked, owner, bounds, parts, ads, auctions, room, options.sigma,
        weighted, not interpreted(), PAIR_PROGRAMS, SHARES, PAIR_ADS, PARTNERS,
        num_warps=4, maxnreg=PAIR_REGISTERS, enable_fp_fusion=False,
    )  # fmt: skip
    _take_values[call.tiles(VALUE_TILE)](
        call.read, call.state, call.fields, parts, place, bounds, sums, *call.where, room, options.sigma,
        call.steps, call.panels, DEGREE, FIELDS, PAIR_PROGRAMS, SHARES, PAIR_ADS, PARTNERS, VALUE_TILE,
    )  # fmt: skip
    call.take_pairs(sums, options)
    return sums


@lru_cache
def _tables(device: torch.device) -> Tensor:
    """`fused_panels._tables`, e^-d for the panels beyond reach, and the series of e^(u / 2) and of e^(-u / 2)."""
    node, analysis = chebyshev(DEGREE)
    decay = torch.exp(-torch.arange(REACH + 1, REACH + 1 + TAIL, dtype=torch.float64, device="cpu"))
    tails = [decay, analysis @ torch.exp(node / 2), analysis @ torch.exp(-node / 2)]
    # one copy, which is waited for: another stream may read the table as soon as it is there
    return torch.cat([fused_panels._tables(torch.device("cpu")).flatten(), *tails]).to(device)


@jit(do_not_specialize=["begin_own", "end_own"])
def _add_moments(
    read, state, counts, moments, table, places, owners, bounds, offsets, ads, auctions, size, begin_own, end_own,
    scale,
    WEIGHTED: tl.constexpr, STEPS: tl.constexpr, PANELS: tl.constexpr, DEGREE: tl.constexpr, HOT: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """sum of q T_k(u) over every panel, as integers: (auction, panel, clicked or not, k); and a list of clicked ads."""
    seat = tl.arange(0, TILE)
    begin = tl.program_id(0) * TILE
    ad = begin + seat
    inside = ad < ads
    auction = _auction(tl.minimum(ad, ads - 1), offsets, auctions, size, STEPS)
    t = tl.load(read + ad, mask=inside, other=0.0)
    value = tl.load(read + ads + ad, mask=inside, other=0.0)
    left = tl.load(read + 2 * ads + ad, mask=inside, other=0.0)
    right = tl.load(read + 3 * ads + ad, mask=inside, other=0.0)
    clicked = value > 0

    # clicked ads before this tile: as counted in earlier blocks, and seen in its own
    block = begin // BLOCK
    earlier = block * BLOCK + tl.arange(0, BLOCK)
    before = (tl.load(read + ads + earlier, mask=earlier < begin, other=0.0) > 0).to(tl.int32)
    bottom = block * 0
    while bottom < block:
        other = bottom + tl.arange(0, BLOCK)
        before += tl.load(counts + other, mask=other < block, other=0)
        bottom += BLOCK
    flag = clicked.to(tl.int32)
    upto = tl.sum(before, axis=0) + tl.cumsum(flag, axis=0)
    place = upto - flag
    tl.store(places + ad, place, mask=clicked)
    tl.store(owners + place, auction, mask=clicked)
    tl.store(table + place, t * 1.4426950408889634, mask=clicked)
    tl.store(table + ads + place, value, mask=clicked)
    if WEIGHTED:
        tl.store(table + 2 * ads + place, left, mask=clicked)
        tl.store(table + 3 * ads + place, right, mask=clicked)
    first, last = _bounds_of(auction, offsets, size)
    tl.store(bounds + auction, place, mask=inside & (ad == first))
    tl.store(bounds + auctions + auction, upto, mask=inside & (ad == last - 1))
    tl.store(bounds + 2 * auctions + seat * 0, upto, mask=ad == ads - 1)
    tl.store(bounds + 2 * auctions + 1 + seat * 0, place, mask=inside & (ad == begin_own))
    tl.store(bounds + 2 * auctions + 2 + seat * 0, upto, mask=inside & (ad == end_own - 1))

    rest = inside & (tl.load(state + 4 * auction + 3) == 0)
    v, _power = _scaled(value, state, auction, rest)  # v / power: of unclicked ads the least value is 0
    t = tl.where(rest, t, 0.0)
    panel = t.to(tl.int32)
    u = 2 * (t - panel.to(tl.float32)) - 1
    charge = tl.where(rest, tl.where(clicked, left * v, right), 0.0) * scale
    slot = 2 * (auction.to(tl.int64) * PANELS + panel) + 1 - flag
    column = tl.arange(0, DEGREE)[None, :]
    fixed = (charge[:, None] * _basis(u, column, DEGREE, TILE, DEGREE)).to(tl.int64)
    fixed = tl.where(column == 0, tl.maximum(fixed, 1), fixed)  # a panel with a tiny charge is not an empty one
    _add_up(moments, slot, fixed, rest, HOT, TILE, DEGREE)


@jit
def _find_fields(
    moments, state, tables, fields, unit, workers,
    PANELS: tl.constexpr, DEGREE: tl.constexpr, FIELDS: tl.constexpr, REACH: tl.constexpr, WINDOW: tl.constexpr,
    TAIL: tl.constexpr,
):  # fmt: skip
    """Chebyshev series of what clicked ads do to the others of a panel, and the others to those: (panel, field, k)."""
    auction = tl.program_id(0) // workers
    last = tl.load(state + 4 * auction + 2)
    wide = tl.load(state + 4 * auction + 3)
    begin = moments + auction.to(tl.int64) * PANELS * (2 * DEGREE)
    out = fields + auction.to(tl.int64) * PANELS * (FIELDS * DEGREE)
    k = tl.arange(0, DEGREE)
    zeroth = (k == 0).to(tl.float64)
    half = (k == 1).to(tl.float64) * 0.5
    decays = tables + 2 * (2 * REACH + 1) * DEGREE * DEGREE
    rising = tl.load(decays + TAIL + k)
    falling = tl.load(decays + TAIL + DEGREE + k)
    beyond = tl.arange(0, TAIL)
    decay = tl.load(decays + beyond)
    panel = tl.program_id(0) % workers
    while (panel <= last) & (wide == 0):
        cell = begin + panel * (2 * DEGREE)
        if (tl.load(cell) != 0) | (tl.load(cell + DEGREE) != 0):
            d = tl.arange(0, WINDOW) - REACH
            source = panel - d
            near = (d <= REACH) & (source >= 0) & (source <= last)
            softplus_value = tl.zeros([WINDOW, DEGREE], tl.float64)
            sigmoid_value = tl.zeros([WINDOW, DEGREE], tl.float64)
            mirror_right = tl.zeros([WINDOW, DEGREE], tl.float64)
            for l in tl.static_range(DEGREE):
                row = begin + source * (2 * DEGREE) + l
                value = tl.load(row, mask=near, other=0).to(tl.float64)[:, None]
                right = tl.load(row + DEGREE, mask=near, other=0).to(tl.float64)[:, None]
                entry = tables + ((d + REACH) * DEGREE + l)[:, None] * DEGREE + k[None, :]
                softplus = tl.load(entry, mask=near[:, None], other=0.0)
                sigmoid = tl.load(entry + (2 * REACH + 1) * DEGREE * DEGREE, mask=near[:, None], other=0.0)
                mirror = -sigmoid  # sigmoid(-y) = 1 - sigmoid(y)
                if l == 0:
                    mirror += zeroth[None, :]
                softplus_value += softplus * value
                sigmoid_value += sigmoid * value
                mirror_right += mirror * right

            # far below, clicks: softplus(y) = y = (panel - source) + (u - u') / 2 and sigmoid(y) = 1
            mass_value = tl.zeros([TAIL], tl.float64)
            lever_value = tl.zeros([TAIL], tl.float64)
            bottom = panel * 0
            while bottom < panel - REACH:
                below = bottom + beyond
                far = below < panel - REACH
                there = begin + below * (2 * DEGREE)
                mass = tl.load(there, mask=far, other=0).to(tl.float64)
                skew = tl.load(there + 1, mask=far, other=0).to(tl.float64)
                mass_value += mass
                lever_value += (panel - below) * mass - 0.5 * skew
                bottom += TAIL

            # far above, no clicks: sigmoid(-y) = 1
            mass_right = tl.zeros([TAIL], tl.float64)
            low = panel + REACH + 1
            while low <= last:
                above = low + beyond
                there = begin + above * (2 * DEGREE) + DEGREE
                mass_right += tl.load(there, mask=above <= last, other=0).to(tl.float64)
                low += TAIL

            # far above, clicks: softplus(y) = sigmoid(y) = e^y; far below, no clicks: sigmoid(-y) = e^-y
            above = panel + REACH + 1 + beyond
            there = begin + above[:, None] * (2 * DEGREE) + k[None, :]
            charge = tl.load(there, mask=(above <= last)[:, None], other=0).to(tl.float64)
            tail_value = tl.sum(tl.sum(charge * falling[None, :], axis=1) * decay, axis=0)
            below = panel - REACH - 1 - beyond
            there = begin + below[:, None] * (2 * DEGREE) + DEGREE + k[None, :]
            charge = tl.load(there, mask=(below >= 0)[:, None], other=0).to(tl.float64)
            tail_right = tl.sum(tl.sum(charge * rising[None, :], axis=1) * decay, axis=0)

            value_far = tl.sum(mass_value, axis=0)
            here = out + panel * (FIELDS * DEGREE) + k
            found = tl.sum(softplus_value, axis=0) + zeroth * tl.sum(lever_value, axis=0) + half * value_far
            tl.store(here, (found + rising * tail_value) * unit)
            found = tl.sum(sigmoid_value, axis=0) + zeroth * value_far
            tl.store(here + DEGREE, (found + rising * tail_value) * unit)
            found = tl.sum(mirror_right, axis=0) + zeroth * tl.sum(mass_right, axis=0)
            tl.store(here + 2 * DEGREE, (found + falling * tail_right) * unit)
        panel += workers


@jit
def _shares(
    number, clicked, auctions, PROGRAMS: tl.constexpr, SHARES: tl.constexpr, ADS: tl.constexpr, PARTNERS: tl.constexpr
):
    """Into how many shares the partners of each of ``number`` ads are cut, so that all programs have work."""
    few = PROGRAMS // tl.maximum(tl.cdiv(number, ADS), 1)
    return tl.maximum(tl.minimum(tl.minimum(few, clicked // auctions // PARTNERS), SHARES), 1)


@jit
def _pairs_of_clicks(
    table, owners, bounds, parts, ads, auctions, room, sigma,
    WEIGHTED: tl.constexpr, COMPILED: tl.constexpr, PROGRAMS: tl.constexpr, SHARES: tl.constexpr, ADS: tl.constexpr,
    PARTNERS: tl.constexpr,
):  # fmt: skip
    """`pair_kernels.pairs` of the clicked ads: cost and slope of ADS of them over a share of their partners."""
    clicked = tl.load(bounds + 2 * auctions)
    before = tl.load(bounds + 2 * auctions + 1)
    number = tl.load(bounds + 2 * auctions + 2) - before
    tiles = tl.cdiv(number, ADS)
    shares = _shares(number, clicked, auctions, PROGRAMS, SHARES, ADS, PARTNERS)
    task = tl.program_id(0)
    while task < tiles * shares:
        share = task // tiles
        row = (task - share * tiles) * ADS + tl.arange(0, ADS)[:, None]
        k = before + tl.minimum(row, number - 1)
        auction = tl.load(owners + k)
        start = tl.load(bounds + auction)
        end = tl.load(bounds + auctions + auction)
        s_k = tl.load(table + k)
        v_k = tl.load(table + ads + k)
        first = tl.min(start)
        after = tl.max(end)
        chunks = tl.cdiv(tl.cdiv(after - first, PARTNERS), shares)
        low = first + share * chunks * PARTNERS
        high = tl.minimum(after, low + chunks * PARTNERS)
        whole = low
        if tl.max(start) == first:  # one auction: all whole chunks are pairs of it
            whole += tl.maximum(high - low, 0) // PARTNERS * PARTNERS
        cost = tl.zeros([ADS, PARTNERS], tl.float32)
        shown = tl.zeros([ADS, PARTNERS], tl.float32)
        lost = tl.zeros([ADS, PARTNERS], tl.float32)
        column = tl.arange(0, PARTNERS)[None, :]
        for at in range(low, whole, PARTNERS):
            s_i, v_i, left, right = _ads(table, table, table, table, at + column, ads, 1.0, 1.0, WEIGHTED, True, False)
            cost, shown, lost = _add_tile(
                s_k - s_i, v_i - v_k, left, right, cost, shown, lost, "positive", "logistic", WEIGHTED, True, COMPILED
            )
        for at in range(whole, high, PARTNERS):
            i = at + column
            s_i, v_i, left, right = _ads(
                table, table, table, table, tl.minimum(i, clicked - 1), ads, 1.0, 1.0, WEIGHTED, True, False
            )
            pair = (i >= start) & (i < end)
            lag = tl.where(pair, s_k - s_i, 0.0)  # what is not a number stays in its auction
            stake = tl.where(pair, v_i - v_k, 0.0)
            left = tl.where(pair, left, 0.0)
            right = tl.where(pair, right, 0.0)
            cost, shown, lost = _add_tile(
                lag, stake, left, right, cost, shown, lost, "positive", "logistic", WEIGHTED, True, COMPILED
            )
        total = tl.sum(cost, 1, keep_dims=True) * 0.6931471805599453  # eCPM was scaled for exp2
        slope = tl.sum(shown, 1, keep_dims=True)
        if WEIGHTED:  # loaded here: before the loops they would take registers from them
            left_k = tl.load(table + 2 * ads + k)
            right_k = tl.load(table + 3 * ads + k)
            slope = slope * right_k + tl.sum(lost, 1, keep_dims=True) * left_k
        here = parts + share * number + row
        tl.store(here, total, mask=row < number)
        tl.store(here + room, slope * sigma, mask=row < number)
        task += tl.num_programs(0)


@jit
def _take_values(
    read, state, fields, parts, places, bounds, sums, offsets, ads, auctions, size, room, sigma,
    STEPS: tl.constexpr, PANELS: tl.constexpr, DEGREE: tl.constexpr, FIELDS: tl.constexpr,
    PROGRAMS: tl.constexpr, SHARES: tl.constexpr, ADS: tl.constexpr, PARTNERS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The series of its panel at every ad, in float64; and to clicked ads, the shares of their pairs."""
    ad = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = ad < ads
    auction = _auction(tl.minimum(ad, ads - 1), offsets, auctions, size, STEPS)
    mine = inside & (tl.load(state + 4 * auction + 3) == 0)
    value = tl.load(read + ads + ad, mask=inside, other=0.0)
    clicked = value > 0
    t = tl.load(read + ad, mask=mine, other=0.0)
    left = tl.load(read + 2 * ads + ad, mask=mine, other=0.0)
    right = tl.load(read + 3 * ads + ad, mask=mine, other=0.0)
    _v, power = _scaled(value, state, auction, mine)
    panel = t.to(tl.int32)
    u = (2 * (t - panel.to(tl.float32)) - 1).to(tl.float64)
    here = fields + (auction.to(tl.int64) * PANELS + panel) * (FIELDS * DEGREE)
    cost = _series(here, u, mine & ~clicked, DEGREE) * power
    slope = _series(here + tl.where(clicked, 2 * DEGREE, DEGREE), u, mine, DEGREE)
    slope *= tl.where(clicked, -left * value, right * power)
    tl.store(sums + ad, cost.to(tl.float32), mask=mine)
    tl.store(sums + ads + ad, (slope * sigma).to(tl.float32), mask=mine)

    before = tl.load(bounds + 2 * auctions + 1)
    number = tl.load(bounds + 2 * auctions + 2) - before
    shares = _shares(number, tl.load(bounds + 2 * auctions), auctions, PROGRAMS, SHARES, ADS, PARTNERS)
    place = tl.load(places + ad, mask=clicked, other=0) - before
    clicked = clicked & (place >= 0) & (place < number)
    cost = tl.zeros([TILE], tl.float32)
    slope = tl.zeros([TILE], tl.float32)
    share = number * 0
    while share < shares:
        cost += tl.load(parts + share * number + place, mask=clicked, other=0.0)
        slope += tl.load(parts + room + share * number + place, mask=clicked, other=0.0)
        share += 1
    tl.store(sums + 2 * ads + ad, cost, mask=inside)
    tl.store(sums + 3 * ads + ad, slope, mask=inside)
