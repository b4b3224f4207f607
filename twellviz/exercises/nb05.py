"""Checks of notebook 05: a tile packed by 8 threads, a guarded epilogue write, and a count of spilled tiles.

The kernels are small relatives of those in ``twell.simt``: tiles of 32 columns, blocks of 8 threads. Letters: M tokens,
D model width, H hidden width, N tiles of a row, S slots of a tile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from twell.cuda_target import device

from twellviz.kernel_trace import KernelSheet, KernelSpec, KernelTrace, coalescing, empty

THREADS = 8
COLUMNS = 4
"""Neighbouring columns of a thread."""

TILE = THREADS * COLUMNS
SLOTS = 12
"""Slot 0 for the count, 11 for entries."""

N_TILES = 5


@device
def gate_sum(x_MD: Any, gate_HD: Any, row: int, column: int) -> Any:
    """``x[row] . gate[column]``, and 0 past the last neuron, as if the matrix went on with zeros."""
    total = np.float32(0)
    if column < gate_HD.shape[0]:
        for d in range(x_MD.shape[1]):
            total += x_MD[row, d] * gate_HD[column, d]
    return total


def _values(n_hidden: int) -> Any:
    """Gate values of one token: distinct where active; the second tile has more active ones than slots."""
    columns = np.arange(n_hidden)
    active = (columns * 7 % 11 < 2) | ((columns >= TILE) & (columns < 2 * TILE) & (columns % 2 == 0))
    return np.where(active, 1 + columns / 4, -1 - columns % 3).astype(np.float32)


def _tile_arguments(n_hidden: int) -> dict[str, Any]:
    n_tiles = -(-n_hidden // TILE)
    return {
        "h": _values(n_hidden),
        "columns": np.zeros((n_tiles, SLOTS), np.int32),
        "values": np.zeros((n_tiles, SLOTS), np.float32),
    }


def _packed_tiles(h: Any, columns: Any, values: Any) -> dict[str, Any]:
    for tile in range(len(columns)):
        entries = [c for c in range(tile * TILE, min((tile + 1) * TILE, len(h))) if h[c] > 0]
        columns[tile, 0] = len(entries)
        for slot, column in enumerate(entries[: SLOTS - 1], start=1):
            columns[tile, slot], values[tile, slot] = column, h[column]
    return {"columns": columns, "values": values}


def _product_arguments(n_tokens: int) -> dict[str, Any]:
    n_hidden, width = 3 * n_tokens + 1, 3
    # Sums of products of small integers, all different where positive, so that a wrong place shows.
    x_MD = np.stack([np.ones(n_tokens), np.arange(n_tokens), np.arange(n_tokens) % 2], axis=1)
    gate_HD = np.stack([np.arange(n_hidden) - 4, np.full(n_hidden, n_hidden), -np.arange(n_hidden) % 5], axis=1)
    return {
        "x": x_MD.astype(np.float32),
        "gate": gate_HD.astype(np.float32)[:, :width],
        "h": empty((n_tokens, n_hidden), np.float32),
    }


def _spill_arguments(n_tokens: int) -> dict[str, Any]:
    counts_MN = (np.arange(n_tokens * N_TILES) * 5 % 17).reshape(n_tokens, N_TILES)
    counts_MN[1] = SLOTS  # every tile of a token spills
    counts_MN[2] = SLOTS - 1  # none, and only just
    return {
        "counts": counts_MN.astype(np.int32),
        "slots": SLOTS,
        "over": np.zeros(n_tokens, np.int32),
    }


def _write_costs(trace: KernelTrace) -> str:
    """Neighbouring threads must write neighbouring cells: a row that begins between two sectors takes one more."""
    table = coalescing(trace)
    table = table[(table["array"] == "h") & (table["operation"] == "write")]
    wasteful = table[table["sectors"] > table["ideal_sectors"] + table["warp_accesses"]]
    if len(wasteful):
        worst = wasteful.iloc[0]
        return (
            f"the writes of h at line {worst['line']} (`{worst['source']}`) touch {worst['sectors']} sectors of 32 "
            f"bytes in {worst['warp_accesses']} steps, where neighbours that write neighbours touch one or two a step: "
            "let the values pass through shared memory, so that thread t writes places t, t + 8, t + 16 and t + 24"
        )
    return ""


SHEET = KernelSheet(
    [
        KernelSpec(
            "5.1",
            make=_tile_arguments,
            reference=_packed_tiles,
            launch=lambda n: (-(-n // TILE), THREADS),
            sizes=(64, 77),
            hint="Count your own columns and leave the count in shared memory; cuda.syncthreads(); add up the counts "
            "of the threads to your left: one more is your first slot. Place your entries from there on, each only if "
            "its slot is below columns.shape[1], but count on in any case: the last thread then knows the total.",
        ),
        KernelSpec(
            "5.2",
            make=_product_arguments,
            reference=lambda x, gate, h: {"h": np.maximum(x @ gate.T, 0)},
            launch=lambda n: ((-(-(3 * n + 1) // TILE), n), THREADS),
            sizes=(8, 13),
            costs=_write_costs,
            hint="Write your 4 values to row_part[thread * 4 + j], cuda.syncthreads(), then let thread t take places "
            "t, t + 8, t + 16 and t + 24: neighbours write neighbours. Each write of h needs "
            "`if column < h.shape[1]`, and a value that is <= 0 becomes 0.",
        ),
        KernelSpec(
            "5.3",
            make=_spill_arguments,
            reference=lambda counts, slots, over: {"over": (counts >= slots).sum(1)},
            launch=lambda n: (-(-n * N_TILES // THREADS), THREADS),
            sizes=(8, 11),
            hint="If i < counts.size, the row is i // counts.shape[1] and the tile i % counts.shape[1]. Several "
            "threads may meet at one row: with cuda.atomic.add(over, row, 1) none of them is lost. One word of a "
            "tile is the count, so slots - 1 entries fit.",
        ),
    ]
)
check, hint, record = SHEET.check, SHEET.hint, SHEET.record
