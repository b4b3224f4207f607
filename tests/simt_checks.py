"""What every kernel of ``twell.simt`` must do, on whatever device: the simulator's tests and the GPU's call the same.

Inputs are small integers, so that sums are exact and results must be equal, not close. Letters: M tokens, D model
width, H hidden width, W ELL width.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from twell import CapacityError, Hybrid, TwELL, ops, reference, simt
from twell.errors import OptionError
from twell.formats import ELL, Clipped

from tests.helpers import assert_same_bits

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def integers(low: int, high: int, *shape: int, dtype: torch.dtype, device: str) -> Tensor:
    """Integers in ``low .. high - 1``."""
    return torch.randint(low, high, shape).to(device=device, dtype=dtype)


def gate_values(n_tokens: int, n_hidden: int, dtype: torch.dtype, device: str) -> Tensor:
    """A few active neurons a token; then an empty row, a full one, NaN, and tiles with 31 and 32 where they fit."""
    h_MH = integers(-30, 3, n_tokens, n_hidden, dtype=dtype, device=device)
    if n_tokens > 1:
        h_MH[1] = -1
    if n_tokens > 2:
        h_MH[2] = 2
    if n_tokens > 3:
        h_MH[3, -1] = float("nan")
        h_MH[3, 0] = -0.0
    if n_tokens > 5:
        h_MH[4:6] = -3
        h_MH[4, :31] = 1
        h_MH[5, n_hidden - 32 :] = 3
    return h_MH


def assert_same_clipped(actual: Clipped, expected: Clipped) -> None:
    """Equal, where a NaN that was dropped equals itself."""
    assert (actual.entries, actual.rows) == (expected.entries, expected.rows)
    assert actual.abs_sum == expected.abs_sum or (math.isnan(actual.abs_sum) and math.isnan(expected.abs_sum))


def assert_same_twell(actual: TwELL, expected: TwELL) -> None:
    """All buffers equal, bit by bit (NaN to NaN)."""
    assert actual.shape == expected.shape
    assert actual.compression == expected.compression
    assert_same_clipped(actual.clipped, expected.clipped)
    assert_same_bits(actual.words, expected.words)
    assert_same_bits(actual.spill_start, expected.spill_start)
    assert_same_bits(actual.spill_tile, expected.spill_tile)
    assert_same_bits(actual.spill_values, expected.spill_values)


def assert_same_hybrid(actual: Hybrid, expected: Hybrid) -> None:
    """All buffers equal."""
    assert actual.shape == expected.shape
    for name in ("values", "columns", "counts", "backup_row", "backup"):
        assert_same_bits(getattr(actual, name), getattr(expected, name))


def check_pack(n_tokens: int, n_hidden: int, dtype: torch.dtype, compression: int, device: str) -> None:
    """Dense to TwELL and back."""
    h_MH = gate_values(n_tokens, n_hidden, dtype, device)
    packed = simt.pack(h_MH, compression=compression)
    assert_same_twell(packed, reference.pack(h_MH, compression=compression))
    assert_same_bits(simt.to_dense(packed), packed.to_dense())


def check_overflow_policies(dtype: torch.dtype, device: str) -> None:
    """Raise names the first tile, clip counts what it dropped."""
    h_MH = gate_values(6, 300, dtype, device)
    with pytest.raises(CapacityError) as caught:
        simt.pack(h_MH, overflow="raise")
    assert (caught.value.row, caught.value.tile, caught.value.count, caught.value.limit) == (2, 0, 256, 31)
    assert_same_twell(simt.pack(h_MH, overflow="clip"), reference.pack(h_MH, overflow="clip"))
    with pytest.raises(CapacityError, match="row 2"):
        simt.ell_pack(h_MH, width=50)
    with pytest.raises(CapacityError, match="row 2"):
        simt.to_hybrid(reference.pack(h_MH), width=50, overflow="raise")


def check_ell(n_tokens: int, n_hidden: int, dtype: torch.dtype, width: int | None, device: str) -> None:
    """Dense to ELL."""
    h_MH = gate_values(n_tokens, n_hidden, dtype, device)
    overflow = "raise" if width is None else "clip"
    actual = simt.ell_pack(h_MH, width=width, overflow=overflow)
    expected = ELL.from_dense(h_MH, width=width, overflow=overflow)
    for name in ("values", "columns", "counts"):
        assert_same_bits(getattr(actual, name), getattr(expected, name))
    assert_same_clipped(actual.clipped, expected.clipped)


def product_inputs(n_tokens: int, width: int, n_hidden: int, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """x, gate, up and down; token 1 fires nothing, and neuron 0 few."""
    x_MD = integers(-3, 4, n_tokens, width, dtype=dtype, device=device)
    if n_tokens > 1:
        x_MD[1] = 0
    gate_HD, up_HD, down_HD = (integers(-2, 3, n_hidden, width, dtype=dtype, device=device) for _ in range(3))
    return x_MD, gate_HD, up_HD, down_HD


def exact_gate(x_MD: Tensor, gate_HD: Tensor) -> Tensor:
    """The gate values before ReLU: exact sums, rounded once."""
    return (x_MD.double() @ gate_HD.double().T).to(x_MD.dtype)


def check_gate_pack(n_tokens: int, width: int, n_hidden: int, dtype: torch.dtype, device: str) -> None:
    """Gate product, dense and with the pack in its epilogue. Half of the neurons fire: every wide tile spills."""
    x_MD, gate_HD, *_ = product_inputs(n_tokens, width, n_hidden, dtype, device)
    z_MH = exact_gate(x_MD, gate_HD)
    assert_same_bits(simt.gate_product(x_MD, gate_HD), torch.relu(z_MH))
    assert_same_twell(simt.gate_pack(x_MD, gate_HD), reference.pack(z_MH))


def check_nan_token(dtype: torch.dtype, device: str) -> None:
    """A token with NaN fires every neuron, with NaN, and no neuron past the last one."""
    x_MD, gate_HD, *_ = product_inputs(3, 4, 20, dtype, device)
    x_MD[2, 1] = float("nan")
    packed = simt.gate_pack(x_MD, gate_HD)
    assert packed.counts()[2] == 20
    assert bool(packed.to_dense()[2].isnan().all())


def check_token(n_tokens: int, width: int, n_hidden: int, dtype: torch.dtype, compression: int, device: str) -> None:
    """Per-token products, gated and not, given a packed gate with spilled tiles in it."""
    x_MD, _, up_HD, down_HD = product_inputs(n_tokens, width, n_hidden, dtype, device)
    h_MH = gate_values(n_tokens, n_hidden, dtype, device).nan_to_num()
    packed = reference.pack(h_MH, compression=compression)
    assert_same_bits(simt.token_ffn(x_MD, packed, up_HD, down_HD), reference.token_ffn(x_MD, packed, up_HD, down_HD))
    assert_same_bits(simt.token_down(packed, down_HD), reference.token_down(packed, down_HD))


def check_inactive_infinity(dtype: torch.dtype, device: str) -> None:
    """An inactive neuron gives nothing, be its weights infinite; also in a spilled tile."""
    x_MD, _, up_HD, down_HD = product_inputs(2, 8, 64, dtype, device)
    h_MH = torch.full((2, 64), -1.0, dtype=dtype, device=device)
    h_MH[0, 3] = 2
    h_MH[1, :40] = 1
    up_HD[50], down_HD[60] = float("inf"), float("inf")
    packed = reference.pack(h_MH)
    assert packed.spill_tile.numel() == 1
    assert bool(simt.token_ffn(x_MD, packed, up_HD, down_HD).isfinite().all())
    assert bool(simt.token_down(packed, down_HD).isfinite().all())


def check_whole_block(
    n_tokens: int, width: int, n_hidden: int, dtype: torch.dtype, places: int | None, device: str
) -> None:
    """Whole blocks: the number of backup places decides nothing but speed."""
    x_MD, gate_HD, up_HD, down_HD = product_inputs(n_tokens, width, n_hidden, dtype, device)
    packed = reference.pack(exact_gate(x_MD, gate_HD))
    gated = simt.gated_ffn(x_MD, gate_HD, up_HD, down_HD, places=places)
    assert_same_bits(gated, reference.token_ffn(x_MD, packed, up_HD, down_HD))
    plain = simt.ffn(x_MD, gate_HD, down_HD, places=places)
    assert_same_bits(plain, reference.token_down(packed, down_HD))


def check_ops(n_tokens: int, width: int, n_hidden: int, dtype: torch.dtype, product: str, device: str) -> None:
    """The whole block with either gate product, and the custom operators over it."""
    arrays = product_inputs(n_tokens, width, n_hidden, dtype, device)
    x_MD, gate_HD, up_HD, down_HD = arrays
    packed = reference.pack(exact_gate(x_MD, gate_HD))
    gated, plain = reference.token_ffn(x_MD, packed, up_HD, down_HD), reference.token_down(packed, down_HD)
    assert_same_bits(simt.gated_ffn(*arrays, product=product), gated)
    assert_same_bits(simt.ffn(x_MD, gate_HD, down_HD, product=product), plain)
    assert_same_twell(ops.gate_pack(x_MD, gate_HD, backend="simt"), packed)
    assert_same_bits(ops.gated_ffn(*arrays, backend="simt")[0], gated)
    assert_same_bits(ops.ffn(x_MD, gate_HD, down_HD, backend="simt")[0], plain)
    with pytest.raises(CapacityError, match="tile 0"):
        ops.gated_ffn(*arrays, backend="simt", overflow="raise")
    with pytest.raises(OptionError, match="product"):
        simt.gated_ffn(*arrays, product="cublas")


def check_hybrid(n_tokens: int, n_hidden: int, dtype: torch.dtype, width: int, device: str) -> None:
    """TwELL to Hybrid, the two products, the transpose and the L1 gradient."""
    h_MH = gate_values(n_tokens, n_hidden, dtype, device).nan_to_num()
    h = simt.to_hybrid(reference.pack(h_MH), width=width)
    assert_same_hybrid(h, Hybrid.from_dense(h_MH, width=width))
    active_MH, h_MH = h_MH > 0, torch.relu(h_MH)

    x_MD, weight_HD, *_ = product_inputs(n_tokens, 19, n_hidden, dtype, device)
    sampled = simt.sampled_product(x_MD, weight_HD, h)
    expected_MH = torch.where(active_MH, exact_gate(x_MD, weight_HD), 0)
    assert_same_bits(sampled.to_dense(), expected_MH)
    assert_same_bits(sampled.counts, h.counts)

    y_MD = simt.hybrid_product(h, weight_HD)
    assert_same_bits(y_MD, (h_MH.double() @ weight_HD.double()).to(dtype))

    places = simt.transposed_places(h, width=5)
    transposed = simt.transpose(h, places)
    assert_same_hybrid(transposed, Hybrid.from_dense(h_MH.T.contiguous(), width=5))
    # Other values on the same pattern, exact zeros among them, move to the same places.
    assert_same_bits(simt.transpose(sampled, places).to_dense(), expected_MH.T)

    scale = torch.tensor(0.5, device=device)
    gradient = simt.add_l1_gradient(sampled, h, scale)
    assert_same_bits(gradient.to_dense(), (h_MH + 0.5 * expected_MH.sign()).to(dtype))


def check_union(n_tokens: int, n_hidden: int, dtype: torch.dtype, block: int, device: str) -> None:
    """Union lists, from words and from spilled tiles."""
    h_MH = gate_values(n_tokens, n_hidden, dtype, device).nan_to_num()
    h_MH[2] = -1
    h_MH[2, 5:60] = 1
    neurons_UH, counts_U = simt.union_lists(reference.pack(h_MH), block=block)
    assert neurons_UH.shape[0] == -(-n_tokens // block)
    for union, neurons_H in enumerate(neurons_UH):
        fired_H = (h_MH[union * block : (union + 1) * block] > 0).any(0)
        expected = fired_H.nonzero().squeeze(1).to(torch.int32)
        assert counts_U[union] == expected.numel()
        assert_same_bits(neurons_H[: expected.numel()], expected)
        assert not bool(neurons_H[expected.numel() :].any())


def check_no_tokens(dtype: torch.dtype, device: str) -> None:
    """M = 0 gives empty results of the right shape."""
    x_MD, gate_HD, up_HD, down_HD = product_inputs(0, 6, 40, dtype, device)
    packed = simt.gate_pack(x_MD, gate_HD)
    assert_same_twell(packed, reference.pack(x_MD.new_empty(0, 40)))
    assert simt.token_ffn(x_MD, packed, up_HD, down_HD).shape == (0, 6)
    assert simt.token_down(packed, down_HD).shape == (0, 6)
    assert simt.gated_ffn(x_MD, gate_HD, up_HD, down_HD).shape == (0, 6)
    assert simt.to_dense(packed).shape == (0, 40)
    assert simt.ell_pack(x_MD.new_empty(0, 40)).shape == (0, 40)
    h = simt.to_hybrid(packed)
    assert simt.hybrid_product(h, down_HD).shape == (0, 6)
    assert simt.transpose(h).shape == (40, 0)
    assert simt.union_lists(packed)[0].shape == (0, 40)


def check_strides(dtype: torch.dtype, device: str) -> None:
    """Inputs of any strides, with and without a gradient asked for."""
    x_MD, gate_HD, up_HD, down_HD = product_inputs(4, 6, 40, dtype, device)
    packed = reference.pack(exact_gate(x_MD, gate_HD))
    strided = x_MD.T.contiguous().T.requires_grad_()
    assert_same_twell(simt.pack(exact_gate(x_MD, gate_HD).T.contiguous().T), packed)
    y_MD = simt.token_ffn(strided, packed, up_HD.T.contiguous().T, down_HD.T.contiguous().T)
    assert_same_bits(y_MD, reference.token_ffn(x_MD, packed, up_HD, down_HD))
    assert not y_MD.requires_grad
