"""Every method on a GPU: dense and through the kernels, prefill and one token, under a CUDA graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from twellviz.models import LM, LMConfig
from twellviz.sparsifiers import METHODS, forward_sparse
from twellviz.sparsifiers.block import ThresholdBlock
from twellviz.sparsifiers.calibration import block_inputs
from twellviz.sparsifiers.speed import decode_speed, prefill_speed
from twellviz.training import TrainConfig, train

CFG = LMConfig(vocab_size=64, d_model=256, d_hidden=1000, n_layers=2, n_heads=4, max_seq_len=64)
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


def config_of(name: str) -> LMConfig:
    return replace(CFG, sparsifier=name, activation="silu" if name in ("teal", "cats", "moe") else "relu")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("n_tokens", [1, 300])
def test_a_method_equals_its_dense_block(name: str, dtype: torch.dtype, n_tokens: int) -> None:
    cfg = replace(config_of(name), init_std=0.06)
    block = cfg.method.make_block(cfg).to("cuda", dtype)
    if isinstance(block, ThresholdBlock):
        block.set_threshold(0.3)
    x = torch.randn(n_tokens, 256, device="cuda", dtype=dtype)
    with torch.no_grad():
        expected = block(x).double()
    error = (forward_sparse(block, x).double() - expected).norm() / expected.norm()
    assert float(error) < TOLERANCE[dtype]


@pytest.mark.parametrize("name", ["l1", "drelu", "prosparse", "topk", "teal", "cats"])
def test_a_packed_method_is_captured_by_a_graph(name: str) -> None:
    cfg = config_of(name)
    block = cfg.method.make_block(cfg).to("cuda", torch.bfloat16)
    x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)
    expected = forward_sparse(block, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = forward_sparse(block, x)
    graph.replay()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("name", "compiled"), [*((name, False) for name in METHODS), ("topk", True), ("moe", True)])
def test_a_method_trains_there(name: str, compiled: bool) -> None:
    text = (np.cumsum(np.random.default_rng(2).integers(1, 3, 8000)) % 64).astype(np.uint16)
    model = config_of(name)
    config = TrainConfig(
        model=model,
        steps=40,
        batch_size=8,
        lr=3e-3,
        l1_coefficient=1e-3 if model.method.penalised else 0.0,
        device="cuda",
        dtype="bfloat16",
        compile=compiled,
    )
    history = train(config, train_tokens=text, validation_tokens=text[:500], progress=False).history
    assert history[-1]["cross_entropy"] < history[0]["cross_entropy"] - 1


@pytest.mark.parametrize("name", METHODS)
def test_blocks_are_timed_in_graphs_where_the_host_need_not_wait(name: str) -> None:
    model = LM(config_of(name)).to("cuda", torch.bfloat16)
    inputs = block_inputs(model, torch.arange(64, device="cuda").view(1, 64))
    for measure in (prefill_speed, decode_speed):
        speed = measure(model, inputs, repeats=2)
        assert speed.graphs == (name != "moe")
        assert 0 < min(speed.plain_ms, speed.dense_ms, speed.sparse_ms) < 1000
