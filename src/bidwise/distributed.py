"""Exchanges between ranks: processes that train one model together, each on its part of every batch.

torchrun or Ray starts them; a process on its own is one rank, for which this module has no effect. Gradients are
averaged over ranks, as DistributedDataParallel does, so that a run is the same run on any number of ranks, to the
rounding of sums.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bidwise.checks import InputError, no_second_derivative

_PATIENCE = timedelta(hours=24)  # with rank 0, which may read a large table while the others wait
_Result = TypeVar("_Result")
_patient: list[Any] = []  # the group in which ranks wait for rank 0


class ElsewhereError(InputError):
    """An error of another rank, raised on this one too."""


def count() -> int:
    """Number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def several() -> bool:
    """Whether ranks train together."""
    return count() > 1


def rank() -> int:
    """Number of this rank, from 0."""
    return dist.get_rank() if count() > 1 else 0


@contextmanager
def launched(device: str) -> Iterator[str]:
    """Join the ranks that torchrun has started in one group; yields the device of this rank.

    Without torchrun, or if a group exists already, ``device`` is yielded unchanged.
    """
    if int(os.environ.get("WORLD_SIZE") or 1) == 1 or dist.is_initialized():
        yield device
        return
    if device == "cuda":
        local, there = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if local >= there:
            raise InputError(f"--nproc-per-node must be at most the number of GPUs, {there}, found {local + 1} or more")
        device = f"cuda:{local}"
        torch.cuda.set_device(local)
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    with _explained():
        store, here, number = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        # names of an attempt that torchrun has given up lead to processes that are gone
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=here, world_size=number)
        _patient.append(dist.new_group(backend="gloo", timeout=_PATIENCE))
    try:
        with _explained():
            yield device
    finally:
        _patient.clear()
        dist.destroy_process_group()


@contextmanager
def _explained() -> Iterator[None]:
    """Replace the backend's error about a rank that is gone by one with a remedy."""
    try:
        yield
    except RuntimeError as error:  # gloo, nccl and the store each have their own words, all of this kind
        if not isinstance(error, dist.DistError) and not any(x in str(error) for x in ("gloo/", "Gloo", "NCCL")):
            raise
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, which comes next: the error is yet to be reported
        raise ConnectionError("another rank is gone; the same command resumes, with any number of ranks") from error


def first(work: Callable[[], _Result], *, tell: bool = False) -> _Result | None:
    """Run ``work`` on rank 0 while the others wait; they get its result too with ``tell``, and always its error.

    >>> first(lambda: 3)
    3
    """
    if count() == 1:
        return work()
    result, error = None, None
    if rank() == 0:
        try:
            result = work()
        except Exception as raised:
            error = raised
    message: list[Any] = [None if error is None else str(error), result if tell else None]
    dist.broadcast_object_list(message, src=0, group=_patient[0] if _patient else None)
    if error is not None:
        raise error
    if message[0] is not None:
        raise ElsewhereError(message[0])
    return result if rank() == 0 else message[1]


def of_all(here: Any) -> list[Any]:
    """The objects of all ranks, in their order; any object that can be pickled."""
    if count() == 1:
        return [here]
    objects: list[Any] = [None] * count()
    dist.all_gather_object(objects, here)
    return objects


def agree(problem: str | None) -> None:
    """Raise on all ranks the problem that any of them reports."""
    for message in of_all(problem):
        if message is not None:
            raise InputError(message) if rank() == 0 else ElsewhereError(message)


def check_ranks_agree(**values: Any) -> None:
    """Raise unless these are the same on all ranks."""
    everywhere = of_all(values)
    for name in values:
        for other, there in enumerate(everywhere):
            if there[name] != everywhere[0][name]:
                found = f"{everywhere[0][name]} on rank 0 and {there[name]} on rank {other}"
                raise InputError(f"{name} must be the same on all ranks, found {found}")


def copy_first(tensors: Sequence[Tensor]) -> None:
    """Overwrite these tensors with their values on rank 0."""
    if count() > 1:
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)


def position_in_batch(part: Tensor) -> tuple[int, int]:
    """The ads of the batch that this part of a rank belongs to, and the start of the part."""
    if count() == 1:
        return len(part), 0
    sizes = stacked(torch.tensor(len(part), device=part.device)).tolist()
    return sum(sizes), sum(sizes[: rank()])


def stacked(local: Tensor) -> Tensor:
    """The tensors of all ranks, ``(...) -> (ranks, ...)``; without a gradient."""
    local = local.detach().contiguous()
    everywhere = local.new_empty(count(), *local.shape)
    dist.all_gather(list(everywhere.unbind(0)), local)
    return everywhere


def concatenated(local: Tensor, sizes: Sequence[int]) -> Tensor:
    """The tensors of all ranks one after the other in the last dimension, in which they differ; without a gradient."""
    longest = max(*sizes, 1)
    padded = stacked(F.pad(local.detach(), (0, longest - local.shape[-1])))
    return torch.cat([part[..., :size] for part, size in zip(padded, sizes, strict=True)], dim=-1)


