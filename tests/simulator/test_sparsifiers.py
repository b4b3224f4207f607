"""Methods through the GPU kernels, in the simulator: packed values of one sign and of both, spilled tiles included."""

from __future__ import annotations

import pytest
import torch

from twellviz.models import LMConfig
from twellviz.sparsifiers.block import SparseBlock, ThresholdBlock
from twellviz.sparsifiers.gpu import forward_simt

CASES = (("drelu", 0.0), ("prosparse", 0.5), ("topk", 0.0), ("teal", 0.3), ("cats", 0.3))


@pytest.mark.parametrize(("name", "threshold"), CASES, ids=[name for name, _ in CASES])
def test_a_method_equals_its_dense_block(name: str, threshold: float) -> None:
    activation = "silu" if name in ("teal", "cats") else "relu"
    cfg = LMConfig(
        vocab_size=8, d_model=8, d_hidden=264, n_layers=1, n_heads=1, max_seq_len=8, init_std=0.4,
        activation=activation, sparsifier=name,
    )  # fmt: skip
    block = cfg.method.make_block(cfg)
    assert isinstance(block, SparseBlock)
    if isinstance(block, ThresholdBlock):
        block.set_threshold(threshold)
    x = torch.randn(1, 8)
    up = block.up_weight.detach() if block.packs == "gate" else None
    with torch.no_grad():
        found = forward_simt(block, x, up, block.down_weight.detach())
        torch.testing.assert_close(found, block(x), rtol=1e-4, atol=1e-4)
