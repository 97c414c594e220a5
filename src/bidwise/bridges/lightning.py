"""Welfare, calibration and a verdict at the end of every validation of a Lightning trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import Tensor

from bidwise import distributed
from bidwise.checks import InputError
from bidwise.evaluation.evaluate import evaluate
from bidwise.evaluation.result import Evaluation
from bidwise.losses.definition import ctr_of

_SHOWN = ("welfare", "revenue", "auc", "log_loss", "calibration_error", "predicted_over_observed")


class WelfareCallback(Callback):  # type: ignore[misc]
    """Measures the validation ads as ``bidwise evaluate`` does, and logs it.

    ``validation_step`` returns a mapping with ``logits`` (or ``ctr``), ``clicks`` and ``bids`` of its ads; unless
    ``auction_size`` is given, ``auction``, a number for each ad; and, to compare with, ``baseline``: another model's
    CTR. Logged are welfare, revenue, auc, log_loss, calibration_error, predicted_over_observed, after ``prefix``, and
    with a baseline, welfare_difference, welfare_ci_low and welfare_ci_high: ``ModelCheckpoint(monitor="val_welfare")``.

    Args:
        auction_size: ads of an auction, if there are no auction ids: averages over every possible auction.
        prefix: of the logged names.
        verbose: print the verdict if there is a baseline.
        options: of :func:`bidwise.evaluate`, such as ``slots``, ``pricing`` and ``reserve``.

    ``evaluation`` is the result of the last validation, with all of its numbers.
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
        self._parts.append(_columns(outputs, needs_auction=self.auction_size is None))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Evaluate the validation ads of all ranks, before other callbacks look at the logged numbers."""
        parts, self._parts = [part for rank in distributed.of_all(self._parts) for part in rank], []
        if trainer.sanity_checking or not parts:
            return
        table = {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}
        models = ["baseline", "model"] if "baseline" in table else ["model"]
        auctions: Any = {"auction_size": self.auction_size} if self.auction_size else {"auction": "auction"}
        self.evaluation = evaluate(table, ctr=models, click="clicks", bid="bids", **auctions, **self.options)
        logged = {name: getattr(self.evaluation.models["model"], name) for name in _SHOWN}
        if len(models) == 2:
            (welfare,) = self.evaluation.of_metric("welfare")
            logged |= {f"welfare_{name}": getattr(welfare, name) for name in ("difference", "ci_low", "ci_high")}
        pl_module.log_dict({self.prefix + name: float(value) for name, value in logged.items()})
        if self.verbose and len(models) == 2 and trainer.is_global_zero:
            print(f"Epoch {trainer.current_epoch + 1}:\n{self.evaluation}")


def _columns(outputs: Any, *, needs_auction: bool) -> dict[str, Tensor]:
    """The columns of a batch, on the CPU."""
    columns = dict(outputs) if isinstance(outputs, Mapping) else {}
    if "ctr" in columns:
        columns["model"] = columns["ctr"]
    elif "logits" in columns:
        columns["model"] = ctr_of(columns["logits"].double())
    wanted = {"model": "logits or ctr", "clicks": "clicks", "bids": "bids"}
    wanted |= {"auction": "auction"} if needs_auction else {}
    if missing := [words for name, words in wanted.items() if name not in columns]:
        found = ", ".join(columns) or type(outputs).__name__
        raise InputError(f"must return a mapping with {', '.join(missing)}, found {found}", argument="validation_step")
    kept = {name: columns[name].detach().flatten().cpu() for name in (*wanted, "baseline") if name in columns}
    return {name: column.double() if column.is_floating_point() else column for name, column in kept.items()}
