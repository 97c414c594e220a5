"""Tasks of the experiments: results are kept as files so that an interrupted run resumes; processes to run them in."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait as wait_for_pipes
from pathlib import Path
from typing import Any

import torch

import bidwise
from bidwise.checks import InputError
from bidwise.run_folder import Result, load, save, write_json, write_result
from bidwise.workers import LOOK, Call, Progress, Show, cores, finished


@dataclass(frozen=True, eq=False)
class Task(Call):
    """A call whose result is kept in a file, unless its ``key``, what it is of, has changed; ``epochs`` are shown."""

    key: str = ""
    epochs: float | None = None


Way = Callable[[Callable[..., Any]], Callable[..., Any]]


def here(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, carried out by this process."""
    return function


@contextmanager
def processes(workers: int) -> Iterator[Way]:
    """``function -> function``: the same, carried out by one of ``workers`` spawned processes that share the cores.

    The function, its options and its value must be picklable; progress is not reported. Processes end with this one.
    """
    threads = max(1, cores() // workers)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(threads,))
    try:
        yield lambda function: partial(_elsewhere, pool, function)
    finally:
        for child in multiprocessing.active_children():  # trainings under way; what is finished is on disk
            child.terminate()
        pool.shutdown(cancel_futures=True)


def _elsewhere(pool: ProcessPoolExecutor, function: Callable[..., Any], show: Show, **options: Any) -> Any:
    future = pool.submit(function, _silent, **options)
    while not wait([future], LOOK).done:
        show(0.0)  # raises if no more calls are wanted
    return future.result()


def _silent(share: float) -> None:
    """Progress of another process, which is not shown."""


def _start(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent reports it, and ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_pipes([parent.sentinel])
    os._exit(1)


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

    def all(
        self,
        tasks: Sequence[Task],
        pool: ThreadPoolExecutor | None = None,
        way: Way = here,
    ) -> list[Any]:
        """The results of independent tasks; those that are missing are computed in ``pool``, or in this thread.

        Finished results are kept if another task fails; the first error ends the others.

        Args:
            way: of carrying out a function, by this process or by :func:`processes`.
        """
        calls = [
            Call(task.name, way(_compute), {"path": self.path(task.name), "task": task}, task.amount)
            for task in tasks
            if _kept(self.path(task.name), task.key) is None
        ]
        shares: dict[str, float] = {}

        def show(call: Call, share: float) -> None:
            shares[call.name] = call.amount * share
            self._show(sum(shares.values()), call.options["task"], share)

        try:
            for call, _ in finished(calls, pool, show):
                self.computed = True
                show(call, 1.0)
        except (torch.OutOfMemoryError, BrokenProcessPool) as error:
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

    def _show(self, more: float, task: Task | None = None, share: float = 0.0) -> None:
        """Never less than before: what several have computed is counted once more when it is read."""
        self.shown = max(self.shown, min(1.0, (self.done + more) / self.expected))
        if self.progress is None:
            return
        models, detail = max(1, round(self.expected)), ""
        if task is not None:
            detail = f"model {min(models, int(self.done + more) + 1)} of {models}"
            if task.epochs:
                first = round(self.done + more - share * task.amount) + 1
                if task.amount > 1:  # trained as one
                    detail = f"models {first} to {first + round(task.amount) - 1} of {models}"
                detail += f", epoch {share * task.epochs:.1f} of {task.epochs:g}"
        self.progress("training", self.shown, detail)


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
