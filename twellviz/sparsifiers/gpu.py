"""The methods on an NVIDIA GPU: torch's dense products, then the kernels of :mod:`twell.simt`; the host never waits.

Letters: M tokens, D model width, H hidden width, T tile width (256), N tiles of a row, S words of a tile,
K places of the backup.
"""

from __future__ import annotations

import torch
from torch import Tensor
from twell import simt
from twell.formats import TILE_WIDTH
from twell.nn import FFN, GatedFFN
from twell.simt.down_block import launch_down
from twell.simt.pack_twell import launch_copy_spilled, launch_pack
from twell.simt.spill import empty_words, starts_of
from twell.simt.token_block import launch_token_ffn

from twellviz.sparsifiers.block import SparseBlock
from twellviz.sparsifiers.kernels import deciding, require_relu_block

COMPRESSION = 8


def forward_simt(block: GatedFFN | FFN | SparseBlock, x_MD: Tensor, up_HD: Tensor | None, down_HD: Tensor) -> Tensor:
    """See :func:`twellviz.sparsifiers.forward_sparse`; the tokens are on the GPU (on the CPU in the simulator).

    Parameters
    ----------
    block : GatedFFN, FFN or SparseBlock
    x_MD : Tensor [M, D]
    up_HD : Tensor [H, D] or None
        None where the finished h is packed.
    down_HD : Tensor [H, D]

    Returns
    -------
    Tensor [M, D]
    """
    found: Tensor
    if not isinstance(block, SparseBlock):
        require_relu_block(block)
        if up_HD is None:
            found = simt.ffn(x_MD, deciding(block), down_HD, product="torch")
        else:
            found = simt.gated_ffn(x_MD, deciding(block), up_HD, down_HD, product="torch")
        return found
    x_MD, values_MH = x_MD.contiguous(), block.values(x_MD)
    if not block.signed:
        return _follow(x_MD, values_MH, up_HD, down_HD)
    # These kernels pack positive values. The products are linear in them, so two passes serve both signs; the second
    # costs as much as the first, and each rounds once.
    positive_MD = _follow(x_MD, values_MH, up_HD, down_HD)
    return positive_MD - _follow(x_MD, -values_MH, up_HD, down_HD)


def _follow(x_MD: Tensor, values_MH: Tensor, up_HD: Tensor | None, down_HD: Tensor) -> Tensor:
    """Pack the positive values, with a place in the backup for every tile, and go on over them."""
    values_MH = values_MH.contiguous()
    words_MNS, over_M = empty_words(values_MH, values_MH.shape[1], COMPRESSION)
    launch_pack(values_MH, words_MNS, over_M)
    start_M = starts_of(over_M)
    # Only the places of tiles that really spill are ever touched; to count them first would be a wait.
    n_places = words_MNS.shape[0] * words_MNS.shape[1]
    tile_K = torch.empty(n_places, dtype=torch.int32, device=x_MD.device)
    spill_KT = torch.empty(n_places, TILE_WIDTH, dtype=values_MH.dtype, device=x_MD.device)
    launch_copy_spilled(values_MH, words_MNS, start_M, tile_K, spill_KT)
    # The backup is complete, so nothing is computed again: any weights stand in for those of the packed product.
    if up_HD is None:
        return launch_down(down_HD, words_MNS, start_M, spill_KT, down_HD, down_HD)
    return launch_token_ffn(x_MD, words_MNS, start_M, spill_KT, up_HD, up_HD, down_HD)
