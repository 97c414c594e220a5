"""Welfare, calibration and a verdict at the end of every validation of a Lightning trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bidwise.checks import InputError
from bidwise.evaluation.evaluate import evaluate
from bidwise.evaluation.result import Evaluation
from bidwise.segments import auction_of

try:
    from lightning.pytorch import Callback
except ImportError:
    raise ImportError("bidwise.WelfareCallback needs Lightning: pip install lightning") from None

WITHIN = "auction of the batch"
SHOWN = ("welfare", "revenue", "auc", "log_loss", "calibration_error", "predicted_over_observed")


class WelfareCallback(Callback):  # type: ignore[misc]
    """Measures the validation ads as ``bidwise evaluate`` does, and logs it.

    ``validation_step`` returns a mapping with ``logits`` (or ``ctr``), ``clicks`` and ``bids`` of its ads; unless
    ``auction_size`` is given, ``auction``, a number for each ad, or ``offsets``, where batches are whole auctions; and,
    to compare with, ``baseline``: another model's CTR. Logged are welfare, revenue, auc, log_loss, calibration_error,
    predicted_over_observed, after ``prefix``, and with a baseline, welfare_difference, welfare_ci_low and
    welfare_ci_high: ``ModelCheckpoint(monitor="val_welfare")``.

    Args:
        auction_size: ads of an auction, where ads are in no real ones: all that could be drawn are measured.
        prefix: of the logged names.
        verbose: print the verdict where there is a baseline.
        options: of :func:`bidwise.evaluate`, such as ``slots``, ``pricing`` and ``reserve``.

    ``evaluation`` is what the last validation found, with all of its numbers.
    """

    def __init__(
        self, *, auction_size: int | None = None, prefix: str = "val_", verbose: bool = True, **options: Any
    ) -> None:
        self.auction_size, self.prefix, self.verbose, self.options = auction_size, prefix, verbose, options
        self.evaluation: Evaluation | None = None
        self._parts: list[dict[str, Tensor]] = []

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._parts = []

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if not isinstance(outputs, Mapping):
            raise InputError(
                "must return a mapping with logits or ctr, clicks, bids, and auction or an auction_size, found "
                f"{type(outputs).__name__}",
                argument="validation_step",
            )
        self._parts.append(_columns(outputs, needs_auction=self.auction_size is None))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Evaluate what the batches held, before others look at it; ranks put their ads together, and log the same."""
        parts, self._parts = _of_all_ranks(self._parts), []
        if trainer.sanity_checking or not parts:
            return
        _number_auctions(parts)
        table = {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}
        models = ["baseline", "model"] if "baseline" in table else ["model"]
        self.evaluation = evaluate(
            table,
            ctr=models,
            click="clicks",
            bid="bids",
            auction=None if self.auction_size else "auction",
            auction_size=self.auction_size,
            **self.options,
        )
        logged = {name: getattr(self.evaluation.models["model"], name) for name in SHOWN}
        if len(models) == 2:
            (welfare,) = self.evaluation.of_metric("welfare")
            logged |= {"welfare_difference": welfare.difference}
            logged |= {"welfare_ci_low": welfare.ci_low, "welfare_ci_high": welfare.ci_high}
        named = {self.prefix + name: float(value) for name, value in logged.items()}
        pl_module.log_dict(named)
        if self.verbose and len(models) == 2 and trainer.is_global_zero:
            print(f"Epoch {trainer.current_epoch + 1}:\n{self.evaluation}")


def _columns(outputs: Mapping[str, Any], *, needs_auction: bool) -> dict[str, Tensor]:
    """The columns of a batch, on the CPU."""
    columns: dict[str, Tensor] = {name: outputs[name] for name in ("clicks", "bids") if name in outputs}
    if "ctr" in outputs:
        columns["model"] = outputs["ctr"]
    elif "logits" in outputs:
        columns["model"] = torch.sigmoid(outputs["logits"].double())
    if needs_auction and "auction" in outputs:
        columns["auction"] = outputs["auction"]
    elif needs_auction and "offsets" in outputs:
        columns[WITHIN] = auction_of(outputs["offsets"])
    missing = [name for name in ("model", "clicks", "bids") if name not in columns]
    if needs_auction and not {"auction", WITHIN} & columns.keys():
        missing.append("auction")
    if missing:
        said = {"model": "logits or ctr", "auction": "auction or offsets"}
        words = ", ".join(said.get(name, name) for name in missing)
        raise InputError(f"must return {words} too, found {', '.join(outputs)}", argument="validation_step")
    if "baseline" in outputs:
        columns["baseline"] = outputs["baseline"]
    flat = {name: column.detach().flatten().cpu() for name, column in columns.items()}
    return {name: column.double() if column.is_floating_point() else column for name, column in flat.items()}


def _number_auctions(parts: list[dict[str, Tensor]]) -> None:
    """Auctions that are numbered in their batch alone become numbers of all."""
    before = 0
    for part in parts:
        if WITHIN in part:
            part["auction"] = part.pop(WITHIN) + before
            before += int(part["auction"][-1]) + 1 - before if len(part["auction"]) else 0


def _of_all_ranks(parts: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return parts
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, parts)
    return [part for rank in gathered for part in rank]
