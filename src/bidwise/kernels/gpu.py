"""Whether Triton's kernels can run, asked in every step, so the answer imports no module. Further streams."""

from __future__ import annotations

import os
from functools import cache, lru_cache
from importlib.util import find_spec

import torch


def available(device: torch.device) -> bool:
    """Whether kernels run on ``device``: an NVIDIA GPU with triton, or a CPU that triton interprets them on."""
    gpu = device.type == "cuda" and torch.version.hip is None
    return (gpu or (device.type == "cpu" and interpreted())) and installed()


def interpreted() -> bool:
    """Whether triton interprets kernels instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def side_stream(device: torch.device, purpose: str) -> torch.cuda.Stream:
    """A second stream for ``purpose``, always the same.

    torch has 32 streams and hands them out in turn: a new one for every run would soon be the stream that another
    thread trains on, or captures. These are of high priority, which have 32 of their own.
    """
    return _side_stream(device, torch.cuda.current_stream(device).cuda_stream, purpose)


@cache
def _side_stream(device: torch.device, beside: int, purpose: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


@lru_cache
def installed() -> bool:
    """Whether there is triton."""
    return find_spec("triton") is not None