def gathered(local: Tensor, *, alike: bool = False) -> Tensor:
    """The tensors of all ranks, ``(...) -> (ranks, ...)``; the gradients that ranks have for them add up.

    If all ranks compute the same from them, and so have gradients ``alike``, no gradient travels back.
    """
    everywhere: Tensor = _Gathered.apply(local, alike)  # type: ignore[no-untyped-call]
    return everywhere


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, alike: bool) -> Tensor:
        ctx.alike = alike
        return stacked(local)

    @staticmethod
    @no_second_derivative
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if ctx.alike:
            return count() * gradient[rank()], None
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total[rank()], None


class AcrossRanks(nn.Module):
    """A loss over the ads of all ranks, called on every rank with its own ads.

    Every rank gathers the columns of all ranks and computes the whole loss: the same number everywhere. Without offsets
    all ads are one auction, so that pairs of ads of different ranks count; with offsets each auction is on one rank.
    Averaged over ranks, as by DistributedDataParallel, gradients equal the gradients of the whole batch; so your
    own training loop needs no more than:

    .. code-block:: python

        loss = bidwise.training.AcrossRanks(bidwise.WelfareLoss())
        loss(DistributedDataParallel(model)(features), clicks, bids).backward()

    With one rank it is the loss itself.

    >>> import bidwise
    >>> AcrossRanks(bidwise.LOSSES["log"])(torch.zeros(2), torch.tensor([0.0, 1.0]), torch.ones(2))
    tensor(2.0794)
    """

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(
        self,
        logits: Tensor,
        clicks: Tensor,
        bids: Tensor,
        offsets: Tensor | None = None,
        teacher: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """The loss of the ads of all ranks."""
        if several():
            given = (logits, clicks, bids, teacher, weights)
            logits, clicks, bids, teacher, weights, offsets = _of_all_ads(given, offsets)  # type: ignore[assignment]
        return self.loss(logits, clicks, bids, offsets, teacher, **({} if weights is None else {"weights": weights}))


def _of_all_ads(columns: Sequence[Tensor | None], offsets: Tensor | None) -> list[Tensor | None]:
    """Columns of ads, each ``(..., ads)`` or none, of all ranks one after the other, and the offsets; the first column
    has a gradient."""
    given = [x for x in columns if x is not None]
    logits, ads, auctions = given[0], given[0].shape[-1], -1 if offsets is None else len(offsets) - 1
    sizes, counts = stacked(torch.tensor([ads, auctions], device=logits.device)).T.tolist()
    if min(counts) < 0 <= max(counts):
        raise InputError("offsets must be given on all ranks or on none, found them on some")
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32  # in which losses compute
    padded = F.pad(torch.stack([x.to(dtype) for x in given]), (0, max(sizes) - ads))
    parts = zip(gathered(padded, alike=True), sizes, strict=True)
    together = iter(torch.cat([part[..., :size] for part, size in parts], dim=-1))
    if offsets is not None:
        offsets = F.pad(concatenated(offsets.to(logits.device).diff(), counts).cumsum(0), (1, 0))
    return [*(None if x is None else next(together) for x in columns), offsets]


def average_gradients(parameters: Iterable[Tensor], rows: Sequence[Tensor]) -> None:
    """Replace gradients by their mean over ranks; of ``rows``, tables of embeddings, only rows are sent that some rank
    has looked up.
    """
    dense = [p for p in parameters if p.requires_grad and not any(p is table for table in rows)]
    for dtype in dict.fromkeys(p.dtype for p in dense):
        some = [p for p in dense if p.dtype == dtype]
        there = torch.tensor([float(p.grad is not None) for p in some], dtype=dtype, device=some[0].device)
        flat = torch.cat([*((torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in some), there])
        dist.all_reduce(flat)
        *means, there = torch.split(flat, [*(p.numel() for p in some), len(some)])
        for p, total, ranks_with in zip(some, means, there.tolist(), strict=True):
            # laid out in memory as the parameter, which Adam walks
            p.grad = torch.empty_like(p).copy_(total.view_as(p)).div_(count()) if ranks_with else None
    for table in rows:
        at, values = _rows(table)
        lengths = stacked(torch.tensor(len(at), device=table.device)).tolist()
        at, values = concatenated(at, lengths), concatenated(values.T, lengths).T
        with warnings.catch_warnings():  # torch 2.11 warns even if the check of rows is off
            warnings.filterwarnings("ignore", "Sparse invariant checks")
            table.grad = torch.sparse_coo_tensor(at[None], values / count(), table.shape, check_invariants=False)


def _rows(table: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows of a table have a gradient here, each once, and the gradients."""
    if table.grad is None:
        return torch.empty(0, dtype=torch.int64, device=table.device), table.new_empty(0, *table.shape[1:])
    gradient = (table.grad if table.grad.is_sparse else table.grad.to_sparse(1)).coalesce()
    return gradient.indices()[0], gradient.values()
