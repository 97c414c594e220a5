"""`fit`: Adam, batches, early stopping; one model, or all repeats and variants of one as a single program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bidwise.checks import InputError, check_name, check_positive, check_whole
from bidwise.data.ads import Ads
from bidwise.losses.welfare_loss import LOSSES, needs_teacher
from bidwise.runs import open_folder
from bidwise.training.batches import Batch, Shuffle
from bidwise.training.checkpoint import fingerprint, load_checkpoint, save_checkpoint, words, write_result
from bidwise.training.selection import Fit
from bidwise.training.validation import METRICS, Metric, logits_of, mode, one_number_per_ad

SCHEDULES = ("constant", "cosine")


def fit(
    model: nn.Module,
    train: Ads,
    *,
    loss: str | Callable[..., Tensor] = "log_loss",
    valid: Ads | None = None,
    metric: str | Metric | Sequence[str | Metric] = "welfare",
    epochs: int = 10,
    batch_size: int = 256,
    rate: float = 1e-3,
    schedule: str = "constant",
    patience: int | None = None,
    every: int = 1,
    seed: int | Sequence[int] = 0,
    out: str | Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Fit:
    """Train ``model`` with Adam, and keep the weights of its best epoch on validation auctions.

    A model with ``members`` is many models trained at once; each has the batches, the best epoch and the weights that
    it would have alone. Everything runs on the device of the model.

    Args:
        model: returns logits, ``(ads, width) -> (ads,)``, or ``(*members, ads)`` for a batch of models.
        train: ads to train on. Without offsets a batch is an auction of ``batch_size`` random ads; with offsets it is
            whole auctions.
        loss: a name in :data:`bidwise.LOSSES`, or what is called as they are: ``loss(logits, clicks, bids, offsets,
            teacher)``. Losses with a teacher take it from ``train.teacher``.
        valid: ads to choose the epoch by; ``None`` keeps the last weights.
        metric: what to choose by: ``welfare`` (clicked), ``expected_welfare`` (by ``valid.truth``), ``log_loss`` or
            ``auc``, or a :class:`~bidwise.training.Metric` of your own. Of several the first decides; ``best`` has the
            weights by each.
        epochs: passes over the ads.
        rate: learning rate of Adam; its other parameters are torch's defaults.
        schedule: ``constant``, or ``cosine`` from ``rate`` to 0.
        patience: stop after so many epochs without a better metric, each metric for itself; ``None`` trains all epochs.
        every: epochs between evaluations; the last epoch is always evaluated.
        seed: of the batches, one for all repeats or one for each.
        out: a run folder: configuration, metrics and weights; a run that was cut off goes on where it stopped.
        progress: called with the number of finished epochs.

    >>> import bidwise
    >>> random = torch.Generator().manual_seed(0)
    >>> market = bidwise.data.WORLDS["plotted"].market(random)
    >>> train, valid = market.ads(512, random), market.auctions(20, 10, random)
    >>> fitted = fit(bidwise.models.LogisticRegression(50), train, loss="log_plus", valid=valid, epochs=3)
    >>> [entry["epoch"] for entry in fitted.history]
    [1, 2, 3]
    """
    metrics = _metrics(metric)
    if isinstance(loss, str):
        check_name("loss", loss, LOSSES)
    options = _Options(epochs, batch_size, rate, schedule, patience, every)
    if patience is not None and valid is None:
        raise InputError("patience needs valid, found None")
    if valid is not None and valid.offsets is None and any(name.endswith("welfare") for name in metrics):
        raise InputError("valid must have offsets, the bounds of its auctions, for metric='welfare'; found None")
    if train.teacher is None and needs_teacher(loss):
        raise InputError("train must have a teacher for this loss, found None; use train.with_teacher(ctr)")
    run = _Run(model, train, valid, LOSSES[loss] if isinstance(loss, str) else loss, metrics, options, seed)
    folder = None if out is None else open_folder(out, run.config(loss))
    if folder is not None:
        run.epoch = load_checkpoint(folder, run.fit, run.optimizer, run.randoms)
    while run.epoch < epochs and not run.out_of_patience():
        with mode(model, training=True):
            run.train_epoch()
        if run.epoch % every == 0 or run.epoch == epochs:
            run.evaluate()
            if folder is not None:
                save_checkpoint(folder, run.fit, run.epoch, run.optimizer, run.randoms)
        if progress is not None:
            progress(run.epoch)
    run.fit.last = run.fit.state()
    if run.fit.best:
        model.load_state_dict(run.fit.best[next(iter(metrics))].state)
    if folder is not None:
        write_result(folder, run.fit, run.epoch)
    return run.fit


@dataclass(frozen=True)
class _Options:
    """The numbers of a run, checked."""

    epochs: int
    batch_size: int
    rate: float
    schedule: str
    patience: int | None
    every: int

    def __post_init__(self) -> None:
        check_whole("epochs", self.epochs, 1)
        check_whole("batch_size", self.batch_size, 2)
        check_whole("every", self.every, 1)
        check_positive("rate", self.rate)
        object.__setattr__(self, "rate", float(self.rate))
        check_name("schedule", self.schedule, SCHEDULES)
        if self.patience is not None:
            check_whole("patience", self.patience, 1)


def _metrics(metric: str | Metric | Sequence[str | Metric]) -> dict[str, Metric]:
    """Metrics by name, in order."""
    found: dict[str, Metric] = {}
    for each in (metric,) if isinstance(metric, str | Metric) else metric:
        if isinstance(each, str):
            check_name("metric", each, METRICS)
            each = METRICS[each]
        found[each.name] = each
    if not found:
        raise InputError("metric must name at least one metric, found none")
    return found


class _Run:
    """The state of a training run between epochs."""

    def __init__(
        self,
        model: nn.Module,
        train: Ads,
        valid: Ads | None,
        loss: Callable[..., Tensor],
        metrics: dict[str, Metric],
        options: _Options,
        seed: int | Sequence[int],
    ) -> None:
        parameters = list(model.parameters())
        if not parameters:
            raise InputError("model must have parameters to train, found none")
        device, dtype = parameters[0].device, parameters[0].dtype
        self.model, self.loss, self.metrics, self.options = model, loss, metrics, options
        self.train = train.to(device).to(dtype)
        self.valid = None if valid is None else valid.to(device).to(dtype)
        if isinstance(loss, nn.Module):
            loss.to(device)
        repeats = train.repeats.numel()
        self.seeds = [int(number) for number in seed] if isinstance(seed, Iterable) else [int(seed)] * repeats
        self.randoms = [torch.Generator().manual_seed(number) for number in self.seeds]
        self.shuffle = Shuffle(self.train, options.batch_size, self.randoms)
        self.optimizer = torch.optim.Adam(parameters, lr=options.rate, fused=device.type in ("cpu", "cuda"))
        self.members = getattr(model, "members", torch.Size())
        self.epoch = 0
        self.losses: Tensor | None = None
        self.fit = Fit(model)

    def config(self, loss: str | Callable[..., Tensor]) -> dict[str, Any]:
        """What a run is resumed by."""
        return {
            "model": words(self.model),
            "loss": loss if isinstance(loss, str) else words(loss),
            **asdict(self.options),
            "metric": list(self.metrics),
            "seed": self.seeds,
            "train": fingerprint(self.train),
            "valid": None if self.valid is None else fingerprint(self.valid),
        }

    def train_epoch(self) -> None:
        total, batches, seen = None, 0, 0
        for batch in self.shuffle:
            if self.options.schedule == "cosine":
                share = (self.epoch + seen / len(self.train)) / self.options.epochs
                for group in self.optimizer.param_groups:
                    group["lr"] = self.options.rate * (1 + math.cos(math.pi * share)) / 2
            loss = self._step(batch)
            total = loss if total is None else total + loss
            batches += 1
            seen += batch.clicks.shape[-1]
        self.epoch += 1
        assert total is not None
        self.losses = total / batches
        # weights too: a last step may ruin them after a finite loss
        if not all(bool(torch.isfinite(x).all()) for x in (self.losses, *self.model.parameters())):
            self._explain()

    def _step(self, batch: Batch) -> Tensor:
        self.optimizer.zero_grad()
        logits = one_number_per_ad(self.model(batch.features), batch.clicks.shape[-1], self.members)
        clicks, bids = batch.clicks.expand_as(logits), batch.bids.expand_as(logits)
        teacher = None if batch.teacher is None else batch.teacher.expand_as(logits)
        losses: Tensor = self.loss(logits, clicks, bids, batch.offsets, teacher)
        if losses.shape != self.members:
            expected = f"one number per member, {tuple(self.members)}" if self.members else "one number"
            raise InputError(f"loss must return {expected}, found shape {tuple(losses.shape)}")
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return losses.detach()

    def _explain(self) -> None:
        assert self.losses is not None
        low, high = self.train.bids.aminmax()
        lost = int((~torch.isfinite(self.losses)).sum())
        who = f" for {lost} of {self.losses.numel()} members" if self.losses.dim() and lost else ""
        what = "loss is" if lost else "weights are"
        features = self.train.features
        if features.is_floating_point() and not bool(torch.isfinite(features).all()):
            raise InputError(
                f"train.features must be finite, found {int((~torch.isfinite(features)).sum())} that are not"
            )
        raise InputError(
            f"the {what} not finite after epoch {self.epoch}{who}; bids go from {low:.3g} to {high:.3g}. "
            "Divide the bids by their mean, lower the rate, or train in float64 (model.double())"
        )

    def evaluate(self) -> None:
        """The metrics of this epoch, and the weights where they are the best so far."""
        assert self.losses is not None
        entry: dict[str, Any] = {"epoch": self.epoch, "loss": self.losses.double().cpu()}
        if self.valid is not None:
            logits = logits_of(self.model, self.valid.features)
            for name, metric in self.metrics.items():
                entry[name] = metric.of(logits, self.valid).cpu()
                if bool(entry[name].isnan().any()):
                    raise InputError(
                        f"valid must have ads that metric={name!r} can compare, found NaN: are all clicks alike?"
                    )
                self.fit.keep(metric, entry[name], self.epoch, self.options.patience)
        self.fit.history.append(entry)

    def out_of_patience(self) -> bool:
        patience = self.options.patience
        return bool(self.fit.best) and all(bool(self.fit.stopped(name, patience).all()) for name in self.metrics)
