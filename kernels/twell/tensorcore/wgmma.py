"""The matrix product of a warpgroup (wgmma): four warps multiply 64 rows by up to 256 columns, 16 deep.

Both factors are read from shared memory, where they lie in rows of 128 bytes, swizzled as the copy engine leaves them.
A descriptor says where: address, and the distances between groups of 8 rows and between blocks of 64 elements. The
result stays in registers, ``n / 2`` of each thread; :func:`row_of` and :func:`column_of` say which element is where.

``a`` is always K-major: a row is 64 consecutive k of one row of the left factor. ``b`` is K-major as well, or, made
with ``across=True``, MN-major: a row is 64 consecutive columns of the result for one k, which is how rows of the down
weights lie that were gathered by neuron.

Letters: none; ``n`` columns of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numpy import float32

from twell.cuda_target import two_forms
from twell.simt.bits import _is_bf16, _types
from twell.tensorcore.machine import current
from twell.tensorcore.ptx import emitted, swizzled

_I32, _I64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()

ROW_BYTES = 128
GROUP_BYTES = 8 * ROW_BYTES
"""Bytes of a group of 8 rows, in which the swizzle repeats."""

BLOCK_BYTES = 64 * ROW_BYTES
"""Bytes of 64 k by 64 columns, MN-major: the distance to the next 64 columns."""

_SWIZZLE_128 = 1 << 62


def row_of(thread: int, register: int) -> int:
    """Row of a register of a thread of the warpgroup, 0 to 63 (PTX ISA, fragments of wgmma)."""
    return thread // 32 * 16 + thread % 32 // 4 + register // 2 % 2 * 8


def column_of(thread: int, register: int) -> int:
    """Column of it."""
    return register // 4 * 8 + thread % 4 * 2 + register % 2


def _host_k_major(address: int) -> int:
    """Descriptor of rows of 64 k, from a shared address on; the next 16 k begin 32 bytes further."""
    return int(address)


def _host_across(address: int) -> int:
    """Descriptor of rows of 64 columns, one for each k; the next 16 k begin 2,048 bytes further."""
    return int(address)


def _descriptor(leading: int, stride: int) -> Callable[..., Any]:
    fixed = leading >> 4 << 16 | stride >> 4 << 32 | _SWIZZLE_128

    def gpu(typing: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = context.cast(builder, arguments[0], signature.args[0], _types().int32)
            place = builder.lshr(builder.and_(place, ir.Constant(_I32, 0x3FFFF)), ir.Constant(_I32, 4))
            return builder.or_(builder.zext(place, _I64), ir.Constant(_I64, fixed))

        return _types().int64(address), emit

    return gpu


for _host in (_host_k_major, _host_across):
    _host.instruction = True  # type: ignore[attr-defined]
# The leading distance has no meaning for swizzled K-major factors; 1 is what CUTLASS writes there.
k_major = two_forms(_host_k_major, _descriptor(16, GROUP_BYTES))
across_columns = two_forms(_host_across, _descriptor(BLOCK_BYTES, GROUP_BYTES))


def _floats(memory: Any, places: Any, like: Any) -> Any:
    """Elements at byte addresses, swizzled, as float32."""
    at = swizzled(places)
    bits = memory[at].astype(np.uint16) | memory[at + 1].astype(np.uint16) << 8
    if like.dtype == np.int16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32)


def make_product(n: int, *, across: bool = False) -> Any:
    """The instruction ``product(sums, a, b, add, like)``: ``sums (+)= a b^T`` for 64 rows, ``n`` columns, 16 k.

    Parameters
    ----------
    n : int
        Columns, a multiple of 8 up to 256. ``sums`` is a local array of ``n / 2`` float32.
    across : bool
        ``b`` is MN-major, described by :func:`across_columns`; else K-major, by :func:`k_major`.

    Notes
    -----
    ``add`` 0 overwrites the sums. ``like`` is an array whose element type says bf16 (int16) or fp16 (uint16).
    """
    n_sums = n // 2

    def host(sums: Any, a: int, b: int, add: int, like: Any) -> None:
        here = current()
        lane = here.thread % 128
        rows = np.array([row_of(lane, 0), row_of(lane, 2)])
        columns = np.array([column_of(lane, 4 * j + e) for j in range(n // 8) for e in (0, 1)])
        k = np.arange(16)
        a_places = a + rows[:, None] // 8 * GROUP_BYTES + rows[:, None] % 8 * ROW_BYTES + 2 * k
        if across:
            b_places = b + columns[:, None] // 64 * BLOCK_BYTES + k // 8 * GROUP_BYTES + k % 8 * ROW_BYTES
            b_places = b_places + columns[:, None] % 64 * 2
        else:
            b_places = b + columns[:, None] // 8 * GROUP_BYTES + columns[:, None] % 8 * ROW_BYTES + 2 * k
        memory, add_up = here.block.memory, bool(add)

        def run() -> None:
            with np.errstate(all="ignore"):
                part = _floats(memory, a_places, like) @ _floats(memory, b_places, like).T
            # [2 rows, columns] -> registers: two columns of the upper row, two of the lower, and so on.
            part = part.reshape(2, n // 8, 2).swapaxes(0, 1).reshape(-1)
            sums[:] = sums + part if add_up else part

        here.machine.issue(run)

    def gpu(typing: Any, sums: Any, a: Any, b: Any, add: Any, like: Any) -> Any:
        kind = "bf16" if _is_bf16(like.dtype) else "f16"
        registers = ", ".join(f"${i}" for i in range(n_sums))
        # The majors of a and b; both factors are taken with their sign.
        text = (
            f"{{\n.reg .pred add;\nsetp.ne.b32 add, ${n_sums + 2}, 0;\n"
            f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} "
            f"{{{registers}}}, ${n_sums}, ${n_sums + 1}, add, 1, 1, 0, {int(across)};\n}}"
        )
        constraints = ",".join([*["=f"] * n_sums, "l", "l", "r", *map(str, range(n_sums))])

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            types = _types()
            data = context.make_array(sums)(context, builder, arguments[0]).data
            places = [builder.gep(data, [ir.Constant(_I64, i)]) for i in range(n_sums)]
            wanted = ((1, types.int64), (2, types.int64), (3, types.int32))
            operands = [context.cast(builder, arguments[i], signature.args[i], kind) for i, kind in wanted]
            operands += [builder.load(place) for place in places]
            returned = ir.LiteralStructType([_FLOAT] * n_sums)
            found = emitted(builder, text, constraints, returned, operands)
            for i, place in enumerate(places):
                builder.store(builder.extract_value(found, i), place)
            return context.get_dummy_value()

        return _types().void(sums, a, b, add, like), emit

    host.__name__ = f"product_{n}{'_across' if across else ''}"
    host.instruction = True  # type: ignore[attr-defined]
    return two_forms(host, gpu)


__all__ = ["across_columns", "column_of", "float32", "k_major", "make_product", "row_of"]
