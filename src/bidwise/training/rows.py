"""Adam on a GPU: whole tensors in one launch, and the rows of embeddings that a batch looked up, without a sort.

Gradients of rows are added as whole numbers: multiples of 2^-k, k the largest for which a batch cannot overflow 64
bits, some 45 bits below the largest gradient. Whole numbers add up to the same in any order, so that programs need not
wait for one another and a run can be repeated bit by bit. A row is updated once, for the first of the ads that looked
it up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bidwise.kernels.adam_kernels import add, catch_up, claim, tick, update, update_all
from bidwise.kernels.embedding_kernels import PEAKS
from bidwise.kernels.triton_or_none import triton
from bidwise.models.layers import Embeddings

ADS, WARPS = 16, 1  # of a tile of gradients; ads that looked up the same row are added up inside of it
UPDATE_ADS, UPDATE_WARPS = 32, 4  # of a tile of rows to update
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
        """Begin the next step."""
        tick[(1,)](self.step, self.numbers, self.rates, self.rate, **self.constants, STEPS=STEPS)

    def set(self, step: int) -> None:
        """Stand at ``step``, as all rows must."""
        self.step.fill_(step)


def update_tensors(parameters: Sequence[Tensor], states: Sequence[dict[str, Tensor]], clock: Clock) -> None:
    """Adam's step for whole tensors, all in one launch."""
    given = [
        (parameter, state) for parameter, state in zip(parameters, states, strict=True) if parameter.grad is not None
    ]
    for first in range(0, len(given), TENSORS):
        some = given[first : first + TENSORS]
        gradients = [_like(parameter.grad, parameter) for parameter, _ in some]
        means, squares = ([state[key] for _, state in some] for key in ("exp_avg", "exp_avg_sq"))
        tensors = ([parameter for parameter, _ in some], gradients, means, squares)
        counts = [parameter.numel() for parameter, _ in some]
        grid = (triton.cdiv(max(counts), SIZE), len(some))
        betas = {key: clock.constants[key] for key in ("BETA1", "BETA2")}
        update_all[grid](
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
        # the first ad of the batch that looked a row up, and, where it matters, the step that a row stands at
        self.owner = torch.full((len(weight),), NO_ONE, dtype=torch.int32, device=weight.device)
        self.stamp = torch.zeros(len(weight) if dense else 0, dtype=torch.int32, device=weight.device)
        self.peak = torch.zeros(PEAKS, dtype=torch.int32, device=weight.device)
        self.ids: Tensor | None = None

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
        tensors = (ids, self.table.starts, gradient, self.total, self.owner, self.peak)
        numbers = (ads, fields, ids.stride(0), width, ads.bit_length())
        add[grid](*tensors, *numbers, ADS=ADS, COLUMNS=columns, PEAKS=PEAKS, num_warps=WARPS)

    def expect(self, ids: Tensor) -> None:
        """Before the vectors of ``ids`` are read, bring their rows to where Adam has them by now."""
        if self.dense and len(ids):
            ids = _in_rows(ids)
            grid = (triton.cdiv(len(ids), 128), ids.shape[1])
            claim[grid](ids, self.table.starts, self.owner, len(ids), ids.stride(0), ADS=128)
            self._catch_up(ids, *ids.shape, LISTED=True)

    def flush(self) -> None:
        """Bring all rows to where Adam has them by now."""
        if self.dense:
            self._catch_up(self.stamp, len(self.table.weight), 1, LISTED=False)

    def _catch_up(self, ids: Tensor, count: int, fields: int, **listed: bool) -> None:
        tile = self._tile()
        grid = (triton.cdiv(count, tile["ADS"]), fields)
        tensors = (ids, self.table.starts, self.owner, self.stamp, *self._moments(), self.clock.step, self.clock.rates)
        catch_up[grid](
            *tensors,
            count,
            ids.stride(0),
            **tile,
            **self.clock.constants,
            EPS=EPS,
            RECENT=RECENT,
            STEPS=STEPS,
            **listed,
        )

    def update(self) -> None:
        """Adam's step for the rows that were looked up since the last one."""
        if self.ids is None:
            return
        ids, self.ids = self.ids, None
        ads, fields = ids.shape
        if not ads:
            return
        tile = self._tile()
        grid = (triton.cdiv(ads, tile["ADS"]), fields)
        update[grid](
            *(ids, self.table.starts, self.total, self.owner, self.stamp, self.peak, *self._moments()),
            *(self.clock.step, self.clock.numbers, ads, ids.stride(0), ads.bit_length(), 2 * self.l2),
            **tile, BETA1=self.clock.constants["BETA1"], BETA2=self.clock.constants["BETA2"], EPS=EPS, PEAKS=PEAKS,
            DENSE=self.dense,
        )  # fmt: skip

    def forget(self) -> None:
        """Leave out gradients that were added up since the last step."""
        if self.ids is not None:
            self.ids = None
            self.total.zero_()
            self.owner.fill_(NO_ONE)

    def restart(self) -> None:
        """After loading: every row stands at the step of the clock."""
        self.forget()
        self.stamp.fill_(int(self.clock.step))

    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.table.weight, self.state["exp_avg"], self.state["exp_avg_sq"]

    def _tile(self) -> dict[str, int]:
        width = self.table.weight.shape[1]
        columns = triton.next_power_of_2(width)
        return {
            "WIDTH": width,
            "COLUMNS": columns,
            "ADS": max(1, min(UPDATE_ADS, 1024 // columns)),
            "num_warps": UPDATE_WARPS,
        }


def _in_rows(ids: Tensor) -> Tensor:
    """Ids whose fields are neighbours in memory, as kernels read them."""
    return ids if ids.stride(1) == 1 else ids.contiguous()
