"""Adam on a GPU: whole tensors in one launch, and the rows of embeddings that a batch looked up, without a sort.

Gradients of rows are added as whole numbers: multiples of 2^-k, k the largest for which a batch cannot overflow 64
bits, some 45 bits below the largest gradient. Whole numbers add up to the same in any order, so that programs need not
wait for one another and a run can be repeated bit by bit. A row is updated once, for the first of the ads that looked
it up.

Numbers of ads are not specialised in kernels: the last, shorter batch of an epoch would compile kernels of its own for
every width, for no faster code.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bidwise.kernels.embedding_kernels import PEAKS
from bidwise.kernels.triton_or_none import jit, tl, triton

if TYPE_CHECKING:
    from bidwise.models.embeddings import Embeddings

ADS, WARPS = 16, 1  # of a tile of gradients; ads that looked up the same row are added up inside of it
UPDATE_ADS, UPDATE_WARPS = 64, 4  # of a tile of rows to update
_WIDTH = 64  # columns of a tile
TENSORS, SIZE = 16, 1024  # tensors of a launch, and numbers of a program
NO_ONE = 0x7FFFFFFF  # owner of a row that was not looked up
EPS = 1e-8  # Adam's


class Clock:
    """The number of the step and Adam's factors that depend on it, on the device: a replayed graph needs no host."""

    def __init__(self, rate: Tensor, betas: tuple[float, float]) -> None:
        self.step = torch.zeros(1, dtype=torch.int32, device=rate.device)
        self.numbers = torch.zeros(2, dtype=torch.float32, device=rate.device)  # rate / (1 - β1^t), sqrt(1 - β2^t)
        self.rate, self.logs = rate, {"LOG1": math.log(betas[0]), "LOG2": math.log(betas[1])}
        self.constants = {"BETA1": betas[0], "BETA2": betas[1], "EPS": EPS}

    def tick(self) -> None:
        _tick[(1,)](self.step, self.numbers, self.rate, **self.logs)


def update_tensors(parameters: Sequence[Tensor], states: Sequence[dict[str, Tensor]], clock: Clock) -> None:
    """Adam's step for whole tensors, all in one launch."""
    given = [(p, state) for p, state in zip(parameters, states, strict=True) if p.grad is not None]
    for first in range(0, len(given), TENSORS):
        some = given[first : first + TENSORS]
        gradients = [_like(parameter.grad, parameter) for parameter, _ in some]
        means, squares = ([state[key] for _, state in some] for key in ("exp_avg", "exp_avg_sq"))
        tensors = ([parameter for parameter, _ in some], gradients, means, squares)
        counts = [parameter.numel() for parameter, _ in some]
        grid = (triton.cdiv(max(counts), SIZE), len(some))
        _update_all[grid](
            *(tuple(x) for x in tensors), tuple(counts), clock.numbers, len(some), SIZE=SIZE, **clock.constants
        )


def _like(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """A gradient with the memory layout of its parameter."""
    assert gradient is not None
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)


