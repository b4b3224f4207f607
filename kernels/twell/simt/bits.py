"""Numbers as their bits: bf16 and fp16 in and out of float32, and the words of TwELL.

Numba's kernels see bf16 as int16, fp16 as uint16 and fp32 as float32, so the type of an array element says which of
the three it holds; nothing is passed at run time. Each function here has two forms with the same result: one in
Python and NumPy, which the simulator and the recorder run and which is the one to read, and one that emits a few
instructions on a GPU.

A word of the narrow layout (32 bits) is ``column | value bits << 16``, of the wide layout (64 bits)
``column | float32 bits << 32``. Letters: none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numpy import float32

from twell.cuda_target import device, two_forms

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FLOAT, _HALF = ir.FloatType(), ir.HalfType()


@device
def active(value: Any) -> bool:
    """Whether a gate value counts: not ``<= 0``, so that NaN does."""
    return not (value <= float32(0))


def _host_widen(element: Any) -> Any:
    """Stored element -> float32, exactly."""
    if element.dtype == np.int16:  # bf16: the upper half of a float32
        return np.uint32((int(element) & 0xFFFF) << 16).view(np.float32)
    if element.dtype == np.uint16:
        return np.float32(element.view(np.float16))
    return np.float32(element)


def _host_narrow(value: Any, like: Any) -> Any:
    """float32 -> an element as the array ``like`` stores it, to the nearest, ties to even."""
    value = np.float32(value)
    if like.dtype == np.int16:
        bits = int(value.view(np.uint32))
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return np.uint16(0x7FC0 if np.isnan(value) else rounded).view(np.int16)
    if like.dtype == np.uint16:
        with np.errstate(over="ignore"):
            return value.astype(np.float16).view(np.uint16)
    return value


def _host_word(column: Any, value: Any, words: Any, like: Any) -> Any:
    """The word for (column, float32 value): narrow or wide as ``words``, value bits as ``like`` stores them."""
    if words.dtype == np.int32:
        bits = int(_host_narrow(value, like)) & 0xFFFF
        return np.uint32(int(column) | bits << 16).view(np.int32)
    bits = int(np.float32(value).view(np.uint32))
    return np.uint64(int(column) | bits << 32).view(np.int64)


def _host_word_column(word: Any) -> int:
    """Column of a word."""
    return int(word) & (0xFFFF if word.dtype == np.int32 else 0xFFFFFFFF)


def _host_word_value(word: Any, like: Any) -> Any:
    """Value of a word as float32; ``like`` tells bf16 from fp16."""
    if word.dtype == np.int32:
        return _host_widen(np.uint16(int(word) >> 16 & 0xFFFF).view(like.dtype))
    return np.uint32(int(word) >> 32 & 0xFFFFFFFF).view(np.float32)


def _host_count_bits(mask: Any) -> int:
    """Number of ones in a uint32."""
    return int(mask).bit_count()


# What follows makes the same on a GPU. `stored` is the Numba type of an element: int16 (bf16), uint16 (fp16), float32.


def _is_bf16(stored: Any) -> bool:
    return str(stored) == "int16"


def _is_fp32(stored: Any) -> bool:
    return str(stored) == "float32"


def _emit_widen(builder: Any, element: Any, stored: Any) -> Any:
    if _is_fp32(stored):
        return element
    if _is_bf16(stored):
        upper = builder.shl(builder.zext(element, _I32), ir.Constant(_I32, 16))
        return builder.bitcast(upper, _FLOAT)
    return builder.fpext(builder.bitcast(element, _HALF), _FLOAT)


def _emit_narrow(builder: Any, value: Any, stored: Any) -> Any:
    if _is_fp32(stored):
        return value
    if not _is_bf16(stored):
        return builder.bitcast(builder.fptrunc(value, _HALF), _I16)
    bits = builder.bitcast(value, _I32)
    sixteen = ir.Constant(_I32, 16)
    odd = builder.and_(builder.lshr(bits, sixteen), ir.Constant(_I32, 1))
    rounded = builder.lshr(builder.add(builder.add(bits, odd), ir.Constant(_I32, 0x7FFF)), sixteen)
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(is_nan, ir.Constant(_I32, 0x7FC0), rounded), _I16)


def _types() -> Any:
    from numba.cuda import types

    return types


def _gpu_widen(typing: Any, element: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _emit_widen(builder, arguments[0], element)

    return _types().float32(element), emit


def _gpu_narrow(typing: Any, value: Any, like: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _emit_narrow(builder, arguments[0], like.dtype)

    return like.dtype(_types().float32, like), emit


def _gpu_word(typing: Any, column: Any, value: Any, words: Any, like: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if words.dtype.bitwidth == 32:
            bits = builder.zext(_emit_narrow(builder, arguments[1], like.dtype), _I32)
            lower = builder.trunc(arguments[0], _I32)
            return builder.or_(lower, builder.shl(bits, ir.Constant(_I32, 16)))
        bits = builder.zext(builder.bitcast(arguments[1], _I32), _I64)
        return builder.or_(arguments[0], builder.shl(bits, ir.Constant(_I64, 32)))

    return words.dtype(_types().int64, _types().float32, words, like), emit


def _gpu_word_column(typing: Any, word: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if word.bitwidth == 32:
            return builder.zext(builder.and_(arguments[0], ir.Constant(_I32, 0xFFFF)), _I64)
        return builder.and_(arguments[0], ir.Constant(_I64, 0xFFFFFFFF))

    return _types().int64(word), emit


def _gpu_word_value(typing: Any, word: Any, like: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if word.bitwidth == 32:
            bits = builder.trunc(builder.lshr(arguments[0], ir.Constant(_I32, 16)), _I16)
            return _emit_widen(builder, bits, like.dtype)
        bits = builder.trunc(builder.lshr(arguments[0], ir.Constant(_I64, 32)), _I32)
        return builder.bitcast(bits, _FLOAT)

    return _types().float32(word, like), emit


def _gpu_count_bits(typing: Any, mask: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.ctpop(arguments[0]), _I64)

    return _types().int64(_types().uint32), emit


widen = two_forms(_host_widen, _gpu_widen)
narrow = two_forms(_host_narrow, _gpu_narrow)
make_word = two_forms(_host_word, _gpu_word)
word_column = two_forms(_host_word_column, _gpu_word_column)
word_value = two_forms(_host_word_value, _gpu_word_value)
count_bits = two_forms(_host_count_bits, _gpu_count_bits)
