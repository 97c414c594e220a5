"""Trials of a sweep, each a run of `train` in a folder of its own: in processes of this machine, or as tasks of Ray."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from bidwise.checks import InputError, check_name
from bidwise.ray_runner import started_ray
from bidwise.run_folder import locked_folder, write_json, write_text
from bidwise.table.encode import prepare
from bidwise.table.grid import Trial
from bidwise.table.pipeline import finish, measured
from bidwise.table.predict import load_run
from bidwise.urls import shown

TRIES = 3  # of a trial whose process is killed
KILLED = -9  # exit code of SIGKILL, which also a system without memory sends
VALIDATION = "validation.json"
ERROR = "error.txt"  # of a trial that failed for a reason that is no user's
VALIDATED = ("welfare", "log_loss", "auc")
GONE = (EOFError, OSError)  # what a pipe says when the process at its other end was killed


@dataclass(frozen=True)
class Job:
    """A trial, and what another process or machine must know to run it."""

    trial: Trial
    table: str
    folder: Path
    device: str
    command: list[str]  # that asked for it


Ended = tuple[Job, str | None]  # a job, and why it failed


def finished(folder: Path) -> bool:
    """Whether a trial has nothing left to do."""
    return (folder / "result.json").is_file() and (folder / VALIDATION).is_file()


def run(job: Job, threads: int) -> str | None:
    """Train and test as `train` does, or go on with it, and measure the kept model on all validation auctions.

    Returns why it failed, in words, or ``None``.
    """
    torch.set_num_threads(threads)
    sys.argv = job.command  # of which the run folder tells
    config, folder = job.trial.config, job.folder
    try:
        with locked_folder(folder):
            prepared = prepare(job.table, config, folder)
            finish(prepared, device=job.device)
            ads = prepared.store.ads("valid", auction_size=prepared.auction_size)
            found = measured(load_run(folder, job.device)[0], ads, config).compute()
            found = replace(found, welfare=found.welfare * prepared.about["mean_bid"])
            write_json(folder / VALIDATION, {name: getattr(found, name) for name in (*VALIDATED, "ads", "auctions")})
            (folder / ERROR).unlink(missing_ok=True)
    except KeyboardInterrupt:
        raise
    except (InputError, OSError) as error:
        return _plain(error).replace(job.table, shown(job.table)) or type(error).__name__
    except BaseException as error:  # the other trials go on
        why = f"{type(error).__name__}: {_plain(error)}".removesuffix(": ")
        why, told = (text.replace(job.table, shown(job.table)) for text in (why, traceback.format_exc()))
        with suppress(Exception):  # a full disk has no place for it
            with locked_folder(folder):
                write_text(folder / ERROR, told)
            why += f"; see {folder / ERROR}"
        return why
    return None


def _plain(error: BaseException) -> str:
    """The words of an error on one line, without the codes that colour a terminal."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", str(error)).split())


def killed(times: int, code: int | None = KILLED) -> str:
    """What is said of a trial whose process ended without a word, by its exit code.

    >>> killed(3, -signal.SIGSEGV), killed(3, 1)
    ('its process was ended 3 times, by SIGSEGV', 'its process ended 3 times, with exit code 1')
    """
    if code == KILLED:
        return f"it was killed {times} times; does it fit into the memory? With fewer workers each has more of it"
    if code is not None and code < 0:
        return f"its process was ended {times} times, by {signal.Signals(-code).name}"
    return f"its process ended {times} times, with exit code {code}"


def in_processes(jobs: Sequence[Job], workers: int, say: Callable[[str], None]) -> Iterator[Ended]:
    """Jobs as they end, ``workers`` at once; one that is killed is tried again and the others do not notice."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    waiting, tries = list(jobs), dict.fromkeys((job.trial.name for job in jobs), 0)
    idle: list[_Worker] = []
    busy: dict[Any, tuple[_Worker, Job]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                job = waiting.pop(0)
                worker = idle.pop() if idle else _Worker(threads)
                busy[worker.pipe] = (worker, job)
                tries[job.trial.name] += 1
                worker.begin(job)
            for pipe in wait(list(busy)):
                worker, job = busy.pop(pipe)
                times = tries[job.trial.name]
                try:
                    failed = worker.pipe.recv()
                except GONE:
                    code = worker.end(patience=5)
                    if times < TRIES:
                        say(f"{job.trial.name} was killed; it goes on in a new process, try {times + 1} of {TRIES}")
                        waiting.insert(0, job)
                    else:
                        yield job, killed(times, code)
                else:
                    idle.append(worker)
                    yield job, failed
    finally:
        for worker in [*idle, *(worker for worker, _ in busy.values())]:
            worker.end()


class _Worker:
    """A process that runs one job after the other."""

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, threads), daemon=True)
        self.process.start()
        there.close()  # so that the pipe ends with the process

    def begin(self, job: Job) -> None:
        with suppress(OSError):  # it was killed while it waited, which its pipe says again
            self.pipe.send(job)

    def end(self, patience: float = 0) -> int | None:
        """End the process; its exit code, where it ended by itself."""
        self.process.join(patience)
        self.pipe.close()
        self.process.terminate()
        self.process.join()
        return self.process.exitcode


def _serve(pipe: Connection, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep says what became of it, and ends this process
    threading.Thread(target=_end_with_the_sweep, daemon=True).start()
    while True:
        try:
            job = pipe.recv()
        except GONE:
            return
        pipe.send(run(job, threads))


def _end_with_the_sweep() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def on_ray(jobs: Sequence[Job], workers: int | None) -> Iterator[Ended]:
    """Jobs as they end, as tasks of a Ray cluster whose machines all see the table and the folder under these names.

    Each takes a core, or with ``workers`` its share of them; on a GPU one GPU. A task whose worker is killed is tried
    again, on any machine.
    """
    ray = started_ray()
    device = jobs[0].device if jobs else "cpu"
    cores = int(ray.cluster_resources().get("CPU", 1))
    least = min(int(node["Resources"].get("CPU", 1)) for node in ray.nodes() if node["Alive"])
    workers = workers or cores
    threads = max(1, min(cores // workers, least))  # a task has to fit onto a machine
    options = {"num_cpus": threads, "num_gpus": int(device == "cuda"), "max_retries": TRIES - 1}
    task = ray.remote(**options)(run)
    waiting = list(jobs)
    running: dict[Any, Job] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                running[task.remote(job, threads)] = job
            (ended, *_), _ = ray.wait(list(running), num_returns=1)
            job = running.pop(ended)
            try:
                failed = ray.get(ended)
            except ray.exceptions.WorkerCrashedError:
                failed = killed(TRIES)
            except ray.exceptions.RayTaskError as error:
                failed = f"{type(error.cause).__name__}: {_plain(error.cause)}".removesuffix(": ")
            except ray.exceptions.RayError as error:
                failed = f"Ray ended it: {_plain(error)}"
            yield job, failed
    finally:
        for each in running:
            ray.cancel(each, force=True)


def device_on_ray(name: str) -> str:
    """The device of trials on the cluster; ``auto`` is a GPU where it has one."""
    check_name("device", name, ("auto", "cpu", "cuda"))
    if name == "cpu":
        return name
    gpus = started_ray().cluster_resources().get("GPU", 0)
    if name == "cuda" and not gpus:
        raise InputError("device must be cpu or auto here, found cuda: the Ray cluster has no GPU")
    return "cuda" if gpus else "cpu"
