"""Precision of products of matrices, which torch has for the whole process and threads must share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

PRECISIONS = ("float32", "mixed")


@dataclass
class Mixed:
    """Who wants mixed precision, which torch has for the whole process."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    before: str = "highest"


MIXED = Mixed()


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Products of matrices in TF32 for ``mixed``, for all threads until the last that asked is done."""
    if precision == "float32":  # whatever torch was told
        yield
        return
    with MIXED.lock:
        if not MIXED.users:
            MIXED.before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("high")
        MIXED.users += 1
    try:
        yield
    finally:
        with MIXED.lock:
            MIXED.users -= 1
            if not MIXED.users:
                torch.set_float32_matmul_precision(MIXED.before)
