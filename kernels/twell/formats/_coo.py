"""The coordinate list between a dense matrix and every packed format.

Each format is built from, and read back into, the same ordered list of entries (row, column, value), so
that the rules about what is kept and in which order live in one place.
Letters: M tokens, H hidden width, N kept entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from twell.formats._rules import check_dense, kept


@dataclass(frozen=True)
class Coo:
    """Kept entries of a matrix, rows ascending, columns ascending inside a row.

    Attributes
    ----------
    row_N, column_N : Tensor, int64 [N]
    value_N : Tensor, float32, bfloat16 or float16 [N]
    shape : (int, int)
        Rows and columns of the matrix.
    """

    row_N: Tensor
    column_N: Tensor
    value_N: Tensor
    shape: tuple[int, int]

    @classmethod
    def from_dense(cls, h_MH: Tensor, *, keep: str = "positive") -> Coo:
        """List the kept entries of ``h_MH`` [M, H]."""
        h_MH = check_dense(h_MH)
        row_N, column_N = kept(h_MH, keep).nonzero(as_tuple=True)
        return cls(row_N, column_N, h_MH[row_N, column_N], (h_MH.shape[0], h_MH.shape[1]))

    def to_dense(self) -> Tensor:
        """The matrix with zeros where nothing was kept, [M, H] in the dtype of the values."""
        h_MH = self.value_N.new_zeros(self.shape)
        h_MH[self.row_N, self.column_N] = self.value_N
        return h_MH

    def counts(self) -> Tensor:
        """Entries of each row, int32 [M]."""
        return torch.bincount(self.row_N, minlength=self.shape[0]).to(torch.int32)

    def rank_in(self, group_N: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        """Position of each entry inside its group, and the groups' sizes.

        Parameters
        ----------
        group_N : Tensor, int64 [N]
            Ascending group numbers (a row, or a tile of a row).
        n_groups : int

        Returns
        -------
        rank_N : Tensor, int64 [N]
        size_G : Tensor, int64 [n_groups]
        """
        size_G = torch.bincount(group_N, minlength=n_groups)
        start_G = size_G.cumsum(0) - size_G
        return torch.arange(group_N.numel(), device=group_N.device) - start_G[group_N], size_G

    def select(self, mask_N: Tensor) -> Coo:
        """The entries for which ``mask_N`` holds."""
        return Coo(self.row_N[mask_N], self.column_N[mask_N], self.value_N[mask_N], self.shape)
