"""Adam that leaves alone what a batch did not look up."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from bidwise import distributed
from bidwise.checks import InputError, check_name, check_positive
from bidwise.kernels.gpu import available
from bidwise.models.layers import Embeddings, Perceptron, is_static

UPDATES = ("lazy", "dense")


class Adam(torch.optim.Adam):
    """Adam with torch's defaults; rows of embeddings are updated when a batch has looked them up.

    ``lazy``: rows without a gradient keep their weights and moments, so that a step takes as long for a million values
    as for ten thousand. ``dense`` is Adam itself, which goes on moving all rows by their moments. ``l2`` adds l2 Σ w²
    over the embeddings to the loss. Lazy updates have its gradient for rows that were looked up alone, divided by the
    share of the steps so far that looked the row up: 2 l2 w in the mean over steps, however rare a value is.

    On a GPU kernels do all that (:mod:`bidwise.kernels.adam_kernels`), and a step can be part of a graph; ``dense``
    then makes up for missed steps when a row is looked up again: call :meth:`flush` before reading weights. Without
    ``kernels`` torch does it, from gradients that are tensors: what clips them or leaves a step out needs that.

    Ranks have kernels where ``exchanges`` says that :meth:`average_gradients` is called after each backward pass, as
    `fit` does: what else averages gradients, such as DistributedDataParallel, wants them as tensors.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        learning_rate: float,
        updates: str = "lazy",
        l2: float = 0.0,
        kernels: bool = True,
        exchanges: bool = False,
    ) -> None:
        check_name("embeddings", updates, UPDATES)
        check_positive("l2", l2, or_zero=True)
        parameters = list(model.parameters())
        on = {parameter.device.type for parameter in parameters}
        if not parameters:
            raise InputError("model must have parameters to train, found none")
        device, gpu = parameters[0].device, on == {"cuda"}
        self.tables = [part for part in model.modules() if isinstance(part, Embeddings)]
        self.l2 = float(l2)
        single = {(parameter.device, parameter.dtype) for parameter in parameters} == {(device, torch.float32)}
        single &= len({id(table.weight) for table in self.tables}) == len(self.tables)  # each its own gradients
        # dense updates would have to send rows that were not looked up
        single &= not distributed.several() or (exchanges and updates == "lazy")
        # with l2, dense updates give every row a gradient in every step: nothing to make up for
        kernels = kernels and single and available(device) and not (self.tables and updates == "dense" and l2)
        self.rate = torch.tensor(learning_rate, device=device).float() if gpu or kernels else learning_rate
        # of this device, whatever state is loaded
        self.device_options: dict[str, Any] = {"fused": on <= {"cpu", "cuda"}, "capturable": gpu}
        super().__init__(parameters, lr=self.rate, **self.device_options)
        self.clock: Any = None
        self.sums: list[Any] = []
        self.average: distributed.Average | None = None
        # gradients of a parameter of ours are there as soon as they are complete, and on all ranks alike
        self.overlaps = distributed.several() and is_static(model)
        if kernels:
            self._use_kernels(dense=updates == "dense")
        for table in self.tables:
            table.sparse, table.sums = updates == "lazy", None
        for sums in self.sums:
            sums.table.sums = sums
            sums.begins = self._average_begins if self.overlaps else None
        # only the step of `fit` reads gradients, and joins them first
        self.aside: Any = None
        self.hidden = [part for part in model.modules() if isinstance(part, Perceptron)]
        if kernels and gpu and exchanges and not distributed.several():
            from bidwise.kernels.embedding_kernels import Aside

            self.aside = Aside(device)
        for part in self.hidden:
            part.aside = self.aside

    def _average_begins(self) -> None:
        """Called in the backward pass when only the rows of tables are left, as soon as all else is complete."""
        dense = self._dense()
        if dense and self.average is None and all(p.grad is not None for p in dense):
            self.average = distributed.Average(dense)

    def _dense(self) -> list[Tensor]:
        rows = [sums.table.weight for sums in self.sums]
        return [p for p in self.param_groups[0]["params"] if p.requires_grad and not any(p is x for x in rows)]

    def average_gradients(self) -> None:
        """Replace gradients by their means over ranks, after a backward pass."""
        if not self.sums:
            rows = [table.weight for table in self.tables if table.sparse]
            distributed.average_gradients(self.param_groups[0]["params"], rows)
            return
        from bidwise.kernels.adam_kernels import exchange_rows

        average, self.average = self.average, None
        if average is None:
            distributed.average_gradients(self._dense(), [])
        exchange_rows(self.sums, (lambda: None) if average is None else average.arrive)
        if average is not None:
            average.assign()

    def _use_kernels(self, *, dense: bool) -> None:
        from bidwise.kernels.adam_kernels import Clock, RowSums

        assert isinstance(self.rate, Tensor)
        group = self.param_groups[0]
        self.clock = Clock(self.rate.device, group["betas"], self.rate)
        for parameter in group["params"]:
            self.state[parameter] = _fresh(parameter)
        for table in self.tables:
            state = self.state[table.weight]
            state["seen"] = self._seen(table.weight, state)
            self.sums.append(RowSums(table, state, self.clock, dense=dense, l2=self.l2))

    def set_rate(self, rate: float) -> None:
        if isinstance(self.rate, Tensor):
            self.rate.fill_(rate)
        else:
            self.param_groups[0]["lr"] = rate

    def release(self) -> None:
        """Give the tables back: their gradients are tensors again, for whoever trains the model next."""
        self.flush()
        for table in self.tables:
            table.sparse, table.sums, table.trusted = False, None, False
        self.join()
        for part in self.hidden:
            part.aside = None

    def join(self) -> None:
        """Wait for gradients that are found beside the backward pass, before anyone reads them."""
        if self.aside is not None:
            self.aside.join()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.join()
        super().zero_grad(set_to_none)
        self.average = None
        for sums in self.sums:
            sums.forget()

    def flush(self) -> None:
        """Bring all rows to where Adam has them by now."""
        for sums in self.sums:
            sums.flush()

    def state_dict(self) -> Any:
        """All that :meth:`load_state_dict` needs, on any device."""
        self.flush()
        if self.clock is not None:
            for state in self.state.values():
                state["step"].copy_(self.clock.step.squeeze(0))
        return super().state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self.param_groups[0].update(self.device_options)
        if isinstance(self.rate, Tensor):  # what graphs and kernels read
            self.rate.copy_(torch.as_tensor(self.param_groups[0]["lr"]))
            self.param_groups[0]["lr"] = self.rate
        if self.clock is not None:
            for parameter in self.param_groups[0]["params"]:  # those without a gradient may have no state
                for name, empty in _fresh(parameter).items():
                    self.state[parameter].setdefault(name, empty)
            self.clock.set(max(int(state["step"]) for state in self.state.values()))
        for sums in self.sums:
            sums.state = self.state[sums.table.weight]
            sums.state["seen"] = self._seen(sums.table.weight, sums.state)
            sums.restart()
        for table in self.tables:
            state = self.state.get(table.weight)
            if state and table.sparse and not self.sums:  # to where it is read: one of a GPU would make it wait
                state["step"] = state["step"].cpu()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step; ``closure`` is not called: `fit` never needs one."""
        group = self.param_groups[0]
        if self.clock is not None:
            from bidwise.kernels.adam_kernels import update_tensors

            self.clock.tick()
            for sums in self.sums:
                sums.update()
            self.join()
            update_tensors(group["params"], [self.state[parameter] for parameter in group["params"]], self.clock)
            return
        for table in self.tables:
            gradient = table.weight.grad
            if gradient is None:
                continue
            if gradient.is_sparse:
                self._step_rows(table, gradient.coalesce())
                table.weight.grad = None  # Adam itself has nothing to do
            elif self.l2:
                gradient.addcmul_(table.weight, table.penalty, value=2 * self.l2)
        super().step()

    def _seen(self, weight: Tensor, state: dict[str, Any]) -> Tensor:
        """In how many steps each row was looked up, where L2 needs it; in all of them where the state does not say."""
        rows = len(weight) if self.l2 else 0
        there: Tensor | None = state.get("seen")
        if there is not None and len(there) == rows:
            return there
        return torch.full((rows,), float(state["step"]), dtype=weight.dtype, device=weight.device)

    def _step_rows(self, table: Embeddings, gradient: Tensor) -> None:
        """m <- β1 m + (1 - β1) g, v <- β2 v + (1 - β2) g², w <- w - rate m̂ / (√v̂ + eps), for these rows.

        With l2, g <- g + 2 l2 w / share, share being that of the steps so far which looked the row up.
        """
        weight, (rate, betas, eps) = table.weight, (self.param_groups[0][key] for key in ("lr", "betas", "eps"))
        state = self.state[weight]
        if not state:  # steps are counted where they are read
            state |= _fresh(weight) | {"step": torch.zeros((), dtype=torch.float32, device="cpu")}
        state["seen"] = self._seen(weight, state)
        state["step"] += 1
        rows, g = gradient.indices()[0], gradient.values()
        if self.l2:
            seen = state["seen"].index_select(0, rows).add_(1)
            state["seen"].index_copy_(0, rows, seen)
            strength = (2 * self.l2 * state["step"].item() / seen).unsqueeze(1)
            g = torch.addcmul(g, weight.index_select(0, rows), strength * table.penalty)
        mean = state["exp_avg"].index_select(0, rows).lerp_(g, 1 - betas[0])
        square = state["exp_avg_sq"].index_select(0, rows).mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
        state["exp_avg"].index_copy_(0, rows, mean)
        state["exp_avg_sq"].index_copy_(0, rows, square)
        first, second = (1 - beta ** state["step"].item() for beta in betas)
        size = square.sqrt_().div_(math.sqrt(second)).add_(eps)
        weight.index_add_(0, rows, mean.div_(size), alpha=-float(rate) / first)


def _fresh(parameter: Tensor) -> dict[str, Tensor]:
    """What Adam knows of a parameter before the first step."""
    moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
    return {"step": torch.zeros((), device=parameter.device), **moments}
