"""`fit`: Adam, batches, early stopping; one model, or all repeats and variants of one as a single program."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bidwise import distributed
from bidwise.checks import InputError, check_name
from bidwise.data.ads import Ads
from bidwise.json_files import to_json
from bidwise.losses.named import LOSSES, needs_teacher
from bidwise.run_folder import checksum, load, open_folder, save, write_text
from bidwise.training.arguments import Options, check_loss, check_parts
from bidwise.training.run import Position, Run
from bidwise.training.validation import METRICS, Best, Fit, Metric

CHECKPOINT_SECONDS = 120  # between checkpoints, if evaluations are farther apart


def fit(
    model: nn.Module,
    train: Ads,
    *,
    loss: str | Callable[..., Tensor] = "log_loss",
    valid: Ads | None = None,
    metric: str | Metric | Sequence[str | Metric] = "log_loss",
    epochs: float = 10,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    schedule: str = "constant",
    patience: float | None = None,
    every: float = 1,
    embeddings: str = "lazy",
    l2: float = 0.0,
    precision: str = "float32",
    clip: float | None = None,
    graph: bool | None = None,
    seed: int | Sequence[int] = 0,
    adam: dict[str, Any] | None = None,
    out: str | Path | None = None,
    progress: Callable[[float], None] | None = None,
) -> Fit:
    """Train ``model`` with Adam, and keep the weights of its best epoch on validation ads.

    A model with ``members`` is many models trained at once; each has the batches, the best epoch and the weights that
    it would have if trained separately. Everything runs on the device of the model.

    A batch with a loss or gradient that is not finite raises an error, which on a CPU names its rows.

    If torch.distributed has been initialised, by torchrun or by Ray, all ranks train one model together: each calls
    ``fit`` with the same arguments, has its part of every batch, and gets the same weights. ``batch_size`` is the
    total of all ranks, so that a run is the same on any number of them, to rounding. Rank 0 writes.

    Args:
        model: returns logits, ``(ads, width) -> (ads,)``, or ``(*members, ads)`` for a batch of models.
        train: a batch is an auction of ``batch_size`` random ads or, with offsets, whole auctions.
        loss: a name in :data:`bidwise.LOSSES`, or a function like them: ``loss(logits, clicks, bids, offsets,
            teacher)``, with ``weights=`` if ``train`` has them. Losses with a teacher take it from ``train.teacher``.
        valid: ads to choose the epoch by; ``None`` keeps the last weights.
        metric: chooses the epoch: ``log_loss``, which lost the least welfare in simulations, ``auc``, ``welfare``
            (clicked), ``expected_welfare`` (by ``valid.truth``), or a :class:`~bidwise.training.Metric` of your own. Of
            several the first decides; ``best`` has the weights by each.
        epochs: passes over the ads; 2.1 ends a tenth into the third.
        learning_rate: of Adam; its other parameters are torch's defaults.
        schedule: ``constant``, or ``cosine`` from ``learning_rate`` to 0.
        patience: stop after so many epochs without a better metric, each metric for itself; ``None`` trains all epochs.
        every: epochs between evaluations, 0.25 for four in each; the end is always evaluated.
        embeddings: :class:`~bidwise.training.Adam` updates rows that a batch looked up (``lazy``) or all (``dense``).
        l2: adds l2 times the sum of squared embeddings to each log loss; first-order weights bear a small part of it.
            Of rank + lam * log loss, steps take rank / lam + log loss + penalty: its strength does not depend on lam.
        precision: ``float32``, or ``mixed``: products of matrices in TF32, on the tensor cores of a GPU, in any thread.
        clip: clip the Euclidean norm of the gradients, over all parameters, to it; ``None``: no clipping. They are
            the gradients of rank / lam + log loss; the penalty of ``l2`` is added afterwards.
        graph: on a GPU, repeat the step as a CUDA graph, without Python; ``None``: if model and loss are of bidwise.
            ``True`` asks for it with others too; their Python code must do the same in every step.
        seed: of the batches, one for all repeats or one for each.
        adam: state of :class:`~bidwise.training.Adam` to continue from, as from :func:`adam_of`; not copied. The
            model has the weights to continue from.
        out: a run folder: configuration, metrics and weights. An interrupted run resumes from it.
        progress: called with the number of finished epochs, after each and about once a second.

    >>> import bidwise, torch
    >>> random = torch.Generator().manual_seed(0)
    >>> market = bidwise.data.WORLDS["plotted"].market(random)
    >>> train, valid = market.ads(512, random), market.auctions(20, 10, random)
    >>> fitted = fit(bidwise.models.LogisticRegression(50), train, loss="log_plus", valid=valid, epochs=3)
    >>> len(fitted.history)  # an entry for each epoch
    3
    """
    check_parts(model, train, valid)
    if isinstance(loss, distributed.AcrossRanks):
        loss = loss.loss  # as fit wraps every loss
    metrics = _metrics(metric)
    if isinstance(loss, str):
        check_name("loss", loss, LOSSES)
    else:
        check_loss(loss)
    options = Options(epochs, batch_size, learning_rate, schedule, patience, every, embeddings, l2, precision, clip)
    if patience is not None and valid is None:
        raise InputError("patience needs valid, found None")
    by_welfare = any(name.endswith("welfare") for name in metrics)
    if valid is not None and valid.offsets is None and valid.auction_size is None and by_welfare:
        raise InputError("valid must have offsets or auction_size for metric='welfare', found neither")
    if train.teacher is None and needs_teacher(loss):
        raise InputError("train must have a teacher for this loss, found None; use train.with_teacher(ctr)")
    with _on_device_of(model):
        distributed.check_ranks_agree(out="none" if out is None else "a folder")
        run = Run(model, train, valid, loss, metrics, options, seed, graph)
        folder = None
        if adam is not None:
            run.optimizer.load_state_dict(adam)
            run.optimizer.set_rate(options.learning_rate)  # not the rate of the earlier training
        if out is not None:
            run.fit.folder = Path(out)
            folder = distributed.first(lambda: open_folder(out, run.config()))  # only on rank 0, which writes
            load_checkpoint(Path(out), run)
        _train(run, folder, progress)
        if run.fit.best:
            model.load_state_dict(run.fit.best[next(iter(metrics))].state)
        if folder is not None:
            save(folder / "model.pt", model.state_dict())
    return run.fit


def _train(run: Run, folder: Path | None, progress: Callable[[float], None] | None) -> None:
    saved = time.monotonic()
    try:
        while not run.ended():
            run.train_on()
            evaluated = run.due()
            if evaluated:
                run.evaluate()
            if folder is not None and (evaluated or time.monotonic() - saved > CHECKPOINT_SECONDS):
                save_checkpoint(folder, run)
                saved = time.monotonic()
            if progress is not None:
                progress(run.epochs_done)
    finally:
        run.optimizer.release()
    run.fit.last = run.fit.state()


def _metrics(metric: str | Metric | Sequence[str | Metric]) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    for each in (metric,) if isinstance(metric, str | Metric) else metric:
        if isinstance(each, str):
            check_name("metric", each, METRICS)
            each = METRICS[each]
        metrics[each.name] = each
    if not metrics:
        raise InputError("metric must name at least one metric, found none")
    return metrics


def _on_device_of(model: nn.Module) -> AbstractContextManager[Any]:
    """Kernels and streams use the current device, which need not be the model's."""
    first = next(model.parameters())
    return torch.cuda.device(first.device) if first.is_cuda else nullcontext()


