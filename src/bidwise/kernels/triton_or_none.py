"""Triton, or a stand-in: files with kernels are also imported without it, by doctest and without a GPU."""

from __future__ import annotations

from typing import Any

try:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

    jit: Any = triton.jit
except ImportError:
    triton, tl = None, None

    def jit(kernel: Any = None, **options: Any) -> Any:
        """The function, unchanged."""
        return kernel if kernel is not None else jit


__all__ = ["jit", "tl", "triton"]
