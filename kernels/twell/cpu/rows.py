"""TwELL unpacked into compressed sparse rows, the form that training and the union tiles start from.

Letters: M tokens, N active entries (rows ascending, columns ascending in a row), T tile width, S words of a tile,
K spilled tiles.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from torch import Tensor

from twell.cpu._launch import kernel
from twell.cpu._storage import FP32, Array, Scalar, as_matrix
from twell.cpu.token import bits_to_fp32
from twell.formats import TwELL


def to_rows(packed: TwELL) -> tuple[Tensor, Tensor, Tensor]:
    """Entries of a TwELL by rows, the spilled ones included.

    Parameters
    ----------
    packed : TwELL
        On the CPU.

    Returns
    -------
    row_start : Tensor, int64 [M + 1]
    column_N : Tensor, int32 [N]
    value_N : Tensor, float32 [N]
    """
    row_start = torch.zeros(packed.shape[0] + 1, dtype=torch.int64)
    torch.cumsum(packed.counts(), 0, out=row_start[1:])
    n_entries = int(row_start[-1])
    column_N, value_N = torch.empty(n_entries, dtype=torch.int32), torch.empty(n_entries)
    _unpack_rows(
        packed.words.numpy().reshape(packed.shape[0], packed.n_tiles, packed.slots),
        packed.spill_start.numpy(),
        *as_matrix(packed.spill_values),
        packed.shape[1],
        row_start.numpy(),
        column_N.numpy(),
        value_N.numpy(),
    )
    return row_start, column_N, value_N


@kernel
def _unpack_rows(
    words_MTS: Array,
    spill_start: Array,
    spill32_KT: Array,
    spill16_KT: Array,
    kind: int,
    n_hidden: int,
    row_start: Array,
    column_N: Array,
    value_N: Array,
) -> None:
    """Write each row's entries behind one another."""
    n_tiles, slots = words_MTS.shape[1], words_MTS.shape[2]
    narrow = words_MTS.itemsize == 4
    for m in prange(words_MTS.shape[0]):
        out = row_start[m]
        spill = spill_start[m]
        for tile in range(n_tiles):
            count = words_MTS[m, tile, 0]
            if count < slots:
                for i in range(count):
                    word: Scalar = np.int64(words_MTS[m, tile, 1 + i])
                    if narrow:
                        column_N[out] = word & 0xFFFF
                        value_N[out] = bits_to_fp32((word >> 16) & 0xFFFF, kind)
                    else:
                        column_N[out] = word & 0xFFFFFFFF
                        value_N[out] = bits_to_fp32((word >> 32) & 0xFFFFFFFF, FP32)
                    out += 1
            else:
                for i in range(min(256, n_hidden - tile * 256)):
                    value = spill32_KT[spill, i] if kind == FP32 else bits_to_fp32(spill16_KT[spill, i], kind)
                    if value != 0:
                        column_N[out] = tile * 256 + i
                        value_N[out] = value
                        out += 1
                spill += 1
