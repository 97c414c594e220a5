"""A training run: one batch after the other, from a position that can be saved and restored."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bidwise import distributed
from bidwise.checks import InputError
from bidwise.data.ads import Ads, fingerprint
from bidwise.diagnosis import diagnose
from bidwise.kernels import available
from bidwise.losses.named import LOSSES, BidWeightedLogLoss, Variants, WelfareLoss, unchecked
from bidwise.models.embeddings import trust
from bidwise.models.layers import is_static
from bidwise.training.adam import Adam, Guard
from bidwise.training.arguments import Options, check_no_sigmoid, check_ranks, log_losses, one_line, whole
from bidwise.training.batches import AdBatch, Pass, Shuffle, fits
from bidwise.training.validation import EPOCH_TOLERANCE, Fit, Metric, logits_across, mode, one_number_per_ad

WARM = 3  # steps before a graph is captured: kernels are compiled, and one-time work is done
SICK = ("logits not", "bids not", "clicks outside", "teacher outside")  # findings of `diagnose` that no loss can take
SHOWN = 5  # rows that an error names
OWN_LOSSES = (WelfareLoss, BidWeightedLogLoss, Variants)


@dataclass
class Position:
    passes: int = 0  # whole ones
    batches: int = 0  # of the pass under way
    seen: int = 0  # ads of it
    evaluations: int = 0
    total: Tensor | None = None  # losses since the last evaluation or the beginning of the pass
    counted: int = 0  # batches of that
    randoms: list[Tensor] = field(default_factory=list)  # states of the generators when the pass began


class Run:
    """The state of a training run between batches."""

    def __init__(
        self,
        model: nn.Module,
        train: Ads,
        valid: Ads | None,
        loss: str | Callable[..., Tensor],
        metrics: dict[str, Metric],
        options: Options,
        seed: int | Sequence[int],
        graph: bool | None = None,
    ) -> None:
        first = next(model.parameters())
        self.model, self.metrics, self.options, self.device = model, metrics, options, first.device
        seeds = [int(number) for number in seed] if isinstance(seed, Iterable) else [int(seed)] * train.repeats.numel()
        self.settings = {
            "model": one_line(model),
            "loss": loss if isinstance(loss, str) else one_line(loss),
            **asdict(options),
            "metric": list(metrics),
            "seed": seeds,
        }
        check_ranks(model, train, valid, self.settings)
        distributed.copy_first(list(model.state_dict().values()))
        if fits(train, self.device):
            train = train.to(self.device)
        self.train = train.to(first.dtype)
        self.valid = None if valid is None else valid.to(self.device).to(first.dtype)
        self.loss = unchecked(LOSSES[loss] if isinstance(loss, str) else loss)
        if isinstance(self.loss, nn.Module):
            self.loss.to(self.device)
        randoms = [torch.Generator().manual_seed(k) for k in seeds]
        self.shuffle = Shuffle(self.train, options.batch_size, randoms, self.device)
        self.members = getattr(model, "members", torch.Size())
        self.share = 1 / log_losses(self.loss, self.members).to(self.device, first.dtype)  # of a loss that steps take
        if distributed.several():
            self.loss = distributed.AcrossRanks(self.loss)
        if self.members and options.clip is not None:
            raise InputError(f"is for one model, found members {tuple(self.members)}", argument="clip")
        adam = {"updates": options.embeddings, "l2": options.l2, "kernels": options.clip is None}
        self.optimizer = Adam(model, options.learning_rate, **adam)  # type: ignore[arg-type]
        self.guard = Guard(model, self.optimizer, clip=options.clip)
        self.fit = Fit(model)
        if (self.optimizer.sums or self.device.type == "cuda") and is_static(model):
            trust(self.optimizer.tables, self.train.features)  # ids are features there, and a graph sees them all
        self.position = Position(randoms=self.shuffle.states)
        self.graph: Any = None
        self.wants_graph = self._wants_graph(graph)
        self.taken = 0  # steps since this object was made
        self.begin()

    def config(self) -> dict[str, Any]:
        """The state that resumes a run."""
        valid = None if self.valid is None else fingerprint(self.valid)
        return self.settings | {"train": fingerprint(self.train), "valid": valid}

    @property
    def epochs_done(self) -> float:
        return whole(self.position.passes + self.position.seen / len(self.train))

    def due(self) -> bool:
        """Whether the next evaluation is."""
        target = min(self.options.every * (self.position.evaluations + 1), self.options.epochs)
        return self.epochs_done >= target - EPOCH_TOLERANCE

    def ended(self) -> bool:
        """Whether all epochs are done, or no metric has patience left."""
        patience = self.options.patience
        impatient = bool(self.fit.best) and all(bool(self.fit.stopped(name, patience).all()) for name in self.metrics)
        return impatient or self.epochs_done >= self.options.epochs - EPOCH_TOLERANCE

    def resume(self, position: Position) -> None:
        """Continue from ``position``: the pass is drawn again, and its finished part is skipped."""
        self.position = position
        self.shuffle.restart(position.randoms)
        self.begin()

    def begin(self) -> None:
        """Draw the order of a pass; a GPU need not wait for the next one."""
        more = self.position.passes + 1 < self.options.epochs
        self.under_way: Pass = self.shuffle.next(ahead=more and self.device.type == "cuda")

    def train_on(self) -> None:
        """Train until the pass ends, an evaluation is due, or a second has gone by."""
        began = time.monotonic()
        with mode(self.model, training=True), matmul_precision(self.options.precision):
            self.take_step()
            while not (self._passed or self.due() or time.monotonic() - began > 1):
                self.take_step()
        if self._passed:
            self.check()

    @property
    def _passed(self) -> bool:
        return self.position.seen == len(self.train)

    def take_step(self) -> None:
        """The step on the next batch, of the next pass if this one has ended."""
        position = self.position
        if self._passed:
            total = None if position.total is None else position.total.zero_()
            evaluations, randoms = position.evaluations, self.shuffle.states
            self.position = position = Position(position.passes + 1, 0, 0, evaluations, total, 0, randoms)
            self.begin()
        if self.options.schedule == "cosine":
            share = min(1.0, self.epochs_done / self.options.epochs)
            self.optimizer.set_rate(self.options.learning_rate * (1 + math.cos(math.pi * share)) / 2)
        start, stop = self.under_way.bounds(position.batches)
        self.advance(position.batches)
        position.counted += 1
        position.batches += 1
        position.seen += stop - start

    def _wants_graph(self, asked: bool | None) -> bool:
        """Whether the step becomes a graph, which must not wait for the GPU."""
        possible = (
            self.device.type == "cuda"
            and available(self.device)
            and not distributed.several()
            and self.shuffle.features.device == self.device
            and self.shuffle.whole is not None
            and len(self.optimizer.tables) == len(self.optimizer.sums)
        )
        if asked and not possible:
            needs = "a GPU with triton and room for the ads, one rank, auctions of one size and Adam in kernels"
            raise InputError(f"graph=True needs {needs}; graph=None uses a graph only if possible")
        return possible and (repeats_in_a_graph(self.model, self.loss) if asked is None else asked)

    def advance(self, number: int) -> None:
        self.taken += 1
        start, stop = self.under_way.bounds(number)
        if self.wants_graph and stop - start == self.shuffle.whole:
            if self.graph is None and self.taken > WARM:
                from bidwise.kernels.graph import captured

                self.graph = captured(self, stop - start)
                self.wants_graph = self.graph is not None
            if self.graph is not None:
                self.graph.advance(start)
                return
        loss = self.step(self.shuffle.batch(self.under_way, number))
        if self.position.total is None:
            self.position.total = torch.zeros_like(loss)
        self.position.total += loss

    def step(self, batch: AdBatch) -> Tensor:
        """Forward, loss, backward and update; the loss, which no one has waited for."""
        self.optimizer.zero_grad()
        logits = one_number_per_ad(self.model(batch.features), batch.clicks.shape[-1], self.members)
        if self.taken < 2:
            check_no_sigmoid(logits)
        columns = (batch.clicks, batch.bids, batch.teacher, batch.weights)
        clicks, bids, teacher, weights = (None if x is None else x.expand_as(logits) for x in columns)
        more = {} if weights is None else {"weights": weights}  # which only a loss for ads with weights takes
        losses: Tensor = self.loss(logits, clicks, bids, batch.offsets, teacher, **more)
        if not isinstance(losses, Tensor) or losses.shape != self.members:
            expected = f"one number per member, {tuple(self.members)}" if self.members else "one number"
            found = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise InputError(f"loss must return {expected}, found {found}")
        if not losses.requires_grad:
            why = "all parameters of model are frozen" if not logits.requires_grad else "a loss without a gradient"
            raise InputError(f"loss must depend on parameters of model that can be trained, found {why}")
        losses.backward(self.share.to(losses.dtype).expand_as(losses))  # type: ignore[no-untyped-call]
        if distributed.several():
            self.optimizer.average_gradients()
        if not self.guard.step(losses.detach()):
            raise self._not_finite(losses.detach(), logits, clicks, bids, teacher)
        return losses.detach()

    @property
    def losses(self) -> Tensor:
        """Mean loss since the last evaluation, or of this pass."""
        assert self.position.total is not None
        return self.position.total / max(self.position.counted, 1)

    def check(self) -> None:
        """Raise unless losses and weights are finite; weights too: a last step may ruin them after a finite loss."""
        losses = self.losses
        if all(bool(torch.isfinite(x).all()) for x in (losses, *self.model.parameters())):
            return
        what = f"{'weights are' if bool(torch.isfinite(losses).all()) else 'loss is'} not finite"
        raise InputError(f"the {what} after epoch {self.epochs_done:.4g}{_lost(losses)}; {self._explained()}")

    def _not_finite(self, losses: Tensor, *columns: Tensor | None) -> InputError:
        """The error of this batch, with its rows and a diagnosis of the first member that is lost."""
        start, stop = self.under_way.bounds(self.position.batches)
        rows = (self.under_way.order[0, start:stop] % len(self.train)).tolist()
        bad = ~torch.isfinite(losses.reshape(-1))
        member = int(bad.byte().argmax())
        of_member: Any = (x if x is None or x.dim() == 1 else x.detach().flatten(0, -2)[member] for x in columns)
        logits, clicks, bids, teacher = of_member
        alarms = diagnose(logits, clicks, bids, teacher=teacher, loss="log_loss").alarms
        sick = [f"{alarm.name}: {alarm.found}. {alarm.advice}" for alarm in alarms if alarm.name.startswith(SICK)]
        some = ", ".join(map(str, rows[:SHOWN])) + (f" and {len(rows) - SHOWN:,} more" if len(rows) > SHOWN else "")
        return InputError(
            f"the {'loss is' if bool(bad.any()) else 'gradient is'} not finite in batch {self.position.batches + 1} of "
            f"epoch {self.position.passes + 1}{_lost(losses)}, {stop - start:,} ads, rows {some} of train; "
            f"{self._explained(sick)}"
        )

    def _explained(self, alarms: Sequence[str] = ()) -> str:
        """Why a loss may not be finite, and remedies."""
        features = self.train.features
        if features.is_floating_point() and (wrong := int((~torch.isfinite(features)).sum())):
            return f"train.features must be finite, found {wrong} that are not"
        low, high = self.train.bids.aminmax()
        remedies = "Divide the bids by their mean, lower the learning rate, or train in float64 (model.double())"
        return " ".join([f"bids go from {low:.3g} to {high:.3g}.", *alarms, remedies])

    def evaluate(self) -> None:
        """The metrics of this epoch, and the weights if they are the best so far."""
        distributed.copy_first(list(self.model.buffers()))  # other modules may store what each rank has seen
        self.check()
        epoch = self._evaluated()
        entry: dict[str, Any] = {"epoch": epoch, "loss": self.losses.double().cpu()}
        assert self.position.total is not None
        self.position.total.zero_()
        self.position.counted = 0
        if self.valid is not None:
            fractions = isinstance(self.options.epochs, float) or isinstance(self.options.every, float)
            number = torch.tensor(epoch, dtype=torch.float64 if fractions else torch.int64)
            logits = logits_across(self.model, self.valid.features)
            for name, metric in self.metrics.items():
                value = metric.of(logits, self.valid).to(self.device)
                distributed.copy_first([value])  # a metric of a user's may be random: all must choose alike
                entry[name] = value.cpu()
                if bool(entry[name].isnan().any()):
                    wanted = f"ads that metric={name!r} can compare"
                    raise InputError(f"valid must have {wanted}, found NaN: are all clicks alike?")
                self.fit.keep(metric, entry[name], number, self.options.patience)
        self.fit.history.append(entry)

    def _evaluated(self) -> float:
        """Epochs at this evaluation; if a batch reaches several of them, only the last counts."""
        done, every = self.epochs_done + EPOCH_TOLERANCE, self.options.every
        self.position.evaluations = max(self.position.evaluations + 1, int(done / every))
        return self.options.epochs if done >= self.options.epochs else whole(every * self.position.evaluations)


def _lost(losses: Tensor) -> str:
    """How many members have a loss that is not finite, if there are members and some have one."""
    lost = int((~torch.isfinite(losses)).sum())
    return f" for {lost} of {losses.numel()} members" if losses.dim() and lost else ""


def repeats_in_a_graph(model: nn.Module, loss: Callable[..., Tensor]) -> bool:
    """Whether a CUDA graph may repeat a step: all parts are static, and no hook is called."""
    parts = [*model.modules(), *(loss.modules() if isinstance(loss, nn.Module) else [loss])]
    own = all(is_static(part) or getattr(nn, type(part).__name__, None) is type(part) for part in parts)
    hooks = any(part._forward_hooks or part._forward_pre_hooks for part in parts if isinstance(part, nn.Module))
    return own and not hooks and isinstance(loss, OWN_LOSSES)


_MIXED, _BEFORE = threading.Lock(), list[str]()  # torch's setting before each run under way that changed it


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Products of matrices in TF32 for ``mixed``, for all threads until the last that asked is done."""
    if precision == "float32":  # regardless of torch's setting
        yield
        return
    with _MIXED:
        _BEFORE.append(torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        with _MIXED:  # who came first has the user's setting, and the last to leave restores it
            torch.set_float32_matmul_precision(_BEFORE.pop())
