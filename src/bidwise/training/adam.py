"""Adam that updates only the rows of embeddings that a batch looked up, and takes no step that is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from bidwise import distributed
from bidwise.checks import check_name, check_positive
from bidwise.kernels import available
from bidwise.models.embeddings import Embeddings

UPDATES = ("lazy", "dense")


class Adam(torch.optim.Adam):
    """Adam with torch's defaults for a model; rows of embeddings are updated when a batch has looked them up.

    ``lazy``: other rows keep their weights and moments, so a step takes as long for a million values as for ten
    thousand. ``dense`` is torch's Adam, which keeps moving all rows by their moments. ``l2`` adds l2 Σ w² over the
    embeddings to the loss; lazy updates add its gradient to rows that were looked up, divided by the share of the steps
    so far that looked the row up: 2 l2 w in the mean over steps, however rare a value is.

    The first :meth:`zero_grad` or :meth:`step` prepares the tables of the model: their gradients then contain looked-up
    rows only. :meth:`release` undoes this for the next optimizer.

    On one GPU, lazy updates are kernels (:mod:`bidwise.kernels.adam_kernels`), and a step can be part of a graph.
    Without ``kernels``, and on several ranks, gradients are tensors that can be clipped, checked and averaged.
    """

    def __init__(
        self, model: nn.Module, lr: float = 1e-3, *, updates: str = "lazy", l2: float = 0.0, kernels: bool = True
    ) -> None:
        check_name("embeddings", updates, UPDATES)
        check_positive("l2", l2, or_zero=True)
        parameters = list(model.parameters())
        self.tables = [part for part in model.modules() if isinstance(part, Embeddings)]
        self.lazy, self.l2 = updates == "lazy", float(l2)
        device, on = parameters[0].device, {parameter.device.type for parameter in parameters}
        # in float32 on one device and one rank, with gradients of its own for each table
        single = {(parameter.device, parameter.dtype) for parameter in parameters} == {(device, torch.float32)}
        single &= len({table.weight for table in self.tables}) == len(self.tables) and not distributed.several()
        kernels = kernels and self.lazy and single and available(device)
        # a graph reads the rate on the GPU; options belong to this device, not to the loaded state
        self.rate: Any = torch.tensor(lr, device=device).float() if kernels or on == {"cuda"} else lr
        self.device_options: dict[str, Any] = {"fused": on <= {"cpu", "cuda"}, "capturable": on == {"cuda"}}
        super().__init__(parameters, lr=self.rate, **self.device_options)
        self.kernels = Kernels(self) if kernels else None
        self.sums: list[Any] = self.kernels.sums if self.kernels else []

    def prepare(self) -> None:
        """From now on, gradients of the tables contain the rows that a batch looked up."""
        for table, sums in zip_longest(self.tables, self.sums):
            table.sparse, table.sums = self.lazy, sums

    def release(self) -> None:
        """Give the tables back: their gradients are dense tensors again, for the next optimizer."""
        for table in self.tables:
            table.sparse, table.sums, table.trusted = False, None, False

    def average_gradients(self) -> None:
        """Replace gradients by their means over ranks, after a backward pass."""
        tables = [table.weight for table in self.tables if table.sparse]
        distributed.average_gradients(self.param_groups[0]["params"], tables)

    def set_rate(self, rate: float) -> None:
        self.param_groups[0]["lr"] = self.rate.fill_(rate) if isinstance(self.rate, Tensor) else rate

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for sums in self.sums:
            sums.forget()
        self.prepare()

    def state_dict(self) -> Any:
        """All that :meth:`load_state_dict` needs, on any device."""
        if self.kernels:
            for state in self.state.values():
                state["step"].copy_(self.kernels.clock.step.squeeze(0))
        return super().state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self.param_groups[0].update(self.device_options)
        self.set_rate(float(self.param_groups[0]["lr"]))  # graphs and kernels read the rate of this optimizer
        if self.kernels:
            self.kernels.load()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; the loss of ``closure``, which is called first if it is given."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        if self.kernels:
            self.kernels.step()
        else:
            self._step_tables()
            super().step()
        self.prepare()
        return loss

    def _step_tables(self) -> None:
        for table in self.tables:
            if table.weight.grad is None:
                continue
            if not self.lazy:
                if self.l2:
                    table.weight.grad.addcmul_(table.weight, table.penalty, value=2 * self.l2)
                continue
            state = self.state[table.weight]
            if not state:
                state |= _fresh(table.weight)
            state["step"] = state["step"].cpu()  # on the host: reading it from a GPU would wait
            _count_rows(table.weight, state, self.l2)
            state["step"] += 1
            _step_rows(table, state, state["step"].item(), self)


class Kernels:
    """Adam's updates by kernels, which read the number of the step and the rate on the GPU."""

    def __init__(self, optimizer: Adam) -> None:
        from bidwise.kernels.adam_kernels import Clock, RowSums

        self.optimizer, self.parameters = optimizer, optimizer.param_groups[0]["params"]
        self.clock = Clock(optimizer.rate, optimizer.param_groups[0]["betas"])
        self.sums = [RowSums(table, self.clock, optimizer.l2) for table in optimizer.tables]
        self.load()

    def load(self) -> None:
        """Read the number of the step from the state; parameters without a gradient so far may have no state."""
        for parameter in self.parameters:
            self.optimizer.state[parameter] = _fresh(parameter) | self.optimizer.state[parameter]
        self.clock.step.fill_(max(int(state["step"]) for state in self.optimizer.state.values()))
        for sums in self.sums:
            _count_rows(sums.table.weight, self.optimizer.state[sums.table.weight], self.optimizer.l2)
            sums.forget()

    def step(self) -> None:
        from bidwise.kernels.adam_kernels import update_tensors

        self.clock.tick()
        for sums in self.sums:
            weight = sums.table.weight
            sums.update(self.optimizer.state[weight])
            if weight.grad is not None:  # of a backward pass before `prepare`
                _step_rows(sums.table, self.optimizer.state[weight], float(self.clock.step), self.optimizer)
        update_tensors(self.parameters, [self.optimizer.state[p] for p in self.parameters], self.clock)


