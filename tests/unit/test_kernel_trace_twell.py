"""The recorder runs the device functions of ``twell.simt`` as they stand, and finds no fault in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers import assert_same_bits, relu_kept
from twellviz.kernel_trace import empty, record_kernel

bits = pytest.importorskip("twell.simt.bits", reason="the Numba CUDA kernels are not part of this checkout")
scan = pytest.importorskip("twell.simt.scan", reason="the Numba CUDA kernels are not part of this checkout")
cuda = pytest.importorskip("twell.cuda_target", reason="the Numba CUDA kernels are not part of this checkout").cuda


def ranks(before: Any, total: Any, count: Any) -> None:
    counts = cuda.shared.array(64, np.int32)
    sums = cuda.shared.array(8, np.int32)
    i = cuda.grid(1)
    before[i] = scan.sum_before(count[i], counts, sums)
    total[i] = scan.sum_of_all(sums)


def round_trip(words: Any, back: Any, columns: Any, h: Any) -> None:
    i = cuda.grid(1)
    if i < h.size:
        value = bits.widen(h[i])
        words[i] = 0
        back[i] = 0
        columns[i] = -1
        if bits.active(value):
            words[i] = bits.make_word(i, value, words, h)
            back[i] = bits.narrow(bits.word_value(words[i], h), h)
            columns[i] = bits.word_column(words[i])


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_ranks_by_prefix_sum_of_two_blocks(order: str) -> None:
    count = np.arange(128, dtype=np.int32) * 7 % 5
    trace = record_kernel(ranks, 2, 64, *(empty(128, np.int32) for _ in range(2)), count, order=order).check()
    of_block = count.reshape(2, 64)
    assert np.array_equal(trace.outputs["before"].reshape(2, 64), of_block.cumsum(1) - of_block)
    assert np.array_equal(trace.outputs["total"].reshape(2, 64), of_block.sum(1, keepdims=True).repeat(64, 1))
    assert {storage.name for storage in trace.storages} == {"before", "total", "count", "counts", "sums"}


@pytest.mark.parametrize(
    ("dtype", "word"), [(torch.bfloat16, torch.int32), (torch.float16, torch.int32), (torch.float32, torch.int64)]
)
def test_values_pass_through_words_bit_by_bit(dtype: torch.dtype, word: torch.dtype) -> None:
    h = torch.cat([torch.randn(40), torch.tensor([0.0, -0.0, float("nan"), float("inf"), 1e-7, -1.0])]).to(dtype)
    n = len(h)
    arrays = [torch.empty(n, dtype=kind) for kind in (word, dtype, torch.int64)]
    trace = record_kernel(round_trip, 2, 32, *arrays, h, unwritten=["words", "back", "columns"]).check()
    assert_same_bits(trace.outputs["back"], relu_kept(h))
    active = ~(h <= 0)
    assert trace.outputs["columns"][active].tolist() == active.nonzero().squeeze(1).tolist()
    assert torch.equal(trace.outputs["words"] != 0, active)
