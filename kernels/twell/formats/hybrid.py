"""Hybrid: a narrow ELL for the rows that fit and dense rows for those that do not (paper, section 3.3).

The paper fixes both sizes in advance and drops what does not fit; here the backup has a row for every token
that needs one.

Letters: M tokens, H hidden width, W ELL width, R dense backup rows, N entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from twell.errors import OptionError
from twell.formats._coo import Coo
from twell.formats._rules import (
    Clipped,
    check_dense,
    check_overflow,
    density_text,
    ratio_text,
    short_dtype,
    tensor_bytes,
)
from twell.formats.ell import pack_rows, raise_first_wide_row, unpack_rows
from twell.formats.twell import TwELL

DEFAULT_WIDTH = 128
"""ELL width of the paper's training runs (section 3.3)."""


@dataclass(frozen=True, repr=False)
class Hybrid:
    """A matrix [M, H] as ELL rows plus dense backup rows.

    Attributes
    ----------
    values : Tensor, float32, bfloat16 or float16 [M, W]
        ELL part; rows in the backup are zero here.
    columns : Tensor, uint16 (int32 where H > 65,536) [M, W]
    counts : Tensor, int32 [M]
        True number of active neurons of every row, which may exceed W.
    backup_row : Tensor, int32 [M]
        Row of ``backup`` that holds this token, -1 where the ELL part holds it.
    backup : Tensor, dtype of the values [R, H]
    shape : (int, int)
    clipped : Clipped
    """

    values: Tensor
    columns: Tensor
    counts: Tensor
    backup_row: Tensor
    backup: Tensor
    shape: tuple[int, int]
    clipped: Clipped = field(default_factory=Clipped)

    @property
    def width(self) -> int:
        """Entries that an ELL row can hold."""
        return self.values.shape[1]

    @property
    def n_backup(self) -> int:
        """Rows in the dense backup."""
        return self.backup.shape[0]

    @classmethod
    def from_dense(
        cls, h_MH: Tensor, *, width: int = DEFAULT_WIDTH, overflow: str = "spill", keep: str = "positive"
    ) -> Hybrid:
        """Pack a dense matrix [M, H].

        Parameters
        ----------
        h_MH : Tensor, float32, bfloat16 or float16 [M, H]
        width : int
            Entries of an ELL row.
        overflow : {"spill", "raise", "clip"}
            A row with more goes to the dense backup whole, raises, or is cut (and counted in ``clipped``).
        keep : {"positive", "nonzero"}
            ``"positive"`` applies ReLU.

        Raises
        ------
        CapacityError, ShapeError, DtypeError, OptionError
        """
        entries = Coo.from_dense(check_dense(h_MH), keep=keep)
        return cls.from_coo(entries, width=width, overflow=overflow)

    @classmethod
    def from_twell(cls, packed: TwELL, *, width: int = DEFAULT_WIDTH, overflow: str = "spill") -> Hybrid:
        """Convert from TwELL, whose tile counts give each row's place; see :meth:`from_dense`."""
        return cls.from_coo(packed.to_coo(), width=width, overflow=overflow)

    @classmethod
    def from_coo(cls, entries: Coo, *, width: int = DEFAULT_WIDTH, overflow: str = "spill") -> Hybrid:
        """Pack an ordered coordinate list; see :meth:`from_dense`."""
        check_overflow(overflow)
        if isinstance(width, bool) or not isinstance(width, int) or width < 0:
            raise OptionError(f"width={width!r}: an integer of at least 0 is needed (the paper uses {DEFAULT_WIDTH})")
        counts_M = entries.counts()
        clipped = Clipped()
        if overflow == "raise":
            raise_first_wide_row(counts_M, width)
        in_backup_M = counts_M > width
        if overflow == "clip":
            in_backup_M = torch.zeros_like(in_backup_M)
        spilled_N = in_backup_M[entries.row_N]
        values_MW, columns_MW, lost = pack_rows(entries.select(~spilled_N), width)
        if lost.row_N.numel():
            clipped = Clipped.of(lost.row_N, lost.value_N)
            counts_M = counts_M.clamp(max=width)
        backup_row_M = torch.where(in_backup_M, in_backup_M.cumsum(0) - 1, -1)
        spilled = entries.select(spilled_N)
        backup_RH = entries.value_N.new_zeros(int(in_backup_M.sum()), entries.shape[1])
        backup_RH[backup_row_M[spilled.row_N], spilled.column_N] = spilled.value_N
        return cls(values_MW, columns_MW, counts_M, backup_row_M.to(torch.int32), backup_RH, entries.shape, clipped)

    def to_coo(self) -> Coo:
        """All entries in row and column order, the backup's included."""
        in_ell_M = torch.where(self.backup_row < 0, self.counts, 0)
        ell = unpack_rows(self.values, self.columns, in_ell_M, self.shape)
        if self.n_backup == 0:
            return ell
        row_R = (self.backup_row >= 0).nonzero().squeeze(1)
        r_P, column_P = (self.backup != 0).nonzero(as_tuple=True)
        row_N = torch.cat([ell.row_N, row_R[r_P]])
        column_N = torch.cat([ell.column_N, column_P])
        value_N = torch.cat([ell.value_N, self.backup[r_P, column_P]])
        order_N = (row_N * self.shape[1] + column_N).argsort()
        return Coo(row_N[order_N], column_N[order_N], value_N[order_N], self.shape)

    def to_dense(self) -> Tensor:
        """The matrix [M, H], zeros where nothing is stored."""
        return self.to_coo().to_dense()

    def byte_counts(self) -> dict[str, int]:
        """Bytes of the ELL part, the backup, the row maps, of all, and of the same matrix stored densely."""
        parts = {
            "ell": tensor_bytes(self.values, self.columns),
            "backup": tensor_bytes(self.backup),
            "rows": tensor_bytes(self.counts, self.backup_row),
        }
        dense = self.shape[0] * self.shape[1] * self.values.element_size()
        return {**parts, "total": sum(parts.values()), "dense": dense}

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self.byte_counts()["total"]

    def __repr__(self) -> str:
        sizes = self.byte_counts()
        text = (
            f"Hybrid {self.shape[0]} x {self.shape[1]} {short_dtype(self.values.dtype)}: "
            f"{density_text(int(self.counts.sum()), self.shape)}\n"
            f"  {self.shape[0] - self.n_backup} rows in ELL of width {self.width}, "
            f"{self.n_backup} in the dense backup\n"
            f"  {ratio_text(sizes['total'], sizes['dense'])}"
        )
        if self.clipped:
            text += f"\n  clipped: {self.clipped.entries} entries in {self.clipped.rows} rows are LOST"
        return text
