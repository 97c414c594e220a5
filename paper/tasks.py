"""Tasks of the experiments, whose results are kept as files so that an interrupted run resumes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import bidwise
from bidwise.checks import InputError
from bidwise.run_folder import Result, load, save, write_json, write_result
from bidwise.workers import Call, Progress, Show, finished


@dataclass(frozen=True, eq=False)
class Task(Call):
    """A call whose result is kept in a file, unless its ``key``, what it is of, has changed."""

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
            Call(task.name, _compute, {"path": self.path(task.name), "task": task}, task.amount)
            for task in tasks
            if _kept(self.path(task.name), task.key) is None
        ]
        shares: dict[str, float] = {}

        def show(call: Call, share: float) -> None:
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