def _fresh(parameter: Tensor) -> dict[str, Tensor]:
    """Adam's state of a parameter before the first step."""
    moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
    return {"step": torch.zeros((), dtype=torch.float32, device=parameter.device), **moments}


def _count_rows(weight: Tensor, state: dict[str, Tensor], l2: float) -> None:
    """In how many steps each row was looked up, which L2 needs: in all of them if the state has no counts."""
    rows = len(weight) if l2 else 0
    if "seen" not in state or len(state["seen"]) != rows:
        state["seen"] = torch.full((rows,), float(state["step"]), dtype=weight.dtype, device=weight.device)


def _step_rows(table: Embeddings, state: dict[str, Tensor], step: float, optimizer: Adam) -> None:
    """m <- β1 m + (1 - β1) g, v <- β2 v + (1 - β2) g², w <- w - rate m̂ / (√v̂ + eps), for the rows of the gradient.

    With l2, g <- g + 2 l2 w / share, with the share of steps so far that looked the row up.
    """
    weight, (rate, betas, eps) = table.weight, (optimizer.param_groups[0][key] for key in ("lr", "betas", "eps"))
    assert weight.grad is not None
    gradient = (weight.grad if weight.grad.is_sparse else weight.grad.to_sparse(1)).coalesce()
    weight.grad = None  # no work is left for Adam itself
    rows, g = gradient.indices()[0], gradient.values()
    if optimizer.l2:
        seen = state["seen"].index_select(0, rows).add_(1)
        state["seen"].index_copy_(0, rows, seen)
        strength = (2 * optimizer.l2 * step / seen).unsqueeze(1)
        g = torch.addcmul(g, weight.index_select(0, rows), strength * table.penalty)
    mean = state["exp_avg"].index_select(0, rows).lerp_(g, 1 - betas[0])
    square = state["exp_avg_sq"].index_select(0, rows).mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
    state["exp_avg"].index_copy_(0, rows, mean)
    state["exp_avg_sq"].index_copy_(0, rows, square)
    size = square.sqrt_().div_(math.sqrt(1 - betas[1] ** step)).add_(eps)
    weight.index_add_(0, rows, mean.div_(size), alpha=-float(rate) / (1 - betas[0] ** step))


class Guard:
    """Adam's step, unless the loss or a gradient is not finite: weights and moments then stay unchanged.

    On a CPU every step is checked. A GPU trains without waiting: the loss is checked at every evaluation and pass.
    """

    def __init__(self, model: nn.Module, optimizer: Adam, *, clip: float | None) -> None:
        self.parameters, self.optimizer, self.clip = list(model.parameters()), optimizer, clip
        self.watching = self.parameters[0].device.type == "cpu"

    def step(self, losses: Tensor) -> bool:
        """Update the weights; ``False`` if the run must stop."""
        if self.watching:
            # a sum is the fastest check: it is not finite if one of its terms is not; and x - x is 0 unless x is not
            total = torch.stack([losses.sum(), *(each.sum() for each in self._gradients())]).sum()
            if total - total != 0:
                return False
        self._clip()
        self.optimizer.step()
        return True

    def _gradients(self) -> list[Tensor]:
        """Of all parameters; of tables only for the rows that were looked up."""
        there = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        values = (gradient._values() if gradient.is_sparse else gradient for gradient in there)
        return [each for each in values if each.numel()]  # an empty batch looks up no row

    def _clip(self) -> None:
        """g <- g min(1, clip / |g|), |g| over all parameters: of the loss, before any penalty."""
        if self.clip is None:
            return
        for parameter in self.parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()  # rows looked up twice have one gradient
        gradients = self._gradients()
        length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (self.clip / length).clamp(max=1.0))
