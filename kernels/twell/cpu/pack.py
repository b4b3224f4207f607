"""Gate product and pack: the first half of a sparse feed-forward on the CPU.

The product goes through torch (MKL or oneDNN) in blocks of rows; a Numba pass packs each block while it is still
in cache, which is the CPU's form of packing in the epilogue (paper, section 3.2).

Letters: M tokens, D model width, H hidden width, P rows of a block, T tile width (256), S words of a tile,
K spilled tiles.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from torch import Tensor

from twell._inputs import check_tokens, check_weight
from twell.cpu._launch import device, in_forked_child, kernel
from twell.cpu._storage import Array, Scalar, as_bits, fp16_to_fp32_bits, negative_infinity_bits
from twell.errors import CapacityError, DeviceError
from twell.formats import TILE_WIDTH, Clipped, TwELL
from twell.formats._rules import check_compression, check_dense, check_overflow, tile_remedy
from twell.formats.twell import is_wide, n_tiles_of

BLOCK_BYTES = 6 << 20
"""Size of a block of gate values. Measured on two Sapphire Rapids cores (2 MiB of L2 each), 2026-12-01, 5,632 fp32
values a row: against the whole product at once, blocks of 256 rows cost about 6 % and blocks of 128 about 14 %."""

MIN_BLOCK_ROWS = 128


def pack(h_MH: Tensor, *, compression: int = 8, overflow: str = "spill") -> TwELL:
    """Pack gate values, before or after ReLU, to TwELL.

    Parameters
    ----------
    h_MH : Tensor, float32, bfloat16 or float16 [M, H]
        On the CPU; copied if not contiguous.
    compression, overflow
        See :meth:`twell.formats.TwELL.from_dense`.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, OptionError, CapacityError
    """
    check_compression(compression)
    check_overflow(overflow)
    h_MH = check_dense(h_MH)
    check_cpu(h_MH, "h_MH")
    packer = _Packer(h_MH.shape[0], h_MH.shape[1], h_MH.dtype, compression, overflow)
    packer.add(h_MH)
    return packer.finish()


def gate_pack(x_MD: Tensor, gate_HD: Tensor, *, compression: int = 8, overflow: str = "spill") -> TwELL:
    """``relu(x gate^T)``, rounded to the dtype of ``x``, as TwELL (paper, section 3.2).

    Parameters
    ----------
    x_MD : Tensor, float32, bfloat16 or float16 [M, D]
        On the CPU; copied if not contiguous.
    gate_HD : Tensor, dtype of ``x_MD`` [H, D]
    compression, overflow
        See :meth:`twell.formats.TwELL.from_dense`.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, OptionError, CapacityError
    """
    check_compression(compression)
    check_overflow(overflow)
    check_tokens(x_MD)
    check_cpu(x_MD, "x_MD")
    check_weight(gate_HD, "gate_HD", width=x_MD.shape[1], like=x_MD)
    n_tokens, n_hidden = x_MD.shape[0], gate_HD.shape[0]
    packer = _Packer(n_tokens, n_hidden, x_MD.dtype, compression, overflow)
    x_MD, gate_DH = x_MD.detach().contiguous(), gate_HD.detach().T
    n_rows = max(MIN_BLOCK_ROWS, BLOCK_BYTES // (n_hidden * x_MD.element_size()))
    n_blocks = -(-n_tokens // n_rows)
    n_rows = -(-n_tokens // n_blocks) if n_blocks else 0
    block_PH = x_MD.new_empty(n_rows, n_hidden)
    # Under autocast torch would take the product in another dtype than the one that is stored.
    with torch.no_grad(), torch.autocast("cpu", enabled=False), _usable_torch_threads():
        for start in range(0, n_tokens, max(1, n_rows)):
            x_PD = x_MD[start : start + n_rows]
            packer.add(torch.mm(x_PD, gate_DH, out=block_PH[: x_PD.shape[0]]))
    return packer.finish()


def check_cpu(array: Tensor, name: str) -> None:
    """Raise DeviceError unless ``array`` is in the memory that Numba's CPU kernels read."""
    if array.device.type != "cpu":
        raise DeviceError(
            f'{name} is on {array.device}: twell.cpu needs CPU tensors; move it with .to("cpu"), or use twell.reference'
        )


class _usable_torch_threads:  # noqa: N801 - a context manager, named like a function
    """One torch thread inside a forked child, whose copy of torch's pool may not answer."""

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        if in_forked_child() and self._before > 1:
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        if torch.get_num_threads() != self._before:
            torch.set_num_threads(self._before)


