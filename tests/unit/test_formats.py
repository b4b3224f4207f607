"""The formats hold what they are given, at every edge, and say what they drop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from twell import ELL, CapacityError, DtypeError, Hybrid, OptionError, ShapeError, TwELL

from tests.helpers import DTYPES, assert_same_bits, relu_kept, tile_with

EDGES = (1, 31, 32, 255, 256, 257, 511, 512, 513, 700)
OVERFLOW_COUNTS = (30, 31, 32, 33, 64, 256)


@st.composite
def matrices(draw: st.DrawFn) -> torch.Tensor:
    """Any M from 0, H around the tile edges, density from empty to full, with the odd values in it."""
    n_tokens = draw(st.integers(0, 5))
    n_hidden = draw(st.sampled_from(EDGES))
    density = draw(st.sampled_from((0.0, 0.01, 0.1, 0.5, 1.0)))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    h_MH = torch.randn(n_tokens, n_hidden, generator=generator).abs() + 0.01
    h_MH[torch.rand(h_MH.shape, generator=generator) >= density] *= -1
    for special in draw(st.lists(st.sampled_from((float("nan"), float("inf"), -float("inf"), -0.0, 1e-8)), max_size=4)):
        if n_tokens:
            h_MH[draw(st.integers(0, n_tokens - 1)), draw(st.integers(0, n_hidden - 1))] = special
    return h_MH.to(dtype)


@settings(max_examples=60, deadline=None)
@given(h_MH=matrices(), compression=st.sampled_from((8, 4, 2)), width=st.integers(0, 40))
def test_round_trip_is_exact(h_MH: torch.Tensor, compression: int, width: int) -> None:
    expected = relu_kept(h_MH)
    packed = TwELL.from_dense(h_MH, compression=compression)
    assert_same_bits(packed.to_dense(), expected)
    assert_same_bits(ELL.from_dense(h_MH).to_dense(), expected)
    assert_same_bits(Hybrid.from_dense(h_MH, width=width).to_dense(), expected)
    assert_same_bits(Hybrid.from_twell(packed, width=width).to_dense(), expected)
    assert_same_bits(packed.counts(), (expected != 0).sum(1, dtype=torch.int32))


@settings(max_examples=30, deadline=None)
@given(h_MH=matrices())
def test_signed_values_are_kept_on_request(h_MH: torch.Tensor) -> None:
    expected = torch.where(h_MH == 0, torch.zeros_like(h_MH), h_MH)
    for packed in (
        TwELL.from_dense(h_MH, keep="nonzero"),
        ELL.from_dense(h_MH, keep="nonzero"),
        Hybrid.from_dense(h_MH, width=9, keep="nonzero"),
    ):
        assert_same_bits(packed.to_dense(), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", OVERFLOW_COUNTS)
def test_tile_overflow_spills_raises_or_is_counted(count: int, dtype: torch.dtype) -> None:
    h_MH = tile_with(count, dtype=dtype)
    packed = TwELL.from_dense(h_MH)
    assert_same_bits(packed.to_dense(), relu_kept(h_MH))
    assert packed.spill_tile.tolist() == ([1] if count > 31 else [])
    assert packed.tile_counts().tolist() == [[1, count]]

    lost = max(0, count - 31)
    if lost:
        with pytest.raises(
            CapacityError, match=rf"row 0, tile 1 has {count} active neurons, 31 fit: .*spill"
        ) as caught:
            TwELL.from_dense(h_MH, overflow="raise")
        assert (caught.value.row, caught.value.tile, caught.value.count, caught.value.limit) == (0, 1, count, 31)
    else:
        TwELL.from_dense(h_MH, overflow="raise")

    clipped = TwELL.from_dense(h_MH, overflow="clip")
    kept = clipped.to_dense()
    assert clipped.clipped.entries == lost
    assert clipped.clipped.rows == (1 if lost else 0)
    assert clipped.clipped.abs_sum == pytest.approx(float((relu_kept(h_MH) - kept).abs().double().sum()))
    assert ("LOST" in repr(clipped)) == bool(lost)


def test_rows_that_fire_every_neuron() -> None:
    h_MH = torch.rand(4, 5632) + 1
    assert_same_bits(TwELL.from_dense(h_MH).to_dense(), h_MH)
    hybrid = Hybrid.from_dense(h_MH)
    assert hybrid.n_backup == 4
    assert_same_bits(hybrid.to_dense(), h_MH)


def test_narrow_words_are_the_published_bits() -> None:
    h_MH = torch.zeros(1, 600, dtype=torch.bfloat16)
    h_MH[0, 5], h_MH[0, 259], h_MH[0, 511] = 1.5, 2.0, 3.0
    packed = TwELL.from_dense(h_MH)
    words = packed.words.view(3, 32)
    assert packed.words.dtype == torch.int32
    assert words[:, 0].tolist() == [1, 2, 0]
    assert int(words[1, 1]) == 259 | 0x4000 << 16
    assert int(words[1, 2]) == 511 | 0x4040 << 16
    assert not words[1, 3:].any()
    assert not words[2].any()


@pytest.mark.parametrize(
    ("dtype", "n_hidden", "wide"),
    [
        (torch.bfloat16, 65_536, False),
        (torch.bfloat16, 65_537, True),
        (torch.float32, 10, True),
    ],
)
def test_layout_widens_when_16_bits_do_not_hold_it(dtype: torch.dtype, n_hidden: int, wide: bool) -> None:
    h_MH = torch.zeros(2, n_hidden, dtype=dtype)
    h_MH[0, -1], h_MH[1, 0] = 3.0, float("inf")
    packed = TwELL.from_dense(h_MH)
    assert packed.wide == wide
    assert_same_bits(packed.to_dense(), h_MH)
    assert_same_bits(ELL.from_dense(h_MH).to_dense(), h_MH)


def test_any_strides() -> None:
    h_MH = torch.randn(600, 10).T[::2]
    for packed in (TwELL.from_dense(h_MH), ELL.from_dense(h_MH), Hybrid.from_dense(h_MH)):
        assert_same_bits(packed.to_dense(), relu_kept(h_MH))


def test_a_value_that_rounds_to_zero_is_inactive() -> None:
    tiny = torch.tensor([[1e-9, 1.0]])
    assert TwELL.from_dense(tiny).counts().tolist() == [2]
    assert TwELL.from_dense(tiny.to(torch.float16)).counts().tolist() == [1]


def test_byte_counts_are_those_of_the_buffers() -> None:
    h_MH = torch.where(torch.rand(64, 5632) < 0.005, 1.0, 0.0).to(torch.bfloat16)
    packed = TwELL.from_dense(h_MH)
    assert packed.byte_counts()["words"] == 64 * 22 * 32 * 4
    assert packed.byte_counts()["dense"] == 64 * 5632 * 2
    assert packed.nbytes == packed.byte_counts()["words"] + packed.byte_counts()["spill"]
    ell = ELL.from_dense(h_MH)
    assert ell.nbytes == 64 * ell.width * 4 + 64 * 4
    hybrid = Hybrid.from_dense(h_MH, width=1)
    assert hybrid.byte_counts()["backup"] == hybrid.n_backup * 5632 * 2


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: TwELL.from_dense(torch.ones(2, 3, 4)), ShapeError, r"\(2, 3, 4\).*reshape"),
        (lambda: TwELL.from_dense(torch.ones(2, 0)), ShapeError, "at least 1"),
        (lambda: TwELL.from_dense(torch.ones(2, 4, dtype=torch.float64)), DtypeError, "float64.*convert"),
        (lambda: ELL.from_dense(torch.ones(2, 4, dtype=torch.int32)), DtypeError, "int32"),
        (lambda: Hybrid.from_dense([[1.0]]), DtypeError, "list.*from_numpy"),
        (lambda: TwELL.from_dense(torch.ones(2, 4), compression=3), OptionError, "compression=3.*8, 4 or 2"),
        (lambda: TwELL.from_dense(torch.ones(2, 4), overflow="drop"), OptionError, "drop.*spill"),
        (lambda: TwELL.from_dense(torch.ones(2, 4), keep="all"), OptionError, "all.*positive"),
        (lambda: ELL.from_dense(torch.ones(2, 4), overflow="spill"), OptionError, "Hybrid"),
        (lambda: ELL.from_dense(torch.ones(2, 4), width=-1), OptionError, "width=-1"),
        (lambda: Hybrid.from_dense(torch.ones(2, 4), width=True), OptionError, "width=True"),
        (lambda: ELL.from_dense(torch.ones(2, 4), width=3), CapacityError, "row 0 has 4 active neurons, 3 fit"),
        (lambda: Hybrid.from_dense(torch.ones(2, 4), width=3, overflow="raise"), CapacityError, "row 0 has 4"),
    ],
)
def test_bad_input_is_named(build, error, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=words):
        build()


def test_clipping_counts_for_ell_and_hybrid() -> None:
    h_MH = torch.tensor([[1.0, 2.0, 4.0, 0.0], [0.0, 8.0, 0.0, 0.0]])
    for packed in (ELL.from_dense(h_MH, width=1, overflow="clip"), Hybrid.from_dense(h_MH, width=1, overflow="clip")):
        assert (packed.clipped.entries, packed.clipped.rows, packed.clipped.abs_sum) == (2, 1, 6.0)
        assert packed.to_dense().tolist() == [[1.0, 0, 0, 0], [0, 8.0, 0, 0]]
        assert "LOST" in repr(packed)


@pytest.mark.parametrize(
    ("count", "says"), [(40, "compression=4, or"), (100, "compression=2, or"), (200, '(exact), or overflow="clip"')]
)
def test_the_remedy_names_a_compression_only_where_one_fits(count: int, says: str) -> None:
    h_MH = torch.zeros(1, 256)
    h_MH[0, :count] = 1
    with pytest.raises(CapacityError) as caught:
        TwELL.from_dense(h_MH, overflow="raise")
    assert says in str(caught.value)


def test_tensors_without_values_in_rows_are_named() -> None:
    with pytest.raises(DtypeError, match="to_dense"):
        TwELL.from_dense(torch.eye(3).to_sparse())
    with pytest.raises(DtypeError, match="to_dense"):
        ELL.from_dense(torch.eye(3).to_sparse_csr())
    with pytest.raises(DtypeError, match="meta"):
        TwELL.from_dense(torch.empty(2, 3, device="meta"))
    with pytest.raises(OptionError, match=r"compression=8\.0"):
        TwELL.from_dense(torch.eye(3), compression=8.0)  # type: ignore[arg-type]
