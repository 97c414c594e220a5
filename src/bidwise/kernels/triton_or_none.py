"""Triton, or nothing: files with kernels are read without it too, by doctest and where there is no GPU."""

from __future__ import annotations

from typing import Any

try:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

    jit: Any = triton.jit
except ImportError:
    triton, tl = None, None

    def jit(kernel: Any = None, **options: Any) -> Any:
        """The function as it is."""
        return kernel if kernel is not None else jit


__all__ = ["jit", "tl", "triton"]
