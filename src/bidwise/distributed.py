"""Ranks: processes that train one model together, each on its part of every batch, as torchrun and Ray start them.

Alone there is one rank, and everything here does nothing. Gradients are averaged over ranks, as
DistributedDataParallel does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bidwise.checks import InputError

PATIENCE = timedelta(hours=24)  # with rank 0, which may read a large table while the others wait
GOES_ON = "the same command goes on from the last checkpoint, with any number of ranks"
Found = TypeVar("Found")
_patient: list[Any] = []  # the group of those who wait for rank 0


class ElsewhereError(InputError):
    """What went wrong on rank 0, told on all others."""


def count() -> int:
    """How many ranks there are; 1 where nothing was started."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this one."""
    return dist.get_rank() if count() > 1 else 0


@contextmanager
def launched(device: str) -> Iterator[str]:
    """The ranks that torchrun has started, as one group, while this lasts; the device of this rank.

    Where torchrun has not been, or a group is there already, the device is as it was.
    """
    if int(os.environ.get("WORLD_SIZE") or 1) == 1 or dist.is_initialized():
        yield device
        return
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
        raise InputError(f"{missing[0]} must be set beside WORLD_SIZE, as torchrun does, found none; unset WORLD_SIZE")
    if device == "cuda":
        local, there = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if local >= there:
            raise InputError(f"--nproc-per-node must be at most the number of GPUs, {there}, found {local + 1} or more")
        device = f"cuda:{local}"
        torch.cuda.set_device(local)
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    with _told():
        store, here, number = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        # names of an attempt that torchrun has given up lead to processes that are gone
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=here, world_size=number)
        _patient.append(dist.new_group(backend="gloo", timeout=PATIENCE))
    before = signal.signal(signal.SIGTERM, _stopped)
    try:
        with _told():
            yield device
        signal.signal(signal.SIGTERM, before)  # not after an error, which is yet to be told
    finally:
        _patient.clear()
        dist.destroy_process_group()


@contextmanager
def _told() -> Iterator[None]:
    """An error that says what to do, where another rank has gone away."""
    try:
        yield
    except RuntimeError as error:  # gloo, nccl and the store each have their own words, all of this kind
        if not isinstance(error, dist.DistError) and not any(x in str(error) for x in ("gloo/", "Gloo", "NCCL")):
            raise
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, which comes next: there is an error to be told
        raise ConnectionError(f"another rank is gone: its process has ended or cannot be reached; {GOES_ON}") from error


