"""Recorded arithmetic has Numba's types, not NumPy's: results are compared with what Numba infers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba.core import types, typing

from twellviz.kernel_trace.scalars import CASTS, F32, I16, I32, I64, U16, U32, as_dtype, writer

NAMES = ("int16", "int32", "int64", "uint16", "uint32", "uint64", "float32", "float64")
OPERATORS: list[Callable[[Any, Any], Any]] = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
    *(operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift),
]
PYTHON = {"int64": int, "float64": float}


@pytest.fixture(scope="module")
def numba_types() -> typing.Context:
    context = typing.Context()
    context.refresh()
    return context


def result_name(value: Any) -> str:
    return (
        np.dtype(type(value)).name if isinstance(value, np.generic) else {int: "int64", float: "float64"}[type(value)]
    )


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.__name__)
def test_types_of_results_are_those_of_numba(op: Callable[[Any, Any], Any], numba_types: typing.Context) -> None:
    compared = 0
    for left in NAMES:
        for right in NAMES:
            if "float" in left + right and op not in OPERATORS[:6]:
                continue
            signature = numba_types.resolve_function_type(op, (getattr(types, left), getattr(types, right)), {})
            pairs = [(CASTS[left](9), CASTS[right](2))]
            pairs += [(CASTS[left](9), PYTHON[right](2))] if right in PYTHON else []
            pairs += [(PYTHON[left](9), CASTS[right](2))] if left in PYTHON else []
            for one, other in pairs:
                found = op(one, other)
                assert result_name(found) == str(signature.return_type), (op, left, right, type(one), type(other))
                assert float(found) == float(op(9, 2))
                compared += 1
    assert compared >= 36


@pytest.mark.parametrize("op", [operator.neg, operator.invert, abs], ids=lambda op: op.__name__)
def test_types_of_unary_results(op: Callable[[Any], Any], numba_types: typing.Context) -> None:
    for name in NAMES:
        if op is operator.invert and "float" in name:
            continue
        expected = numba_types.resolve_function_type(op, (getattr(types, name),), {}).return_type
        assert result_name(op(CASTS[name](3))) == str(expected)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (U16(40000) << 16, 40000 << 16),
        (I16(-5) & 0xFFFF, 65531),
        (U16(3) - U16(5), 2**64 - 2),
        (U16(3) - 5, -2),
        (I64(2**63 - 1) + 1, -(2**63)),
        (-U16(1), 2**64 - 1),
        (I32(-9) >> 1, -5),
        (U32(-1), 2**32 - 1),
        (I32(2**31), -(2**31)),
        (I32(3.9), 3),
        (I32(-3.9), -3),
        (I32(float("nan")), 0),
        (U32(0x3FC00000).view(np.float32), 1.5),
        (F32(1.5).view("uint32"), 0x3FC00000),
        (F32(1.5).astype(np.float16).view(np.uint16), 0x3E00),
        (U16(0x3E00).view(np.dtype("float16")), 1.5),
        ([10, 20, 30][I16(1)], 20),
    ],
)
def test_values(found: Any, expected: Any) -> None:
    assert found == expected


def test_float32_rounds_at_each_step_and_meets_float64_as_numba_says() -> None:
    third = F32(1) / F32(3)
    assert type(third) is F32
    assert float(third) == float(np.float32(1) / np.float32(3))
    # A product in float32 is not the product in double.
    a, b = F32(1.1), F32(2.3)
    assert float(a * b) == float(np.float32(1.1) * np.float32(2.3)) != float(a) * float(b)
    assert float(a * 2.3) == float(a) * 2.3
    with np.errstate(divide="ignore"):
        assert np.isinf(F32(1) / F32(0))


@pytest.mark.parametrize(
    ("dtype", "value", "stored"),
    [
        ("uint16", 65537, 1),
        ("int32", 2**31, -(2**31)),
        ("uint32", -1, 2**32 - 1),
        ("int64", 2**64 + 7, 7),
        ("int16", -2.7, -2),
        ("int32", float("inf"), -1),
        ("bool", 3, True),
        ("float32", 2, 2.0),
    ],
)
def test_what_an_array_stores(dtype: str, value: Any, stored: Any) -> None:
    assert writer(np.dtype(dtype))(value) == stored


def test_dtypes_of_three_libraries() -> None:
    import torch

    for dtype in (np.float32, types.float32, torch.float32, "float32", np.dtype("float32"), F32):
        assert as_dtype(dtype) == np.float32
    with pytest.raises(TypeError, match="complex64"):
        as_dtype(np.complex64)
