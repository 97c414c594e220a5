"""The logistic surrogate over all pairs i x j of a segment: a smooth kernel, summed by panels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from bidwise.losses.definition import PairInputs, PairOptions, PairSums
from bidwise.segments import Auctions

_WIDTH = 1.0  # of a panel, in units of sigma * eCPM
# Chebyshev degree and reach: interpolation errs by 12.6^-degree, a pair farther than reach panels by e^-reach
PANELS = {torch.float32: (7, 17), torch.float64: (11, 30)}
WINDOWS_AT_ONCE = 1 << 22  # numbers gathered at a time when panels act on their neighbours


@dataclass(frozen=True)
class Arrangement:
    """Ads in the order (segment, eCPM) and the bounds of their segments.

    A segment is an auction if every ad takes both parts of a pair, i and j; it is a node of a tree over values if
    its ads are cut into ads i, marked by ``upper``, and ads j with v_i > v_j. ``pivot`` is a value per segment, v_i >=
    pivot >= v_j if parts are taken: v_i - v_j = (v_i - pivot) + (pivot - v_j) then adds up without cancellation.
    """

    ads: PairInputs
    segments: Auctions
    upper: Tensor | None
    pivot: Tensor

    @cached_property
    def left(self) -> Tensor:
        """left_i, 0 for ads that do not take the part of i."""
        left = torch.ones_like(self.ads.ecpm) if self.ads.left is None else self.ads.left
        return left if self.upper is None else left * self.upper

    @cached_property
    def right(self) -> Tensor:
        """right_j, 0 for ads that do not take the part of j."""
        right = torch.ones_like(self.ads.ecpm) if self.ads.right is None else self.ads.right
        return right if self.upper is None else right * ~self.upper

    @cached_property
    def above(self) -> Tensor:
        """v - pivot."""
        return self.ads.value - self.segments.spread(self.pivot)


@lru_cache
def chebyshev(degree: int) -> tuple[Tensor, Tensor]:
    """Nodes in [-1, 1], and the matrix from values at them to coefficients of T_0 ... T_(degree - 1), in float64."""
    k = torch.arange(degree, dtype=torch.float64, device="cpu")  # on the CPU, also with another default device
    angle = torch.pi * (k + 0.5) / degree
    analysis = torch.cos(k[:, None] * angle) * 2 / degree
    analysis[0] /= 2
    return torch.cos(angle), analysis


def coefficients(kernel: Tensor) -> Tensor:
    """Of values ``(..., target, source)`` at the nodes: coefficients ``(..., degree of the source, of the target)``."""
    _, analysis = chebyshev(kernel.shape[-1])
    return analysis @ kernel.mT @ analysis.T


@lru_cache
def _tables(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Chebyshev coefficients of softplus(y), sigmoid(y) and of sigmoid(-y), target minus source = y.

    Target and source are WIDTH d + WIDTH / 2 (u - u') apart for panels d apart, u and u' in [-1, 1]. Rows: d and the
    degree in u'; columns: function and the degree in u.
    """
    degree, reach = PANELS[dtype]
    node, _ = chebyshev(degree)
    d = torch.arange(reach, -reach - 1, -1, dtype=torch.float64, device="cpu")  # in rising order of the source
    y = _WIDTH * d[:, None, None] + _WIDTH / 2 * (node[:, None] - node[None, :])  # (d, u, u')
    kernels = torch.stack([-torch.nn.functional.logsigmoid(-y), torch.sigmoid(y), torch.sigmoid(-y)])
    softplus, sigmoid, on_i = coefficients(kernels).reshape(3, -1, degree)
    on_j = torch.cat([softplus, sigmoid], dim=1)
    return on_j.to(device, dtype), on_i.to(device, dtype)


