"""One way to run tasks: in this thread, in threads or in processes; resumable if results are files.

Every runner is a pool of threads, and differs in how a thread carries out a call: by itself or by its own process.
A call whose process is killed is tried again, so calls must not mind another try.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

LOOK = 0.5  # seconds between looks at how far calls are

Show = Callable[[float], None]  # called with the share of a call that is done


class Progress(Protocol):
    """What is being done, the share of it that is, and where it stands: ``("training", 0.4, "model 2 of 5")``."""

    def __call__(self, work: str, done: float, detail: str = "") -> None: ...


@dataclass(frozen=True, eq=False)
class Call:
    """``function(show, **options)``, ``amount`` of work; other processes import the function by its name."""

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    amount: float = 1.0


class Stopped(Exception):
    """Raised in a thread when no more calls are wanted."""


class Runner:
    """Calls in threads of this process, ``workers`` at once; with one worker, in this thread."""

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self.stopping = threading.Event()

    def execute(self, call: Call, show: Show) -> Any:
        """Carry out a call in a thread of the pool."""
        return call.function(show, **call.options)

    def stop(self) -> None:
        """Called once, when no more calls are wanted; those under way may be ended."""

    def in_order(self, work: Callable[[Any], Any], tasks: Iterable[Any], then: Callable[[Any], None]) -> None:
        """Call ``then(work(task))`` in the order of the tasks, in this thread; the first error is raised unchanged."""
        calls = (Call("", _apply, {"work": work, "task": task}) for task in tasks)
        for _, future in self.run(calls, ordered=True):
            then(future.result())

    def run(
        self, calls: Iterable[Call], *, ordered: bool = False, show: Callable[[Call, float], None] | None = None
    ) -> Generator[tuple[Call, Future[Any]], None, None]:
        """Each call with its finished future, as they end or in the order of the calls, which are taken as needed.

        Leaving the loop early ends what is under way.
        """
        tell = show or (lambda call, share: None)
        if type(self) is Runner and self.workers == 1:
            for each in calls:
                yield each, _inline(each, partial(tell, each))
            return
        self.stopping.clear()
        shares: dict[Call, float] = {}

        def work(call: Call) -> Any:
            def report(share: float) -> None:
                if self.stopping.is_set():
                    raise Stopped
                shares[call] = share

            return self.execute(call, report)

        pool = ThreadPoolExecutor(self.workers)
        under_way: deque[tuple[Call, Future[Any]]] = deque()
        source = iter(calls)
        try:
            while True:
                while len(under_way) < self.workers and (call := next(source, None)) is not None:
                    under_way.append((call, pool.submit(work, call)))
                if not under_way:
                    return
                waited = [under_way[0][1]] if ordered else [future for _, future in under_way]
                done, _ = wait(waited, LOOK, FIRST_COMPLETED)
                for started, share in list(shares.items()):
                    tell(started, share)
                for pair in [pair for pair in under_way if pair[1] in done]:
                    under_way.remove(pair)
                    shares.pop(pair[0], None)
                    yield pair
        finally:
            self.stopping.set()
            for _, future in under_way:
                future.cancel()
            self.stop()
            pool.shutdown(cancel_futures=True)


def _apply(show: Show, work: Callable[[Any], Any], task: Any) -> Any:
    return work(task)


def _inline(call: Call, show: Show) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(call.function(show, **call.options))
    except Exception as error:
        future.set_exception(error)
    return future


class Threads(Runner):
    """Threads that share data; on a GPU each has a stream of its own.

    Args:
        torch_threads: of each call; ``None``: as many as torch has now. On busy cores they wait for each other.
    """

    def __init__(self, workers: int, device: torch.device | str = "cpu", torch_threads: int | None = None) -> None:
        super().__init__(workers)
        self.torch_threads = torch_threads
        self.streams: list[Any] = [None] * workers  # kept: torch keeps the memory of a stream for that stream
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)  # what threads share was made on another stream
            self.streams = [torch.cuda.Stream(device) for _ in range(workers)]  # type: ignore[no-untyped-call]

    def run(self, calls: Iterable[Call], **options: Any) -> Generator[tuple[Call, Future[Any]], None, None]:
        before = torch.get_num_threads()
        torch.set_num_threads(self.torch_threads or before)  # of all threads that are started from here on
        try:
            yield from super().run(calls, **options)
        finally:
            torch.set_num_threads(before)

    def execute(self, call: Call, show: Show) -> Any:
        stream = self.streams.pop()
        try:
            with nullcontext() if stream is None else torch.cuda.stream(stream):
                return super().execute(call, show)
        finally:
            self.streams.append(stream)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
