"""Loads and stores of 16 bytes, and pairs of 16-bit numbers in a 32-bit word (GPU only).

Letters: none; ``like`` is an array whose element type tells bf16 (int16) from fp16 (uint16).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]

from twell.cuda_target import two_forms
from twell.simt.bits import _emit_narrow, _emit_widen, _host_narrow, _types

_I16, _I32 = ir.IntType(16), ir.IntType(32)
_VECTOR = ir.VectorType(_I32, 4)


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _VECTOR.as_pointer())


def _gpu_load(typing: Any, array: Any, index: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = builder.load(_address(context, builder, array, *arguments), align=16)
        lanes = [builder.extract_element(vector, ir.Constant(_I32, i)) for i in range(4)]
        return context.make_tuple(builder, signature.return_type, lanes)

    types = _types()
    return types.UniTuple(types.uint32, 4)(array, types.int64), emit


def _gpu_store(typing: Any, array: Any, index: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.Constant(_VECTOR, ir.Undefined)
        for i, word in enumerate(arguments[2:]):
            vector = builder.insert_element(vector, word, ir.Constant(_I32, i))
        builder.store(vector, _address(context, builder, array, *arguments[:2]), align=16)
        return context.get_dummy_value()

    types = _types()
    return types.void(array, types.int64, *[types.uint32] * 4), emit


def _gpu_low(typing: Any, word: Any, like: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _emit_widen(builder, builder.trunc(arguments[0], _I16), like.dtype)

    return _types().float32(_types().uint32, like), emit


def _gpu_high(typing: Any, word: Any, like: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        upper = builder.trunc(builder.lshr(arguments[0], ir.Constant(_I32, 16)), _I16)
        return _emit_widen(builder, upper, like.dtype)

    return _types().float32(_types().uint32, like), emit


def _gpu_pair(typing: Any, low: Any, high: Any, like: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        low, high = (builder.zext(_emit_narrow(builder, value, like.dtype), _I32) for value in arguments[:2])
        return builder.or_(low, builder.shl(high, ir.Constant(_I32, 16)))

    types = _types()
    return types.uint32(types.float32, types.float32, like), emit


def _gpu_kept(typing: Any, word: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.asm(ir.FunctionType(_I32, [_I32]), "mov.b32 $0, $1;", "=r,r", arguments, side_effect=True)

    return _types().uint32(_types().uint32), emit


def load_16_bytes(array: Any, index: Any) -> Any:
    """Four 32-bit words from flat element ``index`` of ``array`` on, which must be a multiple of 8."""
    raise NotImplementedError("load_16_bytes runs on a GPU only")


def store_16_bytes(array: Any, index: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Store four 32-bit words at flat element ``index`` of ``array``, a multiple of 8."""
    raise NotImplementedError("store_16_bytes runs on a GPU only")


def low_half(word: Any, like: Any) -> Any:
    """Number in the lower 16 bits of a word, as float32."""
    raise NotImplementedError("low_half runs on a GPU only")


def high_half(word: Any, like: Any) -> Any:
    """Number in the upper 16 bits of a word, as float32."""
    raise NotImplementedError("high_half runs on a GPU only")


def pair(low: Any, high: Any, like: Any) -> Any:
    """Two float32, rounded as ``like`` stores them, in one word."""
    bits = [int(_host_narrow(value, like)) & 0xFFFF for value in (low, high)]
    return np.uint32(bits[0] | bits[1] << 16)


def kept(word: Any) -> Any:
    """The word itself; what is computed from it is computed where it stands, not before a loop and kept."""
    return word


load_16_bytes = two_forms(load_16_bytes, _gpu_load)
store_16_bytes = two_forms(store_16_bytes, _gpu_store)
low_half = two_forms(low_half, _gpu_low)
high_half = two_forms(high_half, _gpu_high)
pair = two_forms(pair, _gpu_pair)
kept = two_forms(kept, _gpu_kept)