@dataclass(frozen=True)
class Cells:
    """Occupied panels of all segments, in order.

    ``place`` numbers them so that panels of one segment at most ``reach`` apart differ by their distance, and all
    others by more: empty panels are free, and no number overflows.
    """

    of_ad: Tensor  # (ads,)
    place: Tensor  # (cells,)
    centre: Tensor  # (cells,) in units of sigma * eCPM, float64
    segments: Auctions  # of cells

    @staticmethod
    def of(t: Tensor, segments: Auctions, reach: int) -> tuple[Cells, Tensor]:
        """The cells, and the place of each ad in its panel, in [-1, 1]."""
        panel = (t / _WIDTH).floor_()
        opens = torch.zeros(len(t), dtype=torch.bool, device=t.device)
        opens[segments.starts] = True
        fresh = opens.clone()
        fresh[1:] |= panel[1:] != panel[:-1]
        of_ad = fresh.cumsum(0) - 1
        firsts = fresh.nonzero().squeeze(1)
        seat = panel[firsts].double()
        step = torch.nn.functional.pad(seat.diff(), (1, 0)).clamp_(max=reach + 1)
        step[opens[firsts]] = reach + 1
        place = step.to(torch.int64).cumsum(0)
        begin = of_ad[segments.starts]
        sizes = torch.cat([begin, begin.new_tensor([len(firsts)])]).diff()
        cells = Cells(of_ad, place, _WIDTH * (seat + 0.5), Auctions.of_sizes(sizes))
        return cells, (t - _WIDTH * panel).mul_(2 / _WIDTH).sub_(1)

    def beyond(self, reach: int) -> bool:
        """Whether panels of one segment are more than ``reach`` apart."""
        begin, end = self.segments.offsets[:-1], self.segments.offsets[1:]
        return bool((self.place[end - 1] - self.place[begin] > reach).any())

    def mirrored(self) -> Cells:
        """The same cells with the axis turned round."""
        sizes = self.segments.sizes.flip(0)
        return Cells(self.of_ad, self.place[-1] - self.place.flip(0), -self.centre.flip(0), Auctions.of_sizes(sizes))

    def neighbours(self, some: slice, reach: int) -> Tensor:
        """Cell at every distance from -reach to reach, one past the last if that panel is empty."""
        here = self.place[some]
        wanted = here[:, None] + torch.arange(-reach, reach + 1, device=here.device)
        found = torch.searchsorted(self.place, wanted).clamp_(max=len(self.place) - 1)
        return torch.where(self.place[found] == wanted, found, len(self.place))


