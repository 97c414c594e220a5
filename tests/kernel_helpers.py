"""What tests of Triton kernels share: they run on a GPU, or in the interpreter on the CPU (TRITON_INTERPRET=1)."""

import os

import pytest
import torch

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
needs_gpu = pytest.mark.skipif(not CUDA, reason="needs a GPU")
gpu_or_interpreter = [
    pytest.mark.skipif(
        not CUDA and os.environ.get("TRITON_INTERPRET") != "1", reason="needs a GPU or TRITON_INTERPRET=1"
    ),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy, in the interpreter, tells of every overflow to inf
]


def read_bounds_of_loops(monkeypatch):
    """Triton 3.6 interprets bounds of loops by ``int(array)``, which numpy 2.4 does not do for arrays of shape (1,)."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_with_index(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_with_index)
