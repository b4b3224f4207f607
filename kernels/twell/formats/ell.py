"""ELL (ELLPACK): every row stores the same number of entries, pushed to the left and padded.

The width is that of the fullest row, which is why the format suits activations badly: one token that fires
thousands of neurons widens all others (paper, section 3.1).

Letters: M tokens, H hidden width, W ELL width, N entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from twell.errors import CapacityError, OptionError
from twell.formats._coo import Coo
from twell.formats._rules import (
    Clipped,
    check_dense,
    column_dtype,
    density_text,
    ratio_text,
    short_dtype,
    tensor_bytes,
)


@dataclass(frozen=True, repr=False)
class ELL:
    """A matrix [M, H] as M rows of W (column, value) pairs.

    Attributes
    ----------
    values : Tensor, float32, bfloat16 or float16 [M, W]
        Zero past the count.
    columns : Tensor, uint16 (int32 where H > 65,536) [M, W]
        Ascending, zero past the count.
    counts : Tensor, int32 [M]
    shape : (int, int)
    clipped : Clipped
    """

    values: Tensor
    columns: Tensor
    counts: Tensor
    shape: tuple[int, int]
    clipped: Clipped = field(default_factory=Clipped)

    @property
    def width(self) -> int:
        """Entries that a row can hold."""
        return self.values.shape[1]

    @classmethod
    def from_dense(
        cls, h_MH: Tensor, *, width: int | None = None, overflow: str = "raise", keep: str = "positive"
    ) -> ELL:
        """Pack a dense matrix.

        Parameters
        ----------
        h_MH : Tensor, float32, bfloat16 or float16 [M, H]
        width : int, optional
            Entries a row; by default the count of the fullest row, so that nothing overflows.
        overflow : {"raise", "clip"}
            For a row with more than ``width``. ELL has no backup; :class:`~twell.formats.Hybrid` is the ELL that
            spills.
        keep : {"positive", "nonzero"}
            ``"positive"`` applies ReLU.

        Raises
        ------
        CapacityError
            Naming row, count and limit.
        ShapeError, DtypeError, OptionError
        """
        if overflow not in ("raise", "clip"):
            raise OptionError(
                f'overflow={overflow!r}: ELL has no dense backup, choose "raise" or "clip"; Hybrid.from_dense '
                'takes "spill", and width=None never overflows'
            )
        entries = Coo.from_dense(check_dense(h_MH), keep=keep)
        counts_M = entries.counts()
        if width is None:
            width = int(counts_M.max()) if counts_M.numel() else 0
        elif isinstance(width, bool) or not isinstance(width, int) or width < 0:
            raise OptionError(f"width={width!r}: an integer of at least 0 is needed, or None for the fullest row")
        clipped = Clipped()
        if overflow == "raise":
            raise_first_wide_row(counts_M, width)
        values_MW, columns_MW, lost = pack_rows(entries, width)
        if lost.row_N.numel():
            clipped = Clipped.of(lost.row_N, lost.value_N)
            counts_M = counts_M.clamp(max=width)
        return cls(values_MW, columns_MW, counts_M, entries.shape, clipped)

    def to_coo(self) -> Coo:
        """All entries in row and column order."""
        return unpack_rows(self.values, self.columns, self.counts, self.shape)

    def to_dense(self) -> Tensor:
        """The matrix [M, H], zeros where nothing is stored."""
        return self.to_coo().to_dense()

    def byte_counts(self) -> dict[str, int]:
        """Bytes of each buffer, of all, and of the same matrix stored densely."""
        parts = {
            "values": tensor_bytes(self.values),
            "columns": tensor_bytes(self.columns),
            "counts": tensor_bytes(self.counts),
        }
        dense = self.shape[0] * self.shape[1] * self.values.element_size()
        return {**parts, "total": sum(parts.values()), "dense": dense}

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self.byte_counts()["total"]

    def __repr__(self) -> str:
        n_active, n_slots = int(self.counts.sum()), self.values.numel()
        padding = 100 * (1 - n_active / n_slots) if n_slots else 0.0
        sizes = self.byte_counts()
        text = (
            f"ELL {self.shape[0]} x {self.shape[1]} {short_dtype(self.values.dtype)}: "
            f"{density_text(n_active, self.shape)}\n"
            f"  width {self.width} for every row, {padding:.0f} % of the slots are padding\n"
            f"  {ratio_text(sizes['total'], sizes['dense'])}"
        )
        if self.clipped:
            text += f"\n  clipped: {self.clipped.entries} entries in {self.clipped.rows} rows are LOST"
        return text


def raise_first_wide_row(counts_M: Tensor, width: int) -> None:
    """Raise CapacityError for the first row with more than ``width`` entries."""
    wide = (counts_M > width).nonzero()
    if wide.numel():
        row = int(wide[0])
        raise CapacityError(
            row=row,
            tile=None,
            count=int(counts_M[row]),
            limit=width,
            remedy='raise the width, use Hybrid with overflow="spill" (exact), or overflow="clip" to drop them',
        )


def pack_rows(entries: Coo, width: int) -> tuple[Tensor, Tensor, Coo]:
    """Push each row's first ``width`` entries to the left.

    Returns
    -------
    values_MW, columns_MW : Tensor
    lost : Coo
        Entries that did not fit.
    """
    n_tokens, n_hidden = entries.shape
    rank_N, _ = entries.rank_in(entries.row_N, n_tokens)
    fits_N = rank_N < width
    stored = entries.select(fits_N)
    values_MW = entries.value_N.new_zeros(n_tokens, width)
    columns_MW = entries.column_N.new_zeros(n_tokens, width)
    values_MW[stored.row_N, rank_N[fits_N]] = stored.value_N
    columns_MW[stored.row_N, rank_N[fits_N]] = stored.column_N
    return values_MW, columns_MW.to(column_dtype(n_hidden)), entries.select(~fits_N)


def unpack_rows(values_MW: Tensor, columns_MW: Tensor, stored_M: Tensor, shape: tuple[int, int]) -> Coo:
    """Inverse of :func:`pack_rows`; ``stored_M`` is the number of slots in use, int [M]."""
    slot_W = torch.arange(values_MW.shape[1], device=values_MW.device)
    row_N, slot_N = (slot_W < stored_M[:, None]).nonzero(as_tuple=True)
    return Coo(row_N, columns_MW.long()[row_N, slot_N], values_MW[row_N, slot_N], shape)
