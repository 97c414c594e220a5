"""Tasks of the experiments, whose results are kept as files so that an interrupted run resumes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import bidwise
from bidwise.checks import InputError
from bidwise.run_folder import Result, load, save, write_json, write_result
from bidwise.workers import Progress, Show

LOOK = 0.5  # seconds between looks at how far tasks are


@dataclass(frozen=True, eq=False)
class Task:
    """``function(show, **options)``, ``amount`` of work, whose result is kept in a file, unless its ``key``, what it is
    of, has changed."""

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    amount: float = 1.0
    key: str = ""


class TaskCache:
    """Results of tasks as files in the folder ``pieces`` of a run, so that a run that was cut off resumes.

    ``expected`` is the amount of work of all tasks together; a model is an amount of 1.
    """

    def __init__(self, folder: Path, progress: Progress | None = None, expected: float = 1.0) -> None:
        self.folder = folder / "pieces"
        self.folder.mkdir(exist_ok=True)
        self.progress, self.expected = progress, expected
        self.done, self.shown = 0.0, 0.0
        self.computed, self.seconds = False, 0.0  # whether a result is new, and what all of them took

    def path(self, name: str) -> Path:
        """The file of a task."""
        return self.folder / f"{name}.pt"

    def all(self, tasks: Sequence[Task], pool: ThreadPoolExecutor | None = None) -> list[Any]:
        """The results of independent tasks; those that are missing are computed in ``pool``, or in this thread.

        Finished results are kept if another task fails; the first error ends the others.
        """
        calls = [
            replace(task, function=_compute, options={"path": self.path(task.name), "task": task})
            for task in tasks
            if _kept(self.path(task.name), task.key) is None
        ]
        shares: dict[str, float] = {}

        def show(call: Task, share: float) -> None:
            shares[call.name] = call.amount * share
            self._show(sum(shares.values()))

        try:
            for call, _ in finished(calls, pool, show):
                self.computed = True
                show(call, 1.0)
        except torch.OutOfMemoryError as error:
            fix = "use fewer --workers if memory is short; the same command resumes after the last finished part"
            raise OSError(f"a task failed: {error}; {fix}") from None
        return [self._counted(task) for task in tasks]

    def _counted(self, task: Task) -> Any:
        kept = _kept(self.path(task.name), task.key)
        self.seconds += kept["seconds"]
        self.done += task.amount
        self._show(0.0)
        return kept["found"]

    def write(self, result: Result, environment: Mapping[str, Any]) -> None:
        """``result.json``, and ``environment.json`` where something is new: a look at old results leaves theirs."""
        path = self.folder.parent / "environment.json"
        if self.computed or not path.exists():
            write_json(path, {**environment, "seconds": round(self.seconds, 1)})
        write_result(self.folder.parent, result)

    def _show(self, more: float) -> None:
        """Never less than before: what several have computed is counted once more when it is read."""
        self.shown = max(self.shown, min(1.0, (self.done + more) / self.expected))
        if self.progress is not None:
            models = max(1, round(self.expected))
            self.progress("training", self.shown, f"model {min(models, int(self.done + more) + 1)} of {models}")


def kept_result(path: Path) -> Any:
    """The result in the file of a finished task, for tasks that build on it."""
    return load(path)["found"]


def _kept(path: Path, key: str) -> Any:
    """What a file holds; ``None`` for one that is not there, damaged or of something else: it is computed again."""
    try:
        kept = load(path)
    except (FileNotFoundError, InputError):
        return None
    whole = isinstance(kept, dict) and {"of", "found", "seconds"} <= set(kept)
    return kept if whole and kept["of"] == f"bidwise {bidwise.__version__}: {key}" else None


def _compute(show: Show, path: Path, task: Task) -> None:
    started = time.perf_counter()
    found = task.function(show, **task.options)
    of = f"bidwise {bidwise.__version__}: {task.key}"
    save(path, {"of": of, "found": found, "seconds": time.perf_counter() - started})


class Stopped(Exception):
    """Raised in a thread when no more tasks are wanted."""


def threads(workers: int, device: torch.device | str = "cpu") -> ThreadPoolExecutor:
    """Threads for :func:`finished`; on a GPU each has a stream of its own."""
    if torch.device(device).type != "cuda":
        return ThreadPoolExecutor(workers)
    torch.cuda.synchronize(device)  # shared tensors were made on another stream
    stream: Callable[..., Any] = torch.cuda.Stream
    return ThreadPoolExecutor(workers, initializer=lambda: torch.cuda.set_stream(stream(device)))


def finished(
    tasks: Iterable[Task],
    pool: ThreadPoolExecutor | None = None,
    show: Callable[[Task, float], None] = lambda task, share: None,
) -> Iterator[tuple[Task, Any]]:
    """Each task with its value, as they end; without a pool, in this thread. The first error is raised unchanged.

    Leaving the loop early ends pending work and the pool.
    """
    if pool is None:
        for task in tasks:
            yield task, task.function(partial(show, task), **task.options)
        return
    shares: dict[Task, float] = {}
    stopping = threading.Event()

    def work(task: Task) -> Any:
        def report(share: float) -> None:
            if stopping.is_set():
                raise Stopped
            shares[task] = share

        return task.function(report, **task.options)

    under_way = {pool.submit(work, task): task for task in tasks}
    try:
        while under_way:
            done, _ = wait(under_way, LOOK, FIRST_COMPLETED)
            for started, share in list(shares.items()):
                show(started, share)
            for future in done:
                task = under_way.pop(future)
                shares.pop(task, None)
                yield task, future.result()
    finally:
        stopping.set()
        pool.shutdown(cancel_futures=True)
