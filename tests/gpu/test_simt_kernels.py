"""The simulator's tests again, on a GPU, with all dtypes and with sizes of more than one block."""

from __future__ import annotations

import pytest
import torch

from tests import simt_checks as checks

GPU = "cuda"
dtypes = pytest.mark.parametrize("dtype", checks.DTYPES, ids=str)
sizes = pytest.mark.parametrize(("n_tokens", "n_hidden"), [(1, 1), (7, 300), (6, 257), (7, 512), (129, 5632)])


@dtypes
@sizes
@pytest.mark.parametrize("compression", [8, 4, 2])
def test_pack(n_tokens: int, n_hidden: int, dtype: torch.dtype, compression: int) -> None:
    checks.check_pack(n_tokens, n_hidden, dtype, compression, GPU)


@dtypes
def test_wide_words(dtype: torch.dtype) -> None:
    checks.check_pack(3, 65537, dtype, 8, GPU)
    checks.check_token(3, 16, 65537, dtype, 8, GPU)


@dtypes
def test_overflow_policies(dtype: torch.dtype) -> None:
    checks.check_overflow_policies(dtype, GPU)


@dtypes
@sizes
@pytest.mark.parametrize("width", [None, 20])
def test_ell(n_tokens: int, n_hidden: int, dtype: torch.dtype, width: int | None) -> None:
    checks.check_ell(n_tokens, n_hidden, dtype, width, GPU)


@dtypes
@pytest.mark.parametrize(
    ("n_tokens", "width", "n_hidden"),
    [(3, 17, 257), (65, 3, 40), (2, 5, 60), (63, 64, 256), (64, 16, 512), (200, 100, 1000)],
)
def test_gate_pack(n_tokens: int, width: int, n_hidden: int, dtype: torch.dtype) -> None:
    checks.check_gate_pack(n_tokens, width, n_hidden, dtype, GPU)


@dtypes
def test_nan_token(dtype: torch.dtype) -> None:
    checks.check_nan_token(dtype, GPU)


@dtypes
@pytest.mark.parametrize("compression", [8, 4, 2])
@pytest.mark.parametrize(
    ("n_tokens", "width", "n_hidden"),
    # 16, 256, 264 and 2048 run the warp version (16-bit values); 1, 19, 33 and 2056 the block version.
    [
        (6, 1, 300),
        (6, 19, 300),
        (4, 33, 513),
        (6, 16, 300),
        (6, 256, 40),
        (40, 264, 513),
        (7, 2048, 600),
        (4, 2056, 70),
        (5, 16, 9000),  # more than 32 tiles, the lanes of a warp
    ],
)
def test_token(n_tokens: int, width: int, n_hidden: int, dtype: torch.dtype, compression: int) -> None:
    checks.check_token(n_tokens, width, n_hidden, dtype, compression, GPU)


@dtypes
def test_inactive_infinity(dtype: torch.dtype) -> None:
    checks.check_inactive_infinity(dtype, GPU)


@dtypes
@pytest.mark.parametrize("places", [None, 1, 0])
@pytest.mark.parametrize(("n_tokens", "width", "n_hidden"), [(3, 7, 70), (66, 32, 700)])
def test_whole_block(n_tokens: int, width: int, n_hidden: int, dtype: torch.dtype, places: int | None) -> None:
    checks.check_whole_block(n_tokens, width, n_hidden, dtype, places, GPU)


@dtypes
@pytest.mark.parametrize(
    ("n_tokens", "n_hidden", "width"), [(34, 280, 40), (7, 300, 33), (6, 70, 70), (300, 2000, 200)]
)
def test_hybrid(n_tokens: int, n_hidden: int, dtype: torch.dtype, width: int) -> None:
    checks.check_hybrid(n_tokens, n_hidden, dtype, width, GPU)


@dtypes
@pytest.mark.parametrize("block", [32, 64, 128])
def test_union(dtype: torch.dtype, block: int) -> None:
    checks.check_union(70, 300, dtype, block, GPU)
    checks.check_union(300, 5632, dtype, block, GPU)


@dtypes
def test_no_tokens(dtype: torch.dtype) -> None:
    checks.check_no_tokens(dtype, GPU)


@dtypes
def test_strides(dtype: torch.dtype) -> None:
    checks.check_strides(dtype, GPU)
