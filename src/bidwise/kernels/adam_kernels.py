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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bidwise import distributed
from bidwise.kernels.embedding_kernels import PEAKS
from bidwise.kernels.triton_or_none import jit, tl, triton

if TYPE_CHECKING:
    from bidwise.models.layers import Embeddings

ADS, WARPS = 16, 1  # of a tile of gradients; ads that looked up the same row are added up inside of it
UPDATE_ADS, UPDATE_WARPS = 64, 4  # of a tile of rows to update
WIDTH = 64  # columns of a tile
TENSORS, SIZE = 16, 1024  # tensors of a launch, and numbers of a program
NO_ONE = 0x7FFFFFFF  # owner of a row that was not looked up
EPS = 1e-8  # Adam's
STEPS = 2**22  # whose rates are known: a row may have been looked up longest ago so many
RECENT = 512  # steps; what a first moment still moves after so many without a gradient is 0 to any float


class Clock:
    """The number of the step, and what Adam derives from it, on the device: a replayed graph asks no one for it."""

    def __init__(self, device: torch.device, betas: tuple[float, float], rate: Tensor) -> None:
        self.step = torch.zeros(1, dtype=torch.int32, device=device)
        self.numbers = torch.zeros(2, dtype=torch.float32, device=device)  # rate / (1 - β1^t), sqrt(1 - β2^t)
        self.rates = torch.zeros(STEPS, dtype=torch.float32, device=device)  # of the steps so far
        self.rate = rate
        beta1, beta2 = betas
        self.constants = {"BETA1": beta1, "BETA2": beta2, "LOG1": math.log(beta1), "LOG2": math.log(beta2)}

    def tick(self) -> None:
        _tick[(1,)](self.step, self.numbers, self.rates, self.rate, **self.constants, STEPS=STEPS)

    def set(self, step: int) -> None:
        """Stand at ``step``, as all rows must."""
        self.step.fill_(step)


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
        betas = {key: clock.constants[key] for key in ("BETA1", "BETA2")}
        _update_all[grid](
            *(tuple(x) for x in tensors), tuple(counts), clock.numbers, len(some), SIZE=SIZE, **betas, EPS=EPS
        )


def _like(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """A gradient whose numbers lie in memory as those of its parameter."""
    assert gradient is not None
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)


