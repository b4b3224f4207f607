"""The custom operators and the modules: same numbers as dense torch, on every path and backend."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import twell
from twell import DeviceError, DtypeError, OptionError, ShapeError, TwELL, ops, reference
from twell.cpu import auto
from twell.nn import FFN, GatedFFN
from twell.plan import LayerPlan

from tests.helpers import DTYPES, assert_same_bits, relu_kept, tile_with

BACKENDS = ("reference", "cpu")


def integers(*shape: int, dtype: torch.dtype = torch.float32, low: int = -3, high: int = 4) -> torch.Tensor:
    """Small integers, whose sums are exact in any order."""
    return torch.randint(low, high, shape).to(dtype)


def dense_gated(x, gate, up, down):  # type: ignore[no-untyped-def]
    """The definition in float64, from the gate values that were really stored."""
    g = relu_kept(torch.nn.functional.linear(x, gate)).double()
    return (g * (x.double() @ up.double().T)) @ down.double()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(0, 8, 300), (1, 8, 1), (5, 7, 255), (4, 16, 256), (3, 16, 257), (9, 33, 700)])
def test_blocks_are_exact_on_small_integers(backend: str, shape: tuple[int, int, int]) -> None:
    m, d, h = shape
    x, gate, up, down = integers(m, d), integers(h, d), integers(h, d), integers(h, d)
    y, clipped = ops.gated_ffn(x, gate, up, down, backend=backend)
    assert not clipped
    assert_same_bits(y, dense_gated(x, gate, up, down).float())
    y, _ = ops.ffn(x, up, down, backend=backend)
    assert_same_bits(y, (relu_kept(x @ up.T).double() @ down.double()).float())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_error_against_fp64(backend: str, dtype: torch.dtype) -> None:
    x, gate, up, down = (torch.randn(n, 96).to(dtype) for n in (40, 800, 800, 800))
    expected = dense_gated(x, gate, up, down)
    y, _ = ops.gated_ffn(x, gate, up, down, backend=backend)
    error = float((y.double() - expected).abs().max() / expected.abs().max())
    assert error < {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 6e-4}[dtype]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [30, 31, 32, 33, 64, 256])
def test_overflowing_tiles_are_exact(backend: str, dtype: torch.dtype, count: int) -> None:
    # The identity as gate weight makes x the gate values, so that the tile's count is exactly this one.
    # Divided by 256 the values stay exact in bf16 and the sums inside the range of fp16.
    x = (tile_with(count) / 256).to(dtype)
    eye = torch.eye(512, dtype=dtype)
    up, down = integers(512, 512, dtype=dtype, high=2), integers(512, 512, dtype=dtype, low=0, high=2)
    packed = ops.gate_pack(x, eye, backend=backend)
    assert_same_bits(packed.to_dense(), relu_kept(x))
    assert packed.spill_tile.numel() == (1 if count > 31 else 0)
    y, _ = ops.gated_ffn(x, eye, up, down, backend=backend)
    expected = dense_gated(x, eye, up, down)
    error = float((y.double() - expected).abs().max() / expected.abs().max())
    assert error <= max(1e-6, torch.finfo(dtype).eps)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_and_infinity_pass_through(backend: str) -> None:
    x = torch.randn(4, 16)
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    gate, up, down = (torch.rand(40, 16) for _ in range(3))
    y, _ = ops.gated_ffn(x, gate, up, down, backend=backend)
    assert y[1].isnan().all()
    assert not y[2].isfinite().any()
    assert y[[0, 3]].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_clip_says_what_it_lost(backend: str) -> None:
    x, eye = tile_with(64), torch.eye(512)
    with torch.no_grad():
        _, clipped = ops.gated_ffn(x, eye, eye, eye, overflow="clip", backend=backend)
    assert (clipped.entries, clipped.rows) == (33, 1)
    block = GatedFFN(512, 512, backend=backend, overflow="clip")
    with torch.no_grad():
        block.gate_weight.copy_(eye)
        with pytest.warns(UserWarning, match="dropped 33 active neurons in 1 rows"):
            block(x)
    with pytest.raises(OptionError, match="gradient"):
        block(x)
    with pytest.raises(twell.CapacityError, match="row 0, tile 1 has 64"):
        ops.gate_pack(x, eye, overflow="raise", backend=backend)


@pytest.mark.parametrize("gated", [True, False])
def test_opcheck(gated: bool) -> None:
    x, gate, up, down = (torch.randn(n, 12, requires_grad=True) for n in (3, 300, 300, 300))
    for backend in BACKENDS:
        if gated:
            torch.library.opcheck(torch.ops.twell.gated_ffn, (x, gate, up, down, "spill", backend))
            pack_inputs = (x.detach(), gate.detach(), 8, "spill", backend)
            torch.library.opcheck(torch.ops.twell.gate_pack, pack_inputs)
        else:
            torch.library.opcheck(torch.ops.twell.ffn, (x, up, down, "spill", backend))


@pytest.mark.parametrize("cls", [GatedFFN, FFN])
def test_gradients_and_second_gradients(cls: type) -> None:
    block = cls(5, 30, backend="reference", init_std=0.3)
    twin = cls(5, 30, backend="dense")
    twin.load_state_dict(block.state_dict())
    x = torch.randn(4, 5, requires_grad=True)

    def grads(module: torch.nn.Module) -> list[torch.Tensor]:
        inputs = [x, *module.parameters()]
        first = torch.autograd.grad(module(x).square().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs)
        return [*first, *second]

    for ours, theirs in zip(grads(block), grads(twin), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cls", [GatedFFN, FFN])
def test_module_counts_and_penalises(cls: type) -> None:
    block = cls(8, 40, init_std=1.0)
    x = torch.randn(2, 3, 8)
    y, stats = block.forward_with_stats(x)
    gate, h = block.hidden(x)
    assert y.shape == x.shape
    assert stats.l0.item() == pytest.approx((gate > 0).sum().item() / 6)
    assert stats.l1.item() == pytest.approx(h.abs().sum().item() / 6, rel=1e-5)
    assert stats.activity.tolist() == (gate > 0).sum(0).tolist()
    stats.l1.backward()
    assert block.up_weight.grad.abs().sum() > 0


@pytest.mark.parametrize("cls", [GatedFFN, FFN])
def test_auto_is_sparse_without_gradient_and_equal(cls: type) -> None:
    block = cls(32, 500, init_std=0.3)
    x = torch.randn(6, 32)
    dense = block(x).detach()
    with torch.inference_mode():
        torch.testing.assert_close(block(x), dense, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", ["dense", "token", "tile"])
@pytest.mark.parametrize("gated", [True, False])
def test_every_way_of_auto_is_exact(way: str, gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "plan_for", lambda *_, **__: LayerPlan(way, block=4))
    x, gate, up, down = integers(9, 8), integers(300, 8), integers(300, 8), integers(300, 8)
    if gated:
        y, _ = ops.gated_ffn(x, gate, up, down)
        assert_same_bits(y, dense_gated(x, gate, up, down).float())
    else:
        y, _ = ops.ffn(x, up, down)
        assert_same_bits(y, (relu_kept(x @ up.T).double() @ down.double()).float())
    # A neuron that nobody fires adds nothing, whatever its weights.
    first = gate if gated else up
    first[7] = -1.0
    down[7] = float("inf")
    x = x.abs() + 1
    y = ops.gated_ffn(x, gate, up, down)[0] if gated else ops.ffn(x, up, down)[0]
    assert y.isfinite().all()


def test_a_layer_that_thins_out_trains_sparsely_and_remembers() -> None:
    block = GatedFFN(256, 2048, init_std=0.05)
    with torch.no_grad():
        block.gate_weight[:, 0] = -20.0
    x = torch.randn(512, 256, requires_grad=True)
    assert block.training_way == "dense"
    block.forward_with_stats(x)
    x.data[:, 0] = 1.0  # now almost nothing fires
    block.forward_with_stats(x)
    assert block.training_way == "sparse"
    expected = torch.autograd.grad(block(x).sum(), x)[0]
    y, stats = block.forward_with_stats(x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], expected, rtol=1e-4, atol=1e-5)
    assert stats.l0 < 20

    twin = GatedFFN(256, 2048)
    twin.load_state_dict(block.state_dict())
    assert twin.training_way == "sparse"
    weights = {name: tensor for name, tensor in block.state_dict().items() if name != "plan_state"}
    twin.load_state_dict(weights)
    assert twin.training_way == "dense"

    block.eval()
    before = block.plan_state.clone()
    with torch.no_grad():
        block.forward_with_stats(-x)
    assert_same_bits(block.plan_state, before)
    torch.use_deterministic_algorithms(True)
    try:
        block.train().forward_with_stats(x.detach() * 0 - 1)
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same_bits(block.plan_state, before)


def test_auto_runs_densely_in_a_dtype_without_kernels() -> None:
    block = GatedFFN(256, 2048, dtype=torch.float64)
    with torch.no_grad():
        block.gate_weight[:, 0] = -20.0
    x = torch.randn(512, 256, dtype=torch.float64)
    x[:, 0] = 1.0
    for _ in range(2):  # so sparse that float32 would go sparsely from the second step on
        _, stats = block.forward_with_stats(x)
        stats.l1.backward()
    assert block.training_way == "dense"
    with torch.no_grad():
        assert block(x).dtype == torch.float64


def test_silu_has_nothing_to_skip() -> None:
    block = GatedFFN(8, 20, activation="silu")
    _, stats = block.forward_with_stats(torch.randn(5, 8))
    assert stats.l0.item() == 20
    with pytest.raises(OptionError, match="only ReLU"):
        GatedFFN(8, 20, activation="silu", backend="cpu")


def test_autocast_and_compile_agree_with_eager() -> None:
    block = GatedFFN(16, 300, backend="reference", init_std=0.3)
    x = torch.randn(7, 16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        y = block(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), block(x).detach(), rtol=0.05, atol=0.05)
    with torch.no_grad():
        # The aot_eager backend traces through the fake and autograd registrations without a C++ compiler.
        compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
        assert_same_bits(compiled(x), block(x))


X, W = torch.randn(4, 8), torch.randn(20, 8)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: ops.gate_pack(X[0], W), ShapeError, r"x_MD has shape \(8,\).*reshape"),
        (lambda: ops.gate_pack(X, W.T), ShapeError, r"gate_HD has shape \(8, 20\), expected \[H, 8\]"),
        (lambda: ops.gated_ffn(X, W, W, W.T), ShapeError, r"down_HD .*expected \[20, 8\]: pass down\.T\.contiguous"),
        (lambda: ops.gated_ffn(X, W, W[:10], W), ShapeError, r"up_HD has shape \(10, 8\)"),
        (lambda: ops.gated_ffn(X, W.half(), W, W), DtypeError, "gate_HD has dtype torch.float16"),
        (lambda: ops.gated_ffn(X.double(), W, W, W), DtypeError, "float64"),
        (lambda: ops.ffn(X, W, W, backend="gpu"), OptionError, "gpu.*choose one of"),
        (lambda: ops.ffn(X.to("meta"), W.to("meta"), W.to("meta"), backend="cpu"), DeviceError, "meta"),
        (lambda: ops.ffn(X, W.to("meta"), W), DeviceError, "up_HD is on meta"),
        (lambda: reference.token_ffn(X, TwELL.from_dense(torch.ones(3, 20)), W, W), ShapeError, "3 rows, x_MD has 4"),
        (lambda: reference.token_ffn(X, torch.ones(4, 20), W, W), DtypeError, "pass the TwELL"),
        (lambda: reference.token_down(TwELL.from_dense(torch.ones(3, 20)), W.half()), DtypeError, "value dtype"),
        (lambda: GatedFFN(0, 5), ShapeError, "d_model=0"),
        (lambda: GatedFFN(5, 5, activation="gelu"), OptionError, "gelu"),
        (lambda: GatedFFN(5, 5)(torch.ones(2, 6)), ShapeError, "d_model = 5"),
    ],
)
def test_bad_input_is_named(call, error, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=words):
        call()


def test_importing_creates_no_cuda_context() -> None:
    import subprocess
    import sys

    code = "import twell, twell.nn, torch; assert not torch.cuda.is_initialized()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_process_forked_after_the_kernels_ran_computes_the_same() -> None:
    # Both pools of threads, Numba's and torch's, are unusable there: without care the child dies or waits for ever.
    program = (
        "import os, signal, torch\n"
        "from twell import ops\n"
        "from twell.train_ops import gated_ffn_train\n"
        "torch.manual_seed(0)\n"
        "x, w = torch.randn(300, 256), torch.randn(1200, 256)\n"
        "def both():\n"
        "    with torch.no_grad():\n"
        "        return ops.gated_ffn(x, w, w, w)[0], gated_ffn_train(x, w, w, w)[0]\n"
        "before = both()\n"
        "if os.fork() == 0:\n"
        "    signal.alarm(60)\n"
        "    after = both()\n"
        "    good = all(torch.allclose(a, b, rtol=1e-4, atol=1e-2) for a, b in zip(before, after))\n"
        "    os._exit(0 if good else 3)\n"
        "raise SystemExit(os.waitpid(-1, 0)[1])\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=150, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("backend", ["auto", "dense", "cpu", "reference"])
def test_a_block_names_what_is_no_input(backend: str) -> None:
    block = GatedFFN(4, 8, backend=backend)
    with pytest.raises(DtypeError, match="from_numpy"):
        block([[1.0, 2.0, 3.0, 4.0]])
    with pytest.raises(DtypeError, match="int64"):
        block(torch.ones(2, 4, dtype=torch.int64))


@pytest.mark.parametrize("wrong", [{"d_model": 1.5}, {"d_model": True}, {"d_hidden": "8"}, {"init_std": -1.0}])
def test_a_block_names_a_wrong_size(wrong: dict[str, object]) -> None:
    with pytest.raises((ShapeError, OptionError), match=next(iter(wrong))):
        GatedFFN(**{"d_model": 4, "d_hidden": 8, **wrong})  # type: ignore[arg-type]
