"""Kernels for Hopper (compute capability 9.0): TMA, mbarriers and wgmma."""
