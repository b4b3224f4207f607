"""Roads to sparsity: each method's own defining property, and that model, trainer, files and kernels follow it."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from twell.nn import GatedFFN

from twellviz.cli import main
from twellviz.data import Tokenizer, data_path, load_tokens
from twellviz.errors import ConfigError
from twellviz.models import LM, LMConfig, load_checkpoint, save_checkpoint
from twellviz.sparsifiers import METHODS, calibrate, forward_sparse, pack_pattern, sparsifier, threshold_for
from twellviz.sparsifiers import with_sparsifier as on_trunk
from twellviz.sparsifiers.block import SparseBlock, ThresholdBlock
from twellviz.sparsifiers.calibration import block_inputs
from twellviz.sparsifiers.drelu import DReLUBlock
from twellviz.sparsifiers.moe import ExpertsBlock, load_balance
from twellviz.sparsifiers.prosparse import FATReLUBlock, ProSparse
from twellviz.sparsifiers.topk import TopKBlock, keep, top_mask
from twellviz.traces import record
from twellviz.training import TrainConfig, evaluate, train
from twellviz.training.estimate import parameter_shapes
from twellviz.training.settings_file import read_settings, write_settings

TINY = LMConfig(vocab_size=64, d_model=32, d_hidden=128, n_layers=2, n_heads=2, max_seq_len=32)
OPTIONS: dict[str, dict[str, Any]] = {
    "relu": {},
    "l1": {},
    "drelu": {},
    "prosparse": {"peaks": [0.2, 1.0], "ends": [0.25, 0.5], "shift": 0.002},
    "topk": {"share": 0.125, "squared": True},
    "teal": {},
    "cats": {},
    "moe": {"experts": 4, "chosen": 2, "balance_factor": 0.05},
}
SILU = ("teal", "cats", "moe")
# Tokens that follow each other by a rule, so that a tiny model learns them in a few steps.
TEXT = (np.cumsum(np.random.default_rng(2).integers(1, 3, 4000)) % 64).astype(np.uint16)


def config_of(name: str, **changes: Any) -> LMConfig:
    activation = "silu" if name in SILU else "relu"
    return replace(TINY, sparsifier=name, sparsifier_options=OPTIONS[name], activation=activation, **changes)


def settings(name: str, **changes: Any) -> TrainConfig:
    l1 = 1e-3 if sparsifier(name).penalised else 0.0
    given = {"steps": 24, "batch_size": 4, "lr": 1e-2, "lr_warmup_steps": 4, "device": "cpu", "threads": 1}
    return TrainConfig(model=config_of(name), l1_coefficient=l1, **{**given, **changes})


def run(config: TrainConfig, **options: Any) -> Any:
    return train(config, train_tokens=TEXT, validation_tokens=TEXT[:200], progress=False, **options)


def block_of(name: str, *, threshold: float = 0.02, n_hidden: int = 300, **options: Any) -> Any:
    cfg = replace(config_of(name), d_hidden=n_hidden, init_std=0.3, sparsifier_options=options or OPTIONS[name])
    block = cfg.method.make_block(cfg)
    if isinstance(block, ThresholdBlock):
        block.set_threshold(threshold)
    return block


# The parts of the interface


def test_every_method_says_where_it_is_from_and_keeps_the_trunk() -> None:
    torch.manual_seed(0)
    first = dict(LM(TINY).named_parameters())
    for name in METHODS:
        method = sparsifier(name, OPTIONS[name])
        assert method.name == name
        assert "arXiv" in method.paper or "ICML" in method.paper
        assert (type(method).__doc__ or "").count(method.paper.split(",")[0]) or "Nair" in method.paper
        torch.manual_seed(0)
        model = LM(config_of(name))
        assert LM.estimate_parameters(model.cfg) == model.num_parameters()
        assert sum(math.prod(shape) for shape in parameter_shapes(model.cfg)) == model.num_parameters()
        weights = dict(model.named_parameters())
        # The same seed gives the same trunk, so that methods differ in nothing else.
        assert all(torch.equal(weights[key], tensor) for key, tensor in first.items())
        assert json.loads(json.dumps(model.cfg.to_dict())) == model.cfg.to_dict()
        hash(model.cfg)


def test_the_default_is_the_block_and_the_penalty_that_were_there() -> None:
    assert (
        LMConfig.from_dict({name: value for name, value in TINY.to_dict().items() if "sparsifier" not in name}) == TINY
    )
    assert type(LM(TINY).layers[0].ffn) is GatedFFN
    config = TrainConfig(model=TINY, l1_coefficient=0.5, l1_start_step=2, l1_full_step=6)
    assert [config.l1_at(step) for step in range(8)] == [0, 0, 0, 0.125, 0.25, 0.375, 0.5, 0.5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sparsifier": "topp"}, "sparsifier='topp': choose one of relu, l1, drelu"),
        ({"sparsifier_options": {"share": 0.1}}, "l1 has no option share; it has none"),
        ({"sparsifier": "topk", "sparsifier_options": {"k": 3}}, "topk has no option k; known are share, squared"),
        ({"sparsifier": "topk", "sparsifier_options": [1]}, "a mapping of option names"),
        ({"sparsifier": "topk", "sparsifier_options": {"share": 0}}, "share=0: a number above 0 to below 1"),
        ({"sparsifier": "topk", "sparsifier_options": {"share": True}}, "share=True"),
        ({"sparsifier": "topk", "sparsifier_options": {"squared": 1}}, "squared=1: True or False"),
        ({"sparsifier": "topk", "sparsifier_options": {"squared": True}, "activation": "silu"}, "squared=True with"),
        ({"sparsifier": "topk", "gated": False}, "sparsifier='topk' with gated=False"),
        ({"sparsifier": "drelu", "activation": "silu"}, "sparsifier='drelu' with activation='silu'"),
        ({"sparsifier": "relu", "activation": "silu"}, "sparsifier='relu' with activation='silu'"),
        ({"sparsifier": "prosparse", "sparsifier_options": {"peaks": []}}, "one number a stage"),
        ({"sparsifier": "prosparse", "sparsifier_options": {"peaks": [1.0]}}, "one of each for every stage"),
        ({"sparsifier": "prosparse", "sparsifier_options": {"peaks": [0.5, 0.1, 1]}}, "never fall"),
        ({"sparsifier": "prosparse", "sparsifier_options": {"ends": [0.5, 0.5, 1]}}, "rising shares"),
        ({"sparsifier": "prosparse", "sparsifier_options": {"shift": -1}}, "shift=-1: a number of at least 0"),
        ({"sparsifier": "moe", "sparsifier_options": {"experts": 3}}, "experts=3: a divisor of d_hidden=128"),
        ({"sparsifier": "moe", "sparsifier_options": {"experts": 2, "chosen": 3}}, "at most experts=2"),
    ],
)
def test_wrong_settings_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(TINY, **change)


def test_a_penalty_where_the_method_has_none_is_refused() -> None:
    for name in ("relu", "topk", "teal", "cats", "moe"):
        with pytest.raises(ConfigError, match=f"l1_coefficient=0.003 with sparsifier='{name}'"):
            TrainConfig(model=config_of(name))
    with pytest.raises(ConfigError, match="whose stages are the warm-up"):
        TrainConfig(model=config_of("prosparse"), l1_full_step=5)


# Each method's own property


def test_relu_alone_and_drelu_by_hand() -> None:
    x = torch.randn(50, 32)
    block = block_of("drelu")
    assert isinstance(block, DReLUBlock)
    gate, up = F.linear(x, block.gate_weight), F.linear(x, block.up_weight)
    active, h = block.hidden(x)
    torch.testing.assert_close(h, gate.clamp(min=0) * up.clamp(min=0))
    either = (gate <= 0) | (up <= 0)
    assert (h[either] == 0).all()
    assert (h[~either] > 0).all()
    assert torch.equal(block.is_active(active), ~either)
    assert 0.2 < (~either).float().mean() < 0.3
    plain = block_of("relu")
    plain.load_state_dict(block.state_dict())
    # The pattern of the gate contains that of dReLU.
    assert not (block.is_active(active) & ~plain.is_active(plain.hidden(x)[0])).any()
    assert torch.isnan(block(torch.full((1, 32), torch.nan))).all()


@pytest.mark.parametrize("squared", [False, True])
def test_topk_keeps_exactly_k(squared: bool) -> None:
    cfg = config_of("topk", d_hidden=300)
    block = TopKBlock(cfg, k=17, squared=squared)
    x = torch.randn(64, 32)
    gate, h = block.hidden(x)
    assert (block.is_active(gate).sum(1) == 17).all()
    assert ((h != 0).sum(1) == 17).all()
    z = F.linear(x, block.gate_weight).relu()
    everything = (z * z if squared else z) * F.linear(x, block.up_weight)
    torch.testing.assert_close(
        h, torch.where(everything.abs() >= everything.abs().topk(17).values[:, -1:], everything, 0)
    )
    assert int(block.forward_with_stats(x)[1].l0) == 17
    silu = TopKBlock(replace(cfg, activation="silu", sparsifier_options={}), k=17, squared=False)
    assert (silu.hidden(x)[1] != 0).sum(1).unique().tolist() == [17]
    # Equal magnitudes do not make it more; where fewer are non-zero, fewer are active.
    assert top_mask(torch.ones(3, 9), 4).sum(1).tolist() == [4, 4, 4]
    few = TopKBlock(cfg, k=250, squared=squared)
    gate, h = few.hidden(x)
    assert (few.is_active(gate).sum(1) == (h != 0).sum(1)).all()
    assert (few.is_active(gate).sum(1) < 250).all()


def test_the_gradient_of_topk_passes_straight_through() -> None:
    h = torch.randn(5, 40, requires_grad=True)
    weights = torch.randn(5, 40)
    mask = top_mask(h.detach().abs(), 3)
    kept = keep(h, mask)
    assert torch.equal(kept, torch.where(mask, h, 0))
    (gradient,) = torch.autograd.grad((kept * weights).sum(), h)
    assert torch.equal(gradient, weights)
    # In the block: gate rows of neurons that were never kept learn as well.
    block = TopKBlock(config_of("topk"), k=1, squared=False)
    x = torch.randn(2, 32)
    active = block.is_active(block.hidden(x)[0]).any(0)
    block(x).sum().backward()
    fires = (F.linear(x, block.gate_weight) > 0).any(0)
    assert (block.gate_weight.grad[fires & ~active].abs().sum(1) > 0).all()
    assert (block.down_weight.grad[~active] == 0).all()


def test_prosparse_schedule() -> None:
    method = ProSparse(peaks=(0.1, 0.4, 1.0), ends=(0.2, 0.6, 0.8), shift=0.01)
    share = [method.share_at(step / 1000) for step in range(1001)]
    assert share[:200] == [0.1] * 200  # the first stage is constant
    assert share[200] == pytest.approx(0.1)
    assert share[400] == pytest.approx(0.25)  # half of the stage, half of the rise
    assert share[300] == pytest.approx(0.1 + 0.3 * (1 - math.cos(math.pi / 4)) / 2)  # a quarter of it
    assert share[600] == pytest.approx(0.4)
    assert share[700] == pytest.approx(0.7)
    assert share[800:] == [1.0] * 201
    rises = np.diff(share)
    assert (rises >= 0).all()
    # Smooth: flat where stages meet, steepest in the middle of each.
    assert max(rises[200], rises[598], rises[600], rises[798]) < 0.05 * rises.max()
    config = TrainConfig(model=config_of("prosparse"), l1_coefficient=0.5, steps=40)
    assert [config.l1_at(step) for step in (0, 9, 10, 15, 20, 39)] == pytest.approx([0.1, 0.1, 0.1, 0.3, 0.5, 0.5])


def test_prosparse_shifts_its_threshold_after_the_last_stage() -> None:
    method = sparsifier("prosparse", {"ends": [0.2, 0.5, 1.0]})
    assert isinstance(method, ProSparse)
    assert method.shift_step(40) == 39
    config = settings("prosparse")
    seen: list[float] = []
    model = LM(config.lm)
    for step in range(config.steps):
        config.lm.method.after_step(model, config, step)
        seen.append(float(model.layers[0].ffn.threshold))  # type: ignore[union-attr,arg-type]
    assert seen == pytest.approx([0.0] * 11 + [0.002] * 13)
    assert float(run(config).model.layers[1].ffn.threshold) == pytest.approx(0.002)


def test_fatrelu_is_relu_at_0_and_drops_small_values_above() -> None:
    block, plain = block_of("prosparse", threshold=0.0), block_of("relu")
    plain.load_state_dict(block.state_dict(), strict=False)
    x = torch.randn(20, 32, requires_grad=True)
    for ours, theirs in zip(
        torch.autograd.grad(block(x).sum(), [x, *block.parameters()]),
        torch.autograd.grad(plain(x).sum(), [x, *plain.parameters()]),
        strict=True,
    ):
        assert torch.equal(ours, theirs)
    assert isinstance(block, FATReLUBlock)
    block.set_threshold(0.5)
    z, gate = F.linear(x, block.gate_weight), block.hidden(x)[0]
    assert torch.equal(gate, torch.where(z > 0.5, z, 0))
    assert torch.isnan(block(torch.full((1, 32), torch.nan))).all()


def test_threshold_for_counts() -> None:
    size = torch.tensor([0.5, 0.1, 0.4, 0.2, 0.3])
    for sparsity, dropped in ((0.0, 0), (0.2, 1), (0.4, 2), (0.41, 3), (0.8, 4), (0.99, 5)):
        assert int((size <= threshold_for(size, sparsity)).sum()) == dropped
    assert threshold_for(torch.arange(1, 11).float(), 0.7) == 7
    for sparsity in (1.0, -0.1, math.nan):
        with pytest.raises(ConfigError, match="sparsity="):
            threshold_for(size, sparsity)
    with pytest.raises(ConfigError, match="size is empty"):
        threshold_for(torch.empty(0), 0.5)


TOLERANCE = 0.015
"""Absolute, on the mean share over layers, on text that was not calibrated on."""


@pytest.mark.parametrize("name", ["teal", "cats"])
@pytest.mark.parametrize("sparsity", [0.5, 0.8])
def test_calibration_hits_its_target_on_held_out_text(name: str, sparsity: float) -> None:
    tokenizer = Tokenizer.load()
    trunk = load_checkpoint(data_path("nano/model.safetensors"))
    # The shipped trunk was trained with ReLU; as SiLU its activations have the two tails that thresholds are for.
    model = on_trunk(trunk, name, activation="silu")
    thresholds = calibrate(model, load_tokens("train", tokenizer), sparsity=sparsity, max_windows=8)
    assert all(value > 0 for value in thresholds)
    held_out = load_tokens("validation", tokenizer)[:4097]
    measured = evaluate(model, held_out, without_ffn=False)
    assert 1 - measured.l0 / 512 == pytest.approx(sparsity, abs=TOLERANCE)
    calibrate(model, held_out, sparsity=0.0, max_windows=2)
    assert evaluate(model, held_out, without_ffn=False).l0 > 511


def test_calibration_of_one_layer_is_exact_on_its_own_text() -> None:
    model = on_trunk(LM(replace(TINY, activation="silu", n_layers=1)), "cats")
    tokens = TEXT[:1024]
    calibrate(model, tokens, sparsity=0.75, max_windows=32)
    (x,) = block_inputs(model, torch.from_numpy(tokens.astype(np.int64)).view(32, 32))
    block = model.layers[0].ffn
    assert isinstance(block, ThresholdBlock)
    assert block.is_active(block.hidden(x)[0]).float().mean() == pytest.approx(0.25, abs=1e-4)
    gate = F.silu(F.linear(x, block.gate_weight))
    assert torch.equal(block.is_active(block.hidden(x)[0]), gate.abs() > block.threshold)


def test_calibration_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="sparsifier='l1', which is not calibrated"):
        calibrate(LM(TINY), TEXT, sparsity=0.5)
    model = on_trunk(LM(TINY), "teal")
    with pytest.raises(ConfigError, match="sparsity=1"):
        calibrate(model, TEXT, sparsity=1)
    with pytest.raises(ConfigError, match="one window of seq_len=32"):
        calibrate(model, TEXT[:20], sparsity=0.5, seq_len=32)


def test_teal_and_cats_drop_what_is_small() -> None:
    x = torch.randn(30, 32)
    for name in ("teal", "cats"):
        block = block_of(name, threshold=0.4)
        gate = F.silu(F.linear(x, block.gate_weight))
        h = gate * F.linear(x, block.up_weight)
        held = h if name == "teal" else gate
        assert torch.equal(block.hidden(x)[1], torch.where(held.abs() > block.threshold, h, 0))
        assert torch.equal(block.is_active(block.hidden(x)[0]), held.abs() > block.threshold)
        assert torch.isnan(block(torch.full((1, 32), torch.nan))).all()


def test_a_router_chooses_exactly_k_experts() -> None:
    block = block_of("moe", n_hidden=320, experts=8, chosen=3)
    assert isinstance(block, ExpertsBlock)
    x = torch.randn(100, 32)
    probability, expert, weight = block.route(x)
    torch.testing.assert_close(probability.sum(1), torch.ones(100))
    torch.testing.assert_close(weight.sum(1), torch.ones(100))
    fires = block.is_active(block.hidden(x)[0]).view(100, 8, 40)
    assert (fires.any(2).sum(1) == 3).all()
    assert fires.sum().item() == 100 * 3 * 40  # SiLU: all neurons of a chosen expert
    assert torch.equal(fires.any(2), torch.zeros(100, 8, dtype=torch.bool).scatter(1, expert, True))
    expected = torch.zeros(100, 32)
    for m in range(100):
        for k in range(3):
            rows = slice(40 * int(expert[m, k]), 40 * (int(expert[m, k]) + 1))
            inner = F.silu(block.gate_weight[rows] @ x[m]) * (block.up_weight[rows] @ x[m])
            expected[m] += weight[m, k] * (inner @ block.down_weight[rows])
    torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(forward_sparse(block, x), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ConfigError, match="ExpertsBlock is not packed"):
        pack_pattern(block, x)


def test_load_balance_by_hand() -> None:
    # Two tokens, three experts, two choices each: shares of the four assignments 2/4, 1/4, 1/4.
    probability = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.1, 0.3]], requires_grad=True)
    expert = torch.tensor([[0, 1], [0, 2]])
    value = load_balance(probability, expert)
    assert value.item() == pytest.approx(3 * (0.5 * 0.55 + 0.25 * 0.2 + 0.25 * 0.25))
    (gradient,) = torch.autograd.grad(value, probability)
    torch.testing.assert_close(gradient, 3 * torch.tensor([0.5, 0.25, 0.25]).expand(2, 3) / 2)
    even = torch.full((4, 4), 0.25)
    assert load_balance(even, torch.arange(4)[:, None]).item() == pytest.approx(1)
    assert load_balance(torch.eye(4)[[1, 1]], torch.tensor([[1], [1]])).item() == pytest.approx(4)


def test_the_balance_term_is_in_the_gradient() -> None:
    model = LM(config_of("moe"))
    tokens = torch.from_numpy(TEXT[:33].astype(np.int64))[None]
    stats = model(tokens[:, :-1], tokens[:, 1:], with_stats=True).stats
    term = model.cfg.method.balance(stats)
    assert term is not None
    assert term.item() == pytest.approx(0.05 * np.mean([layer.balance.item() for layer in stats]))
    (gradient,) = torch.autograd.grad(term, model.layers[0].ffn.router_weight)  # type: ignore[union-attr,arg-type]
    assert gradient.abs().sum() > 0
    # The trainer adds it: without it another step is taken.
    off = settings("moe", steps=2)
    off = replace(off, model=replace(off.lm, sparsifier_options={**OPTIONS["moe"], "balance_factor": 0.0}))
    assert run(settings("moe", steps=2)).history[1]["cross_entropy"] != run(off).history[1]["cross_entropy"]
    assert LM(TINY).cfg.method.balance(LM(TINY)(tokens[:, :-1], with_stats=True).stats) is None


# Kernels


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("way", ["auto", "token", "tile"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_trained_block_runs_through_the_kernels(name: str, way: str, dtype: torch.dtype, trained: Any) -> None:
    model = trained(name)
    tokens = torch.from_numpy(TEXT[:128].astype(np.int64)).view(4, 32)
    rtol = 1e-4 if dtype == torch.float32 else 4e-2
    for layer, x in zip(model.layers, block_inputs(model, tokens), strict=True):
        block = copy.deepcopy(layer.ffn).to(dtype)
        x = x.to(dtype)
        with torch.no_grad():
            dense = block(x)
        sparse = forward_sparse(block, x, way=way)
        assert sparse.dtype == dtype
        torch.testing.assert_close(sparse, dense, rtol=rtol, atol=rtol * dense.float().abs().max().item())
        if isinstance(block, SparseBlock) and not block.packable:
            continue
        packed = pack_pattern(block, x).to_dense()
        gate, _ = block.hidden(x)
        assert torch.equal(packed != 0, block.is_active(gate))


def test_spilled_tiles_of_both_signs_are_exact() -> None:
    block = block_of("teal", threshold=1e-6, n_hidden=600)
    x = torch.randn(40, 32)
    packed = pack_pattern(block, x)
    assert packed.spill_tile.numel() > 0
    with torch.no_grad():
        dense = block(x)
    for way in ("token", "tile"):
        torch.testing.assert_close(forward_sparse(block, x, way=way), dense, rtol=1e-4, atol=1e-3)
    assert forward_sparse(block, x[:0]).shape == (0, 32)
    with pytest.raises(ConfigError, match="way='dense'"):
        forward_sparse(block, x, way="dense")
    with pytest.raises(ConfigError, match="activation='silu' has no exact zeros"):
        forward_sparse(GatedFFN(32, 64, activation="silu"), x)


def test_the_plain_block_without_a_gate_runs_too() -> None:
    cfg = replace(TINY, gated=False)
    block = LM(cfg).layers[0].ffn
    x = torch.randn(10, 32)
    with torch.no_grad():
        torch.testing.assert_close(forward_sparse(block, x, way="token"), block(x), rtol=1e-4, atol=1e-6)  # type: ignore[arg-type]


# Training, files, the command line


@pytest.fixture(scope="module")
def trained() -> Any:
    found: dict[str, LM] = {}

    def get(name: str) -> LM:
        if name not in found:
            model = run(settings(name)).model
            if model.cfg.method.calibrated:
                calibrate(model, TEXT, sparsity=0.6)
            found[name] = model
        return found[name]

    return get


@pytest.mark.parametrize("name", METHODS)
def test_training_lowers_the_loss(name: str) -> None:
    result = run(settings(name))
    first, last = result.history[0], result.history[-1]
    assert last["cross_entropy"] < first["cross_entropy"] - 0.8
    assert last["l0"] > 0
    assert result.evaluation.loss < first["cross_entropy"] - 0.8
    if name == "topk":
        assert result.evaluation.l0 == pytest.approx(16, abs=0.5)
    if name == "moe":
        assert result.evaluation.l0 == pytest.approx(64, abs=0.5)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_goes_through_yaml_and_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    config = settings(name, steps=16, checkpoint_interval=5, out=str(tmp_path / "run"), dead_reinit=0.0)
    (tmp_path / "run.yaml").write_text(write_settings(config, {}))
    read = TrainConfig(**read_settings(tmp_path / "run.yaml"))
    assert read == config
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config

    class BrokenError(RuntimeError):
        pass

    def stop(row: dict[str, float]) -> None:
        if row["step"] == 12:
            raise BrokenError

    with pytest.raises(BrokenError):
        run(read, on_step=stop)
    resumed = run(read, resume=True)
    whole = run(replace(config, out=str(tmp_path / "whole")))
    assert [repr(row["loss"]) for row in resumed.history] == [repr(row["loss"]) for row in whole.history]
    for key, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[key]), key


@pytest.mark.parametrize("name", METHODS)
def test_a_checkpoint_loads_back_with_its_method(name: str, trained: Any, tmp_path: Path) -> None:
    model = trained(name).eval()
    loaded = load_checkpoint(save_checkpoint(model, tmp_path / "model.safetensors"))
    assert loaded.cfg == model.cfg
    tokens = torch.from_numpy(TEXT[:64].astype(np.int64)).view(2, 32)
    assert torch.equal(loaded(tokens).logits_BNV, model(tokens).logits_BNV)
    if name in ("prosparse", "teal", "cats"):
        assert float(loaded.layers[0].ffn.threshold) > 0  # type: ignore[union-attr,arg-type]
    again = run(replace(settings(name, steps=1), model=model.cfg, init=str(tmp_path / "model.safetensors")))
    assert again.history[0]["cross_entropy"] < 3.5


@pytest.mark.parametrize("name", ["topk", "moe", "prosparse"])
def test_accumulation_bfloat16_and_checkpointed_layers(name: str) -> None:
    whole = run(settings(name, steps=3))
    parts = run(settings(name, steps=3, batch_size=2, accumulation=2))
    for one, other in zip(whole.history, parts.history, strict=True):
        # The balance term of a mixture is a product of means, so there parts are not quite the whole.
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-3 if name == "moe" else 1e-5)
    low = settings(name, steps=3, dtype="bfloat16")
    assert [row["loss"] for row in run(low).history] == [
        row["loss"] for row in run(replace(low, checkpoint_activations=True)).history
    ]


def test_a_recorded_trace_shows_the_pattern_of_the_method() -> None:
    trunk = load_checkpoint(data_path("nano/model.safetensors"))
    model = on_trunk(trunk, "topk", share=8 / 512, activation="silu")
    trace = record(model, Tokenizer.load(), "It is a truth universally acknowledged", progress=False)
    assert set(trace.mean_L.tolist()) == {8.0}
    assert trace.max_L.tolist() == [8] * 4


def test_another_method_on_a_trained_trunk(trained: Any) -> None:
    trunk = trained("l1")
    tokens = torch.from_numpy(TEXT[:64].astype(np.int64)).view(2, 32)
    expected = trunk(tokens).logits_BNV
    for name in ("relu", "prosparse", "teal", "cats"):  # thresholds at 0 change nothing
        made = on_trunk(trunk, name)
        torch.testing.assert_close(made(tokens).logits_BNV, expected)
        assert made.training == trunk.training
    made = on_trunk(trunk, "moe", experts=4, chosen=4, activation="relu")
    router = made.layers[0].ffn.router_weight  # type: ignore[union-attr]
    gate = trunk.layers[0].ffn.gate_weight
    torch.testing.assert_close(router, gate.view(4, 32, 32).mean(1) * 32**0.5)  # type: ignore[arg-type]
    assert not torch.equal(made(tokens).logits_BNV, expected)
    with pytest.raises(ConfigError, match="topk has no option nonsense"):
        on_trunk(trunk, "topk", nonsense=1)


def test_the_command_line_names_a_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: {preset: nano, sparsifier: topk, sparsifier_options: {share: 1e-1}}\nl1_coefficient: 0\n")
    assert main(["train", "--config", str(path), "--print-config"]) == 0
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out)
    assert read_settings(printed)["model"].sparsifier_options == {"share": 0.1, "squared": False}
    assert main(["train", "--config", str(path), "--sparsifier", "moe", "--print-config"]) == 0
    assert "experts: 8" in capsys.readouterr().out
    assert main(["train", "--sparsifier", "relu", "--print-config"]) == 2
    assert "set l1_coefficient=0" in capsys.readouterr().err
    stages = "model: {preset: nano, sparsifier: prosparse, sparsifier_options: {peaks: [1e-1, 1], ends: [0.5, 1]}}"
    path.write_text(stages)
    assert read_settings(path)["model"].method == ProSparse(peaks=(0.1, 1.0), ends=(0.5, 1.0))
