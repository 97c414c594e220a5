"""A loss or a gradient that is not finite stops a run, with the batch that it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bidwise.checks import InputError
from bidwise.diagnosis import diagnose
from bidwise.distributed import AcrossRanks
from bidwise.losses.named import BidWeightedLogLoss, WelfareLoss
from bidwise.training.adam import Adam
from bidwise.training.validation import logits_of, mode

if TYPE_CHECKING:
    from bidwise.training.run import Run

SICK = ("logits not", "bids not", "clicks outside", "teacher outside", "rank term")  # findings of `diagnose`
_SHOWN = 5  # rows that an error names


class NotFiniteError(InputError):
    """A batch with a loss or gradient that is not finite; ``found`` has its number, rows and diagnosis."""

    found: dict[str, Any] | None = None


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


def not_finite(run: Run, losses: Tensor) -> NotFiniteError:
    """Diagnosis of the current batch of ``run``, with its gradients still present."""
    position, number = run.position, run.position.batches
    start, stop = run.under_way.bounds(number)
    rows = (run.under_way.order[:, start:stop] % len(run.train)).cpu()
    bad = ~torch.isfinite(losses.reshape(-1))
    broken = [
        name
        for name, parameter in run.model.named_parameters()
        if (g := parameter.grad) is not None and not bool(torch.isfinite(g._values() if g.is_sparse else g).all())
    ]
    diagnosis = _diagnosis(run, int(bad.byte().argmax()))  # of the first member that is lost
    alarms = [alarm for alarm in (diagnosis or {"alarms": []})["alarms"] if alarm.startswith(SICK)]
    error = NotFiniteError(
        f"the {'loss is' if bool(bad.any()) else 'gradient is'} not finite in batch {number + 1} of epoch "
        f"{position.passes + 1}{members_lost(losses)}, {stop - start:,} ads, rows {_some(rows[0].tolist())} of train; "
        f"{run.explained(alarms)}"
    )
    error.found = {
        "epoch": position.passes + 1,
        "batch": number + 1,
        "rows": rows.squeeze(0).tolist(),
        "loss": losses.double().tolist(),
        "gradients_not_finite": broken,
        "diagnosis": diagnosis,
    }
    return error


def members_lost(losses: Tensor) -> str:
    """How many members have a loss that is not finite, if there are members and some have one."""
    lost = int((~torch.isfinite(losses)).sum())
    return f" for {lost} of {losses.numel()} members" if losses.dim() and lost else ""


def _examined(loss: Any) -> Any:
    """The loss of a run as `diagnose` takes it; the default for losses of others and for several losses at once."""
    loss = loss.loss if isinstance(loss, AcrossRanks) else loss
    own = isinstance(loss, WelfareLoss | BidWeightedLogLoss) and not isinstance(getattr(loss, "lam", 0), Tensor)
    return loss if own else "log_plus"


def _some(rows: list[int]) -> str:
    return ", ".join(map(str, rows[:_SHOWN])) + (f" and {len(rows) - _SHOWN:,} more" if len(rows) > _SHOWN else "")


def _diagnosis(run: Run, member: int) -> dict[str, Any] | None:
    """The diagnosis of the current batch, of all ranks, with the logits of a member before it and without dropout."""
    batch = run.shuffle.batch(run.under_way, run.position.batches, part=(0, 1))
    with mode(run.model, training=False):
        logits = logits_of(run.model, batch.features)

    def own(column: Tensor) -> Tensor:
        return column.expand_as(logits).reshape(-1, batch.ads)[member]

    try:
        z, clicks, bids = map(own, (logits, batch.clicks, batch.bids))
        teacher = None if batch.teacher is None else own(batch.teacher)
        found = diagnose(z.to(bids), clicks, bids, batch.offsets, teacher=teacher, loss=_examined(run.loss))
    except (ValueError, RuntimeError):  # a model of someone else's may do anything with a ruined batch
        return None
    alarms = sorted(found.alarms, key=lambda alarm: not alarm.name.startswith(SICK))  # first what no loss can take
    return {"table": str(found), "alarms": [f"{alarm.name}: {alarm.found}. {alarm.advice}" for alarm in alarms]}
