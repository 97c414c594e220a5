"""Everything that runs on a GPU: Triton kernels, their launchers, CUDA graphs."""
