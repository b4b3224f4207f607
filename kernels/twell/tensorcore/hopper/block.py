"""Feed-forward blocks on Hopper: gate product with pack, union tiles, up, down; no host synchronisation.

==========================  ===================================================================================
``gate_pack``               the words of TwELL, with the exact backup of what does not fit
``gated_ffn``, ``ffn``      whole blocks through union tiles, gated and not
==========================  ===================================================================================

Letters: M tokens, D model width, H hidden width, N tiles of a row, S words of a tile, B tokens of a union, U unions,
L = 256 N columns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from twell._inputs import check_weight
from twell.cuda_target import SIMULATED, why_not
from twell.errors import DeviceError, DtypeError, OptionError, ShapeError
from twell.formats import TILE_WIDTH, TwELL
from twell.formats._rules import check_compression, check_overflow
from twell.formats.twell import n_tiles_of
from twell.simt.spill import finish
from twell.simt.tiled_product import checked_product
from twell.tensorcore.hopper.gate_pack import pack_kernel
from twell.tensorcore.hopper.maps import tensor_map
from twell.tensorcore.hopper.tiles import BM, BN, SHARED_BYTES, THREADS
from twell.tensorcore.hopper.union_block import MASK_WORDS, gather_unions
from twell.tensorcore.hopper.union_block import THREADS as UNION_THREADS
from twell.tensorcore.hopper.union_products import down_kernel, up_kernel

BLOCKS = (64, 128)
"""Tokens of a union that the products can take."""

COMPRESSION = 8
CLUSTER = 2
MOST_HIDDEN = 32 * MASK_WORDS


class Packed(NamedTuple):
    """Gate values as they lie between the kernels.

    Attributes
    ----------
    words_MNS : Tensor, int32
        Slots past a tile's count are not written.
    over_M : Tensor, int32
        Tiles of each row that do not fit.
    spilled_ML : Tensor, dtype of the tokens
        The gate values of those tiles, at their places in the matrix; all else is not written.
    """

    words_MNS: Tensor
    over_M: Tensor
    spilled_ML: Tensor


def why_not_hopper(home: torch.device, dtype: torch.dtype, n_hidden: int) -> str:
    """Why these kernels cannot run here; empty where they can."""
    if SIMULATED:
        return "the Hopper kernels do not run in Numba's simulator; twell.tensorcore.machine runs them in Python"
    if reason := why_not(home):
        return reason
    capability = torch.cuda.get_device_capability(home)
    if capability != (9, 0):
        return f"wgmma belongs to compute capability 9.0, {home} has {capability[0]}.{capability[1]}"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"the Hopper kernels take bfloat16 and float16, not {str(dtype).removeprefix('torch.')}"
    if n_hidden > MOST_HIDDEN:
        return f"{n_hidden} neurons: the Hopper kernels take up to {MOST_HIDDEN}"
    return ""


def gate_pack(x_MD: Tensor, gate_HD: Tensor, *, compression: int = 8, overflow: str = "spill") -> TwELL:
    """``relu(x gate^T)``, rounded to the dtype of ``x``, as TwELL (paper, section 3.2).

    Reads back whether a tile spilled: one synchronisation. :func:`gated_ffn` does without.

    Parameters
    ----------
    x_MD : Tensor, bfloat16 or float16 [M, D]
    gate_HD : Tensor, dtype of ``x_MD`` [H, D]
    compression, overflow
        See :meth:`twell.formats.TwELL.from_dense`.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, OptionError, CapacityError
    """
    check_compression(compression)
    check_overflow(overflow)
    x_MD, gate_HD = _checked(x_MD, gate_HD)
    packed = pack(x_MD, gate_HD, compression, clear=True)
    return to_twell(packed, n_hidden=gate_HD.shape[0], overflow=overflow)


def to_twell(packed: Packed, *, n_hidden: int, overflow: str = "spill") -> TwELL:
    """What :func:`pack` made as a format with its rules; see :func:`gate_pack`."""

    def fill(spill_start_M: Tensor, spill_tile_K: Tensor, spill_values_KT: Tensor) -> None:
        row_K, tile_K = (packed.words_MNS[..., 0] >= packed.words_MNS.shape[2]).nonzero(as_tuple=True)
        spill_tile_K.copy_(tile_K)
        spill_values_KT.copy_(packed.spilled_ML.view(len(packed.over_M), -1, TILE_WIDTH)[row_K, tile_K])

    return finish(
        packed.words_MNS,
        packed.over_M,
        fill,
        n_hidden=n_hidden,
        value_dtype=packed.spilled_ML.dtype,
        overflow=overflow,
    )


def gated_ffn(x_MD: Tensor, gate_HD: Tensor, up_HD: Tensor, down_HD: Tensor, *, block: int = 128) -> Tensor:
    """``(relu(x gate^T) * (x up^T)) down`` over the union of the neurons that ``block`` neighbouring tokens fire.

    Exact whatever the density; no host synchronisation.

    Parameters
    ----------
    x_MD : Tensor, bfloat16 or float16 [M, D]
    gate_HD, up_HD, down_HD : Tensor, dtype of ``x_MD`` [H, D]
        One row per neuron.
    block : {128, 64}
        Tokens of a union: fewer where neighbours have little in common.

    Returns
    -------
    Tensor, dtype of ``x_MD`` [M, D]

    Raises
    ------
    ShapeError, DtypeError, DeviceError, OptionError
    """
    width = x_MD.shape[-1]
    x_MD, gate_HD = _checked(x_MD, gate_HD)
    for weight_HD, name in ((up_HD, "up_HD"), (down_HD, "down_HD")):
        check_weight(weight_HD, name, width=width, n_hidden=gate_HD.shape[0], like=x_MD)
    y_MD = through_unions(x_MD, pack(x_MD, gate_HD), _padded(up_HD), _padded(down_HD), block=block)
    return y_MD[:, :width].contiguous()


def ffn(x_MD: Tensor, up_HD: Tensor, down_HD: Tensor, *, block: int = 128) -> Tensor:
    """``relu(x up^T) down``; parameters and result as :func:`gated_ffn`."""
    width = down_HD.shape[-1]
    check_weight(down_HD, "down_HD", width=width, n_hidden=up_HD.shape[0], like=x_MD)
    x_MD, up_HD = _checked(x_MD, up_HD)
    y_MD = through_unions(x_MD, pack(x_MD, up_HD), None, _padded(down_HD), block=block)
    return y_MD[:, :width].contiguous()


def pack(x_MD: Tensor, gate_HD: Tensor, compression: int = COMPRESSION, *, clear: bool = False) -> Packed:
    """Start the gate product with the pack, and the second pass, which ends at once where everything fits.

    ``clear``: slots past the counts are zero, as the format says; the kernels that follow do not look at them.
    """
    n_tokens, n_tiles = x_MD.shape[0], n_tiles_of(gate_HD.shape[0])
    new = torch.zeros if clear else torch.empty
    words_MNS = new(n_tokens, n_tiles, TILE_WIDTH // compression, dtype=torch.int32, device=x_MD.device)
    n_row_tiles = -(-n_tokens // (BM * CLUSTER)) * CLUSTER
    zeros = torch.zeros(n_tokens + 1 + n_row_tiles * n_tiles, dtype=torch.int32, device=x_MD.device)
    over_M, spills = zeros[:n_tokens], zeros[n_tokens:]
    spilled_ML = torch.empty(n_tokens, n_tiles * TILE_WIDTH, dtype=x_MD.dtype, device=x_MD.device)
    x_map, gate_map = tensor_map(x_MD, BM), tensor_map(gate_HD, BN // CLUSTER)
    blocks = min(n_row_tiles * n_tiles, _processors(x_MD.device) // CLUSTER * CLUSTER)
    for spilled in (False, True):
        pack_kernel(CLUSTER, spilled)[blocks, THREADS, SHARED_BYTES](
            x_map.data_ptr(),
            gate_map.data_ptr(),
            x_MD,
            words_MNS,
            over_M,
            spills,
            spilled_ML,
            gate_HD.shape[0],
        )
    return Packed(words_MNS, over_M, spilled_ML)


def through_unions(x_MD: Tensor, packed: Packed, up_HD: Tensor | None, down_HD: Tensor, *, block: int) -> Tensor:
    """Unions, up (where there is one) and down from packed gate values; the arrays padded to whole 16 bytes.

    Parameters
    ----------
    x_MD : Tensor, bfloat16 or float16 [M, D]
    packed : Packed
    up_HD, down_HD : Tensor, dtype of ``x_MD`` [H, D]
    block : {128, 64}

    Raises
    ------
    OptionError
    """
    if block not in BLOCKS:
        raise OptionError(f"block={block!r}: choose one of {', '.join(map(str, BLOCKS))}")
    n_tokens, n_hidden = x_MD.shape[0], down_HD.shape[0]
    y_MD = torch.empty(n_tokens, down_HD.shape[1], dtype=x_MD.dtype, device=x_MD.device)
    if n_tokens == 0:
        return y_MD
    n_unions = -(-n_tokens // block)
    counts = torch.zeros(2 * n_unions + 2, dtype=torch.int32, device=x_MD.device)
    counts_U, tiles_U, ended = counts[:n_unions], counts[n_unions : 2 * n_unions + 1], counts[2 * n_unions + 1 :]
    neurons_UH = torch.empty(n_unions, n_hidden, dtype=torch.int32, device=x_MD.device)
    h_ML = torch.empty_like(packed.spilled_ML)
    gather_unions[n_unions, UNION_THREADS](
        packed.words_MNS, packed.spilled_ML, block, n_hidden, neurons_UH, counts_U, tiles_U, ended, h_ML
    )
    processors = _processors(x_MD.device)
    if up_HD is not None:
        x_map = tensor_map(x_MD, block)
        blocks = min(processors, n_unions * (h_ML.shape[1] // BN))
        up_kernel(block)[blocks, THREADS, SHARED_BYTES](x_map.data_ptr(), up_HD, neurons_UH, counts_U, tiles_U, h_ML)
    h_map = tensor_map(h_ML, block)
    blocks = min(processors, n_unions * -(-down_HD.shape[1] // BN))
    down_kernel(block)[blocks, THREADS, SHARED_BYTES](h_map.data_ptr(), down_HD, neurons_UH, counts_U, y_MD)
    return y_MD


def _processors(home: torch.device) -> int:
    return int(torch.cuda.get_device_properties(home).multi_processor_count)


def _checked(x_MD: Tensor, gate_HD: Tensor) -> tuple[Tensor, Tensor]:
    """Both factors, contiguous and padded to a width that the copy engine can read."""
    if gate_HD.shape[0] == 0:
        raise ShapeError(f"gate_HD has shape {tuple(gate_HD.shape)}: the hidden width must be at least 1")
    if reason := why_not_hopper(x_MD.device, x_MD.dtype, gate_HD.shape[0]):
        wrong = DtypeError if x_MD.dtype == torch.float32 else DeviceError
        raise wrong(f'x_MD: {reason}; use backend="simt" or "auto"')
    x_MD, gate_HD = checked_product(x_MD, gate_HD)
    return _padded(x_MD), _padded(gate_HD)


def _padded(matrix: Tensor) -> Tensor:
    """A contiguous matrix whose rows begin at multiples of 16 bytes; copied where they do not."""
    matrix = matrix.detach().contiguous()
    if matrix.shape[1] % 8:
        return F.pad(matrix, (0, -matrix.shape[1] % 8))
    return matrix if matrix.data_ptr() % 16 == 0 else matrix.clone()
