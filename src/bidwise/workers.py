"""Work side by side: blocks of a table in threads, and trainings in threads that have their own streams on a GPU."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

import torch

LOOK = 0.5  # seconds between looks at how far calls are

Show = Callable[[float], None]  # called with the share of a call that is done
Task = TypeVar("Task")
Value = TypeVar("Value")


class Progress(Protocol):
    """The name of the work, the share that is done, and details: ``("training", 0.4, "model 2 of 5")``."""

    def __call__(self, work: str, done: float, detail: str = "") -> None: ...


@dataclass(frozen=True, eq=False)
class Call:
    """``function(show, **options)``, ``amount`` of work."""

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    amount: float = 1.0


class Stopped(Exception):
    """Raised in a thread when no more calls are wanted."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ahead(work: Callable[[Task], Value], tasks: Iterable[Task], workers: int) -> Iterator[Value]:
    """The values of ``work(task)``, called in threads, in the order of the tasks.

    No more than ``workers`` values wait; tasks are taken as needed. The first error ends the work.
    """
    with ThreadPoolExecutor(workers) as pool:
        futures = (pool.submit(work, task) for task in tasks)
        waiting = deque(islice(futures, workers))
        try:
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(islice(futures, 1))
        finally:
            pool.shutdown(cancel_futures=True)


def threads(workers: int, device: torch.device | str = "cpu") -> ThreadPoolExecutor:
    """Threads for :func:`finished`; on a GPU each has a stream of its own."""
    if torch.device(device).type != "cuda":
        return ThreadPoolExecutor(workers)
    torch.cuda.synchronize(device)  # shared tensors were made on another stream
    stream: Callable[..., Any] = torch.cuda.Stream
    return ThreadPoolExecutor(workers, initializer=lambda: torch.cuda.set_stream(stream(device)))


def finished(
    calls: Iterable[Call],
    pool: ThreadPoolExecutor | None = None,
    show: Callable[[Call, float], None] = lambda call, share: None,
) -> Iterator[tuple[Call, Any]]:
    """Each call with its value, as they end; without a pool, in this thread. The first error is raised unchanged.

    Leaving the loop early ends pending work and the pool.
    """
    if pool is None:
        for call in calls:
            yield call, call.function(partial(show, call), **call.options)
        return
    shares: dict[Call, float] = {}
    stopping = threading.Event()

    def work(call: Call) -> Any:
        def report(share: float) -> None:
            if stopping.is_set():
                raise Stopped
            shares[call] = share

        return call.function(report, **call.options)

    under_way = {pool.submit(work, call): call for call in calls}
    try:
        while under_way:
            done, _ = wait(under_way, LOOK, FIRST_COMPLETED)
            for started, share in list(shares.items()):
                show(started, share)
            for future in done:
                call = under_way.pop(future)
                shares.pop(call, None)
                yield call, future.result()
    finally:
        stopping.set()
        pool.shutdown(cancel_futures=True)