def _stopped(*_: object) -> None:
    """What torchrun's signal to end does, which may come before gloo tells that a rank is gone."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise ConnectionError(f"another rank is gone, or torchrun was told to stop; {GOES_ON}")


def first(work: Callable[[], Found], *, tell: bool = False) -> Found | None:
    """What ``work()`` gives on rank 0, for which the others wait; they get it too with ``tell``. Its error is theirs.

    >>> first(lambda: 3)
    3
    """
    if count() == 1:
        return work()
    found, raised = None, None
    told: list[Any] = [None, None]  # what went wrong, what was found
    if rank() == 0:
        try:
            found = work()
            told = [None, found if tell else None]
        except Exception as error:
            raised = error
            told = [str(error), None]
    dist.broadcast_object_list(told, src=0, group=_patient[0] if _patient else None)
    if raised is not None:
        raise raised
    if told[0] is not None:
        raise ElsewhereError(told[0])
    return found if rank() == 0 else told[1]


def agree(problem: str | None) -> None:
    """Raise on all ranks what any of them has found to be wrong."""
    if count() == 1:
        told = [problem]
    else:
        told = [None] * count()
        dist.all_gather_object(told, problem)
    for words in told:
        if words is not None:
            raise InputError(words) if rank() == 0 else ElsewhereError(words)


def all_of(here: bool) -> bool:
    """Whether it is so on all ranks."""
    if count() == 1:
        return here
    told: list[Any] = [None] * count()
    dist.all_gather_object(told, here)
    return all(told)


def check_same(**found: Any) -> None:
    """Raise unless these are the same on all ranks."""
    if count() == 1:
        return
    everywhere: list[Any] = [None] * count()
    dist.all_gather_object(everywhere, found)
    for name, here in found.items():
        for other, there in enumerate(everywhere):
            if there[name] != everywhere[0][name]:
                raise InputError(
                    f"{name} must be the same on all ranks, found {everywhere[0][name]} on rank 0 and {there[name]} on "
                    f"rank {other}" + ("" if here == there[name] else f"; this is rank {rank()}")
                )


def copy_first(tensors: Sequence[Tensor]) -> None:
    """Give these tensors the numbers that they have on rank 0."""
    if count() > 1:
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)


@dataclass(frozen=True)
class Share:
    """How a batch is shared out: its ads on each rank, and the bounds of its auctions over all of them."""

    sizes: tuple[int, ...]
    offsets: Tensor | None = None

    @property
    def ads(self) -> int:
        """Of the whole batch."""
        return sum(self.sizes)

    @property
    def begin(self) -> int:
        """Where the ads of this rank begin in it."""
        return sum(self.sizes[: rank()])


def place(ads: int) -> tuple[int, int]:
    """The size of the batch that these ads are of, and where they begin in it.

    In a loop of one's own no one has said how it is shared out: ranks are then taken to have equally many.
    """
    batch = share()
    return (count() * ads, rank() * ads) if batch is None else (batch.ads, batch.begin)


_share: ContextVar[Share | None] = ContextVar("share", default=None)


def share() -> Share | None:
    """How the batch under way is shared out; ``None`` where it is all here."""
    return _share.get()


@contextmanager
def sharing(batch: Share | None) -> Iterator[None]:
    """Let the parts of a model that look at whole batches, batch norm and dropout, know how this one is shared out."""
    before = _share.set(batch)
    try:
        yield
    finally:
        _share.reset(before)


def stacked(local: Tensor) -> Tensor:
    """The tensors of all ranks, ``(...) -> (ranks, ...)``; without a gradient."""
    local = local.detach().contiguous()
    found = local.new_empty(count(), *local.shape)
    dist.all_gather(list(found.unbind(0)), local)
    return found


def concatenated(local: Tensor, sizes: Sequence[int]) -> Tensor:
    """The tensors of all ranks one after the other in the last dimension, where they differ; without a gradient."""
    if local.shape[-1] != sizes[rank()]:
        raise InputError(f"ads must be as many as the batch has on this rank, {sizes[rank()]}, found {local.shape[-1]}")
    longest = max(*sizes, 1)
    found = stacked(F.pad(local.detach(), (0, longest - local.shape[-1])))
    return torch.cat([part[..., :size] for part, size in zip(found, sizes, strict=True)], dim=-1)


def gathered(local: Tensor) -> Tensor:
    """The tensors of all ranks, ``(...) -> (ranks, ...)``; each may use them otherwise: gradients add up."""
    found: Tensor = _Gathered.apply(local)  # type: ignore[no-untyped-call]
    return found


def joined(local: Tensor, sizes: Sequence[int]) -> Tensor:
    """The tensors of all ranks one after the other in the last dimension, of which all compute one and the same loss.

    The gradient of that loss for one's own part is here already; it counts once for every rank, since gradients are
    averaged over ranks.
    """
    found: Tensor = _Joined.apply(local, tuple(sizes))  # type: ignore[no-untyped-call]
    return found


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        return stacked(local)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous()
        dist.all_reduce(total)
        return total[rank()]


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, sizes: tuple[int, ...]) -> Tensor:
        ctx.begin, ctx.length = sum(sizes[: rank()]), local.shape[-1]
        return concatenated(local, sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return count() * gradient.narrow(-1, ctx.begin, ctx.length), None
