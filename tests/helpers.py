"""Plain functions that several test modules use."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def relu_kept(h_MH: Tensor) -> Tensor:
    """What packing must give back: values that are not <= 0, NaN included, else +0."""
    return torch.where(~(h_MH <= 0), h_MH, torch.zeros_like(h_MH))


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    """Equal shape, dtype and values, with NaN equal to NaN."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def tile_with(count: int, *, n_hidden: int = 512, tile: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    """One row with ``count`` distinct positive values spread over one tile of 256 columns, and one elsewhere."""
    h_MH = -torch.ones(1, n_hidden)
    columns = torch.randperm(256)[:count] + 256 * tile
    h_MH[0, columns] = torch.arange(1, count + 1, dtype=torch.float32)
    h_MH[0, 3] = 7.0
    return h_MH.to(dtype)
