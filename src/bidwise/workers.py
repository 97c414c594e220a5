"""Work side by side: blocks of a table in threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Protocol, TypeVar

Show = Callable[[float], None]  # called with the share of a training that is done
Task = TypeVar("Task")
Value = TypeVar("Value")


class Progress(Protocol):
    """The name of the work, the share that is done, and details: ``("training", 0.4, "model 2 of 5")``."""

    def __call__(self, work: str, done: float, detail: str = "") -> None: ...


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