class _Packer:
    """Packs blocks of rows, in order, into the buffers of one TwELL."""

    def __init__(self, n_tokens: int, n_hidden: int, dtype: torch.dtype, compression: int, overflow: str) -> None:
        self.shape, self.dtype = (n_tokens, n_hidden), dtype
        self.compression, self.overflow = compression, overflow
        self.slots = TILE_WIDTH // compression
        wide = is_wide(dtype, n_hidden)
        self.words = torch.empty(
            n_tokens, n_tiles_of(n_hidden) * self.slots, dtype=torch.int64 if wide else torch.int32
        )
        self.over_M = np.zeros(n_tokens, np.int32)
        self.spill_tiles: list[Array] = []
        self.spill_values: list[Tensor] = []
        self.clipped = Clipped()
        self.next_row = 0

    def add(self, block_PH: Tensor) -> None:
        """Pack the next rows of the matrix."""
        start, stop = self.next_row, self.next_row + block_PH.shape[0]
        self.next_row = stop
        if start == stop:
            return
        words_PTS = self.words[start:stop].numpy().reshape(stop - start, -1, self.slots)
        over_P = self.over_M[start:stop]
        bits_PH = as_bits(block_PH)
        _pack_rows(bits_PH, negative_infinity_bits(self.dtype), self._widening(), words_PTS, over_P)
        if over_P.any():
            self._overflow(bits_PH, words_PTS, over_P, start)

    def _widening(self) -> int:
        """Bits by which a bf16 moves to become fp32; -1 for fp16, whose conversion is more than a shift."""
        return {torch.float32: 0, torch.bfloat16: 16, torch.float16: -1}[self.dtype]

    def _overflow(self, bits_PH: Array, words_PTS: Array, over_P: Array, start: int) -> None:
        capacity = self.slots - 1
        row_K, tile_K = (words_PTS[..., 0] > capacity).nonzero()
        if self.overflow == "raise":
            row, tile = int(row_K[0]), int(tile_K[0])
            raise CapacityError(
                row=start + row,
                tile=tile,
                count=int(words_PTS[row, tile, 0]),
                limit=capacity,
                remedy=tile_remedy(int(words_PTS[row, tile, 0])),
            )
        values_KT = torch.empty(row_K.size, TILE_WIDTH, dtype=self.dtype)
        _copy_tiles(bits_PH, negative_infinity_bits(self.dtype), row_K, tile_K, as_bits(values_KT))
        if self.overflow == "spill":
            self.spill_tiles.append(tile_K.astype(np.int32))
            self.spill_values.append(values_KT)
            return
        active_KT = values_KT != 0
        lost_KT = active_KT & (active_KT.cumsum(1) > capacity)
        self.clipped = Clipped(
            self.clipped.entries + int(lost_KT.sum()),
            self.clipped.rows + int((over_P > 0).sum()),
            self.clipped.abs_sum + float(values_KT[lost_KT].abs().double().sum()),
        )
        words_PTS[row_K, tile_K, 0] = capacity
        over_P[:] = 0

    def finish(self) -> TwELL:
        """The packed matrix, after all rows were added."""
        spill_start = np.zeros(self.shape[0] + 1, np.int64)
        np.cumsum(self.over_M, out=spill_start[1:])
        tile_K = np.concatenate([np.empty(0, np.int32), *self.spill_tiles])
        return TwELL(
            words=self.words,
            shape=self.shape,
            value_dtype=self.dtype,
            compression=self.compression,
            spill_start=torch.from_numpy(spill_start),
            spill_tile=torch.from_numpy(tile_K),
            spill_values=torch.cat([torch.empty(0, TILE_WIDTH, dtype=self.dtype), *self.spill_values]),
            clipped=self.clipped,
        )


@device
def _count_active_64(bits_PH: Array, row: Scalar, first: Scalar, floor: Scalar) -> Scalar:
    found = np.int32(0)
    base = np.uint64(first)
    for lane in range(64):
        bits = bits_PH[np.uint64(row), base + np.uint64(lane)]
        found += np.int32((bits > floor) & (bits != 0))
    return found


@kernel
def _pack_rows(bits_PH: Array, floor: int, widening: int, words_PTS: Array, over_P: Array) -> None:
    """Write the words of each row's tiles, and the number of its tiles that hold too many.

    ``floor`` is :func:`~twell.cpu._storage.negative_infinity_bits`. Columns are looked at in runs of 64, of which
    most hold nothing: one vectorised count passes over them. It is a sum over unsigned indices because that is the
    form that LLVM vectorises: eight times as fast here as an ``or`` over signed ones, and as runs of 32 or 128.
    """
    n_rows, n_hidden = bits_PH.shape
    n_tiles, slots = words_PTS.shape[1], words_PTS.shape[2]
    narrow = words_PTS.itemsize == 4
    for row in prange(n_rows):
        over = 0
        for tile in range(n_tiles):
            count = 0
            stop = min(n_hidden, (tile + 1) * 256)
            for run in range(tile * 256, stop, 64):
                found = 0
                if run + 64 <= stop:
                    found = _count_active_64(bits_PH, row, run, floor)
                else:
                    for column in range(run, stop):
                        bits = bits_PH[row, column]
                        if bits > floor and bits != 0:
                            found += 1
                if found > 0 and count < slots - 1:
                    slot = count
                    for column in range(run, min(stop, run + 64)):
                        bits = bits_PH[row, column]
                        if bits > floor and bits != 0:
                            slot += 1
                            if slot < slots:
                                if narrow:
                                    word = np.int64(column) | (np.int64(bits) << 16)
                                elif widening >= 0:
                                    word = np.int64(column) | (np.int64(bits) << (32 + widening))
                                else:
                                    word = np.int64(column) | (np.int64(fp16_to_fp32_bits(bits)) << 32)
                                words_PTS[row, tile, slot] = word
                count += found
            words_PTS[row, tile, 0] = count
            for slot in range(count + 1, slots):
                words_PTS[row, tile, slot] = 0
            if count >= slots:
                over += 1
        over_P[row] = over


@kernel
def _copy_tiles(bits_PH: Array, floor: int, row_K: Array, tile_K: Array, out_KT: Array) -> None:
    """Copy whole tiles, with zero for what is not active and for columns past H."""
    n_hidden = bits_PH.shape[1]
    for k in prange(row_K.shape[0]):
        first = tile_K[k] * 256
        for lane in range(256):
            out_KT[k, lane] = 0
        for lane in range(min(256, n_hidden - first)):
            bits = bits_PH[row_K[k], first + lane]
            if bits > floor:
                out_KT[k, lane] = bits