class RowSums:
    """Gradients of a table, and its update.

    ``dense`` makes up for the steps in which a row was not looked up, when it is looked up again or by :meth:`flush`:
    Adam moves a row by its moments even then.
    """

    def __init__(self, table: Embeddings, state: dict[str, Any], clock: Clock, *, dense: bool, l2: float) -> None:
        self.table, self.state, self.clock, self.dense, self.l2 = table, state, clock, dense, l2
        weight = table.weight
        self.total = torch.zeros(weight.shape, dtype=torch.int64, device=weight.device)
        # the first place of the batch that looked a row up, and, where it matters, the step that a row stands at
        self.owner = torch.full((len(weight),), NO_ONE, dtype=torch.int32, device=weight.device)
        self.stamp = torch.zeros(len(weight) if dense else 0, dtype=torch.int32, device=weight.device)
        self.peak = torch.zeros(PEAKS, dtype=torch.int32, device=weight.device)
        self.ids: Tensor | None = None
        self.begins: Callable[[], None] | None = None  # called before gradients of rows are added up
        # rows that ranks send each other: number and gradient side by side, and how many of each rank count
        self.sent = self.received = weight.new_empty(0, 0, 0)
        self.counts: Tensor | None = None

    def start(self) -> None:
        """Gradients come next."""
        self.peak.zero_()
        if self.begins is not None:
            self.begins()

    def add(self, ids: Tensor, gradient: Tensor) -> None:
        """Add up the gradients ``(ads, fields, width)`` of the vectors of ``ids``, once in a step."""
        if self.ids is not None:
            raise RuntimeError(
                "a table must be looked up once in a step on a GPU, found twice: look it up once and use the vectors "
                "twice, or call optimizer.step() or zero_grad() between two backward passes"
            )
        self.ids = ids = _in_rows(ids)
        (ads, fields), width = ids.shape, self.table.weight.shape[1]
        if not ads:
            return
        columns = max(16, min(WIDTH, triton.next_power_of_2(width)))
        grid = (triton.cdiv(ads, ADS), fields, triton.cdiv(width, columns))
        tensors = (ids, self.table.starts, gradient, self.total, self.owner, self.peak, ids)
        numbers = (ads, fields, ids.stride(0), fields * width, width, self._bits(ads), 0)
        tile = {"ADS": ADS, "COLUMNS": columns, "PEAKS": PEAKS, "LISTED": False, "num_warps": WARPS}
        _add[grid](*tensors, *numbers, **tile)

    def collect(self, header: Tensor) -> None:
        """List the rows that were looked up here with their gradients over the number of ranks; ``header``: how many,
        and bits of the largest gradient."""
        ids, self.ids = self.ids, None
        weight, batch = self.table.weight, distributed.share()
        ads, fields = (0, len(self.table.starts)) if ids is None else ids.shape
        most = min(len(weight), fields * (ads if batch is None else max(batch.sizes)))
        if self.sent.shape[0] < most:
            self.sent = weight.new_empty(most, 1 + weight.shape[1])
            self.received = weight.new_empty(distributed.count(), most, 1 + weight.shape[1])
        if ids is not None and ads:
            tile = self._tile()
            grid = (triton.cdiv(ads, tile["ADS"]), fields)
            tensors = (ids, self.table.starts, self.total, self.owner, self.peak, self.sent, header)
            numbers = (ads, ids.stride(0), self._bits(ads), 1 / distributed.count())
            _collect[grid](*tensors, *numbers, **tile, PEAKS=PEAKS)

    def receive(self, headers: Tensor) -> None:
        """Add up the rows of all ranks, whose headers are ``(ranks, 2)``; `update` is for these then."""
        ranks, most, packed = self.received.shape
        self.peak.zero_()
        torch.amax(headers[:, 1], 0, keepdim=True, out=self.peak[:1])
        self.counts = headers[:, 0].contiguous()
        columns = max(16, min(WIDTH, triton.next_power_of_2(packed - 1)))
        grid = (triton.cdiv(ranks * most, ADS), 1, triton.cdiv(packed - 1, columns))
        rows = self.received.view(torch.int32)
        tensors = (rows, self.table.starts, self.received.view(-1)[1:], self.total, self.owner, self.peak, self.counts)
        numbers = (ranks * most, 1, packed, packed, packed - 1, ranks.bit_length(), most)
        tile = {"ADS": ADS, "COLUMNS": columns, "PEAKS": PEAKS, "LISTED": True, "num_warps": WARPS}
        _add[grid](*tensors, *numbers, **tile)

    def expect(self, ids: Tensor) -> None:
        """Before the vectors of ``ids`` are read, bring their rows to where Adam has them by now."""
        if self.dense and len(ids):
            ids = _in_rows(ids)
            grid = (triton.cdiv(len(ids), 128), ids.shape[1])
            _claim[grid](ids, self.table.starts, self.owner, len(ids), ids.stride(0), ADS=128)
            self._catch_up(ids, *ids.shape, LISTED=True)

    def flush(self) -> None:
        """Bring all rows to where Adam has them by now."""
        if self.dense:
            self._catch_up(self.stamp, len(self.table.weight), 1, LISTED=False)

    def _catch_up(self, ids: Tensor, count: int, fields: int, **listed: bool) -> None:
        tile = self._tile()
        grid = (triton.cdiv(count, tile["ADS"]), fields)
        tensors = (ids, self.table.starts, self.owner, self.stamp, *self._moments(), self.clock.step, self.clock.rates)
        options = {**tile, **self.clock.constants, **listed, "EPS": EPS, "RECENT": RECENT, "STEPS": STEPS}
        _catch_up[grid](*tensors, count, ids.stride(0), **options)

    def update(self) -> None:
        """Adam's step for the rows that were looked up since the last one."""
        counts, self.counts = self.counts, None
        if counts is not None:  # of what ranks have sent each other
            ranks, most, stride = self.received.shape
            rows, ads, fields, bits = self.received.view(torch.int32), ranks * most, 1, ranks.bit_length()
        elif self.ids is not None:
            rows, self.ids = self.ids, None
            (ads, fields), stride, most = rows.shape, rows.stride(0), 0
            bits = self._bits(ads)
        else:
            return
        if not ads:
            return
        tile = self._tile()
        grid = (triton.cdiv(ads, tile["ADS"]), fields)
        _update[grid](
            *(rows, self.table.starts, self.total, self.owner, self.stamp, self.peak, *self._moments()),
            *(self.state["seen"], self.table.penalty, self.clock.step, self.clock.numbers),
            *(rows if counts is None else counts, ads, stride, bits, most, 2 * self.l2),
            **tile, LISTED=counts is not None, EPS=EPS, PEAKS=PEAKS,
            BETA1=self.clock.constants["BETA1"], BETA2=self.clock.constants["BETA2"],
            DENSE=self.dense, DECAYS=self.l2 > 0,
        )  # fmt: skip

    def forget(self) -> None:
        """Leave out gradients that were added up since the last step."""
        if self.ids is not None or self.counts is not None:
            self.ids = self.counts = None
            self.total.zero_()
            self.owner.fill_(NO_ONE)

    def restart(self) -> None:
        """After loading: every row stands at the step of the clock."""
        self.forget()
        self.stamp.fill_(int(self.clock.step))

    def _bits(self, ads: int) -> int:
        """2 to that power places of a batch can look up one row: a bag may have a value in all of its slots."""
        return (ads * max(self.table.slots)).bit_length()

    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.table.weight, self.state["exp_avg"], self.state["exp_avg_sq"]

    def _tile(self) -> dict[str, int]:
        width = self.table.weight.shape[1]
        columns = triton.next_power_of_2(width)
        ads = max(1, min(UPDATE_ADS, 1024 // columns))
        return {"WIDTH": width, "COLUMNS": columns, "ADS": ads, "num_warps": UPDATE_WARPS}


def exchange_rows(tables: Sequence[RowSums], arrive: Callable[[], None]) -> None:
    """Let every rank have the gradients of the rows that any has looked up, as means over ranks.

    Each sends the rows it has looked up once: their number and its sum of gradients. What a rank receives is added up
    as whole numbers again, so that all have the same bits. ``arrive`` waits for what else is under way.
    """
    header = torch.zeros(len(tables), 2, dtype=torch.int32, device=tables[0].peak.device)
    headers = header.new_empty(distributed.count(), *header.shape)
    for sums, own in zip(tables, header, strict=True):
        sums.collect(own)

    def send() -> None:
        distributed.gather_into(headers, header)
        arrive()
        for sums, most in zip(tables, headers[..., 0].amax(0).tolist(), strict=True):  # waits for the GPU
            if most:
                distributed.gather_into(sums.received[:, :most], sums.sent[:most])

    distributed.exchange(send)
    for sums, own in zip(tables, headers.unbind(1), strict=True):
        sums.receive(own)


def _in_rows(ids: Tensor) -> Tensor:
    """Ids whose fields are neighbours in memory, as kernels read them."""
    return ids if ids.stride(1) == 1 else ids.contiguous()


# The kernels. Names of arguments in capitals are known when a kernel is compiled.


@jit
def _tick(
    step, numbers, rates, rate,
    BETA1: tl.constexpr, BETA2: tl.constexpr, LOG1: tl.constexpr, LOG2: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """The next step: its number, its learning rate, and what Adam corrects moments by."""
    t = tl.load(step) + 1
    now = tl.load(rate)
    tl.store(step, t)
    tl.store(rates + t % STEPS, now)
    tl.store(numbers, (now / _correction(LOG1, t)).to(tl.float32))
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
def _place(ad):
    """Ad and column as one number: an ad may look a row up in several slots of a bag, and one of them owns it."""
    return ad * tl.num_programs(1) + tl.program_id(1)


@jit
def _first(row, here, ADS: tl.constexpr):
    """Which ads are the first of their tile to look up their row."""
    lane = tl.arange(0, ADS)
    earlier = (row[:, None] == row[None, :]) & (lane[None, :] < lane[:, None])  # those past the end are last
    return here & (tl.sum(earlier.to(tl.int32), 1) == 0)


@jit
def _listed(ad, ads, counts, most, LISTED: tl.constexpr):
    """Which ads are there; of lists of ``most`` places, one for each rank, those that it has filled."""
    here = ad < ads
    if LISTED:
        here = here & (ad % most < tl.load(counts + ad // most, mask=here, other=0))
    return here


@jit(do_not_specialize=["ads", "bits", "most"])
def _add(
    ids, starts, gradient, total, owner, peak, counts, ads, fields, stride, step, width, bits, most,
    ADS: tl.constexpr, COLUMNS: tl.constexpr, PEAKS: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """Gradients of one field and some ads; the first ad of a row in the tile adds for all that share it.

    An ad's ids are ``stride`` apart, its gradients ``step``. ``LISTED``: the ads are rows that ranks have sent.
    """
    lane = tl.arange(0, ADS)
    ad = tl.program_id(0) * ADS + lane
    field = tl.program_id(1)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    here = _listed(ad, ads, counts, most, LISTED)
    row = tl.load(ids + ad.to(tl.int64) * stride + field, mask=here, other=0).to(tl.int32)
    if not LISTED:
        row += tl.load(starts + field)
    there = here[:, None] & (column < width)[None, :]
    seat = ad.to(tl.int64)[:, None] * step + field * width + column[None, :]
    g = tl.load(gradient + seat, mask=there, other=0.0)
    same = row[:, None] == row[None, :]
    if not LISTED:  # where each row of a rank is there once
        g = tl.dot(same.to(tl.float32), g, input_precision="ieee")
        first = _first(row, here, ADS)
    else:
        first = here
    units = (g * _power_of_two(_exponent(peak, bits, PEAKS))).to(tl.int64)
    seat = total + row.to(tl.int64)[:, None] * width + column[None, :]
    tl.atomic_add(seat, units, mask=there & first[:, None], sem="relaxed")
    if tl.program_id(2) == 0:
        tl.atomic_min(owner + row, _place(ad), mask=first, sem="relaxed")


@jit(do_not_specialize=["ads", "bits"])
def _collect(
    ids, starts, total, owner, peak, sent, header, ads, stride, bits, share,
    ADS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PEAKS: tl.constexpr,
):  # fmt: skip
    """Every row once: its number and ``share`` of its gradient, in any order; how many, and the largest gradient."""
    ad = tl.program_id(0) * ADS + tl.arange(0, ADS)
    field = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    row = tl.load(ids + ad.to(tl.int64) * stride + field, mask=ad < ads, other=0).to(tl.int32) + tl.load(starts + field)
    mine = tl.load(owner + row, mask=ad < ads, other=-1) == _place(ad)
    there = mine[:, None] & (column < WIDTH)[None, :]
    seat = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    units = tl.load(total + seat, mask=there, other=0)
    tl.debug_barrier()  # other threads of the program read the same places
    tl.store(owner + row, 0x7FFFFFFF, mask=mine)  # no one's
    tl.store(total + seat, tl.zeros_like(units), mask=there)
    g = units.to(tl.float32) * (_power_of_two(-_exponent(peak, bits, PEAKS)) * share)
    flag = mine.to(tl.int32)
    place = tl.atomic_add(header, tl.sum(flag, 0), sem="relaxed") + tl.cumsum(flag, 0) - flag
    out = sent + place.to(tl.int64) * (WIDTH + 1)
    tl.store(out, row.to(tl.float32, bitcast=True), mask=mine)
    tl.store(out[:, None] + 1 + column[None, :], g, mask=there)
    largest = tl.max(tl.max(tl.where(there, tl.abs(g), 0.0), 1), 0)
    tl.atomic_max(header + 1, largest.to(tl.int32, bitcast=True), sem="relaxed")


@jit(do_not_specialize=["ads", "bits", "most"])
def _update(
    ids, starts, total, owner, stamp, peak, weight, mean, square, seen, penalty, step, numbers, counts, ads, stride,
    bits, most, decay,
    ADS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, LISTED: tl.constexpr,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, PEAKS: tl.constexpr,
    DENSE: tl.constexpr, DECAYS: tl.constexpr,
):  # fmt: skip
    """m <- β1 m + (1 - β1) g, v <- β2 v + (1 - β2) g², w <- w - rate m̂ / (√v̂ + EPS), for every row once.

    g is that of the loss, and decay · w over the share of the steps so far that looked the row up.
    """
    ad = tl.program_id(0) * ADS + tl.arange(0, ADS)
    field = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    here = _listed(ad, ads, counts, most, LISTED)
    row = tl.load(ids + ad.to(tl.int64) * stride + field, mask=here, other=0).to(tl.int32)
    if not LISTED:
        row += tl.load(starts + field)
    mine = tl.load(owner + row, mask=here, other=-1) == _place(ad)
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
    if DECAYS:
        times = tl.load(seen + row, mask=mine, other=0.0) + 1
        tl.debug_barrier()  # other threads of the program read the same places
        tl.store(seen + row, times, mask=mine)
        part = tl.load(penalty + column, mask=column < WIDTH, other=0.0)
        g += (decay * tl.load(step).to(tl.float32) / times)[:, None] * part[None, :] * w
    m += (1 - BETA1) * (g - m)
    v = BETA2 * v + (1 - BETA2) * g * g
    w -= tl.load(numbers) * m / (tl.sqrt(v) / tl.load(numbers + 1) + EPS)
    tl.store(weight + seat, w, mask=there)
    tl.store(mean + seat, m, mask=there)
    tl.store(square + seat, v, mask=there)


@jit(do_not_specialize=["ads"])
def _claim(ids, starts, owner, ads, stride, ADS: tl.constexpr):
    """Rows belong to the first place that looks them up."""
    ad = tl.program_id(0) * ADS + tl.arange(0, ADS)
    field = tl.program_id(1)
    row = tl.load(ids + ad.to(tl.int64) * stride + field, mask=ad < ads, other=0).to(tl.int32) + tl.load(starts + field)
    tl.atomic_min(owner + row, _place(ad), mask=ad < ads, sem="relaxed")


@jit(do_not_specialize=["count"])
def _catch_up(
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
        mine = tl.load(owner + row, mask=ad < count, other=-1) == _place(ad)
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
