"""Real activity, with its overflowing tiles, goes through the formats and the kernels exactly.

The slice in ``data/patterns`` is 512 tokens of layers 0 and 7. ``TWELL_PATTERNS=folder`` runs the same on
complete recordings (``layer0.xz`` and ``layer7.xz``, 16,384 tokens each).
"""

from __future__ import annotations

import os

import pytest
import torch
from twell import ELL, CapacityError, Hybrid, TwELL, cpu, reference

from tests.helpers import assert_same_bits
from twellviz.data import load_pattern

FOLDER = os.environ.get("TWELL_PATTERNS")


def gate_values(layer: int, dtype: torch.dtype) -> torch.Tensor:
    """Small positive integers where the recorded neuron fires, so that every sum is exact."""
    active_MH = torch.from_numpy(load_pattern(layer, folder=FOLDER))
    values_MH = torch.randint(1, 4, active_MH.shape, generator=torch.Generator().manual_seed(layer))
    return torch.where(active_MH, values_MH, -values_MH).to(dtype)


@pytest.mark.parametrize("layer", [0, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_formats_hold_real_activity(layer: int, dtype: torch.dtype) -> None:
    gate_MH = gate_values(layer, dtype)
    expected = torch.relu(gate_MH)
    packed = cpu.pack(gate_MH)
    assert packed.spill_tile.numel() > 0, "the slice must contain overflowing tiles, or it tests nothing"
    assert_same_bits(packed.words, TwELL.from_dense(gate_MH).words)
    for held in (packed, Hybrid.from_twell(packed), ELL.from_dense(gate_MH)):
        assert_same_bits(held.to_dense(), expected)
    with pytest.raises(CapacityError):
        cpu.pack(gate_MH, overflow="raise")
    clipped = cpu.pack(gate_MH, overflow="clip")
    lost = expected.float() - clipped.to_dense().float()
    assert clipped.clipped.entries == int((lost != 0).sum()) > 0
    assert clipped.clipped.abs_sum == float(lost.sum())


@pytest.mark.parametrize("layer", [0, 7])
def test_the_block_is_exact_on_real_activity(layer: int) -> None:
    gate_MH = gate_values(layer, torch.float32)
    generator = torch.Generator().manual_seed(1)
    x_MD, up_HD, down_HD = (
        torch.randint(-2, 3, (rows, 24), generator=generator).float()
        for rows in (gate_MH.shape[0], gate_MH.shape[1], gate_MH.shape[1])
    )
    expected = (torch.relu(gate_MH).double() * (x_MD.double() @ up_HD.double().T)) @ down_HD.double()
    assert expected.abs().max() < 2**24, "beyond this fp32 sums of integers round"
    packed = cpu.pack(gate_MH)
    assert_same_bits(cpu.token_ffn(x_MD, packed, up_HD, down_HD), expected.float())
    if FOLDER is None:  # the plain torch reference takes minutes on a complete recording
        assert_same_bits(reference.token_ffn(x_MD, packed, up_HD, down_HD), expected.float())
