"""Tasks of the experiments, whose results are kept as files so that an interrupted run resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import bidwise
from bidwise.checks import InputError
from bidwise.run_folder import R, environment, load, open_folder, save, write_json, write_result
from bidwise.workers import Progress, Show


@dataclass(frozen=True, eq=False)
class Task:
    """``function(show)``, ``amount`` of work. Its result is kept in a file, and computed again if the ``key`` has
    changed."""

    name: str
    function: Callable[[Show], Any]
    amount: float = 1.0
    key: str = ""

    @property
    def of(self) -> str:
        """What a file must be of for the task not to be computed again."""
        return f"bidwise {bidwise.__version__}: {self.key}"


class TaskCache:
    """Results of tasks as files in the folder ``pieces`` of a run, so that a run that was cut off resumes.

    Args:
        out: folder of the run, new or of the same ``config``.
        expected: amount of work of all tasks together.
    """

    def __init__(
        self,
        out: str | Path,
        config: Mapping[str, Any],
        device: str = "cpu",
        progress: Progress | None = None,
        expected: float = 1.0,
    ) -> None:
        self.folder = open_folder(out, config)
        self.environment = environment(device)  # now: the sources may change while it runs
        self.progress, self.expected = progress, expected
        self.done, self.shown = 0.0, 0.0
        self.seconds = 0.0  # that all results took
        self.path("").parent.mkdir(exist_ok=True)

    def path(self, name: str) -> Path:
        """The file of a task."""
        return self.folder / "pieces" / f"{name}.pt"

    def all(self, tasks: Sequence[Task], pool: ThreadPoolExecutor | None = None) -> list[Any]:
        """The results of independent tasks; those that are missing are computed in ``pool``, or in this thread.

        Finished results are kept if another task fails; the first error ends the others.
        """
        missing = [task for task in tasks if self._kept(task) is None]
        shares, ended = dict[str, float](), False

        def compute(task: Task) -> None:
            def show(share: float) -> None:
                if ended:
                    raise SystemExit  # of this thread
                shares[task.name] = task.amount * share
                self._show(sum(list(shares.values())))

            started = time.perf_counter()
            found = task.function(show)
            save(self.path(task.name), {"of": task.of, "found": found, "seconds": time.perf_counter() - started})
            show(1.0)

        if pool is None:
            for task in missing:
                compute(task)
        else:
            try:
                for future in as_completed([pool.submit(compute, task) for task in missing]):
                    future.result()
            finally:
                ended = True
                pool.shutdown(cancel_futures=True)
        results = []
        for task in tasks:
            kept = self._kept(task)
            self.seconds += kept["seconds"]
            self.done += task.amount
            self._show(0.0)
            results.append(kept["found"])
        return results

    def write(self, result: R) -> R:
        """``result.json``, and ``environment.json`` the first time: a look at old results leaves theirs."""
        if not (path := self.folder / "environment.json").exists():
            write_json(path, {**self.environment, "seconds": round(self.seconds, 1)})
        write_result(self.folder, result)
        return result

    def _show(self, more: float) -> None:
        """Never less than before: what several have computed is counted once more when it is read."""
        self.shown = max(self.shown, min(1.0, (self.done + more) / self.expected))
        if self.progress is not None:
            parts = max(1, round(self.expected))
            self.progress("training", self.shown, f"part {min(parts, int(self.done + more) + 1)} of {parts}")

    def _kept(self, task: Task) -> Any:
        """The content of a task's file; ``None`` if there is none, or one damaged or of something else."""
        with suppress(FileNotFoundError, InputError):
            kept = load(self.path(task.name))
            return kept if kept["of"] == task.of else None
        return None


def threads(workers: int, device: torch.device | str = "cpu") -> ThreadPoolExecutor:
    """Threads for :meth:`TaskCache.all`; on a GPU each has a stream of its own."""
    if torch.device(device).type != "cuda":
        return ThreadPoolExecutor(workers)
    torch.cuda.synchronize(device)  # shared tensors were made on another stream
    return ThreadPoolExecutor(workers, initializer=lambda: torch.cuda.set_stream(torch.cuda.Stream(device)))  # type: ignore[no-untyped-call]
