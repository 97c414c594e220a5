"""Calls on a Ray cluster. Nothing else of bidwise imports ray."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import chdir, nullcontext, suppress
from typing import Any

import torch

from bidwise.checks import InputError, check_name
from bidwise.runners import TRIES, Call, Killed, Runner, Show

ANSWER = 5  # seconds that a cluster has to answer


class Ray(Runner):
    """The workers of a Ray cluster, each a process of its own with its share of the cores, on a GPU one GPU.

    A call whose worker is killed is tried again, on any machine, maybe while the one that Ray has given up is at work.
    """

    shares_memory = False
    ahead = 2

    def __init__(self, workers: int | None = None, device: str = "cpu") -> None:
        self.ray = started_ray()
        available = int(self.ray.cluster_resources().get("CPU", 1))
        super().__init__(workers or available)
        least = min(int(node["Resources"].get("CPU", 1)) for node in self.ray.nodes() if node["Alive"])
        self.threads = max(1, min(available // self.workers, least))  # a call has to fit onto a machine
        self.raylet = _raylet(self.ray)
        options = {"num_cpus": self.threads, "num_gpus": int(device == "cuda"), "max_retries": TRIES - 1}
        self.remote = self.ray.remote(**options)(_call)
        self.under_way: set[Any] = set()

    def execute(self, call: Call, show: Show) -> Any:
        ray, ticket = self.ray, None
        try:
            ticket = self.remote.remote(call.function, dict(call.options), os.getcwd(), self.threads)
            self.under_way.add(ticket)
            while True:
                with suppress(ray.exceptions.GetTimeoutError):
                    return ray.get(ticket, timeout=1)
                if self.stopping.is_set():
                    ray.cancel(ticket, force=True)
                self._check_raylet()
        except ray.exceptions.WorkerCrashedError:
            raise Killed(TRIES, -signal.SIGKILL) from None
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ray.exceptions.RayError) or "failed to import" in str(cause):
                raise OSError(
                    "all machines of the cluster must have the same version of bidwise, found a worker that cannot "
                    f"read its task; Ray says: {one_line(cause).rpartition('. ')[2]}"
                ) from error
            raise cause from None
        except ray.exceptions.RayError as error:
            raise OSError(
                f"Ray lost the cluster or a task; repair the cluster, and the same command resumes; Ray says: "
                f"{one_line(error)}"
            ) from error
        except OSError:  # such as a broken pipe
            self._check_raylet()
            raise
        finally:
            self.under_way.discard(ticket)

    def shared(self, value: Any) -> Any:
        try:
            return self.ray.put(value)
        except OSError:
            self._check_raylet()
            raise

    def stop(self) -> None:
        tickets = list(self.under_way)
        if not tickets or not _listens(self.raylet):  # tasks died with it, and Ray would wait for them
            return
        with suppress(self.ray.exceptions.RayError):  # a cluster that is gone; what went wrong first is said
            for ticket in tickets:
                self.ray.cancel(ticket, force=True)
            self.ray.wait(tickets, num_returns=len(tickets), timeout=ANSWER, fetch_local=False)

    def _check_raylet(self) -> None:
        """Raise where the raylet has died: Ray takes 15 seconds to see it, and may then end this process silently."""
        if not _listens(self.raylet):
            raise OSError(
                "Ray's process on this machine, the raylet, has died; start the cluster again, and the same command "
                "resumes"
            ) from None


def _call(function: Callable[..., Any], options: Mapping[str, Any], folder: str, threads: int) -> Any:
    """A call on a worker, in the folder of the process that asks if it is there too: paths mean the same."""
    import ray  # type: ignore[import-not-found,import-untyped,unused-ignore]

    torch.set_num_threads(threads)
    options = {name: ray.get(value) if isinstance(value, ray.ObjectRef) else value for name, value in options.items()}
    with chdir(folder) if os.path.isdir(folder) else nullcontext():
        return function(lambda share: None, **options)


def one_line(error: BaseException | str) -> str:
    """The words of an error on one line, without the codes that colour a terminal."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", str(error)).split())


def device_on_ray(name: str) -> str:
    """The device of calls on the cluster; ``auto`` is a GPU where it has one."""
    check_name("device", name, ("auto", "cpu", "cuda"))
    if name == "cpu":
        return name
    gpus = started_ray().cluster_resources().get("GPU", 0)
    if name == "cuda" and not gpus:
        raise InputError("must be cpu or auto here, found cuda: the Ray cluster has no GPU", argument="device")
    return "cuda" if gpus else "cpu"


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


def started_ray() -> Any:
    """The module ray, connected: to the cluster that RAY_ADDRESS names or this machine belongs to, else to a local one
    of this machine's cores that ends with the process."""
    try:
        import ray  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise InputError(
            "must be local here, found ray, which is not installed; pip install 'ray[train]'", argument="engine"
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
