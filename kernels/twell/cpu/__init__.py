"""The kernels in Numba for the CPU: same functions and same results as :mod:`twell.reference`, fast."""

from twell.cpu.pack import gate_pack, pack
from twell.cpu.tile import tile_down, tile_ffn
from twell.cpu.token import token_down, token_ffn
from twell.cpu.union import to_union

__all__ = ["gate_pack", "pack", "tile_down", "tile_ffn", "to_union", "token_down", "token_ffn"]
