"""What stands in the buffers of a packed matrix, slot by slot: the words are decoded, not drawn from memory.

Letters: M tokens, H hidden width, T columns of a tile, S words of a tile, W ELL width, U neurons of a union.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import pandas as pd
import torch
from torch import Tensor
from twell.formats import ELL, TILE_WIDTH, Hybrid, TileUnion, TwELL

from twellviz.errors import ConfigError

MAX_ROWS = 8
MAX_TILES = 4
MAX_SLOTS = 64
MAX_BACKUPS = 8
MAX_DENSE = 1024

Packed: TypeAlias = Tensor | ELL | TwELL | Hybrid | TileUnion

KINDS = {
    "count": "count of active neurons",
    "neuron": "neuron of a union, which stands for the column below it",
    "entry": "active neuron: its column, coloured by |value|",
    "not finite": "active neuron whose value is NaN or infinite",
    "superseded": "entry of a spilled tile: the backup counts",
    "padding": "padding: space that holds nothing",
    "zero": "stored zero",
}


class Slot(NamedTuple):
    """One place in a buffer; ``column`` is -1 where it names none."""

    kind: str
    column: int
    value: float


@dataclass(frozen=True)
class Line:
    """A stretch of a buffer that is drawn as one row.

    Attributes
    ----------
    label : str
        What it holds.
    slots : tuple of Slot
    dense : bool
        One slot a column, in the columns' order.
    note : str
        Where the data went if not here.
    """

    label: str
    slots: tuple[Slot, ...]
    dense: bool = False
    note: str = ""


@dataclass(frozen=True)
class Layout:
    """A packed matrix, ready to draw.

    Attributes
    ----------
    name : str
    shape : (int, int)
        M and H.
    lines : tuple of Line
    notices : tuple of str
        What the lines leave out.
    sizes : dict of str to int
        Bytes of the parts, ``total`` and ``dense``.
    n_active : int
        Active neurons of the whole matrix.
    n_filled, n_slots : int
        Places for entries in the packed part of the whole matrix: those in use, and all.
    says : str
        What the packed part is made of, and what did not fit.
    """

    name: str
    shape: tuple[int, int]
    lines: tuple[Line, ...]
    notices: tuple[str, ...]
    sizes: dict[str, int]
    n_active: int
    n_filled: int
    n_slots: int
    says: str


def read_dense(h_MH: Tensor, *, max_rows: int = MAX_ROWS) -> Layout:
    """The matrix as it is; a value ``<= 0`` counts as a stored zero."""
    M, H = _shape(h_MH)
    rows, width = min(M, max_rows), min(H, MAX_DENSE)
    lines = [
        Line(f"token {row}", _dense_slots(h_MH[row, :width], 0), dense=True, note=_more(H - width))
        for row in range(rows)
    ]
    n_bytes = M * H * h_MH.element_size()
    return Layout(
        "dense",
        (M, H),
        tuple(lines),
        _notices(("tokens", rows, M), ("columns", width, H)),
        {"total": n_bytes, "dense": n_bytes},
        int((~(h_MH <= 0)).sum()),
        M * H,
        M * H,
        "every value is stored",
    )


def read_ell(packed: ELL, *, max_rows: int = MAX_ROWS) -> Layout:
    """Count, columns and values of each row."""
    M, H = packed.shape
    rows = min(M, max_rows)
    lines = [_ell_line(packed, row, int(packed.counts[row])) for row in range(rows)]
    return Layout(
        "ELL",
        (M, H),
        tuple(lines),
        _notices(("tokens", rows, M), ("slots", min(packed.width, MAX_SLOTS), packed.width)),
        packed.byte_counts(),
        int(packed.counts.sum()),
        int(packed.counts.sum()),
        packed.values.numel(),
        f"width {packed.width} for every token{_lost(packed)}",
    )


def read_hybrid(packed: Hybrid, *, max_rows: int = MAX_ROWS) -> Layout:
    """ELL rows, then the dense backup rows of the tokens that did not fit."""
    M, H = packed.shape
    rows, width = min(M, max_rows), min(H, MAX_DENSE)
    lines, backups = [], []
    for row in range(rows):
        backup = int(packed.backup_row[row])
        if backup < 0:
            lines.append(_ell_line(packed, row, int(packed.counts[row])))
            continue
        lines.append(_ell_line(packed, row, 0, note=f"{int(packed.counts[row])} active: in backup {backup}"))
        slots = _dense_slots(packed.backup[backup, :width], 0)
        backups.append(
            Line(f"backup {backup}", slots, dense=True, note=f"token {row}, {_more(H - width)}".removesuffix(", "))
        )
    return Layout(
        "Hybrid",
        (M, H),
        (*lines, *backups[:MAX_BACKUPS]),
        _notices(
            ("tokens", rows, M),
            ("slots", min(packed.width, MAX_SLOTS), packed.width),
            ("columns", width if backups else H, H),
            ("backups of these tokens", min(MAX_BACKUPS, len(backups)), len(backups)),
        ),
        packed.byte_counts(),
        int(packed.counts.sum()),
        int(packed.counts[packed.backup_row < 0].sum()),
        packed.values.numel(),
        f"{M - packed.n_backup} tokens in ELL of width {packed.width}, {packed.n_backup} in the dense backup"
        f"{_lost(packed)}",
    )


def read_twell(packed: TwELL, *, max_rows: int = MAX_ROWS, max_tiles: int = MAX_TILES) -> Layout:
    """The words of each tile, then the backup of the tiles that spilled."""
    M, H = packed.shape
    rows, tiles = min(M, max_rows), min(packed.n_tiles, max_tiles)
    words_MTS = packed.words.view(M, packed.n_tiles, packed.slots)
    spilled = {
        (row, tile): k
        for k, (row, tile) in enumerate(zip(packed.spill_rows().tolist(), packed.spill_tile.tolist(), strict=True))
    }
    lines, backups = [], []
    for row in range(rows):
        for tile in range(tiles):
            k = spilled.get((row, tile))
            count, slots = _tile_slots(packed, words_MTS[row, tile], superseded=k is not None)
            label = f"token {row}, tile {tile}" if packed.n_tiles > 1 else f"token {row}"
            note = "" if k is None else f"{count} > {packed.capacity}: in backup {k}"
            lines.append(Line(label, slots, note=note))
            if k is not None:
                values_T = packed.spill_values[k, : H - tile * TILE_WIDTH]
                dense = _dense_slots(values_T, tile * TILE_WIDTH)
                backups.append(Line(f"backup {k}", dense, dense=True, note=f"token {row}, tile {tile}"))
    word_bits = 8 * packed.words.element_size()
    return Layout(
        "TwELL",
        (M, H),
        (*lines, *backups[:MAX_BACKUPS]),
        _notices(
            ("tokens", rows, M),
            ("tiles", tiles, packed.n_tiles),
            ("backups of these tiles", min(MAX_BACKUPS, len(backups)), len(backups)),
        ),
        packed.byte_counts(),
        int(packed.counts().sum()),
        int(packed.tile_counts().clamp(max=packed.capacity).sum()),
        M * packed.n_tiles * packed.capacity,
        f"tiles of {TILE_WIDTH} columns in {packed.slots} words of {word_bits} bits, {packed.capacity} entries each; "
        f"{packed.spill_tile.numel()} of {M * packed.n_tiles} tiles spilled{_lost(packed)}",
    )


def read_tile_union(packed: TileUnion, *, max_rows: int = MAX_ROWS) -> Layout:
    """The neurons of each block's union, then its values, a row a token."""
    M, H = packed.shape
    rows, lines, widest = min(M, max_rows), [], 0
    for block in range(-(-rows // packed.block)):
        neurons_U, values_BU = packed.block_of(block)
        widest = max(widest, neurons_U.numel())
        columns = neurons_U[:MAX_SLOTS].tolist()
        more = _more(neurons_U.numel() - len(columns))
        lines.append(
            Line(f"block {block}", tuple(Slot("neuron", column, float(column)) for column in columns), note=more)
        )
        for token in range(min(packed.block, rows - block * packed.block)):
            values = values_BU[token, :MAX_SLOTS].tolist()
            slots = (
                # NaN is an entry: only what is exactly zero is none.
                Slot("zero" if value == 0 else _kind(value), column, value)
                for column, value in zip(columns, values, strict=True)
            )
            lines.append(Line(f"token {block * packed.block + token}", tuple(slots), note=more))
    filled, sizes = int((packed.values != 0).sum()), packed.union_sizes().tolist()
    listed = f"{sizes}" if len(sizes) <= 4 else f"{min(sizes)} to {max(sizes)}"
    return Layout(
        "TileUnion",
        (M, H),
        tuple(lines),
        _notices(("tokens", rows, M), ("neurons of a union", min(widest, MAX_SLOTS), widest)),
        packed.byte_counts(),
        filled,
        filled,
        packed.values.numel(),
        f"{packed.n_blocks} blocks of {packed.block} tokens, unions {listed}",
    )


def read(packed: Packed, *, max_rows: int = MAX_ROWS) -> Layout:
    """The layout of a dense tensor or a packed matrix."""
    if isinstance(packed, TwELL):
        return read_twell(packed, max_rows=max_rows)
    if isinstance(packed, ELL):
        return read_ell(packed, max_rows=max_rows)
    if isinstance(packed, Hybrid):
        return read_hybrid(packed, max_rows=max_rows)
    if isinstance(packed, TileUnion):
        return read_tile_union(packed, max_rows=max_rows)
    return read_dense(packed, max_rows=max_rows)


def layout_table(packed: Packed, *, max_rows: int = MAX_ROWS) -> pd.DataFrame:
    """The drawn slots of a layout as a table: line, slot, kind, column, value.

    Parameters
    ----------
    packed : Tensor [M, H], ELL, TwELL, Hybrid or TileUnion
    max_rows : int
        Tokens to read.
    """
    records = [
        (line.label, place, *slot)
        for line in read(packed, max_rows=max_rows).lines
        for place, slot in enumerate(line.slots)
    ]
    return pd.DataFrame(records, columns=["line", "slot", "kind", "column", "value"])


def bytes_table(packings: Sequence[Packed]) -> pd.DataFrame:
    """Bytes of several layouts of one matrix: layout, bytes, share of dense."""
    layouts = [read(packed) for packed in packings]
    return pd.DataFrame(
        {
            "layout": [layout.name for layout in layouts],
            "bytes": [layout.sizes["total"] for layout in layouts],
            "share of dense": [share_of_dense(layout) for layout in layouts],
        }
    )


def share_of_dense(layout: Layout) -> float:
    """Bytes as a share of the dense matrix; 0 for an empty one."""
    return layout.sizes["total"] / layout.sizes["dense"] if layout.sizes["dense"] else 0.0


def dense_tensor(h_MH: Any) -> Tensor:
    """A floating-point matrix as a torch tensor.

    Raises
    ------
    ConfigError
        It has not two axes, or no floating-point values.
    """
    tensor = h_MH if isinstance(h_MH, Tensor) else torch.as_tensor(h_MH)
    if tensor.ndim != 2 or not tensor.is_floating_point():
        raise ConfigError(
            f"h is {tensor.dtype} {tuple(tensor.shape)}: floating-point values [tokens, neurons] are needed"
        )
    return tensor.detach().cpu()


def check_rows(max_rows: int) -> int:
    """``max_rows`` if it is a number of rows that a picture can hold."""
    if isinstance(max_rows, bool) or not isinstance(max_rows, int) or not 1 <= max_rows <= 32:
        raise ConfigError(f"max_rows={max_rows!r}: 1 to 32 tokens can be drawn")
    return max_rows


def _shape(h_MH: Tensor) -> tuple[int, int]:
    return int(h_MH.shape[0]), int(h_MH.shape[1])


def _tile_slots(packed: TwELL, words_S: Tensor, *, superseded: bool) -> tuple[int, tuple[Slot, ...]]:
    """Decode the words of one tile: word 0 is the count, the others column and value bits."""
    count = int(words_S[0])
    n_stored = min(count, packed.capacity)
    stored = words_S[1 : 1 + n_stored]
    if packed.wide:
        columns, values = stored & 0xFFFFFFFF, (stored >> 32).to(torch.int32).view(torch.float32)
    else:
        columns, values = stored & 0xFFFF, (stored >> 16).to(torch.int16).view(packed.value_dtype)
    entries = [
        Slot("superseded" if superseded else _kind(value), column, value)
        for column, value in zip(columns.tolist(), values.tolist(), strict=True)
    ]
    padding = [Slot("padding", -1, 0.0)] * (packed.capacity - n_stored)
    return count, (Slot("count", -1, float(count)), *entries, *padding)


def _ell_line(packed: ELL | Hybrid, row: int, n_stored: int, note: str = "") -> Line:
    width = min(packed.width, MAX_SLOTS)
    n_stored = min(n_stored, width)
    columns = packed.columns[row, :n_stored].to(torch.int64).tolist()
    values = packed.values[row, :n_stored].tolist()
    entries = [Slot(_kind(value), column, value) for column, value in zip(columns, values, strict=True)]
    padding = [Slot("padding", -1, 0.0)] * (width - n_stored)
    slots = (Slot("count", -1, float(packed.counts[row])), *entries, *padding)
    return Line(f"token {row}", slots, note=note or _more(packed.width - width))


def _dense_slots(values: Tensor, first_column: int) -> tuple[Slot, ...]:
    return tuple(
        Slot("zero" if value <= 0 else _kind(value), column, 0.0 if value <= 0 else value)
        for column, value in enumerate(values.tolist(), start=first_column)
    )


def _kind(value: float) -> str:
    return "entry" if math.isfinite(value) else "not finite"


def _more(n: int) -> str:
    return f"{n} more" if n > 0 else ""


def _notices(*parts: tuple[str, int, int]) -> tuple[str, ...]:
    return tuple(f"the first {shown} of {total} {what}" for what, shown, total in parts if shown < total)


def _lost(packed: ELL | TwELL | Hybrid) -> str:
    return f"; {packed.clipped.entries} entries are lost" if packed.clipped else ""


def largest_value(layouts: Sequence[Layout]) -> float:
    """The largest finite ``|value|`` of the drawn slots, 1 if there is none: the top of the colour scale."""
    values = [
        abs(slot.value)
        for layout in layouts
        for line in layout.lines
        for slot in line.slots
        if slot.kind in ("entry", "superseded") and math.isfinite(slot.value)
    ]
    return max(values, default=0.0) or 1.0
