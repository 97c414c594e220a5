"""Parts of models as single GPU kernels, in Triton: look-ups, the factorization machine, hidden layers.

Each is the formula of :mod:`bidwise.models.layers` with its gradient. A small step is launches more than arithmetic;
these take away two of three. Gradients of embeddings do not become tensors as long as the table: they go to a
:class:`~bidwise.kernels.adam_kernels.RowSums` of the optimizer.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bidwise.checks import no_second_derivative
from bidwise.kernels.triton_or_none import jit, tl, triton

if TYPE_CHECKING:
    from bidwise.kernels.adam_kernels import RowSums

PEAKS = 64  # places for the largest gradient, so that programs do not wait for one another
_ROWS = 256  # ads of a tile of a hidden layer


def looked_up(weight: Tensor, ids: Tensor, starts: Tensor, sums: RowSums) -> Tensor:
    """The vectors of ids: ``(ads, fields) -> (ads, fields, width)``."""
    vectors: Tensor = _LookUp.apply(weight, ids, starts, sums)  # type: ignore[no-untyped-call]
    return vectors


def factorized(
    weight: Tensor, ids: Tensor, starts: Tensor, sums: RowSums, *, padded: bool = False
) -> tuple[Tensor, Tensor]:
    """First-order weights and factorization machine, ``(ads,)``, and vectors side by side, ``(ads, fields * width)``.

    A row of ``weight`` contains the first-order weight and the vector of a value, as in :class:`bidwise.models.DeepFM`.
    ``padded`` adds columns of zeros up to a multiple of 4: products on tensor cores are then twice as fast, and so are
    products with the gradients, which must also begin at multiples of 16 bytes.
    """
    linear, flat = _Factorized.apply(weight, ids.contiguous(), starts, sums, padded)  # type: ignore[no-untyped-call]
    return linear, flat


def product(inputs: Tensor, weight: Tensor) -> Tensor:
    """``inputs @ weight``; ``inputs`` may have more columns than ``weight`` has rows, all of them zeros."""
    found: Tensor = _Product.apply(inputs, weight)  # type: ignore[no-untyped-call]
    return found


def activated(inputs: Tensor, bias: Tensor, dropout: float, seed: int, steps: Tensor, begin: int = 0) -> Tensor:
    """relu(inputs + bias), with a share ``dropout`` set to 0 and the others scaled up, ``(ads, units)``.

    Which units are dropped depends on ``seed`` and ``steps``, a number on the device that may change between replays of
    a graph; these are the ads from ``begin`` on of a batch that several ranks share.
    """
    active: Tensor = _Activated.apply(inputs, bias, dropout, seed, steps, begin)  # type: ignore[no-untyped-call]
    return active


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, starts: Tensor, sums: RowSums) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.sums = sums
        return F.embedding(ids + starts, weight)

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        (ids,) = ctx.saved_tensors
        gradient = gradient.contiguous()
        size = 1024
        ctx.sums.peak.zero_()
        _peak[(triton.cdiv(gradient.numel(), 4 * size),)](
            gradient, ctx.sums.peak, gradient.numel(), SIZE=size, PEAKS=PEAKS
        )
        ctx.sums.add(ids, gradient)
        return None, None, None, None


class _Factorized(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, ids: Tensor, starts: Tensor, sums: RowSums, padded: bool
    ) -> tuple[Tensor, Tensor]:
        (ads, fields), width = ids.shape, weight.shape[1]
        columns = fields * (width - 1)
        # rows begin at multiples of 16 bytes, without which products of matrices are slower by half
        linear, flat = weight.new_empty(ads), weight.new_empty(ads, -(-columns // 4) * 4)
        if ads:
            _gather[(ads,)](ids, starts, weight, linear, flat, flat.stride(0), **_tile(fields, width))
        ctx.save_for_backward(weight, ids, starts)
        ctx.sums = sums
        return linear, flat if padded else flat[:, :columns]

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, d_linear: Tensor, d_flat: Tensor) -> tuple[None, ...]:
        weight, ids, starts = ctx.saved_tensors
        (ads, fields), width = ids.shape, weight.shape[1]
        gradient = weight.new_empty(ads, fields, width)
        ctx.sums.peak.zero_()
        if ads:
            tile = _tile(fields, width)
            d_flat = d_flat.contiguous()
            columns = (d_linear.contiguous(), d_flat, d_flat.stride(0))
            _scatter[(ads,)](ids, starts, weight, *columns, gradient, ctx.sums.peak, **tile, PEAKS=PEAKS)
        ctx.sums.add(ids, gradient)
        return None, None, None, None, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.rows, ctx.dtype = len(weight), weight.dtype
        if inputs.shape[1] > len(weight):
            weight = F.pad(weight, (0, 0, 0, inputs.shape[1] - len(weight)))
        ctx.save_for_backward(inputs, weight)
        return inputs @ weight

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        kind = gradient.dtype  # of the product, which autocast may have chosen
        wanted, d_inputs, d_weight = ctx.needs_input_grad, None, None
        if wanted[1]:
            d_weight = (inputs.to(kind).t() @ gradient)[: ctx.rows].to(ctx.dtype)
        if wanted[0]:
            d_inputs = (gradient @ weight.to(kind).t()).to(inputs.dtype)
        return d_inputs, d_weight


class _Activated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, bias: Tensor, dropout: float, seed: int, steps: Tensor, begin: int) -> Tensor:
        inputs = inputs.contiguous()
        out = torch.empty_like(inputs)
        ads, units = inputs.shape
        columns = max(4, min(512, triton.next_power_of_2(units)))
        tile = {"ROWS": 2048 // columns, "COLUMNS": columns, "DROPS": dropout > 0}
        grid = (triton.cdiv(ads, tile["ROWS"]) or 1, triton.cdiv(units, columns))
        # models also run without `fit`, which sees to the device
        with torch.cuda.device_of(inputs):  # type: ignore[no-untyped-call]
            _activate[grid](inputs, bias, out, steps, seed, ads, units, dropout, begin, **tile)
        ctx.save_for_backward(out)
        ctx.dropout = dropout
        return out

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        ads, units = out.shape
        gradient = gradient.contiguous()
        d_inputs = torch.empty_like(out)
        blocks = triton.cdiv(ads, _ROWS)
        d_bias = out.new_zeros(1, units) if not ads else out.new_empty(blocks, units)
        if ads:
            columns = 32
            grid = (blocks, triton.cdiv(units, columns))
            _pass_back[grid](
                gradient, out, d_inputs, d_bias, ads, units, 1 / (1 - ctx.dropout), ROWS=_ROWS, COLUMNS=columns
            )
        found = d_bias[0] if len(d_bias) == 1 else d_bias.sum(0)
        return d_inputs, found if ctx.needs_input_grad[1] else None, None, None, None, None


def _tile(fields: int, width: int) -> dict[str, int]:
    rows, columns = triton.next_power_of_2(fields), triton.next_power_of_2(width)
    sizes = {"FIELDS": fields, "WIDTH": width, "ROWS": rows, "COLUMNS": columns}
    return sizes | {"num_warps": 4 if rows * columns <= 4096 else 8}


# The kernels. Names of arguments in capitals are known when a kernel is compiled.


@jit
def _vectors(
    ids, starts, weight, ad, FIELDS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The rows that an ad looks up, ``(ROWS, COLUMNS)``, 0 outside; masks of what exists and of vectors."""
    field, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    row = tl.load(ids + ad * FIELDS + field, mask=field < FIELDS, other=0).to(tl.int64)
    row += tl.load(starts + field, mask=field < FIELDS, other=0)
    there = (field < FIELDS)[:, None] & (column < WIDTH)[None, :]
    found = tl.load(weight + row[:, None] * WIDTH + column[None, :], mask=there, other=0.0)
    return found, there, there & (column > 0)[None, :]