class _Tiles:
    """Ads of equal cell side by side in tiles of fixed length, so that one batched product serves all cells."""

    def __init__(self, u: Tensor, cell: Tensor, cells: int, degree: int) -> None:
        count = torch.bincount(cell, minlength=cells)
        self.length = 1 << max(3, min(8, (len(u) // (2 * cells + 1)).bit_length()))
        tiles = (count + self.length - 1) // self.length
        starts = self.length * (tiles.cumsum(0) - tiles) - (count.cumsum(0) - count)
        self.seat = starts.index_select(0, cell) + torch.arange(len(u), device=u.device)
        self.cell = torch.arange(cells, device=u.device).repeat_interleave(tiles)
        self.cells = cells
        self.basis = u.new_empty(len(self.cell), degree, self.length)  # Chebyshev polynomials T_k(u)
        u = self._seated(u[None])[:, 0]
        self.basis[:, 0] = 1
        self.basis[:, 1] = u
        for k in range(2, degree):
            torch.mul(self.basis[:, k - 1], 2 * u, out=self.basis[:, k]).sub_(self.basis[:, k - 2])

    def _seated(self, per_ad: Tensor) -> Tensor:
        """(charges, ads) -> (tiles, charges, length), 0 in empty seats."""
        seats = per_ad.new_zeros(len(per_ad), len(self.cell) * self.length)
        seats.scatter_(1, self.seat.expand_as(per_ad), per_ad)
        return seats.view(len(per_ad), -1, self.length).transpose(0, 1)

    def moments(self, charges: Tensor) -> Tensor:
        """sum of q T_k(u) over each cell: (charges, ads) -> (charges, cells, degree)."""
        tiled = self._seated(charges) @ self.basis.transpose(1, 2)  # (tiles, charges, degree)
        out = charges.new_zeros(self.cells, *tiled.shape[1:])
        return out.index_add_(0, self.cell, tiled).transpose(0, 1)

    def values(self, coefficients: Tensor) -> Tensor:
        """A Chebyshev series per cell, at the ads: (fields, cells, degree) -> (fields, ads)."""
        at_tiles = coefficients.transpose(0, 1).contiguous().index_select(0, self.cell)  # (tiles, fields, degree)
        return (at_tiles @ self.basis).transpose(0, 1).reshape(len(coefficients), -1).index_select(1, self.seat)


def logistic_sums(arranged: Arrangement, options: PairOptions, gradient: bool) -> PairSums:
    """The logistic surrogate as sums of a smooth kernel, without pairs.

    In units of sigma s, softplus is analytic in a strip of half-width pi. Cut the line into panels; in each, replace
    the ads by the moments of their charges against a few Chebyshev polynomials; let panels within reach act on each
    other through one small table; beyond it softplus(y) is y for sources far below and e^y for those far above, to a
    relative e^-reach, and prefix sums do. The e^y count if the parts are apart: in an ordered auction nothing else
    is left.
    """
    ads = arranged.ads
    dtype, device = ads.ecpm.dtype, ads.ecpm.device
    degree, reach = PANELS[dtype]
    if len(ads.ecpm) == 0:
        return torch.zeros_like(ads.ecpm), torch.zeros_like(ads.ecpm) if gradient else None
    cells, u = Cells.of(options.sigma * ads.ecpm, arranged.segments, reach)
    on_j, on_i = _tables(dtype, device)
    number = len(cells.place)
    ordered, far = options.gap == "order", cells.beyond(reach)

    def side(mask: Tensor | None) -> tuple[Tensor, _Tiles]:
        if mask is None:
            return torch.arange(len(u), device=device), _Tiles(u, cells.of_ad, number, degree)
        rows = mask.nonzero().squeeze(1)
        return rows, _Tiles(u.index_select(0, rows), cells.of_ad.index_select(0, rows), number, degree)

    rows_i, tiles_i = side(arranged.upper)
    rows_j, tiles_j = (rows_i, tiles_i) if arranged.upper is None else side(~arranged.upper)
    left, above = (x.index_select(0, rows_i) for x in (arranged.left, arranged.above))
    right, beneath = (x.index_select(0, rows_j) for x in (arranged.right, -arranged.above))

    charges = left[None] if ordered else torch.stack([left, left * above])
    moments = tiles_i.moments(charges)
    fields = _near(moments, on_j if gradient else on_j[:, :degree], cells, reach)
    if far:
        _add_far_below(fields, moments, cells, reach)
    if far and arranged.upper is not None:
        mirror = _tail_below(_mirrored(moments), cells.mirrored(), reach).flip(-1)
        for field in fields:
            _add_tail(field, mirror, rising=True)
    at_j = [tiles_j.values(field) for field in fields]
    cost = torch.zeros_like(ads.ecpm)
    cost.scatter_(0, rows_j, right * (at_j[0][0] if ordered else torch.addcmul(at_j[0][1], at_j[0][0], beneath)))
    if not gradient:
        return cost, None
    slope = torch.zeros_like(ads.ecpm)
    slope.scatter_(0, rows_j, right * (at_j[1][0] if ordered else torch.addcmul(at_j[1][1], at_j[1][0], beneath)))

    charges = right[None] if ordered else torch.stack([right, right * beneath])
    moments = tiles_j.moments(charges)
    (field,) = _near(moments, on_i, cells, reach)
    if far:
        _add_far_above(field, moments, cells, reach)
    if far and arranged.upper is not None:
        _add_tail(field, _tail_below(moments, cells, reach), rising=False)
    at_i = tiles_i.values(field)
    slope.index_add_(0, rows_i, left * (at_i[0] if ordered else torch.addcmul(at_i[1], at_i[0], above)), alpha=-1)
    return cost, options.sigma * slope


def _near(moments: Tensor, table: Tensor, cells: Cells, reach: int) -> list[Tensor]:
    """Moments of sources -> series at targets, from panels within reach: (charges, cells, degree) per function."""
    charges, number, degree = moments.shape
    functions = table.shape[1] // degree
    padded = torch.cat([moments, moments.new_zeros(charges, 1, degree)], dim=1)
    out = moments.new_empty(charges, number, functions * degree)
    at_once = max(1, WINDOWS_AT_ONCE // (charges * len(table)))
    for first in range(0, number, at_once):
        some = slice(first, first + at_once)
        window = padded[:, cells.neighbours(some, reach)]  # (charges, some cells, 2 reach + 1, degree)
        out[:, some] = window.flatten(2) @ table
    return list(out.view(charges, number, functions, degree).permute(2, 0, 1, 3).contiguous())


def _add_far_below(fields: list[Tensor], moments: Tensor, cells: Cells, reach: int) -> None:
    """softplus(y) = y and sigmoid(y) = 1 from sources far below; the former is linear in u."""
    begin, of_cell = cells.segments.offsets[:-1], cells.segments.of_ad
    upto = torch.searchsorted(cells.place, cells.place - reach).maximum(begin[of_cell]) + of_cell
    mass, skew = moments[..., 0].double(), moments[..., 1].double()
    lever = cells.centre * mass + _WIDTH / 2 * skew
    mass, lever = cells.segments.prefix(torch.stack([mass, lever]))[..., upto]
    fields[0][..., 0] += (cells.centre * mass - lever).to(moments.dtype)
    fields[0][..., 1] += (_WIDTH / 2 * mass).to(moments.dtype)
    for field in fields[1:]:
        field[..., 0] += mass.to(moments.dtype)


def _add_far_above(field: Tensor, moments: Tensor, cells: Cells, reach: int) -> None:
    """sigmoid(-y) = 1 from sources far above."""
    end, of_cell = cells.segments.offsets[1:][cells.segments.of_ad], cells.segments.of_ad
    beyond = torch.searchsorted(cells.place, cells.place + reach, right=True).minimum(end)
    mass = cells.segments.prefix(moments[..., 0].double())
    field[..., 0] += (mass[:, end + of_cell] - mass[:, beyond + of_cell]).to(moments.dtype)


_STRETCH = 128.0  # exponentials are kept relative to the upper end of stretches this long; e^-128 is 0 to a float32


def _tail_below(moments: Tensor, cells: Cells, reach: int) -> Tensor:
    """sum of q e^(t - centre) over the sources far below each cell, from its stretch and the one before it, in float64.

    Only sums from below upwards are taken, each larger than the one before: no cancellation.
    """
    segment, degree = cells.segments.of_ad, moments.shape[-1]
    stretch = (cells.centre / _STRETCH).floor()
    fresh = torch.ones(len(stretch), dtype=torch.bool, device=stretch.device)
    fresh[1:] = (stretch[1:] != stretch[:-1]) | (segment[1:] != segment[:-1])
    begin = fresh.nonzero().squeeze(1)
    stretches = Auctions.of_sizes(torch.cat([begin, begin.new_tensor([len(stretch)])]).diff())
    top = _STRETCH * (stretch + 1)
    mass = moments.double() @ _exponential(degree, rising=True).to(moments.device)  # sum q e^(t - centre of its cell)
    prefix = stretches.prefix(mass * torch.exp(cells.centre - top))
    upto = torch.searchsorted(cells.place, cells.place - reach)
    upto = upto.maximum(cells.segments.offsets[:-1][segment])

    own = stretches.of_ad
    tail = prefix[:, upto.maximum(begin[own]) + own] * torch.exp(top - cells.centre)
    before = (own - 1).clamp(min=0)
    last = begin[before]  # any cell of the stretch before
    adjacent = (own > 0) & (segment[last] == segment) & (stretch[last] == stretch - 1)
    filled = upto.minimum(begin[own]).maximum(begin[before])
    return tail + adjacent * prefix[:, filled + before] * torch.exp(torch.where(adjacent, top[last] - cells.centre, 0))


def _add_tail(field: Tensor, tail: Tensor, *, rising: bool) -> None:
    """The field e^(+-(t - centre)) of far sources, with ``tail`` at the centre."""
    series = _exponential(field.shape[-1], rising=rising).to(field.device)
    field += (tail.unsqueeze(-1) * series).to(field.dtype)


def _mirrored(moments: Tensor) -> Tensor:
    """Moments with the axis turned round: T_k(-u) = (-1)^k T_k(u)."""
    signs = torch.ones(moments.shape[-1], dtype=moments.dtype, device=moments.device)
    signs[1::2] = -1
    return moments.flip(1) * signs


@lru_cache
def _exponential(degree: int, *, rising: bool) -> Tensor:
    """Chebyshev coefficients of e^(WIDTH u / 2), or of e^(-WIDTH u / 2)."""
    node, analysis = chebyshev(degree)
    return analysis @ torch.exp((_WIDTH / 2 if rising else -_WIDTH / 2) * node)
