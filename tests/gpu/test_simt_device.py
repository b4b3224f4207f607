"""What only a GPU can show: repeated bits, streams, graphs, rounding, the warp version beside the block version."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor
from twell import reference, simt
from twell.simt import pack_epilogue, token_warp
from twell.simt.spill import tiles_of
from twell.simt.token_block import launch_token_ffn

from tests.helpers import assert_same_bits
from tests.simt_checks import DTYPES, assert_same_twell, gate_values

GPU = "cuda"
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def layer(
    dtype: torch.dtype, seed: int = 0, n_tokens: int = 150, width: int = 256, n_hidden: int = 1200
) -> list[Tensor]:
    """Tokens and weights with a few per cent of the neurons active, and three tokens that fire half of them."""
    torch.manual_seed(seed)
    x_MD = torch.randn(n_tokens, width, device=GPU)
    x_MD[:, 0] = 1
    x_MD[3:6, 0] = 0
    gate_HD, up_HD, down_HD = (torch.randn(n_hidden, width, device=GPU) / width**0.5 for _ in range(3))
    gate_HD[:, 0] = -1.9
    return [array.to(dtype) for array in (x_MD, gate_HD, up_HD, down_HD)]


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    error = (actual.double() - expected.double()).norm() / expected.double().norm()
    assert float(error) < TOLERANCE[dtype]


@dtypes
def test_random_values_are_close_and_the_bits_repeat(dtype: torch.dtype) -> None:
    x_MD, gate_HD, up_HD, down_HD = layer(dtype)
    packed = simt.gate_pack(x_MD, gate_HD)
    assert packed.spill_tile.numel() > 0
    close(packed.to_dense(), torch.relu(x_MD.double() @ gate_HD.double().T), dtype)
    y_MD = simt.token_ffn(x_MD, packed, up_HD, down_HD)
    close(y_MD, reference.token_ffn(x_MD, packed, up_HD, down_HD), dtype)
    for _ in range(3):
        assert_same_twell(simt.gate_pack(x_MD, gate_HD), packed)
        assert_same_bits(simt.token_ffn(x_MD, packed, up_HD, down_HD), y_MD)
    h = simt.to_hybrid(packed, width=64)
    transposed = simt.transpose(h)
    for _ in range(3):
        assert_same_bits(simt.transpose(h).values, transposed.values)


@dtypes
@pytest.mark.parametrize("places", [0, 7])
def test_a_short_backup_gives_the_same_bits(dtype: torch.dtype, places: int) -> None:
    arrays = layer(dtype)
    packed = simt.gate_pack(*arrays[:2])
    assert packed.spill_tile.numel() > 7
    full = simt.token_ffn(arrays[0], packed, *arrays[2:])
    assert_same_bits(simt.gated_ffn(*arrays, places=places), full)
    assert_same_bits(simt.gated_ffn(*arrays), full)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [16, 256, 520, 2048])
def test_the_warp_version_its_twin_and_the_block_version(dtype: torch.dtype, width: int) -> None:
    x_MD, gate_HD, up_HD, down_HD = layer(dtype, n_tokens=20, width=width, n_hidden=700)
    packed = simt.pack(gate_values(20, 700, dtype, GPU).nan_to_num())
    assert token_warp.warp_fits(x_MD, up_HD, down_HD)
    arguments = (x_MD, tiles_of(packed), packed.spill_start, packed.spill_values, gate_HD, up_HD, down_HD)
    warp = launch_token_ffn(*arguments, warp=True)
    close(warp, launch_token_ffn(*arguments, warp=False), dtype)
    close(warp, token_warp.twin(x_MD, packed, up_HD, down_HD), dtype)


@dtypes
def test_another_stream(dtype: torch.dtype) -> None:
    arrays = layer(dtype)
    expected = simt.gated_ffn(*arrays)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        # A long wait in front: a kernel on the default stream would overtake it and read zeros.
        late = [torch.zeros_like(array) for array in arrays]
        torch.cuda._sleep(200_000_000)
        for array, value in zip(late, arrays, strict=True):
            array.copy_(value)
        y_MD = simt.gated_ffn(*late)
    side.synchronize()
    assert_same_bits(y_MD, expected)


@dtypes
def test_a_captured_graph(dtype: torch.dtype) -> None:
    arrays = layer(dtype)
    other = layer(dtype, seed=1)
    expected = [simt.gated_ffn(*some) for some in (arrays, other)]
    plain = [simt.ffn(some[0], some[1], some[3]) for some in (arrays, other)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y_MD = simt.gated_ffn(*arrays)
        z_MD = simt.ffn(arrays[0], arrays[1], arrays[3])
    for some, gated, ungated in zip((arrays, other), expected, plain, strict=True):
        for array, value in zip(arrays, [value.clone() for value in some], strict=True):
            array.copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert_same_bits(y_MD, gated)
        assert_same_bits(z_MD, ungated)


def test_no_synchronisation_in_the_whole_block() -> None:
    arrays = layer(torch.bfloat16)
    expected = simt.gated_ffn(*arrays)
    try:
        torch.cuda.set_sync_debug_mode("error")
        y_MD = simt.gated_ffn(*arrays)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_same_bits(y_MD, expected)


@dtypes
def test_two_models_alive_at_once(dtype: torch.dtype) -> None:
    small, large = layer(dtype, seed=1, width=64, n_hidden=300), layer(dtype, seed=2, width=200, n_hidden=900)
    first = [simt.gated_ffn(*small), simt.gated_ffn(*large)]
    for _ in range(2):
        assert_same_bits(simt.gated_ffn(*large), first[1])
        assert_same_bits(simt.gated_ffn(*small), first[0])


def test_more_than_two_to_the_31_elements() -> None:
    n_tokens, n_hidden = 1 << 16, 1 << 15
    h_MH = torch.zeros(n_tokens, n_hidden, dtype=torch.bfloat16, device=GPU)
    h_MH[-1, -1], h_MH[-2, 5] = 3, 2
    packed = simt.pack(h_MH)
    assert packed.counts().sum() == 2
    assert packed.words.view(n_tokens, -1, 32)[-1, -1, 1] & 0xFFFF == n_hidden - 1
    del h_MH
    back = simt.to_dense(packed)
    assert back[-1, -1] == 3
    assert back[-2, 5] == 2
    assert int(back.count_nonzero()) == 2


def test_later_launches_go_past_numba() -> None:
    arrays = layer(torch.bfloat16)
    packed = simt.gate_pack(*arrays[:2])
    kernel = pack_epilogue.multiply_and_pack
    assert kernel._launchers
    before = len(kernel._launchers)
    assert_same_twell(simt.gate_pack(*arrays[:2]), packed)
    assert len(kernel._launchers) == before


def test_a_launch_takes_microseconds() -> None:
    arrays = layer(torch.bfloat16, n_tokens=1)
    simt.gated_ffn(*arrays)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(100):
        simt.gated_ffn(*arrays)
    torch.cuda.synchronize()
    each = (time.perf_counter() - begin) / 100
    print(f"a whole block of one token takes {1e6 * each:.0f} microseconds")
    assert each < 1e-3
