"""Tiles that do not fit: what the packing kernels share, from counting such tiles to the finished TwELL.

Packing takes two passes. The first writes the words and counts, for each row, the tiles with more active neurons than
slots; sums of counts do not depend on the order in which blocks finish. A running sum over the rows gives each row's
first place in the backup. The second pass, which runs only if there is something to store, writes the values of those
tiles in row and tile order.

Letters: M tokens, H hidden width, T tile width (256), N tiles of a row, S words of a tile, K spilled tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from twell.cuda_target import Array, device
from twell.errors import CapacityError
from twell.formats import TILE_WIDTH, Clipped, TwELL
from twell.formats._rules import tile_remedy
from twell.formats.twell import is_wide, n_tiles_of

Fill = Callable[[Tensor, Tensor, Tensor], None]
"""Second pass: writes ``spill_tile_K`` and ``spill_values_KT`` at the places ``spill_start_M`` gives."""


@device
def tile_spills(words_MNS: Array, row: int, tile: int) -> Any:
    """Whether a tile has more active neurons than slots (word 0 is the true count)."""
    return words_MNS[row, tile, 0] >= words_MNS.shape[2]


@device
def spilled_before(words_MNS: Array, row: int, tile: int) -> int:
    """Spilled tiles of the row to the left of ``tile``."""
    before = 0
    for other in range(tile):
        if tile_spills(words_MNS, row, other):
            before += 1
    return before


def empty_words(like: Tensor, n_hidden: int, compression: int) -> tuple[Tensor, Tensor]:
    """Words [M, N, S] and spilled tiles of each row, int32 [M], all zero."""
    n_tokens = like.shape[0]
    dtype = torch.int64 if is_wide(like.dtype, n_hidden) else torch.int32
    shape = (n_tokens, n_tiles_of(n_hidden), TILE_WIDTH // compression)
    words_MNS = torch.zeros(shape, dtype=dtype, device=like.device)
    return words_MNS, torch.zeros(n_tokens, dtype=torch.int32, device=like.device)


def starts_of(count_M: Tensor) -> Tensor:
    """Running sum with a leading zero, int64 [M + 1]."""
    start_M = torch.zeros(count_M.shape[0] + 1, dtype=torch.int64, device=count_M.device)
    torch.cumsum(count_M, 0, dtype=torch.int64, out=start_M[1:])
    return start_M


def finish(
    words_MNS: Tensor, over_M: Tensor, fill: Fill, *, n_hidden: int, value_dtype: torch.dtype, overflow: str
) -> TwELL:
    """The TwELL after the first pass. Reads the number of spilled tiles back: one synchronisation.

    Raises
    ------
    CapacityError
        Under ``overflow="raise"``.
    """
    capacity = words_MNS.shape[2] - 1
    spill_start_M = starts_of(over_M)
    n_spilled = int(spill_start_M[-1])
    if n_spilled and overflow == "raise":
        _raise_first(words_MNS, over_M, capacity)
    spill_tile_K = torch.empty(n_spilled, dtype=torch.int32, device=words_MNS.device)
    spill_values_KT = torch.empty(n_spilled, TILE_WIDTH, dtype=value_dtype, device=words_MNS.device)
    if n_spilled:
        fill(spill_start_M, spill_tile_K, spill_values_KT)
    clipped = Clipped()
    if n_spilled and overflow == "clip":
        clipped = _lost(spill_values_KT, n_rows=int((over_M > 0).sum()), capacity=capacity)
        words_MNS[..., 0].clamp_(max=capacity)
        spill_start_M, spill_tile_K, spill_values_KT = spill_start_M.zero_(), spill_tile_K[:0], spill_values_KT[:0]
    return TwELL(
        words=words_MNS.flatten(1),
        shape=(words_MNS.shape[0], n_hidden),
        value_dtype=value_dtype,
        compression=TILE_WIDTH // words_MNS.shape[2],
        spill_start=spill_start_M,
        spill_tile=spill_tile_K,
        spill_values=spill_values_KT,
        clipped=clipped,
    )


def tiles_of(packed: TwELL) -> Tensor:
    """The words as kernels index them, [M, N, S]."""
    return packed.words.view(packed.shape[0], packed.n_tiles, packed.slots)


def _raise_first(words_MNS: Tensor, over_M: Tensor, capacity: int) -> None:
    row = int(over_M.nonzero()[0])
    counts_N = words_MNS[row, :, 0]
    tile = int((counts_N > capacity).nonzero()[0])
    raise CapacityError(
        row=row,
        tile=tile,
        count=int(counts_N[tile]),
        limit=capacity,
        remedy=tile_remedy(int(counts_N[tile])),
    )


def _lost(spill_values_KT: Tensor, *, n_rows: int, capacity: int) -> Clipped:
    active_KT = spill_values_KT != 0
    lost_KT = active_KT & (active_KT.cumsum(1) > capacity)
    return Clipped(int(lost_KT.sum()), n_rows, float(spill_values_KT[lost_KT].abs().double().sum()))
