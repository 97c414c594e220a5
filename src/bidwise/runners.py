"""Where tasks run: in threads of this process, or on a Ray cluster. Nothing else of bidwise imports ray."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import chdir, nullcontext, suppress
from typing import Any, Protocol, TypeVar

from bidwise.checks import InputError, check_name

ENGINES = ("local", "ray")
ATTEMPTS = 4  # at a task whose worker dies
ANSWER = 5  # seconds that a cluster has to answer

Task = TypeVar("Task")
Result = TypeVar("Result")
Ticket = TypeVar("Ticket")  # of a task that is under way


class Engine(Protocol):
    """What maps tasks."""

    apart: bool  # whether tasks run in other processes, with which this one shares files but no memory

    def in_order(self, work: Callable[[Task], Result], tasks: Iterable[Task], then: Callable[[Result], None]) -> None:
        """``then(work(task))`` in the order of the tasks, with a few under way at once.

        ``then`` is called by this thread alone. An error of ``work`` is raised as it is, after all tasks have ended.
        """


def engine_of(name: str) -> Engine:
    """The engine of that name, ready."""
    check_name("engine", name, ENGINES)
    return Threads() if name == "local" else Ray()


class Threads:
    """Threads of this process: numpy and zlib let other threads work."""

    apart = False

    def in_order(self, work: Callable[[Task], Result], tasks: Iterable[Task], then: Callable[[Result], None]) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = min(cores, 8)
        with ThreadPoolExecutor(workers) as pool:

            def start(task: Task) -> Future[Result]:
                return pool.submit(work, task)

            def stop(under_way: Iterable[Future[Result]]) -> None:
                for future in under_way:
                    future.cancel()

            _in_order(start, Future[Result].result, stop, workers, tasks, then)


class Ray:
    """The cores of a Ray cluster, each a process of its own. A task whose worker dies is tried again, so tasks must
    not mind another attempt, even at the same time: a worker that Ray has given up may still be at work."""

    apart = True

    def __init__(self) -> None:
        self.ray = started_ray()

    def in_order(self, work: Callable[[Task], Result], tasks: Iterable[Task], then: Callable[[Result], None]) -> None:
        try:
            self._in_order(work, tasks, then)
        except self.ray.exceptions.RayError as error:  # in starting or stopping tasks: the cluster itself is gone
            raise _lost("the cluster", error) from error

    def _in_order(self, work: Callable[[Task], Result], tasks: Iterable[Task], then: Callable[[Result], None]) -> None:
        ray, folder = self.ray, os.getcwd()
        shared = ray.put(work)  # once, with all it holds; tasks are small
        call = ray.remote(max_retries=ATTEMPTS - 1)(_call)
        cores = int(ray.cluster_resources().get("CPU", 1))
        raylet = _raylet(ray)

        def start(task: Task) -> Any:
            return call.remote(shared, folder, task)

        def result(ticket: Any) -> Any:
            try:
                while True:
                    with suppress(ray.exceptions.GetTimeoutError):
                        return ray.get(ticket, timeout=1)
                    _check_raylet(raylet)
            except ray.exceptions.RayTaskError as error:
                cause, words = error.cause, str(error.cause).strip().splitlines()
                if isinstance(cause, ray.exceptions.RayError) or "failed to import" in str(cause):
                    raise OSError(
                        "all machines of the cluster must have the same version of bidwise, found a worker that cannot "
                        f"read its task; Ray says: {words[-1]}"
                    ) from error
                raise cause from None
            except ray.exceptions.RayError as error:
                raise _lost(f"the worker of a task {ATTEMPTS} times", error) from error

        def stop(under_way: Iterable[Any]) -> None:
            tickets = list(under_way)
            if tickets and not _listens(raylet):  # its tasks died with it, and Ray would wait for them
                return
            with suppress(ray.exceptions.RayError):  # a cluster that is gone; what went wrong first is told
                for ticket in tickets:
                    ray.cancel(ticket)
                if tickets:
                    ray.wait(tickets, num_returns=len(tickets), fetch_local=False)

        _in_order(start, result, stop, 2 * cores, tasks, then)


def _raylet(ray: Any) -> tuple[str, int] | None:
    """Host and port of Ray's process on this machine; ``None`` for clients, ``ray://``, which have none."""
    if ray.util.client.ray.is_connected():
        return None
    own = ray.get_runtime_context().get_node_id()
    return next((node["NodeManagerAddress"], node["NodeManagerPort"]) for node in ray.nodes() if node["NodeID"] == own)


def _listens(raylet: tuple[str, int] | None) -> bool:
    try:
        if raylet is not None:
            socket.create_connection(raylet, ANSWER).close()
    except ConnectionRefusedError:
        return False
    except OSError:  # slow, which is not dead
        pass
    return True


def _check_raylet(raylet: tuple[str, int] | None) -> None:
    """Raise where the raylet has died: Ray takes 15 seconds to see it, and may then end this process without a word."""
    if not _listens(raylet):
        raise OSError(
            "Ray's process on this machine, the raylet, has died; start the cluster again, and the same command goes "
            "on where it stopped"
        )


def _lost(what: str, error: Exception) -> OSError:
    return OSError(
        f"Ray lost {what}; mend the cluster, and the same command goes on where it stopped; "
        f"Ray says: {' '.join(str(error).split())}"
    )


def _call(work: Callable[[Task], Result], folder: str, task: Task) -> Result:
    """A task on a worker, in the folder of the process that asks if it is there too: paths mean the same."""
    with chdir(folder) if os.path.isdir(folder) else nullcontext():
        return work(task)


def _in_order(
    start: Callable[[Task], Ticket],
    result: Callable[[Ticket], Result],
    stop: Callable[[Iterable[Ticket]], None],
    ahead: int,
    tasks: Iterable[Task],
    then: Callable[[Result], None],
) -> None:
    """Tasks are started, up to ``ahead`` of them before the result of the first is asked for."""
    under_way = deque[Ticket]()
    try:
        for task in tasks:
            under_way.append(start(task))
            if len(under_way) > ahead:
                then(result(under_way.popleft()))
        while under_way:
            then(result(under_way.popleft()))
    finally:
        stop(under_way)


def started_ray() -> Any:
    """The module ray, connected: to the cluster that RAY_ADDRESS names or this machine belongs to, else to a local one
    of this machine's cores that ends with the process."""
    try:
        import ray  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise InputError(
            "engine must be local here, found ray, which is not installed; pip install 'bidwise[ray]'"
        ) from None
    if not ray.is_initialized():
        _check_answers(os.environ.get("RAY_ADDRESS", ""))
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
    return ray


def _check_answers(address: str) -> None:
    """Raise where nothing answers at ``host:port`` or ``ray://host:port``, for which Ray would wait minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():  # auto, local or none
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()
    except (OSError, OverflowError, UnicodeError) as error:  # no such machine, port or name
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"RAY_ADDRESS must be the address of a Ray cluster, found {address}, where none answers ({reason}); "
            "start one there with ray start --head, or unset RAY_ADDRESS"
        ) from None
