"""The kernels in Numba for the CPU: same functions and same results as :mod:`twell.reference`, fast."""

from twell.cpu.pack import gate_pack, pack
from twell.cpu.token import token_down, token_ffn

__all__ = ["gate_pack", "pack", "token_down", "token_ffn"]
