"""The epilogue that packs: from the registers of a finished product straight into the words of TwELL.

A row of the tile lies in the registers of four neighbouring lanes, a quad: lane q has columns 8j + 2q and 8j + 2q + 1
for every j from 0 to 31. So each lane writes down its active neurons as two masks of 32 bits (bit j of *even* and
*odd*), the quad exchanges them, and the slot of an entry is the number of bits that stand before it, in any of the
eight masks. No atomics, no shared memory; columns ascend and the words are the same each time. Where nothing is
active, which is almost everywhere, a lane goes on after looking at eight columns' bits at once.

Letters: M tokens, H hidden width, N tiles of a row, S words of a tile, L = 256 N columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numpy import float32, int32, uint32

from twell.cuda_target import Array, cuda, device, large_device, two_forms
from twell.simt.bits import _is_bf16, _types, make_word
from twell.simt.spill import tile_spills
from twell.simt.vector import pair
from twell.tensorcore.ptx import store_pair
from twell.tensorcore.unroll import unroll, unrolled

ALL = 0xFFFFFFFF
TILE = 256
_I32, _FLOAT = ir.IntType(32), ir.FloatType()

ROUNDS_TO_ZERO = {"bf16": 2.0**-134, "fp16": 2.0**-25}
"""The largest number that is stored as zero: half of the smallest one, which a tie to even rounds down."""


def _limit_of(is_bf16: bool) -> float:
    return ROUNDS_TO_ZERO["bf16" if is_bf16 else "fp16"]


def _make_mask(first: int) -> Any:
    """A function of the sums: bit j says whether ``sums[4 j + first]`` is active once it is stored."""

    def host(sums: Any, like: Any) -> Any:
        limit = _limit_of(like.dtype == np.int16)
        return np.uint32(sum(1 << j for j in range(32) if not float(sums[4 * j + first]) <= limit))

    def gpu(typing: Any, sums: Any, like: Any) -> Any:
        limit = ir.Constant(_FLOAT, _limit_of(_is_bf16(like.dtype)))

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(sums)(context, builder, arguments[0]).data
            mask = ir.Constant(_I32, 0)
            for j in range(32):
                value = builder.load(builder.gep(data, [ir.Constant(_I32, 4 * j + first)]))
                active = builder.zext(builder.fcmp_unordered(">", value, limit), _I32)
                mask = builder.or_(mask, builder.shl(active, ir.Constant(_I32, j)))
            return mask

        return _types().uint32(sums, like), emit

    host.instruction = True  # type: ignore[attr-defined]
    return two_forms(host, gpu)


def _host_stored(value: Any, like: Any) -> Any:
    """The value, or zero where it is not active once it is stored."""
    return value if not float(value) <= _limit_of(like.dtype == np.int16) else np.float32(0)


def _gpu_stored(typing: Any, value: Any, like: Any) -> Any:
    limit = ir.Constant(_FLOAT, _limit_of(_is_bf16(like.dtype)))

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        active = builder.fcmp_unordered(">", arguments[0], limit)
        return builder.select(active, arguments[0], ir.Constant(_FLOAT, 0.0))

    return _types().float32(_types().float32, like), emit


def _host_first_bits(mask: Any, n: int) -> Any:
    """The lowest ``n`` bits (0 and less: none; 32 and more: all)."""
    return np.uint32(int(mask) & ((1 << max(0, min(32, int(n)))) - 1))


def _gpu_first_bits(typing: Any, mask: Any, n: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        n = builder.trunc(arguments[1], _I32)
        zero, most = ir.Constant(_I32, 0), ir.Constant(_I32, 32)
        some = builder.icmp_signed(">", n, zero)
        shift = builder.and_(builder.sub(most, n), ir.Constant(_I32, 31))
        ones = builder.lshr(ir.Constant(_I32, -1), shift)
        ones = builder.select(builder.icmp_signed(">=", n, most), ir.Constant(_I32, -1), ones)
        return builder.select(some, builder.and_(arguments[0], ones), zero)

    types = _types()
    return types.uint32(types.uint32, types.int64), emit


_host_stored.instruction = True  # type: ignore[attr-defined]
_host_first_bits.instruction = True  # type: ignore[attr-defined]
stored = two_forms(_host_stored, _gpu_stored)
first_bits = two_forms(_host_first_bits, _gpu_first_bits)


@device
def from_lane(mask: Any, distance: int) -> Any:
    """The mask of the lane whose number differs by ``distance`` (exclusive or)."""
    return uint32(cuda.shfl_xor_sync(ALL, int32(mask), distance))


@large_device
def write_entries(
    words_MNS: Array,
    row: int,
    tile: int,
    quad: int,
    j: int,
    even: Any,
    odd: Any,
    even_1: Any,
    odd_1: Any,
    even_2: Any,
    odd_2: Any,
    even_3: Any,
    odd_3: Any,
    left: Any,
    right: Any,
    like: Array,
) -> None:
    """The entries of columns 8j + 2q and 8j + 2q + 1, one of which is active. ``even_d`` is the mask of lane q ^ d."""
    # A lane before this one in the quad has its columns of the same j before ours.
    after_1 = quad & 1
    after_2 = (quad >> 1) & 1
    slot = 1 + cuda.popc(first_bits(even, j)) + cuda.popc(first_bits(odd, j))
    slot += cuda.popc(first_bits(even_1, j + after_1)) + cuda.popc(first_bits(odd_1, j + after_1))
    slot += cuda.popc(first_bits(even_2, j + after_2)) + cuda.popc(first_bits(odd_2, j + after_2))
    slot += cuda.popc(first_bits(even_3, j + after_2)) + cuda.popc(first_bits(odd_3, j + after_2))
    column = tile * TILE + 8 * j + 2 * quad
    if first_bits(even >> uint32(j), 1) != 0:
        if slot < words_MNS.shape[2]:
            words_MNS[row, tile, slot] = make_word(column, left, words_MNS, like)
        slot += 1
    if first_bits(odd >> uint32(j), 1) != 0 and slot < words_MNS.shape[2]:
        words_MNS[row, tile, slot] = make_word(column + 1, right, words_MNS, like)


def _make_pack_half(half: int) -> Any:
    """The packing of the upper (0) or lower (1) of a thread's two rows: registers 4j + 2 half and the next."""
    even_mask, odd_mask = _make_mask(2 * half), _make_mask(2 * half + 1)

    @large_device
    @unrolled
    def pack_half(
        sums: Array, words_MNS: Array, over_M: Array, spills: Array, like: Array, row: int, tile: int, n_hidden: int
    ) -> None:
        quad = cuda.threadIdx.x & 3
        limit = n_hidden - tile * TILE - 2 * quad
        # Columns past the hidden width: only a token with NaN or infinity has anything there.
        even = first_bits(even_mask(sums, like), (limit + 7) >> 3)
        odd = first_bits(odd_mask(sums, like), (limit + 6) >> 3)
        even_1 = from_lane(even, 1)
        odd_1 = from_lane(odd, 1)
        even_2 = from_lane(even, 2)
        odd_2 = from_lane(odd, 2)
        even_3 = from_lane(even_1, 2)
        odd_3 = from_lane(odd_1, 2)
        if row < words_MNS.shape[0]:
            if quad == 0:
                count = cuda.popc(even) + cuda.popc(even_1) + cuda.popc(even_2) + cuda.popc(even_3)
                count += cuda.popc(odd) + cuda.popc(odd_1) + cuda.popc(odd_2) + cuda.popc(odd_3)
                words_MNS[row, tile, 0] = count
                if count >= words_MNS.shape[2]:
                    cuda.atomic.add(over_M, row, 1)
                    spills[0] = 1
                    spills[1 + (row >> 7) * words_MNS.shape[1] + tile] = 1
            both = even | odd
            for part in unroll(4):
                if first_bits(both >> uint32(8 * part), 8) != 0:
                    for j in unroll(8 * part, 8 * part + 8):
                        if first_bits(both >> uint32(j), 1) != 0:
                            write_entries(
                                words_MNS,
                                row,
                                tile,
                                quad,
                                j,
                                even,
                                odd,
                                even_1,
                                odd_1,
                                even_2,
                                odd_2,
                                even_3,
                                odd_3,
                                sums[4 * j + 2 * half],
                                sums[4 * j + 2 * half + 1],
                                like,
                            )

    return pack_half


