"""TwELL: tile-wise ELLPACK, the paper's format for gate activations (section 3.1), made exact under overflow.

A row of H columns is cut into tiles of 256. A tile becomes S = 256 / compression words: word 0 holds the
number of active neurons, the words after it hold one active neuron each, as column and value. Because a tile is
as wide as the tile of the matrix product that makes it, the thread block that computed it can pack it
alone. What the published layout leaves open is decided here: columns ascend, slots past the count are zero,
and a tile with more active neurons than slots keeps its dense values in a backup, so nothing is lost.

Letters: M tokens, H hidden width, T tile width (256), S words of a tile, K spilled tiles, N entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from twell.errors import CapacityError
from twell.formats._coo import Coo
from twell.formats._rules import (
    MAX_NARROW_COLUMNS,
    TILE_WIDTH,
    Clipped,
    check_compression,
    check_dense,
    check_overflow,
    density_text,
    ratio_text,
    short_dtype,
    tensor_bytes,
    tile_remedy,
)


def is_wide(value_dtype: torch.dtype, n_hidden: int) -> bool:
    """Whether entries need 64-bit words: fp32 values, or columns that 16 bits cannot name."""
    return value_dtype == torch.float32 or n_hidden > MAX_NARROW_COLUMNS


def n_tiles_of(n_hidden: int) -> int:
    """Tiles of a row, the last one possibly narrower than 256 columns."""
    return -(-n_hidden // TILE_WIDTH)


@dataclass(frozen=True, repr=False)
class TwELL:
    """A matrix of gate activations [M, H] in tile-wise ELLPACK.

    Attributes
    ----------
    words : Tensor [M, n_tiles * S]
        int32 in the narrow layout (bf16 or fp16 values, H <= 65,536): ``column | value_bits << 16``, the
        paper's own bits. int64 in the wide layout: ``column | float32_bits << 32``. Word 0 of each tile is the
        tile's number of active neurons (under ``overflow="clip"``: of those stored).
    shape : (int, int)
        M and H.
    value_dtype : torch.dtype
        float32, bfloat16 or float16.
    compression : int
        8, 4 or 2: S is 32, 64 or 128 words, of which the first is the count.
    spill_start : Tensor, int64 [M + 1]
        Row m owns the spilled tiles ``spill_start[m]`` to ``spill_start[m + 1] - 1``.
    spill_tile : Tensor, int32 [K]
        Tile number of each spilled tile, ascending inside a row.
    spill_values : Tensor, value_dtype [K, T]
        All values of a spilled tile, zero where the neuron is inactive. The words of such a tile hold its true
        count and its first S - 1 entries, which a reader replaces by these.
    clipped : Clipped
        What ``overflow="clip"`` dropped.

    Examples
    --------
    >>> import torch
    >>> from twell import TwELL
    >>> h = torch.tensor([[0.0, 2.0, -1.0, 3.0]])
    >>> packed = TwELL.from_dense(h)
    >>> packed.to_dense()
    tensor([[0., 2., 0., 3.]])
    """

    words: Tensor
    shape: tuple[int, int]
    value_dtype: torch.dtype
    compression: int
    spill_start: Tensor
    spill_tile: Tensor
    spill_values: Tensor
    clipped: Clipped = field(default_factory=Clipped)

    tile_width = TILE_WIDTH

    @property
    def n_tiles(self) -> int:
        """Column tiles of a row."""
        return n_tiles_of(self.shape[1])

    @property
    def slots(self) -> int:
        """Words of a tile, the count included."""
        return TILE_WIDTH // self.compression

    @property
    def capacity(self) -> int:
        """Entries that fit into a tile."""
        return self.slots - 1

    @property
    def wide(self) -> bool:
        """Whether a word has 64 bits."""
        return self.words.dtype == torch.int64

    @property
    def device(self) -> torch.device:
        """Device of the buffers."""
        return self.words.device

    @classmethod
    def from_dense(
        cls, h_MH: Tensor, *, compression: int = 8, overflow: str = "spill", keep: str = "positive"
    ) -> TwELL:
        """Pack a dense matrix. Packing applies ReLU unless ``keep="nonzero"``.

        Parameters
        ----------
        h_MH : Tensor, float32, bfloat16 or float16 [M, H]
            Gate values, before or after ReLU; any strides, M may be 0, H any width.
        compression : {8, 4, 2}
            31, 63 or 127 entries fit into a tile of 256 columns.
        overflow : {"spill", "raise", "clip"}
            A tile with more: kept exactly in a dense backup, an error, or cut (and counted in ``clipped``).
        keep : {"positive", "nonzero"}

        Raises
        ------
        CapacityError
            Under ``overflow="raise"``, naming row, tile, count and limit.
        ShapeError, DtypeError, OptionError
        """
        check_compression(compression)
        check_overflow(overflow)
        h_MH = check_dense(h_MH)
        return cls.from_coo(Coo.from_dense(h_MH, keep=keep), compression=compression, overflow=overflow)

    @classmethod
    def from_coo(cls, entries: Coo, *, compression: int = 8, overflow: str = "spill") -> TwELL:
        """Pack an ordered coordinate list; see :meth:`from_dense`."""
        n_tokens, n_hidden = entries.shape
        n_tiles, slots = n_tiles_of(n_hidden), TILE_WIDTH // compression
        capacity = slots - 1
        tile_N = entries.column_N // TILE_WIDTH
        rank_N, count_G = entries.rank_in(entries.row_N * n_tiles + tile_N, n_tokens * n_tiles)
        count_MT = count_G.view(n_tokens, n_tiles)
        over_MT = count_MT > capacity
        fits_N = rank_N < capacity
        clipped = Clipped()
        if overflow == "raise":
            _raise_first_overflow(over_MT, count_MT, capacity)
        elif overflow == "clip":
            lost = entries.select(~fits_N)
            clipped = Clipped.of(lost.row_N, lost.value_N)
            count_MT = count_MT.clamp(max=capacity)
            over_MT = torch.zeros_like(over_MT)

        wide = is_wide(entries.value_N.dtype, n_hidden)
        word_dtype = torch.int64 if wide else torch.int32
        words_MTS = torch.zeros(n_tokens, n_tiles, slots, dtype=word_dtype, device=entries.row_N.device)
        words_MTS[..., 0] = count_MT.to(word_dtype)
        stored = entries.select(fits_N)
        words_MTS[stored.row_N, tile_N[fits_N], 1 + rank_N[fits_N]] = _encode(stored, wide=wide)

        spill_row_K, spill_tile_K = over_MT.nonzero(as_tuple=True)
        spill_values_KT = entries.value_N.new_zeros(spill_row_K.numel(), TILE_WIDTH)
        spill_of_MT = torch.full_like(count_MT, -1)
        spill_of_MT[spill_row_K, spill_tile_K] = torch.arange(spill_row_K.numel(), device=count_MT.device)
        spill_N = spill_of_MT[entries.row_N, tile_N]
        in_spill_N = spill_N >= 0
        spill_values_KT[spill_N[in_spill_N], (entries.column_N % TILE_WIDTH)[in_spill_N]] = entries.value_N[in_spill_N]
        return cls(
            words=words_MTS.view(n_tokens, n_tiles * slots),
            shape=entries.shape,
            value_dtype=entries.value_N.dtype,
            compression=compression,
            spill_start=torch.cat([count_MT.new_zeros(1), over_MT.sum(1).cumsum(0)]),
            spill_tile=spill_tile_K.to(torch.int32),
            spill_values=spill_values_KT,
            clipped=clipped,
        )

    def to_coo(self) -> Coo:
        """All entries in row and column order, the spilled ones included."""
        words_MTS = self.words.view(self.shape[0], self.n_tiles, self.slots)
        stored_MT = words_MTS[..., 0].clone()
        spill_row_K = self.spill_rows()
        spill_tile_K = self.spill_tile.long()
        # Entries of a spilled tile are read from the backup, not from its words.
        stored_MT[spill_row_K, spill_tile_K] = 0
        slot_S = torch.arange(1, self.slots, device=self.device)
        row_N, tile_N, slot_N = (slot_S <= stored_MT[..., None]).nonzero(as_tuple=True)
        column_N, value_N = _decode(words_MTS[row_N, tile_N, 1 + slot_N], self.value_dtype, wide=self.wide)
        if spill_row_K.numel():
            k_P, lane_P = (self.spill_values != 0).nonzero(as_tuple=True)
            row_N = torch.cat([row_N, spill_row_K[k_P]])
            column_N = torch.cat([column_N, spill_tile_K[k_P] * TILE_WIDTH + lane_P])
            value_N = torch.cat([value_N, self.spill_values[k_P, lane_P]])
            order_N = (row_N * self.shape[1] + column_N).argsort()
            row_N, column_N, value_N = row_N[order_N], column_N[order_N], value_N[order_N]
        return Coo(row_N, column_N, value_N, self.shape)

    def to_dense(self) -> Tensor:
        """The matrix [M, H] in ``value_dtype``, zeros where a neuron is inactive."""
        return self.to_coo().to_dense()

    def tile_counts(self) -> Tensor:
        """Word 0 of every tile: active neurons, int32 [M, n_tiles]."""
        return self.words.view(self.shape[0], self.n_tiles, self.slots)[..., 0].to(torch.int32)

    def counts(self) -> Tensor:
        """Active neurons of every token (its L0), int32 [M]."""
        return self.tile_counts().sum(1, dtype=torch.int32)

    def spill_rows(self) -> Tensor:
        """Row of each spilled tile, int64 [K]."""
        rows_M = torch.arange(self.shape[0], device=self.device)
        return rows_M.repeat_interleave(self.spill_start.diff())

    def byte_counts(self) -> dict[str, int]:
        """Bytes of the words, the spill and both together, and of the same matrix stored densely."""
        spill = tensor_bytes(self.spill_start, self.spill_tile, self.spill_values)
        words = tensor_bytes(self.words)
        dense = self.shape[0] * self.shape[1] * self.value_dtype.itemsize
        return {"words": words, "spill": spill, "total": words + spill, "dense": dense}

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self.byte_counts()["total"]

    def __repr__(self) -> str:
        counts_MT = self.tile_counts()
        fullest = int(counts_MT.max()) if counts_MT.numel() else 0
        sizes = self.byte_counts()
        lines = [
            f"TwELL {self.shape[0]} x {self.shape[1]} {short_dtype(self.value_dtype)}: "
            f"{density_text(int(counts_MT.sum()), self.shape)}",
            f"  {self.n_tiles} tiles of {TILE_WIDTH} columns a row, each {self.slots} words of "
            f"{8 * self.words.element_size()} bits: 1 count and {self.capacity} entries",
            f"  fullest tile {fullest} of {self.capacity}; {self.spill_tile.numel()} tiles spilled to dense",
            f"  {ratio_text(sizes['total'], sizes['dense'])}",
        ]
        if self.clipped:
            lines.append(
                f"  clipped: {self.clipped.entries} entries in {self.clipped.rows} rows are LOST "
                f"(sum of |value| {self.clipped.abs_sum:.6g})"
            )
        return "\n".join(lines)


def _raise_first_overflow(over_MT: Tensor, count_MT: Tensor, capacity: int) -> None:
    where = over_MT.nonzero()
    if where.numel() == 0:
        return
    row, tile = (int(index) for index in where[0])
    raise CapacityError(
        row=row,
        tile=tile,
        count=int(count_MT[row, tile]),
        limit=capacity,
        remedy=tile_remedy(int(count_MT[row, tile])),
    )


def _encode(entries: Coo, *, wide: bool) -> Tensor:
    if wide:
        bits_N = entries.value_N.float().view(torch.int32).long()
        return entries.column_N | (bits_N << 32)
    bits_N = entries.value_N.view(torch.int16).to(torch.int32)
    return entries.column_N.to(torch.int32) | (bits_N << 16)


def _decode(word_N: Tensor, value_dtype: torch.dtype, *, wide: bool) -> tuple[Tensor, Tensor]:
    if wide:
        value_N = (word_N >> 32).to(torch.int32).view(torch.float32).to(value_dtype)
        return word_N & 0xFFFFFFFF, value_N
    value_N = (word_N >> 16).to(torch.int16).view(value_dtype)
    return (word_N & 0xFFFF).long(), value_N
