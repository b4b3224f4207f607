"""Union tiles hold what they are given, and the feed-forward over them is that of the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from twell import DeviceError, DtypeError, OptionError, ShapeError, TileUnion, TwELL, cpu, reference

from tests.helpers import DTYPES, assert_same_bits, relu_kept


@st.composite
def matrices(draw: st.DrawFn) -> Tensor:
    """M around the edges of a block of 8, H around the tile edges, density from empty to full, odd values in it."""
    n_tokens = draw(st.sampled_from((0, 1, 7, 8, 9, 16, 17)))
    n_hidden = draw(st.sampled_from((1, 255, 256, 257, 600)))
    density = draw(st.sampled_from((0.0, 0.02, 0.3, 1.0)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    h_MH = torch.randint(1, 9, (n_tokens, n_hidden), generator=generator).float()
    h_MH[torch.rand(h_MH.shape, generator=generator) >= density] *= -1
    if n_tokens and draw(st.booleans()):
        h_MH[draw(st.integers(0, n_tokens - 1)), draw(st.integers(0, n_hidden - 1))] = draw(
            st.sampled_from((float("nan"), float("inf"), -0.0))
        )
    return h_MH.to(draw(st.sampled_from(DTYPES)))


@settings(max_examples=60, deadline=None)
@given(h_MH=matrices(), block=st.sampled_from((1, 8, 128)))
def test_round_trip_and_both_builders(h_MH: Tensor, block: int) -> None:
    union = TileUnion.from_dense(h_MH, block=block)
    assert_same_bits(union.to_dense(), relu_kept(h_MH))
    packed = TwELL.from_dense(h_MH)
    for other in (TileUnion.from_twell(packed, block=block), cpu.to_union(packed, block=block)):
        for name in ("neurons", "neuron_start", "values", "value_start"):
            assert_same_bits(getattr(other, name), getattr(union, name))
        assert (other.block, other.shape) == (union.block, union.shape)


@settings(max_examples=40, deadline=None)
@given(h_MH=matrices(), block=st.sampled_from((1, 8, 128)), gated=st.booleans())
def test_feed_forward_is_exact_on_small_integers(h_MH: Tensor, block: int, gated: bool) -> None:
    h_MH = torch.where(h_MH.isfinite(), h_MH, 1.0)
    generator = torch.Generator().manual_seed(3)
    x, up, down = (
        torch.randint(-1, 2, (n, 11), generator=generator).to(h_MH.dtype)
        for n in (h_MH.shape[0], h_MH.shape[1], h_MH.shape[1])
    )
    packed = TwELL.from_dense(h_MH)
    union = TileUnion.from_twell(packed, block=block)
    if gated:
        expected = reference.token_ffn(x, packed, up, down)
        assert_same_bits(cpu.tile_ffn(x, union, up, down), expected)
        assert_same_bits(cpu.token_ffn(x, packed, up, down), expected)
    else:
        expected = reference.token_down(packed, down)
        assert_same_bits(cpu.tile_down(union, down), expected)
        assert_same_bits(cpu.token_down(packed, down), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_error_against_fp64(dtype: torch.dtype) -> None:
    x, up, down = (torch.randn(n, 64).to(dtype) for n in (70, 900, 900))
    gate = (torch.randn(70, 900) - 1.5).to(dtype)
    expected = (relu_kept(gate).double() * (x.double() @ up.double().T)) @ down.double()
    y = cpu.tile_ffn(x, TileUnion.from_dense(gate, block=32), up, down)
    error = float((y.double() - expected).abs().max() / expected.abs().max())
    assert error < {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 6e-4}[dtype]


def test_bits_repeat_whatever_the_threads() -> None:
    x, up, down = (torch.randn(n, 64) for n in (300, 900, 900))
    gate = torch.randn(300, 900) - 1.5
    union, packed = TileUnion.from_dense(gate, block=32), TwELL.from_dense(gate)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            results.append((cpu.tile_ffn(x, union, up, down), cpu.token_ffn(x, packed, up, down)))
    finally:
        torch.set_num_threads(before)
    for tile, token in results[1:]:
        assert_same_bits(tile, results[0][0])
        assert_same_bits(token, results[0][1])


@pytest.mark.parametrize("width", [1, 1023, 1024, 1025, 2500])
def test_widths_around_a_strip(width: int) -> None:
    gate = torch.randn(5, 300)
    x, up, down = (torch.randint(-1, 2, (n, width)).float() for n in (5, 300, 300))
    gate = gate.sign() * torch.randint(1, 4, gate.shape)
    packed = TwELL.from_dense(gate)
    assert_same_bits(cpu.token_ffn(x, packed, up, down), reference.token_ffn(x, packed, up, down))


def test_weights_that_are_not_finite_reach_only_who_fires_them() -> None:
    gate = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    x, up, down = torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 3)
    up[0], down[1] = float("inf"), float("nan")
    y = cpu.tile_ffn(x, TileUnion.from_dense(gate), up, down)
    assert y[0].isinf().all()
    assert y[1].isnan().all()


def test_neighbours_that_fire_alike_make_small_unions() -> None:
    alike = torch.zeros(128, 5632)
    alike[:, 100:130] = 1.0
    union = TileUnion.from_dense(alike)
    assert union.union_sizes().tolist() == [30]
    assert union.byte_counts()["values"] == 128 * 30 * 4
    assert union.nbytes < 0.01 * union.byte_counts()["dense"]
    assert "union mean 30 (1% of all neurons)" in repr(union)
    neurons_U, values_BU = union.block_of(0)
    assert neurons_U.tolist() == list(range(100, 130))
    assert values_BU.shape == (128, 30)


X, W = torch.randn(4, 8), torch.randn(20, 8)
UNION = TileUnion.from_dense(torch.ones(4, 20))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: TileUnion.from_dense(torch.ones(2, 2), block=0), OptionError, "block=0.*at least 1"),
        (lambda: cpu.to_union(TwELL.from_dense(torch.ones(2, 2)), block=True), OptionError, "block=True"),
        (lambda: TileUnion.from_dense(torch.ones(2)), ShapeError, "two axes"),
        (lambda: cpu.tile_ffn(X[:3], UNION, W, W), ShapeError, "4 rows, x_MD has 3"),
        (lambda: cpu.tile_ffn(X, UNION, W[:9], W), ShapeError, r"up_HD has shape \(9, 8\)"),
        (lambda: cpu.tile_ffn(X.half(), UNION, W.half(), W.half()), DtypeError, "union has value dtype"),
        (lambda: cpu.tile_ffn(X, TwELL.from_dense(torch.ones(4, 20)), W, W), DtypeError, "pass a TileUnion"),
        (lambda: cpu.tile_down(UNION, W.to("meta")), DeviceError, "meta"),
    ],
)
def test_bad_input_is_named(call, error, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=words):
        call()
