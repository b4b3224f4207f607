"""Every simt kernel in Numba's simulator, against the reference; small sizes, since each thread is a real one."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch
from twell.cuda_target import SIMULATED, cuda, kernel

from tests import simt_checks as checks

CPU = "cpu"
dtypes = pytest.mark.parametrize("dtype", checks.DTYPES, ids=str)


def test_the_simulator_runs() -> None:
    assert SIMULATED


@pytest.mark.parametrize(
    ("n_tokens", "n_hidden", "dtype", "compression"),
    [
        (7, 300, torch.float32, 8),
        (7, 300, torch.bfloat16, 4),
        (7, 512, torch.float16, 8),
        (6, 257, torch.bfloat16, 2),
        (1, 1, torch.bfloat16, 8),
    ],
)
def test_pack(n_tokens: int, n_hidden: int, dtype: torch.dtype, compression: int) -> None:
    checks.check_pack(n_tokens, n_hidden, dtype, compression, CPU)


@dtypes
def test_overflow_policies(dtype: torch.dtype) -> None:
    checks.check_overflow_policies(dtype, CPU)


@pytest.mark.parametrize(
    ("n_tokens", "n_hidden", "dtype", "width"),
    [(7, 300, torch.float32, None), (6, 513, torch.bfloat16, None), (7, 300, torch.float16, 20)],
)
def test_ell(n_tokens: int, n_hidden: int, dtype: torch.dtype, width: int | None) -> None:
    checks.check_ell(n_tokens, n_hidden, dtype, width, CPU)


@pytest.mark.parametrize(
    ("n_tokens", "width", "n_hidden", "dtype"),
    [(3, 17, 257, torch.bfloat16), (65, 3, 40, torch.float32), (2, 5, 60, torch.float16)],
)
def test_gate_pack(n_tokens: int, width: int, n_hidden: int, dtype: torch.dtype) -> None:
    checks.check_gate_pack(n_tokens, width, n_hidden, dtype, CPU)


def test_nan_token() -> None:
    checks.check_nan_token(torch.bfloat16, CPU)


@pytest.mark.parametrize(
    ("n_tokens", "width", "n_hidden", "dtype", "compression"),
    [
        (6, 19, 300, torch.float32, 8),
        (6, 1, 300, torch.bfloat16, 4),
        (3, 300, 40, torch.bfloat16, 8),  # more columns than a block of the simulator holds
        (4, 33, 513, torch.float16, 2),
    ],
)
def test_token(n_tokens: int, width: int, n_hidden: int, dtype: torch.dtype, compression: int) -> None:
    checks.check_token(n_tokens, width, n_hidden, dtype, compression, CPU)


def test_inactive_infinity() -> None:
    checks.check_inactive_infinity(torch.bfloat16, CPU)


@pytest.mark.parametrize(
    ("n_tokens", "width", "n_hidden", "dtype", "places"),
    [(3, 7, 70, torch.bfloat16, None), (3, 7, 70, torch.float32, 1), (2, 5, 64, torch.float16, 0)],
)
def test_whole_block(n_tokens: int, width: int, n_hidden: int, dtype: torch.dtype, places: int | None) -> None:
    checks.check_whole_block(n_tokens, width, n_hidden, dtype, places, CPU)


@pytest.mark.parametrize("product", ["simt", "torch"])
def test_the_ops_take_the_kernels(product: str) -> None:
    checks.check_ops(3, 6, 80, torch.bfloat16, product, CPU)


@pytest.mark.parametrize(
    ("n_tokens", "n_hidden", "dtype", "width"),
    [(34, 280, torch.bfloat16, 40), (7, 300, torch.float32, 33), (6, 70, torch.float16, 70)],
)
def test_hybrid(n_tokens: int, n_hidden: int, dtype: torch.dtype, width: int) -> None:
    checks.check_hybrid(n_tokens, n_hidden, dtype, width, CPU)


@pytest.mark.parametrize(
    ("n_tokens", "n_hidden", "dtype", "block"), [(70, 300, torch.bfloat16, 32), (70, 150, torch.float32, 64)]
)
def test_union(n_tokens: int, n_hidden: int, dtype: torch.dtype, block: int) -> None:
    checks.check_union(n_tokens, n_hidden, dtype, block, CPU)


@dtypes
def test_no_tokens(dtype: torch.dtype) -> None:
    checks.check_no_tokens(dtype, CPU)


def test_strides() -> None:
    checks.check_strides(torch.bfloat16, CPU)


@kernel()
def turn(values):  # type: ignore[no-untyped-def]
    """Turn 32 values round, three times over, through arrays whose types are named in three ways."""
    first = cuda.shared.array(32, numba.int32)
    second = cuda.shared.array(32, np.float32)
    third = cuda.shared.array(32, "int64")
    i = cuda.threadIdx.x
    first[i] = values[i]
    second[i] = values[i]
    third[i] = values[i]
    cuda.syncthreads()
    values[i] = first[31 - i] + second[31 - i] + third[31 - i]


def test_shared_arrays_take_types_of_numba_and_of_numpy() -> None:
    values = torch.arange(32, dtype=torch.float32)
    turn[1, 32](values)
    assert values.tolist() == [3.0 * i for i in range(31, -1, -1)]
