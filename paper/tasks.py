"""Tasks of the experiments: killed processes are started again, and results are kept as files so that runs resume."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_pipes
from pathlib import Path
from typing import Any

import torch

import bidwise
from bidwise.checks import InputError
from bidwise.run_folder import Result, load, save, write_json, write_result
from bidwise.runners import Call, Progress, Runner, Show, Stopped, cores

TRIES = 3  # of a call whose process is killed


GONE = (EOFError, OSError)  # what a pipe says when the process at its other end was killed


@dataclass(frozen=True, eq=False)
class Task(Call):
    """A call whose result is kept in a file, unless its ``key``, what it is of, has changed; ``epochs`` are shown."""

    key: str = ""
    epochs: float | None = None


class Killed(Exception):
    """A call whose process ended without a word, in every try; ``code`` is its last exit code."""

    def __init__(self, tries: int, code: int | None) -> None:
        self.tries, self.code = tries, code
        super().__init__(tries, code)

    def __str__(self) -> str:
        if self.code == -signal.SIGKILL:
            return f"it was killed {self.tries} times; does it fit into memory? Fewer workers leave more for each"
        return f"its process ended {self.tries} times, with exit code {self.code}"


class Processes(Runner):
    """A spawned process for each worker, which share the cores; one that is killed is started again."""

    shares_memory = False

    def __init__(self, workers: int, say: Callable[[str], None] | None = None) -> None:
        super().__init__(workers)
        self.say = say or (lambda line: None)
        self.idle: list[_Process] = []
        self.busy: set[_Process] = set()
        self.lock = threading.Lock()

    def execute(self, call: Call, show: Show) -> Any:
        for attempt in range(1, TRIES + 1):
            with self.lock:
                if self.stopping.is_set():
                    raise Stopped
                process = self.idle.pop() if self.idle else _Process(max(1, cores() // self.workers))
                self.busy.add(process)
            try:
                value = process.call(call, show)
                with self.lock:
                    if not self.stopping.is_set():
                        self.idle.append(process)
            except GONE:
                code = process.end(patience=5)
                if self.stopping.is_set():
                    raise Stopped from None
                if attempt == TRIES:
                    raise Killed(TRIES, code) from None
                self.say(f"{call.name} was killed; it resumes in a new process, try {attempt + 1} of {TRIES}")
                continue
            except BaseException:  # no more calls are wanted, or this one cannot travel
                process.end()
                raise
            finally:
                with self.lock:
                    self.busy.discard(process)
            if isinstance(value, BaseException):
                raise value
            return value
        raise AssertionError

    def stop(self) -> None:
        with self.lock:
            for process in self.idle:
                process.end()
            self.idle.clear()
            for process in self.busy:  # each is ended by the thread that waits for it
                process.process.terminate()


class _Process:
    """A process that carries out one call after the other."""

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, threads), daemon=True)
        self.process.start()
        there.close()  # so that the pipe ends with the process

    def call(self, call: Call, show: Show) -> Any:
        """The value of a call, or the exception that it raised."""
        self.pipe.send((call.function, dict(call.options)))
        while True:
            kind, value = self.pipe.recv()
            if kind == "value":
                return value
            show(value)

    def end(self, patience: float = 0) -> int | None:
        """End the process; its exit code, where it ended by itself."""
        self.process.join(patience)
        self.process.terminate()
        self.process.join()
        self.pipe.close()
        return self.process.exitcode


def _serve(pipe: Connection, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks says what became of it, and ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    while True:
        try:
            function, options = pipe.recv()
        except GONE:
            return
        try:
            value = function(lambda share: pipe.send(("share", share)), **options)
        except Exception as error:
            value = error
        try:
            pickle.loads(pickle.dumps(value)) if isinstance(value, BaseException) else None  # some cannot be read again
            pipe.send(("value", value))
        except Exception as error:  # what cannot travel
            pipe.send(("value", RuntimeError(f"{type(value).__name__}: {value} cannot be sent back: {error}")))


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

    def get(self, name: str, key: str, amount: float, compute: Callable[[Show], Any]) -> Any:
        """The result of one task, computed in this thread where it is not there."""
        (value,) = self.all([Task(name, compute, amount=amount, key=key)])
        return value

    def all(self, tasks: Sequence[Task], runner: Runner | None = None) -> list[Any]:
        """The results of independent tasks; those that are missing are computed by ``runner``, in this thread if none.

        Finished results are kept whatever happens; the first error ends the others.
        """
        runner = runner or Runner()
        calls = [
            Call(task.name, _compute, {"path": self.path(task.name), "task": task}, task.amount)
            for task in tasks
            if _kept(self.path(task.name), task.key) is None
        ]
        shares: dict[str, float] = {}

        def show(call: Call, share: float) -> None:
            shares[call.name] = call.amount * share
            self._show(sum(shares.values()), call.options["task"], share)

        try:
            for call, future in runner.run(calls, show=show):
                future.result()
                self.computed = True
                show(call, 1.0)
        except (torch.OutOfMemoryError, Killed) as error:
            after = "the same command resumes after the last finished part"
            if runner.workers == 1 or (isinstance(error, Killed) and error.code != -signal.SIGKILL):
                raise OSError(f"a task failed: {error}; {after}") from None
            fix = f"use fewer, and {after}"
            raise InputError(
                f"must fit into memory, found that {runner.workers} do not; {fix}", argument="workers"
            ) from None
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
