"""One way to run tasks: in this thread, in threads or in processes; resumable if results are files.

Every runner is a pool of threads, and differs in how a thread carries out a call: by itself or by its own process.
A call whose process is killed is tried again, so calls must not mind another try.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_pipes
from pathlib import Path
from typing import Any, Protocol

import torch

import bidwise
from bidwise.checks import InputError
from bidwise.run_folder import Result, load, save, write_json, write_result

TRIES = 3  # of a call whose process is killed
LOOK = 0.5  # seconds between looks at how far calls are
GONE = (EOFError, OSError)  # what a pipe says when the process at its other end was killed

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


class _Stopped(Exception):
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
                    raise _Stopped
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


class Processes(Runner):
    """A spawned process for each worker, which share the cores; one that is killed is started again."""

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
                    raise _Stopped
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
                    raise _Stopped from None
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


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
