"""``twell.ops`` and ``twell.nn`` on a GPU: dispatch, compilation, export, autocast, checkpointing, gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from twell import CapacityError, ops, reference
from twell.nn import FFN, GatedFFN

from tests.gpu.test_simt_device import TOLERANCE, layer
from tests.helpers import assert_same_bits
from tests.simt_checks import DTYPES, assert_same_twell, exact_gate, product_inputs

GPU = "cuda"
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
backends = pytest.mark.parametrize("backend", ["auto", "simt"])


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    error = (actual.double() - expected.double()).norm() / expected.double().norm()
    assert float(error) < TOLERANCE[dtype]


def call(gated: bool, backend: str) -> Callable[..., Tensor]:
    def run(x_MD: Tensor, gate_HD: Tensor, up_HD: Tensor, down_HD: Tensor) -> Tensor:
        if gated:
            return ops.gated_ffn(x_MD, gate_HD, up_HD, down_HD, backend=backend)[0]
        return ops.ffn(x_MD, gate_HD, down_HD, backend=backend)[0]

    return run


@dtypes
@backends
@pytest.mark.parametrize(("n_tokens", "width", "n_hidden"), [(0, 8, 40), (1, 1, 1), (6, 16, 300), (67, 264, 1000)])
def test_the_ops_equal_the_reference(
    n_tokens: int, width: int, n_hidden: int, dtype: torch.dtype, backend: str
) -> None:
    arrays = product_inputs(n_tokens, width, n_hidden, dtype, GPU)
    packed = reference.pack(exact_gate(*arrays[:2]))
    assert_same_twell(ops.gate_pack(*arrays[:2], backend=backend), packed)
    assert_same_bits(call(True, backend)(*arrays), reference.token_ffn(arrays[0], packed, *arrays[2:]))
    assert_same_bits(call(False, backend)(*arrays), reference.token_down(packed, arrays[3]))


@backends
def test_overflow_policies(backend: str) -> None:
    arrays = product_inputs(6, 16, 300, torch.bfloat16, GPU)
    with pytest.raises(CapacityError, match="row 0, tile 0"):
        ops.gated_ffn(*arrays, overflow="raise", backend=backend)
    y_MD, clipped = ops.gated_ffn(*arrays, overflow="clip", backend=backend)
    packed = reference.pack(exact_gate(*arrays[:2]), overflow="clip")
    assert clipped == packed.clipped
    assert clipped.entries > 0
    assert_same_bits(y_MD, reference.token_ffn(arrays[0], packed, *arrays[2:]))


@dtypes
@backends
@pytest.mark.parametrize("gated", [True, False])
def test_compiled(dtype: torch.dtype, backend: str, gated: bool) -> None:
    arrays = layer(dtype)
    run = call(gated, backend)
    compiled = torch.compile(run, fullgraph=True)
    assert_same_bits(compiled(*arrays), run(*arrays))
    other = layer(dtype, seed=5, n_tokens=97)
    assert_same_bits(compiled(*other), run(*other))


def test_compiled_into_cuda_graphs() -> None:
    arrays = layer(torch.bfloat16)
    run = call(True, "simt")
    compiled = torch.compile(lambda *arrays: run(*arrays) + 1, mode="reduce-overhead", fullgraph=True)
    for seed in range(4):
        fresh = layer(torch.bfloat16, seed=seed)
        for array, value in zip(arrays, fresh, strict=True):
            array.copy_(value)
        torch.compiler.cudagraph_mark_step_begin()
        assert_same_bits(compiled(*arrays), run(*arrays) + 1)


@backends
def test_exported(backend: str) -> None:
    class Module(torch.nn.Module):
        def forward(self, x_MD: Tensor, gate_HD: Tensor, up_HD: Tensor, down_HD: Tensor) -> Tensor:
            return call(True, backend)(x_MD, gate_HD, up_HD, down_HD)

    arrays = layer(torch.bfloat16)
    tokens = torch.export.Dim("tokens", min=2, max=4096)
    program = torch.export.export(Module(), tuple(arrays), dynamic_shapes=({0: tokens}, None, None, None))
    assert any("twell.gated_ffn" in str(node.target) for node in program.graph.nodes)
    other = layer(torch.bfloat16, seed=3, n_tokens=33)
    assert_same_bits(program.module()(*other), call(True, backend)(*other))


@backends
@pytest.mark.parametrize("gated", [True, False])
def test_gradients_and_checkpointing(backend: str, gated: bool) -> None:
    arrays = [array.requires_grad_() for array in layer(torch.float32)]
    used = arrays if gated else [arrays[0], arrays[1], arrays[3]]
    run = call(gated, backend)

    def dense(x_MD: Tensor, gate_HD: Tensor, up_HD: Tensor, down_HD: Tensor) -> Tensor:
        h_MH = torch.relu(x_MD @ gate_HD.T)
        return (h_MH * (x_MD @ up_HD.T) if gated else h_MH) @ down_HD

    found = torch.autograd.grad(run(*arrays).square().sum(), used)
    again = torch.autograd.grad(checkpoint(run, *arrays, use_reentrant=False).square().sum(), used)
    doubles = [array.detach().double().requires_grad_() for array in arrays]
    wanted = doubles if gated else [doubles[0], doubles[1], doubles[3]]
    expected = torch.autograd.grad(dense(*doubles).square().sum(), wanted)
    for one, other, truth in zip(found, again, expected, strict=True):
        assert_same_bits(one, other)
        close(one, truth, torch.float32)


def test_opcheck() -> None:
    arrays = layer(torch.float32, n_tokens=8, width=16, n_hidden=60)
    for array in arrays:
        array.requires_grad_()
    torch.library.opcheck(torch.ops.twell.gated_ffn, (*arrays, "spill", "simt"))
    torch.library.opcheck(torch.ops.twell.ffn, (arrays[0], arrays[1], arrays[3], "spill", "simt"))


@pytest.mark.parametrize("block", [GatedFFN, FFN])
def test_a_module_under_autocast(block: type[GatedFFN | FFN]) -> None:
    torch.manual_seed(0)
    module = block(64, 300, backend="simt", device=GPU)
    x = torch.randn(3, 5, 64, device=GPU)
    with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
        y = module(x)
        module.backend = "dense"
        dense = module(x)
    assert y.dtype == dense.dtype == torch.bfloat16
    close(y, dense, torch.bfloat16)


@dtypes
def test_the_dense_torch_product_spills_without_a_synchronisation(dtype: torch.dtype) -> None:
    arrays = layer(dtype)
    arrays[0][5] *= 0
    arrays[0][7, 0] = -1  # fires nearly all of the neurons
    run = call(True, "auto")
    expected = run(*arrays)
    try:
        torch.cuda.set_sync_debug_mode("error")
        again = run(*arrays)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_same_bits(again, expected)
    gate_MH = torch.relu(arrays[0].double() @ arrays[1].double().T)
    close(expected, (gate_MH * (arrays[0].double() @ arrays[2].double().T)) @ arrays[3].double(), dtype)


def test_another_thread() -> None:
    import threading

    arrays = layer(torch.bfloat16)
    expected = call(True, "simt")(*arrays)
    found: list[Tensor] = []
    threads = [threading.Thread(target=lambda: found.append(call(True, "simt")(*arrays))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    torch.cuda.synchronize()
    for y_MD in found:
        assert_same_bits(y_MD, expected)


def test_importing_creates_no_context() -> None:
    import subprocess
    import sys

    program = (
        "import torch, twell, twell.nn, twell.simt\n"
        "assert not torch.cuda.is_initialized()\n"
        "from numba.cuda.cudadrv.driver import driver\n"
        "assert driver.pid is None\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_the_doctor_finds_the_kernels_well(capsys: pytest.CaptureFixture[str]) -> None:
    from twell import doctor

    doctor.main([])
    out = capsys.readouterr().out
    assert "[ok     ] GPU kernels" in out
    assert "[ok     ] CUDA compiler" in out
