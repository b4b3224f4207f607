"""Dense to ELL: one block packs a whole row, because a row's entries have to be counted from its very start.

The block walks along the row. Each thread takes 8 neighbouring columns, counts its active ones, learns from a prefix
sum how many the threads before it found, and writes from there on. What TwELL avoids shows here: no column can be
placed before all columns to its left were counted, so this cannot be done by the blocks of a matrix product.

Letters: M tokens, H hidden width, W ELL width.
"""

from __future__ import annotations

import torch
from numpy import int32
from torch import Tensor

from twell.cuda_target import BLOCK_THREADS, Array, check_device, cuda, kernel
from twell.errors import CapacityError, OptionError
from twell.formats import ELL, Clipped
from twell.formats._rules import check_dense, column_dtype
from twell.simt.bits import active, widen
from twell.simt.scan import MAX_GROUPS, MAX_THREADS, sum_before, sum_of_all

COLUMNS = 8
"""Neighbouring columns of a thread."""


@kernel()
def count_rows(h_MH: Array, counts_M: Array) -> None:
    """Active columns of each row (``blockIdx.x``). ``counts_M`` starts as zeros."""
    found = 0
    for column in range(cuda.threadIdx.x, h_MH.shape[1], cuda.blockDim.x):
        if active(widen(h_MH[cuda.blockIdx.x, column])):
            found += 1
    if found > 0:
        cuda.atomic.add(counts_M, cuda.blockIdx.x, found)


@kernel()
def pack_rows(h_MH: Array, values_MW: Array, columns_MW: Array, counts_M: Array) -> None:
    """Pack a row (``blockIdx.x``). ``values_MW`` and ``columns_MW`` start as zeros; entries past W are not stored."""
    counts = cuda.shared.array(MAX_THREADS, int32)
    sums = cuda.shared.array(MAX_GROUPS, int32)
    row = cuda.blockIdx.x
    done = 0
    for start in range(0, h_MH.shape[1], cuda.blockDim.x * COLUMNS):
        first = start + cuda.threadIdx.x * COLUMNS
        last = min(first + COLUMNS, h_MH.shape[1])
        found = int32(0)
        for column in range(first, last):
            if active(widen(h_MH[row, column])):
                found += 1
        slot = done + sum_before(found, counts, sums)
        for column in range(first, last):
            if active(widen(h_MH[row, column])):
                if slot < values_MW.shape[1]:
                    values_MW[row, slot] = h_MH[row, column]
                    columns_MW[row, slot] = column
                slot += 1
        done += sum_of_all(sums)
    if cuda.threadIdx.x == 0:
        counts_M[row] = done


def ell_pack(h_MH: Tensor, *, width: int | None = None, overflow: str = "raise") -> ELL:
    """Pack gate values, before or after ReLU, to ELL.

    The fullest row is read back, to size the buffers or to see whether it fits: that synchronises with the device.

    Parameters
    ----------
    h_MH : Tensor, float32, bfloat16 or float16 [M, H]
        On the GPU (on the CPU in the simulator); copied if not contiguous.
    width, overflow
        See :meth:`twell.formats.ELL.from_dense`.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, OptionError, CapacityError
    """
    if overflow not in ("raise", "clip"):
        raise OptionError(f'overflow={overflow!r}: ELL has no dense backup, choose "raise" or "clip"; a Hybrid spills')
    if width is not None and (isinstance(width, bool) or not isinstance(width, int) or width < 0):
        raise OptionError(f"width={width!r}: an integer of at least 0 is needed, or None for the fullest row")
    h_MH = check_dense(h_MH)
    check_device([h_MH], ["h_MH"])
    n_tokens, n_hidden = h_MH.shape
    if width is None:
        counts_M = torch.zeros(n_tokens, dtype=torch.int32, device=h_MH.device)
        count_rows[n_tokens, BLOCK_THREADS](h_MH, counts_M)
        width = int(counts_M.max()) if n_tokens else 0
    values_MW, columns_MW, counts_M = launch_ell(h_MH, width)
    clipped = Clipped()
    wide_M = counts_M > width
    if bool(wide_M.any()):
        if overflow == "raise":
            row = int(wide_M.nonzero()[0])
            raise CapacityError(
                row=row,
                tile=None,
                count=int(counts_M[row]),
                limit=width,
                remedy='raise the width, use Hybrid with overflow="spill" (exact), or overflow="clip" to drop them',
            )
        clipped = _lost(h_MH[wide_M], width)
        counts_M = counts_M.clamp(max=width)
    return ELL(values_MW, columns_MW, counts_M, (n_tokens, n_hidden), clipped)


def launch_ell(h_MH: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Values, columns and true counts for a known width, with no synchronisation."""
    n_tokens, n_hidden = h_MH.shape
    values_MW = torch.zeros(n_tokens, width, dtype=h_MH.dtype, device=h_MH.device)
    columns_MW = torch.zeros(n_tokens, width, dtype=column_dtype(n_hidden), device=h_MH.device)
    counts_M = torch.empty(n_tokens, dtype=torch.int32, device=h_MH.device)
    pack_rows[n_tokens, BLOCK_THREADS](h_MH, values_MW, columns_MW, counts_M)
    return values_MW, columns_MW, counts_M


def _lost(h_MH: Tensor, width: int) -> Clipped:
    active_MH = ~(h_MH <= 0)
    lost_MH = active_MH & (active_MH.cumsum(1) > width)
    return Clipped(int(lost_MH.sum()), h_MH.shape[0], float(h_MH[lost_MH].abs().double().sum()))