class RowSums:
    """Gradients of a table, and its update."""

    def __init__(self, table: Embeddings, clock: Clock, l2: float) -> None:
        self.table, self.clock, self.l2 = table, clock, l2
        weight = table.weight
        self.total = torch.zeros(weight.shape, dtype=torch.int64, device=weight.device)
        # the first place of the batch that looked a row up
        self.owner = torch.full((len(weight),), NO_ONE, dtype=torch.int32, device=weight.device)
        self.peak = torch.zeros(PEAKS, dtype=torch.int32, device=weight.device)  # bits of the largest gradient
        self.ids: Tensor | None = None

    def add(self, ids: Tensor, gradient: Tensor) -> None:
        """Add up the gradients ``(ads, fields, width)`` of the vectors of ``ids``, once in a step.

        `peak` must be the peak of these gradients.
        """
        if self.ids is not None:
            raise RuntimeError(
                "a table must be looked up once in a step on a GPU, found twice: look it up once and use the vectors "
                "twice, or call optimizer.step() or zero_grad() between two backward passes"
            )
        self.ids = ids = _in_rows(ids)
        (ads, fields), width = ids.shape, self.table.weight.shape[1]
        if not ads:
            return
        columns = max(16, min(_WIDTH, triton.next_power_of_2(width)))
        grid = (triton.cdiv(ads, ADS), fields, triton.cdiv(width, columns))
        tensors = (ids, self.table.starts, gradient, self.total, self.owner, self.peak)
        numbers = (ads, fields, ids.stride(0), width, self._bits(ads))
        _add[grid](*tensors, *numbers, ADS=ADS, COLUMNS=columns, PEAKS=PEAKS, num_warps=WARPS)

    def update(self, state: dict[str, Tensor]) -> None:
        """Adam's step for the rows that were looked up since the last one."""
        ids, self.ids = self.ids, None
        if ids is None or not len(ids):
            return
        (ads, fields), width = ids.shape, self.table.weight.shape[1]
        columns = triton.next_power_of_2(width)
        tile = max(1, min(UPDATE_ADS, 1024 // columns))
        _update[(triton.cdiv(ads, tile), fields)](
            *(ids, self.table.starts, self.total, self.owner, self.peak),
            *(self.table.weight, state["exp_avg"], state["exp_avg_sq"], state["seen"], self.table.penalty),
            *(self.clock.step, self.clock.numbers, ads, ids.stride(0), self._bits(ads), 2 * self.l2),
            **self.clock.constants, ADS=tile, WIDTH=width, COLUMNS=columns, PEAKS=PEAKS, DECAYS=self.l2 > 0,
            num_warps=UPDATE_WARPS,
        )  # fmt: skip

    def forget(self) -> None:
        """Drop gradients that were added up since the last step."""
        if self.ids is not None:
            self.ids = None
            self.total.zero_()
            self.owner.fill_(NO_ONE)

    def _bits(self, ads: int) -> int:
        """2 to that power places of a batch can look up one row: a bag may have a value in all of its slots."""
        return (ads * max(self.table.slots)).bit_length()


def _in_rows(ids: Tensor) -> Tensor:
    """Ids with adjacent fields in memory, as kernels read them."""
    return ids if ids.stride(1) == 1 else ids.contiguous()


# The kernels. Names of arguments in capitals are known when a kernel is compiled.


@jit
def _tick(step, numbers, rate, LOG1: tl.constexpr, LOG2: tl.constexpr):
    """The next step: its number, and its learning rate and moments with Adam's corrections."""
    t = tl.load(step) + 1
    tl.store(step, t)
    tl.store(numbers, (tl.load(rate) / _correction(LOG1, t)).to(tl.float32))
    tl.store(numbers + 1, tl.sqrt(_correction(LOG2, t)).to(tl.float32))


@jit
def _update_all(
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
            w, m, v = _moved(w, m, v, g, numbers, BETA1, BETA2, EPS)
            tl.store(parameters[k] + at, w, mask=here)
            tl.store(means[k] + at, m, mask=here)
            tl.store(squares[k] + at, v, mask=here)


@jit
def _moved(w, m, v, g, numbers, BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr):
    m += (1 - BETA1) * (g - m)
    v = BETA2 * v + (1 - BETA2) * g * g
    return w - tl.load(numbers) * m / (tl.sqrt(v) / tl.load(numbers + 1) + EPS), m, v


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
def _place(ad):
    """Ad and column as one number: an ad may look a row up in several slots of a bag, and one of them owns it."""
    return ad * tl.num_programs(1) + tl.program_id(1)


@jit
def _first(row, here, ADS: tl.constexpr):
    """Which ads are the first of their tile to look up their row."""
    lane = tl.arange(0, ADS)
    earlier = (row[:, None] == row[None, :]) & (lane[None, :] < lane[:, None])  # those past the end are last
    return here & (tl.sum(earlier.to(tl.int32), 1) == 0)


@jit(do_not_specialize=["ads", "bits"])
def _add(
    ids, starts, gradient, total, owner, peak, ads, fields, stride, width, bits,
    ADS: tl.constexpr, COLUMNS: tl.constexpr, PEAKS: tl.constexpr,
):  # fmt: skip
    """Gradients of one field and some ads; the first ad of a row in the tile adds for all that share it."""
    lane = tl.arange(0, ADS)
    ad = tl.program_id(0) * ADS + lane
    field = tl.program_id(1)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    here = ad < ads
    row = tl.load(ids + ad.to(tl.int64) * stride + field, mask=here, other=0).to(tl.int32) + tl.load(starts + field)
    there = here[:, None] & (column < width)[None, :]
    seat = (ad.to(tl.int64)[:, None] * fields + field) * width + column[None, :]
    g = tl.load(gradient + seat, mask=there, other=0.0)
    same = row[:, None] == row[None, :]
    g = tl.dot(same.to(tl.float32), g, input_precision="ieee")
    first = _first(row, here, ADS)
    units = (g * _power_of_two(_exponent(peak, bits, PEAKS))).to(tl.int64)
    seat = total + row.to(tl.int64)[:, None] * width + column[None, :]
    tl.atomic_add(seat, units, mask=there & first[:, None], sem="relaxed")
    if tl.program_id(2) == 0:
        tl.atomic_min(owner + row, _place(ad), mask=first, sem="relaxed")


@jit(do_not_specialize=["ads", "bits"])
def _update(
    ids, starts, total, owner, peak, weight, mean, square, seen, penalty, step, numbers, ads, stride, bits, decay,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, ADS: tl.constexpr, WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr, PEAKS: tl.constexpr, DECAYS: tl.constexpr,
):  # fmt: skip
    """m <- β1 m + (1 - β1) g, v <- β2 v + (1 - β2) g², w <- w - rate m̂ / (√v̂ + EPS), for every row once.

    g is the gradient of the loss plus decay · w over the share of steps so far that looked the row up.
    """
    ad = tl.program_id(0) * ADS + tl.arange(0, ADS)
    field = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    here = ad < ads
    row = tl.load(ids + ad.to(tl.int64) * stride + field, mask=here, other=0).to(tl.int32) + tl.load(starts + field)
    mine = tl.load(owner + row, mask=here, other=-1) == _place(ad)
    there = mine[:, None] & (column < WIDTH)[None, :]
    seat = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    units = tl.load(total + seat, mask=there, other=0)
    tl.debug_barrier()  # other threads of the program read the same places
    tl.store(owner + row, 0x7FFFFFFF, mask=mine)  # no one's
    tl.store(total + seat, tl.zeros_like(units), mask=there)
    g = units.to(tl.float32) * _power_of_two(-_exponent(peak, bits, PEAKS))
    w = tl.load(weight + seat, mask=there, other=0.0)
    m = tl.load(mean + seat, mask=there, other=0.0)
    v = tl.load(square + seat, mask=there, other=0.0)
    if DECAYS:
        times = tl.load(seen + row, mask=mine, other=0.0) + 1
        tl.debug_barrier()  # other threads of the program read the same places
        tl.store(seen + row, times, mask=mine)
        part = tl.load(penalty + column, mask=column < WIDTH, other=0.0)
        g += (decay * tl.load(step).to(tl.float32) / times)[:, None] * part[None, :] * w
    w, m, v = _moved(w, m, v, g, numbers, BETA1, BETA2, EPS)
    tl.store(weight + seat, w, mask=there)
    tl.store(mean + seat, m, mask=there)
    tl.store(square + seat, v, mask=there)
