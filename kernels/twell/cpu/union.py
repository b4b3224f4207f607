"""Union tiles from TwELL words: the same TileUnion as :meth:`twell.formats.TileUnion.from_twell`, in two fast passes.

Letters: M tokens, H hidden width, N active entries, G blocks.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange

from twell.cpu._launch import kernel
from twell.cpu._storage import Array
from twell.cpu.rows import to_rows
from twell.errors import OptionError
from twell.formats import TileUnion, TwELL


def to_union(packed: TwELL, *, block: int = 128) -> TileUnion:
    """Union tiles of the gate values, spilled tiles included.

    Parameters
    ----------
    packed : TwELL
        On the CPU.
    block : int
        B, tokens of a block, at least 1.

    Raises
    ------
    OptionError
    """
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise OptionError(f"block={block!r}: an integer of at least 1 is needed, as in 32, 64, 128")
    n_tokens, n_hidden = packed.shape
    row_start, column_N, value_N = (array.numpy() for array in to_rows(packed))
    n_blocks = -(-n_tokens // block)
    fires_GH = np.zeros((n_blocks, n_hidden), np.bool_)
    _mark(row_start, column_N, block, fires_GH)
    size_G = fires_GH.sum(1, dtype=np.int64)
    rows_G = np.minimum(block, n_tokens - block * np.arange(n_blocks, dtype=np.int64))
    neuron_start, value_start = (
        np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]) for sizes in (size_G, rows_G * size_G)
    )
    neurons = np.empty(int(neuron_start[-1]), np.int32)
    values = np.zeros(int(value_start[-1]), np.float32)
    _fill(row_start, column_N, value_N, block, fires_GH, neuron_start, value_start, neurons, values)
    return TileUnion(
        neurons=torch.from_numpy(neurons),
        neuron_start=torch.from_numpy(neuron_start),
        # The values came out of this dtype, so that going back to it is exact.
        values=torch.from_numpy(values).to(packed.value_dtype),
        value_start=torch.from_numpy(value_start),
        block=block,
        shape=packed.shape,
    )


@kernel
def _mark(row_start: Array, column_N: Array, block: int, fires_GH: Array) -> None:
    n_tokens = row_start.shape[0] - 1
    for g in prange(fires_GH.shape[0]):
        for e in range(row_start[g * block], row_start[min(n_tokens, (g + 1) * block)]):
            fires_GH[g, column_N[e]] = True


@kernel
def _fill(
    row_start: Array,
    column_N: Array,
    value_N: Array,
    block: int,
    fires_GH: Array,
    neuron_start: Array,
    value_start: Array,
    neurons: Array,
    values: Array,
) -> None:
    n_tokens, n_hidden = row_start.shape[0] - 1, fires_GH.shape[1]
    for g in prange(fires_GH.shape[0]):
        place_H = np.empty(n_hidden, np.int32)
        size = 0
        for n in range(n_hidden):
            if fires_GH[g, n]:
                neurons[neuron_start[g] + size] = n
                place_H[n] = size
                size += 1
        for m in range(g * block, min(n_tokens, (g + 1) * block)):
            row = value_start[g] + (m - g * block) * size
            for e in range(row_start[m], row_start[m + 1]):
                values[row + place_H[column_N[e]]] = value_N[e]
