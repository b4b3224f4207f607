"""Kernels for tensor cores: Hopper's wgmma, fed by its bulk tensor copies, from plain Numba CUDA."""