@jit
def _gather(
    ids, starts, weight, linear, flat, stride,
    FIELDS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Σ_f w_f + ½ Σ_k [(Σ_f v_fk)² − Σ_f v_fk²] of an ad, and its vectors side by side."""
    ad = tl.program_id(0).to(tl.int64)
    found, _, vector = _vectors(ids, starts, weight, ad, FIELDS, WIDTH, ROWS, COLUMNS)
    v = tl.where(vector, found, 0.0)
    total = tl.sum(v, 0)
    pairs = 0.5 * tl.sum(total * total - tl.sum(v * v, 0), 0)
    tl.store(linear + ad, tl.sum(tl.sum(found - v, 1), 0) + pairs)
    field, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    seat = field[:, None] * (WIDTH - 1) + column[None, :] - 1
    tl.store(flat + ad * stride + seat, found, mask=vector)
    rest = FIELDS * (WIDTH - 1) + tl.arange(0, 4)
    tl.store(flat + ad * stride + rest, tl.zeros([4], tl.float32), mask=rest < stride)


@jit
def _scatter(
    ids, starts, weight, d_linear, d_flat, stride, gradient, peak,
    FIELDS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PEAKS: tl.constexpr,
):  # fmt: skip
    """Gradients of all that an ad looked up: of w_f d_linear, of v_f d_flat + d_linear (Σ_g v_g − v_f)."""
    ad = tl.program_id(0).to(tl.int64)
    found, there, vector = _vectors(ids, starts, weight, ad, FIELDS, WIDTH, ROWS, COLUMNS)
    field, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    v = tl.where(vector, found, 0.0)
    upstream = tl.load(d_linear + ad)
    seat = field[:, None] * (WIDTH - 1) + column[None, :] - 1
    deep = tl.load(d_flat + ad * stride + seat, mask=vector, other=0.0)
    slope = tl.where(vector, deep + upstream * (tl.sum(v, 0)[None, :] - v), tl.where(there, upstream, 0.0))
    tl.store(gradient + ad * (FIELDS * WIDTH) + field[:, None] * WIDTH + column[None, :], slope, mask=there)
    largest = tl.max(tl.max(tl.abs(slope), 1), 0)
    tl.atomic_max(peak + ad % PEAKS, largest.to(tl.int32, bitcast=True))


@jit
def _peak(gradient, peak, count, SIZE: tl.constexpr, PEAKS: tl.constexpr):
    """Bits of the largest absolute number; of numbers that are not negative they rise as the numbers do."""
    program = tl.program_id(0)
    largest = tl.zeros((SIZE,), tl.float32)
    for part in range(4):
        at = (program.to(tl.int64) * 4 + part) * SIZE + tl.arange(0, SIZE)
        largest = tl.maximum(largest, tl.abs(tl.load(gradient + at, mask=at < count, other=0.0)))
    tl.atomic_max(peak + program % PEAKS, tl.max(largest, 0).to(tl.int32, bitcast=True))


@jit(do_not_specialize=["seed", "ads", "begin"])
def _activate(
    inputs, bias, out, steps, seed, ads, units, dropout, begin,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Units in fours, as random numbers come; the numbers of an ad depend on its place in the whole batch."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    four = tl.program_id(1) * (COLUMNS // 4) + tl.arange(0, COLUMNS // 4)
    column = 4 * four[:, None] + tl.arange(0, 4)[None, :]
    at = row.to(tl.int64)[:, None, None] * units + column[None, :, :]
    there = (row < ads)[:, None, None] & (column < units)[None, :, :]
    x = tl.load(inputs + at, mask=there, other=0.0) + tl.load(bias + column, mask=column < units, other=0.0)[None, :, :]
    x = tl.maximum(x, 0.0)
    if DROPS:
        a, b, c, d = tl.rand4x(seed + tl.load(steps), (row + begin)[:, None] * tl.cdiv(units, 4) + four[None, :])
        drawn = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (ROWS, COLUMNS // 4, 4))
        x = tl.where(drawn >= dropout, x / (1 - dropout), 0.0)
    tl.store(out + at, x, mask=there)


@jit
def _pass_back(gradient, out, d_inputs, d_bias, ads, units, scale, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Positive outputs were neither clipped nor dropped; the bias gets the sum over the tile's ads."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = (row < ads)[:, None] & (column < units)[None, :]
    at = row[:, None] * units + column[None, :]
    active = tl.load(out + at, mask=there, other=0.0) > 0
    passed = tl.where(active, tl.load(gradient + at, mask=there, other=0.0) * scale, 0.0)
    tl.store(d_inputs + at, passed, mask=there)
    tl.store(d_bias + tl.program_id(0) * units + column, tl.sum(passed, 0), mask=column < units)