def save_checkpoint(folder: Path, run: Run) -> None:
    """All that a run is resumed from, and the metrics so far for people to read."""
    if not run.guard.watching:
        run.check()  # a ruined state must not take the place of a good one
    state = {
        "position": vars(run.position),
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "best": {name: vars(best) for name, best in run.fit.best.items()},
        "history": run.fit.history,
    }
    lines = (json.dumps(to_json(entry), allow_nan=False) for entry in run.fit.history)
    write_text(folder / "metrics.jsonl", "".join(f"{line}\n" for line in lines))
    save(folder / "checkpoint.pt", state)  # last: it marks the training as complete


def load_checkpoint(folder: Path, run: Run) -> None:
    """Restore ``run`` if the folder has a checkpoint, which all ranks must see."""
    path = folder / "checkpoint.pt"
    known = checksum(path) if path.exists() else None
    distributed.check_ranks_agree(checkpoint=known)
    if known is None:
        return
    there = load(path)
    device = next(run.model.parameters()).device
    try:
        run.model.load_state_dict(there["model"])
        run.optimizer.load_state_dict(there["optimizer"])
        for name, best in there["best"].items():
            state = {key: tensor.to(device) for key, tensor in best["state"].items()}
            run.fit.best[name] = Best(best["epoch"], best["value"], state)
        run.fit.history = [{**entry} for entry in there["history"]]
        position = Position(**there["position"])
        if position.total is not None:
            position.total = position.total.to(device)
        run.resume(position)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InputError(f"{path} must be a checkpoint of this training, found another; delete it") from error


def adam_of(fit: Fit) -> dict[str, Any]:
    """The state of Adam after the last step of a training in a folder: moments, steps, and how often rows were seen."""
    assert fit.folder is not None
    state: dict[str, Any] = load(fit.folder / "checkpoint.pt")["optimizer"]
    return state
