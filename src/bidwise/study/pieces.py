"""Long work in pieces: each is written when it is done, so that a run which was cut off goes on where it stopped."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, ThreadPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

import bidwise
from bidwise.checks import InputError, check_name
from bidwise.run_folder import environment, load, open_folder, save, write_json

Progress = Callable[[str, float], None]  # what is being done, and the share of it that is
APART = ("processes", "threads")
LOOK = 0.5  # seconds between looks at what threads have done

#: Computes a piece, and calls the function it is given with the share that is finished.
Compute = Callable[[Callable[[float], None]], Any]
#: Called with the number of a piece, what it is of, its share of the work, and what computes it.
Piece = Callable[[int, str, float, Compute], Any]


@dataclass(frozen=True)
class Job:
    """A piece that another process may compute: ``function(show, **options)``, ``amount`` of work."""

    name: str
    of: str
    amount: float
    function: Callable[..., Any]
    options: Mapping[str, Any]


class Pieces:
    """A run folder whose results so far are files in ``pieces/``.

    ``expected`` is the amount of work of all pieces together; each piece says how much it is.
    """

    def __init__(self, out: str | Path, config: Mapping[str, Any], device: str, progress: Progress | None) -> None:
        self.folder = open_folder(out, config)
        self.device = torch.device(device)
        self.environment = environment(device)  # now: the sources may change while it runs
        (self.folder / "pieces").mkdir(exist_ok=True)
        self.progress = progress
        self.streams: list[Any] = []
        self.expected, self.done, self.shown = 1.0, 0.0, 0.0
        self.computed, self.seconds = False, 0.0  # whether a piece is new, and what all pieces took

    def path(self, name: str) -> Path:
        """The file of a piece."""
        return self.folder / "pieces" / f"{name}.pt"

    def get(self, name: str, of: str, amount: float, compute: Compute) -> Any:
        """The piece called ``name``: read if it is there and ``of`` what is asked for, else computed and written."""
        kept = _kept(self.path(name), of)
        if kept is None:
            kept = _computed(self.path(name), of, lambda: compute(lambda share: self._show(amount * share)))
            self.computed = True
        return self._counted(kept, amount)

    def all(self, jobs: Sequence[Job], workers: int, apart: str | None = None) -> list[Any]:
        """The pieces of independent jobs, several of which are computed at once.

        Args:
            workers: how many at once, at most.
            apart: ``processes``, or ``threads`` of this process that share its data, each with a stream of its own on
                a GPU. ``None``: threads on a GPU, processes elsewhere.
        """
        if apart is None:
            apart = "threads" if self.device.type == "cuda" else "processes"
        check_name("apart", apart, APART)
        missing = [job for job in jobs if _kept(self.path(job.name), job.of) is None]
        if workers > 1 and len(missing) > 1:
            compute = self._compute_apart if apart == "processes" else self._compute_in_threads
            compute(missing, min(workers, len(missing)))
        return [self.get(job.name, job.of, job.amount, partial(job.function, **job.options)) for job in jobs]

    def _compute_in_threads(self, jobs: Sequence[Job], workers: int) -> None:
        """Finished pieces are kept whatever happens; the first error ends the others, at the next share they show."""
        shares = dict.fromkeys((job.name for job in jobs), 0.0)
        ended = threading.Event()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # what threads share was made on another stream
        streams: SimpleQueue[Any] = SimpleQueue()
        for stream in self._streams(workers):
            streams.put(stream)

        def work(job: Job) -> None:
            def show(share: float) -> None:
                if ended.is_set():
                    raise _Ended
                shares[job.name] = job.amount * share

            stream = streams.get()
            try:
                with nullcontext() if stream is None else torch.cuda.stream(stream):
                    _computed(self.path(job.name), job.of, lambda: job.function(show, **job.options))
            finally:
                streams.put(stream)
            shares[job.name] = job.amount

        pool = ThreadPoolExecutor(workers)
        try:
            waited = {pool.submit(work, job) for job in jobs}
            while waited:
                finished, waited = wait(waited, LOOK, FIRST_COMPLETED)
                for future in finished:
                    future.result()
                    self.computed = True
                self._show(sum(shares.values()))
        except torch.OutOfMemoryError:
            raise InputError(
                f"must fit into the memory of the device, found that {workers} do not; use fewer. "
                "The same command goes on after the last finished piece",
                argument="workers",
            ) from None
        finally:
            ended.set()
            pool.shutdown(cancel_futures=True)

    def _streams(self, workers: int) -> list[Any]:
        """A stream of the GPU for each worker, ``None`` elsewhere.

        They are kept: torch keeps the memory of a stream for that stream, and many would hold all of it.
        """
        if self.device.type != "cuda":
            return [None] * workers
        while len(self.streams) < workers:
            self.streams.append(torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]
        return self.streams[:workers]

    def _compute_apart(self, jobs: Sequence[Job], workers: int) -> None:
        threads = max(1, (os.cpu_count() or 1) // workers)
        pool = ProcessPoolExecutor(
            workers, multiprocessing.get_context("spawn"), torch.set_num_threads, initargs=(threads,)
        )
        finished = 0.0
        try:
            waited = {pool.submit(_apart, self.path(job.name), job): job for job in jobs}
            for future in as_completed(waited):
                future.result()
                finished += waited[future].amount
                self.computed = True
                self._show(finished)
        except BrokenProcessPool:
            raise InputError(
                f"must fit into the memory, found that one of {workers} was killed; use fewer. "
                "The same command goes on after the last finished piece",
                argument="workers",
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)

    def called(self, name: str, amount: float) -> Piece:
        """:meth:`get` for the numbered pieces of one thing, which is ``amount`` of work."""
        return lambda number, of, share, compute: self.get(f"{name}-{number:02d}", of, share * amount, compute)

    def write(self, result: Any) -> None:
        """``result.json``, and ``environment.json`` where something is new: a look at old results leaves theirs."""
        write_json(self.folder / "result.json", result)
        path = self.folder / "environment.json"
        if self.computed or not path.exists():
            write_json(path, {**self.environment, "seconds": round(self.seconds, 1)})

    def _counted(self, kept: Any, amount: float) -> Any:
        self.seconds += kept["seconds"]
        self.done += amount
        self._show(0.0)
        return kept["found"]

    def _show(self, more: float) -> None:
        """Never less than before: what several have computed is counted once more when it is read."""
        self.shown = max(self.shown, min(1.0, (self.done + more) / self.expected))
        if self.progress is not None:
            self.progress("training", self.shown)


class _Ended(Exception):
    """Raised in a thread when another one has failed, or the user has had enough."""


def _of(of: str) -> str:
    return f"bidwise {bidwise.__version__}: {of}"


def _kept(path: Path, of: str) -> Any:
    """What a piece holds; ``None`` for one that is not there, damaged or of something else: it is computed again."""
    try:
        kept = load(path)
    except (FileNotFoundError, InputError):
        return None
    whole = isinstance(kept, dict) and kept.keys() == {"of", "found", "seconds"}
    return kept if whole and kept["of"] == _of(of) else None


def _computed(path: Path, of: str, compute: Callable[[], Any]) -> Any:
    started = time.perf_counter()
    found = compute()
    kept = {"of": _of(of), "found": found, "seconds": time.perf_counter() - started}
    save(path, kept)
    return kept


def _apart(path: Path, job: Job) -> None:
    """Compute a piece in another process."""
    _computed(path, job.of, lambda: job.function(lambda share: None, **job.options))
