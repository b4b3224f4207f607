"""Whole feed-forward blocks with no host synchronisation: they can be captured into a CUDA graph.

:func:`twell.simt.gate_pack` reads the number of spilled tiles back to size their backup. Here the backup has a fixed
size, a sixteenth of all tiles. What spills beyond it is computed again by the block that needs it, sum by sum in the
same order, so the size decides the speed and never a bit of the result.

Where cards have tensor cores, which these kernels leave alone, ``product="torch"`` takes torch's own matrix product
for the gate values and packs them in a second pass; the dense gate values then exist for a moment, as does a backup
with a place for every tile, of which only the places in use are ever touched.

Letters: M tokens, D model width, H hidden width, T tile width (256), N tiles of a row, S words of a tile,
K places of the backup.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from twell._inputs import check_weight
from twell.errors import OptionError
from twell.formats import TILE_WIDTH
from twell.simt.down_block import launch_down
from twell.simt.pack_epilogue import launch_gate_pack, launch_spilled
from twell.simt.pack_twell import launch_copy_spilled, launch_pack
from twell.simt.spill import empty_words, starts_of
from twell.simt.tiled_product import checked_product
from twell.simt.token_block import launch_token_ffn

PRODUCTS = ("simt", "torch")

COMPRESSION = 8
"""31 entries fit into a tile: nothing spills at the densities for which the sparse block pays."""


def backup_places(n_tokens: int, n_tiles: int) -> int:
    """Places of the fixed backup: one for every 16 tiles, and a few more for small inputs."""
    return n_tokens * n_tiles // 16 + 64


def gated_ffn(
    x_MD: Tensor,
    gate_HD: Tensor,
    up_HD: Tensor,
    down_HD: Tensor,
    *,
    product: str = "simt",
    places: int | None = None,
) -> Tensor:
    """``(relu(x gate^T) * (x up^T)) down`` over the active neurons, exact, without a host synchronisation.

    Parameters
    ----------
    x_MD : Tensor, float32, bfloat16 or float16 [M, D]
        On the GPU (on the CPU in the simulator); copied if not contiguous.
    gate_HD, up_HD, down_HD : Tensor, dtype of ``x_MD`` [H, D]
    product : {"simt", "torch"}
        Whose gate product: ours with the pack in its epilogue, or torch's with the pack after it.
    places : int, optional
        Tiles that the backup holds, with ``product="simt"``; see :func:`backup_places`.

    Returns
    -------
    Tensor, dtype of ``x_MD`` [M, D]

    Raises
    ------
    ShapeError, DtypeError, DeviceError, OptionError
    """
    x_MD, gate_HD = checked_product(x_MD, gate_HD)
    for weight_HD, name in ((up_HD, "up_HD"), (down_HD, "down_HD")):
        check_weight(weight_HD, name, width=x_MD.shape[1], n_hidden=gate_HD.shape[0], like=x_MD)
    words_MNS, start_M, spill_KT = _packed(x_MD, gate_HD, product, places)
    up_HD, down_HD = up_HD.detach().contiguous(), down_HD.detach().contiguous()
    return launch_token_ffn(x_MD, words_MNS, start_M, spill_KT, gate_HD, up_HD, down_HD)


def ffn(x_MD: Tensor, up_HD: Tensor, down_HD: Tensor, *, product: str = "simt", places: int | None = None) -> Tensor:
    """``relu(x up^T) down`` over the active neurons; parameters and result as :func:`gated_ffn`."""
    check_weight(down_HD, "down_HD", width=down_HD.shape[-1], n_hidden=up_HD.shape[0], like=x_MD)
    x_MD, up_HD = checked_product(x_MD, up_HD)
    words_MNS, start_M, spill_KT = _packed(x_MD, up_HD, product, places)
    return launch_down(x_MD, words_MNS, start_M, spill_KT, up_HD, down_HD.detach().contiguous())


def _packed(x_MD: Tensor, gate_HD: Tensor, product: str, places: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Words, places of spilled tiles, and their backup."""
    if product not in PRODUCTS:
        raise OptionError(f"product={product!r}: choose one of {', '.join(PRODUCTS)}")
    if product == "torch":
        with torch.autocast(x_MD.device.type, enabled=False):  # the words are made for the dtype of x
            h_MH = F.linear(x_MD, gate_HD)
        words_MNS, over_M = empty_words(h_MH, h_MH.shape[1], COMPRESSION)
        launch_pack(h_MH, words_MNS, over_M)
        n_places = words_MNS.shape[0] * words_MNS.shape[1]
    else:
        words_MNS, over_M = launch_gate_pack(x_MD, gate_HD, COMPRESSION)
        n_places = backup_places(*words_MNS.shape[:2]) if places is None else places
    start_M = starts_of(over_M)
    tile_K = torch.empty(n_places, dtype=torch.int32, device=x_MD.device)
    values_KT = torch.empty(n_places, TILE_WIDTH, dtype=x_MD.dtype, device=x_MD.device)
    if product == "torch":
        launch_copy_spilled(h_MH, words_MNS, start_M, tile_K, values_KT)
    else:
        launch_spilled(x_MD, gate_HD, words_MNS, start_M, tile_K, values_KT)
    return words_MNS, start_M, values_KT
