"""`fit`: Adam, batches, early stopping; one model, or all repeats and variants of one as a single program."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bidwise.checks import InputError, check_name, check_positive, check_whole
from bidwise.data.ads import Ads
from bidwise.losses.welfare_loss import LOSSES
from bidwise.runs import environment, load, open_folder, save, write_json, write_text
from bidwise.training.batches import Batch, Shuffle
from bidwise.training.validation import METRICS, Metric, logits_of, mode, one_number_per_ad

SCHEDULES = ("constant", "cosine")

State = dict[str, Tensor]


@dataclass
class Best:
    """The best epoch of every member by one metric, and the weights it had then."""

    epoch: Tensor  # (*members) int64, 0 before the first evaluation
    value: Tensor  # (*members) float64
    state: State


@dataclass
class Fit:
    """A trained model and how it came about.

    ``model`` has the weights of its best epoch by the first metric, or the last ones where nothing was validated;
    ``best`` has the best weights by each metric, ``last`` the last ones. ``history`` has one entry for each evaluated
    epoch: ``epoch``, ``loss`` (mean over its batches) and every metric, ``(*members)``.
    """

    model: nn.Module
    best: dict[str, Best] = field(default_factory=dict)
    last: State = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)


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
    check_whole("epochs", epochs, 1)
    check_whole("batch_size", batch_size, 2)
    check_whole("every", every, 1)
    check_positive("rate", rate)
    check_name("schedule", schedule, SCHEDULES)
    if patience is not None:
        check_whole("patience", patience, 1)
        if valid is None:
            raise InputError("patience needs valid, found None")
    run = _Run(model, train, loss, valid, metrics, epochs, batch_size, rate, schedule, patience, every, seed)
    folder = None if out is None else open_folder(out, run.config(loss))
    if folder is not None:
        run.resume(folder)
    while run.epoch < epochs and not run.out_of_patience():
        with mode(model, training=True):
            run.train_epoch()
        if run.epoch % every == 0 or run.epoch == epochs:
            run.evaluate()
            if folder is not None:
                run.save(folder)
        if progress is not None:
            progress(run.epoch)
    return run.finished(folder)


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
        loss: str | Callable[..., Tensor],
        valid: Ads | None,
        metrics: dict[str, Metric],
        epochs: int,
        batch_size: int,
        rate: float,
        schedule: str,
        patience: int | None,
        every: int,
        seed: int | Sequence[int],
    ) -> None:
        parameters = list(model.parameters())
        if not parameters:
            raise InputError("model must have parameters to train, found none")
        device, dtype = parameters[0].device, parameters[0].dtype
        self.model, self.metrics, self.first = model, metrics, next(iter(metrics))
        self.train, self.valid = (None if ads is None else ads.to(device).to(dtype) for ads in (train, valid))
        assert self.train is not None
        self.loss = LOSSES[loss] if isinstance(loss, str) else loss
        if isinstance(self.loss, nn.Module):
            self.loss.to(device)
        self.epochs, self.batch_size, self.rate, self.schedule = epochs, batch_size, float(rate), schedule
        self.patience, self.every = patience, every
        repeats = train.repeats.numel()
        self.seeds = [int(number) for number in seed] if isinstance(seed, Iterable) else [int(seed)] * repeats
        self.randoms = [torch.Generator().manual_seed(number) for number in self.seeds]
        self.shuffle = Shuffle(self.train, batch_size, self.randoms)
        self.optimizer = torch.optim.Adam(parameters, lr=self.rate, fused=device.type in ("cpu", "cuda"))
        self.members = getattr(model, "members", torch.Size())
        self.epoch = 0
        self.losses: Tensor | None = None
        self.fit = Fit(model)

    def config(self, loss: str | Callable[..., Tensor]) -> dict[str, Any]:
        """What a run is resumed by."""
        assert self.train is not None
        return {
            "model": _words(self.model),
            "loss": loss if isinstance(loss, str) else _words(loss),
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "rate": self.rate,
            "schedule": self.schedule,
            "metric": list(self.metrics),
            "patience": self.patience,
            "every": self.every,
            "seed": self.seeds,
            "train": _fingerprint(self.train),
            "valid": None if self.valid is None else _fingerprint(self.valid),
        }

    def train_epoch(self) -> None:
        assert self.train is not None
        total, batches, seen = None, 0, 0
        for batch in self.shuffle:
            if self.schedule == "cosine":
                share = (self.epoch + seen / len(self.train)) / self.epochs
                for group in self.optimizer.param_groups:
                    group["lr"] = self.rate * (1 + math.cos(math.pi * share)) / 2
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
        assert self.train is not None
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
                value = metric.of(logits, self.valid)
                if bool(value.isnan().any()):
                    raise InputError(
                        f"valid must have ads that metric={name!r} can compare, found NaN: are all clicks alike?"
                    )
                entry[name] = value.cpu()
                self._keep(metric, value.cpu(), self._stopped(name))
        self.fit.history.append(entry)

    def _keep(self, metric: Metric, value: Tensor, stopped: Tensor) -> None:
        name, sign = metric.name, 1 if metric.higher_is_better else -1
        best = self.fit.best.get(name)
        if best is None:
            epoch = torch.full(self.members, self.epoch, dtype=torch.int64)
            self.fit.best[name] = Best(epoch, value, self._state())
            return
        better = (sign * value > sign * best.value) & ~stopped
        if not bool(better.any()):
            return
        best.value = torch.where(better, value, best.value)
        best.epoch = torch.where(better, self.epoch, best.epoch)
        for key, parameter in self.model.state_dict().items():
            mask = better.to(parameter.device)
            mask = mask.view(mask.shape + (1,) * (parameter.dim() - mask.dim()))
            best.state[key] = torch.where(mask, parameter.detach(), best.state[key])

    def _stopped(self, name: str) -> Tensor:
        """Members whose patience with a metric had run out before this epoch: they keep what they had, as alone."""
        best = self.fit.best.get(name)
        if best is None or self.patience is None:
            return torch.zeros(self.members, dtype=torch.bool)
        done: int = self.fit.history[-1]["epoch"]
        return best.epoch <= done - self.patience

    def out_of_patience(self) -> bool:
        return bool(self.fit.history) and all(bool(self._stopped(name).all()) for name in self.metrics)

    def _state(self) -> State:
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def save(self, folder: Path) -> None:
        """A checkpoint to go on from, and the metrics so far to look at."""
        best = {name: {"epoch": b.epoch, "value": b.value, "state": b.state} for name, b in self.fit.best.items()}
        save(
            folder / "checkpoint.pt",
            {
                "epoch": self.epoch,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "randoms": [random.get_state() for random in self.randoms],
                "best": best,
                "history": self.fit.history,
            },
        )
        self._write_metrics(folder)

    def resume(self, folder: Path) -> None:
        path = folder / "checkpoint.pt"
        if not path.exists():
            return
        there = load(path)
        self.epoch = there["epoch"]
        self.model.load_state_dict(there["model"])
        self.optimizer.load_state_dict(there["optimizer"])
        for random, state in zip(self.randoms, there["randoms"], strict=True):
            random.set_state(state)
        device = next(self.model.parameters()).device
        for name, best in there["best"].items():
            state = {key: tensor.to(device) for key, tensor in best["state"].items()}
            self.fit.best[name] = Best(best["epoch"], best["value"], state)
        self.fit.history = there["history"]

    def _write_metrics(self, folder: Path) -> None:
        import json

        from bidwise.runs import plain

        lines = (json.dumps(plain(entry), allow_nan=False) for entry in self.fit.history)
        write_text(folder / "metrics.jsonl", "".join(f"{line}\n" for line in lines))

    def finished(self, folder: Path | None) -> Fit:
        self.fit.last = self._state()
        if self.fit.best:
            self.model.load_state_dict(self.fit.best[self.first].state)
        if folder is not None:
            best = {name: {"epoch": b.epoch, "value": b.value} for name, b in self.fit.best.items()}
            save(folder / "model.pt", self.model.state_dict())
            write_json(folder / "environment.json", environment(next(self.model.parameters()).device))
            write_json(folder / "result.json", {"kind": "fit", "epochs": self.epoch, "best": best})
        return self.fit


def _words(found: Any) -> str:
    """How ``found`` prints, on one line and without addresses, which change from run to run."""
    return " ".join(re.sub(r" at 0x[0-9a-f]+", "", repr(found)).split())


def _fingerprint(ads: Ads) -> str:
    """Sizes and a checksum: whether a run is resumed on the ads it began with."""
    sums = [
        0 if column is None else zlib.crc32(column.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        for column in (ads.features, ads.clicks, ads.bids, ads.teacher, ads.truth, ads.offsets)
    ]
    return f"{tuple(ads.features.shape)} ads, checksum {zlib.crc32(repr(sums).encode()):08x}"
