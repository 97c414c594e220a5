"""Steps that nothing can be learnt from: a loss or a gradient that is not finite stops a run, or is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bidwise.checks import InputError
from bidwise.diagnosis import diagnose
from bidwise.training.adam import Adam
from bidwise.training.validation import logits_of, mode

if TYPE_CHECKING:
    from bidwise.training.run import Run

ON_NAN = STOP, SKIP = ("stop", "skip")
SICK = ("logits not", "bids not", "clicks outside", "teacher outside", "rank term")  # findings of the doctor
SHOWN = 5  # rows that an error names


class NotFiniteError(InputError):
    """A batch whose loss or gradient is not finite; ``found`` has its number, its rows and the doctor's diagnosis."""

    found: dict[str, Any] | None = None


class Guard:
    """Adam's step, unless the loss or a gradient is not finite: weights, moments and buffers then stay as they are.

    Numbers that lie on the host, or that a GPU must wait for anyway, are looked at in every step. A GPU that trains
    without waiting counts what it left out itself (``skip``), or is looked at when the run is (``stop``): a run that
    then finds its loss ruined takes the steps since its last checkpoint again, ``watching``.
    """

    def __init__(self, model: nn.Module, optimizer: Adam, *, clip: float | None, on_nan: str) -> None:
        self.parameters, self.optimizer = list(model.parameters()), optimizer
        self.clip, self.skips = clip, on_nan == SKIP
        device = self.parameters[0].device
        self.waits = device.type == "cpu" or any(table.sparse for table in optimizer.tables)
        self.watching = self.skips or device.type == "cpu"
        self.left_out = torch.zeros((), dtype=torch.int64, device=device)
        # a batch norm has seen the batch before its loss is known
        self.buffers = [x for x in model.buffers() if x.is_floating_point()] if self.skips else []
        self.kept = [buffer.clone() for buffer in self.buffers]

    def step(self, losses: Tensor) -> Tensor | None:
        """The losses as they count; ``None`` where the run must stop."""
        if not self.watching:
            self._clip()
            self.optimizer.step()
            return losses
        self.optimizer.join()
        # a sum is the fastest to be not finite where one of its numbers is; and x - x is 0 unless x is not
        total = torch.stack([losses.sum(), *(each.sum() for each in self._gradients())]).sum()
        sound = total - total == 0
        if self.waits and not sound and not self.skips:
            return None
        if self.waits and not sound:
            self.optimizer.zero_grad()
        else:
            self._clip()
            if not self.waits:  # torch's word for: leave all as it is
                vars(self.optimizer)["found_inf"] = (~sound).float()
            self.optimizer.step()
        if self.skips:
            self.left_out += ~sound
            for buffer, kept in zip(self.buffers, self.kept, strict=True):
                buffer.copy_(kept.copy_(torch.where(sound, buffer, kept)))
        return torch.where(sound, losses, 0.0) if self.skips else losses

    def keep(self) -> None:
        """The buffers as they are now are those to return to."""
        torch._foreach_copy_(self.kept, self.buffers) if self.kept else None

    def take(self) -> int:
        """How many steps were left out since this was asked last."""
        many = int(self.left_out)
        self.left_out.zero_()
        return many

    def _gradients(self) -> list[Tensor]:
        """Of all parameters; of tables those of the rows that were looked up."""
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
    """What is wrong with the batch that ``run`` is at, whose gradients are still there."""
    assert run.epoch is not None
    position, number = run.position, run.position.batches
    start, stop = run.epoch.bounds(number)
    rows = (run.epoch.rows(start, stop) % len(run.train)).cpu()
    bad = ~torch.isfinite(losses.reshape(-1))
    who = f" for {int(bad.sum())} of {losses.numel()} members" if losses.dim() and bool(bad.any()) else ""
    broken = [
        name
        for name, parameter in run.model.named_parameters()
        if (g := parameter.grad) is not None and not bool(torch.isfinite(g._values() if g.is_sparse else g).all())
    ]
    first = int(bad.nonzero()[0]) if bool(bad.any()) else 0  # the member that is looked at
    diagnosis = _diagnosis(run, rows, first)
    alarms = [each for each in (diagnosis or {"alarms": []})["alarms"] if each.startswith(SICK)]
    error = NotFiniteError(
        f"the {'loss is' if bool(bad.any()) else 'gradient is'} not finite in batch {number + 1} of epoch "
        f"{position.passes + 1}{who}, {stop - start:,} ads, rows {_some(rows[0].tolist())} of train; "
        f"{run.explained(alarms)}; on_nan=skip leaves such batches out"
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


def _some(rows: list[int]) -> str:
    return ", ".join(map(str, rows[:SHOWN])) + (f" and {len(rows) - SHOWN:,} more" if len(rows) > SHOWN else "")


def _diagnosis(run: Run, rows: Tensor, member: int) -> dict[str, Any] | None:
    """The doctor's words on a batch, with the logits that the weights before it give without dropout."""
    assert run.epoch is not None
    repeat, offsets = member % len(rows), run.epoch.offsets_of(run.position.batches)
    ads, at = run.train, rows[repeat].to(run.train.bids.device)
    features = ads.features.reshape(-1, len(ads), ads.width)[repeat][at]
    columns = [ads.labels, ads.bids, *([] if ads.teacher is None else [ads.teacher])]
    clicks, bids, *teacher = (column.reshape(-1, len(ads))[repeat][at].to(run.device) for column in columns)
    with mode(run.model, training=False):
        logits = logits_of(run.model, features if not run.members else features.expand(*run.members, *features.shape))
    try:
        z, taught = logits.reshape(-1, len(at))[member].to(bids), teacher[0] if teacher else None
        found = diagnose(z, clicks, bids, offsets if offsets is None else offsets.to(run.device), teacher=taught)
    except (ValueError, RuntimeError):  # a model of someone else's may do anything with a ruined batch
        return None
    alarms = sorted(found.alarms, key=lambda each: not each.name.startswith(SICK))  # values that no loss can take first
    return {"table": str(found), "alarms": [f"{each.name}: {each.found}. {each.advice}" for each in alarms]}
