"""Everything that runs on a GPU: Triton kernels, their launchers, CUDA graphs; and whether kernels can run.

That is asked in every step, so the answer imports no module.
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.util import find_spec

import torch


def available(device: torch.device) -> bool:
    """Whether kernels run on ``device``: an NVIDIA GPU with triton, or a CPU that triton interprets them on."""
    gpu = device.type == "cuda" and torch.version.hip is None
    return (gpu or (device.type == "cpu" and interpreted())) and installed()


def interpreted() -> bool:
    """Whether triton interprets kernels instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@lru_cache
def installed() -> bool:
    """Whether there is triton."""
    return find_spec("triton") is not None
