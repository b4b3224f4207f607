"""Numba CUDA kernels for any NVIDIA GPU from compute capability 7.5 on, and for Numba's simulator.

Each file holds one idea and can be read by itself. Kernels use shared memory, barriers and integer atomics only, so
the same function runs on a GPU, in the simulator (``NUMBA_ENABLE_CUDASIM=1``) and in a recorder; every sum has a fixed
order, so the same input gives the same bits. :mod:`twell.simt.token_warp` is the exception: a second version of
one kernel with warp intrinsics, for GPUs.

Where to begin: :mod:`~twell.simt.pack_twell`, :mod:`~twell.simt.tiled_product`, :mod:`~twell.simt.pack_epilogue`,
:mod:`~twell.simt.token_block`.
"""

from twell.simt.down_block import token_down
from twell.simt.hybrid_dense import hybrid_product
from twell.simt.l1 import add_l1_gradient
from twell.simt.pack_ell import ell_pack
from twell.simt.pack_epilogue import gate_pack
from twell.simt.pack_hybrid import to_hybrid
from twell.simt.pack_twell import pack
from twell.simt.sampled import sampled_product
from twell.simt.tiled_product import gate_product
from twell.simt.token_block import token_ffn
from twell.simt.transposed import Places, transpose, transposed_places
from twell.simt.union import union_lists
from twell.simt.unpack import to_dense
from twell.simt.whole_block import ffn, gated_ffn

__all__ = [
    "Places",
    "add_l1_gradient",
    "ell_pack",
    "ffn",
    "gate_pack",
    "gate_product",
    "gated_ffn",
    "hybrid_product",
    "pack",
    "sampled_product",
    "to_dense",
    "to_hybrid",
    "token_down",
    "token_ffn",
    "transpose",
    "transposed_places",
    "union_lists",
]