pack_upper, pack_lower = _make_pack_half(0), _make_pack_half(1)


@device
def pack_rows(
    sums: Array, words_MNS: Array, over_M: Array, spills: Array, like: Array, first_row: int, tile: int, n_hidden: int
) -> None:
    """Write the two rows of this thread: the count, and the entries that fit. ``first_row`` is its warpgroup's.

    ``over_M`` counts the tiles of each row that do not fit; ``spills[0]`` becomes 1 if there is any, and so does the
    place of each 128 rows by 256 columns in ``spills[1:]``.
    """
    row = first_row + ((cuda.threadIdx.x & 127) >> 5) * 16 + ((cuda.threadIdx.x & 31) >> 2)
    pack_upper(sums, words_MNS, over_M, spills, like, row, tile, n_hidden)
    pack_lower(sums, words_MNS, over_M, spills, like, row + 8, tile, n_hidden)


@large_device
def keep_pair(spilled_ML: Array, row: int, column: int, left: Any, right: Any, like: Array, n_hidden: int) -> None:
    """Two neighbouring gate values, zero where inactive or past the hidden width."""
    low = stored(left, like)
    high = stored(right, like)
    if column >= n_hidden:
        low = float32(0)
    if column + 1 >= n_hidden:
        high = float32(0)
    store_pair(spilled_ML, row * spilled_ML.shape[1] + column, pair(low, high, spilled_ML))


@large_device
@unrolled
def keep_spilled_rows(
    sums: Array, words_MNS: Array, spilled_ML: Array, like: Array, first_row: int, tile: int, n_hidden: int
) -> None:
    """Second pass: all values of the rows whose tile did not fit, zero where inactive, at their places."""
    lane = cuda.threadIdx.x & 127
    quad = lane & 3
    for half in unroll(2):
        row = first_row + (lane >> 5) * 16 + ((lane & 31) >> 2) + 8 * half
        if row < words_MNS.shape[0] and tile_spills(words_MNS, row, tile):
            for j in unroll(32):
                keep_pair(
                    spilled_ML,
                    row,
                    tile * TILE + 8 * j + 2 * quad,
                    sums[4 * j + 2 * half],
                    sums[4 * j + 2 * half + 1],
                    like,
                    n_hidden,
                )
