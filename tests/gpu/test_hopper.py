"""The Hopper kernels on a Hopper GPU. Small integers where results must be equal, else the error against fp32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from twell import CapacityError, ops, reference
from twell.errors import DtypeError
from twell.nn import GatedFFN
from twell.tensorcore.hopper import block
from twell.tensorcore.hopper.block import why_not_hopper

from tests.helpers import assert_same_bits
from tests.simt_checks import assert_same_twell, exact_gate, integers

GPU = "cuda"
dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
shapes = pytest.mark.parametrize(
    ("n_tokens", "width", "n_hidden"),
    [(1, 8, 1), (77, 72, 300), (128, 64, 256), (129, 200, 5632), (300, 2048, 600), (1000, 1024, 2816), (65, 33, 257)],
)


@pytest.fixture(autouse=True)
def _hopper_only() -> None:
    if reason := why_not_hopper(torch.device("cuda", torch.cuda.current_device()), torch.bfloat16, 256):
        pytest.skip(reason)


def exact_inputs(n_tokens: int, width: int, n_hidden: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Sums are exact; few neurons fire, but all of token 2's (where there is one), and none of token 1's."""
    x_MD = integers(-2, 3, n_tokens, width, dtype=dtype, device=GPU)
    gate_HD, up_HD, down_HD = (integers(-1, 2, n_hidden, width, dtype=dtype, device=GPU) for _ in range(3))
    x_MD[:, 0], gate_HD[:, 0] = 1, -round(2.3 * width**0.5)
    if n_tokens > 2:
        x_MD[1], x_MD[2, 0] = 0, -8
    return x_MD, gate_HD, up_HD, down_HD


@dtypes
@shapes
@pytest.mark.parametrize("compression", [8, 2])
def test_gate_pack(n_tokens: int, width: int, n_hidden: int, dtype: torch.dtype, compression: int) -> None:
    x_MD, gate_HD, *_ = exact_inputs(n_tokens, width, n_hidden, dtype)
    actual = block.gate_pack(x_MD, gate_HD, compression=compression)
    assert_same_twell(actual, reference.pack(exact_gate(x_MD, gate_HD), compression=compression))


@dtypes
def test_policies_and_nan(dtype: torch.dtype) -> None:
    x_MD, gate_HD, up_HD, down_HD = exact_inputs(200, 64, 600, dtype)
    with pytest.raises(CapacityError, match="row 2"):
        ops.gate_pack(x_MD, gate_HD, overflow="raise", backend="hopper")
    z_MH = exact_gate(x_MD, gate_HD)
    clipped = ops.gate_pack(x_MD, gate_HD, overflow="clip", backend="hopper")
    assert_same_twell(clipped, reference.pack(z_MH, overflow="clip"))
    x_MD[5, 3] = float("nan")
    assert_same_twell(block.gate_pack(x_MD, gate_HD), reference.pack(exact_gate(x_MD, gate_HD)))
    y_MD = block.gated_ffn(x_MD, gate_HD, up_HD, down_HD)
    assert y_MD[5].isnan().all()
    assert not y_MD[torch.arange(200) != 5].isnan().any()


@dtypes
@shapes
@pytest.mark.parametrize("tokens", [128, 64])
def test_blocks(n_tokens: int, width: int, n_hidden: int, dtype: torch.dtype, tokens: int) -> None:
    x_MD, gate_HD, up_HD, down_HD = exact_inputs(n_tokens, width, n_hidden, dtype)
    z_MH = torch.relu(exact_gate(x_MD, gate_HD).double())
    h_MH = (z_MH * (x_MD.double() @ up_HD.double().T)).to(dtype).double()
    scale = (h_MH.abs() @ down_HD.double().abs()).clamp(min=1)
    for expected, actual in (
        (h_MH @ down_HD.double(), block.gated_ffn(x_MD, gate_HD, up_HD, down_HD, block=tokens)),
        (z_MH.to(dtype).double() @ down_HD.double(), block.ffn(x_MD, gate_HD, down_HD, block=tokens)),
    ):
        # Sums of a full token are beyond float32's integers: relative to what was added up, then rounded once.
        error = (actual.double() - expected).abs() / (scale + expected.abs())
        assert float(error.max()) < {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
        again = block.gated_ffn(x_MD, gate_HD, up_HD, down_HD, block=tokens)
        assert_same_bits(again, block.gated_ffn(x_MD, gate_HD, up_HD, down_HD, block=tokens))


@pytest.mark.parametrize(("width", "n_hidden"), [(2048, 5632), (1024, 2816)])
def test_error_is_no_larger_than_dense_bf16(width: int, n_hidden: int) -> None:
    x_MD = torch.randn(1000, width, device=GPU)
    weights = [torch.randn(n_hidden, width, device=GPU) / width**0.5 for _ in range(3)]
    x_MD[:, 0], weights[0][:, 0] = 1, -2.5
    exact = [array.bfloat16() for array in (x_MD, *weights)]
    wide = [array.double() for array in exact]
    z_MH = F.relu(wide[0] @ wide[1].T)
    y_MD = (z_MH * (wide[0] @ wide[2].T)) @ wide[3]
    dense = (F.relu(exact[0] @ exact[1].T) * (exact[0] @ exact[2].T)) @ exact[3]

    def error(actual: Tensor) -> float:
        return float((actual.double() - y_MD).norm() / y_MD.norm())

    for tokens in block.BLOCKS:
        assert error(block.gated_ffn(*exact, block=tokens)) < 1.05 * error(dense)


def test_through_the_operators() -> None:
    x_MD, gate_HD, up_HD, down_HD = exact_inputs(300, 64, 600, torch.bfloat16)
    expected = block.gated_ffn(x_MD, gate_HD, up_HD, down_HD)
    layer = GatedFFN(64, 600, backend="hopper").cuda().bfloat16()
    with torch.no_grad():
        for parameter, value in ((layer.gate_weight, gate_HD), (layer.up_weight, up_HD), (layer.down_weight, down_HD)):
            parameter.copy_(value)
        assert_same_bits(layer(x_MD), expected)
        assert_same_bits(torch.compile(layer, fullgraph=True)(x_MD), expected)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            on_stream = layer(x_MD)
        torch.cuda.current_stream().wait_stream(stream)
        assert_same_bits(on_stream, expected)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = layer(x_MD)
        x_MD.mul_(0)
        graph.replay()
        assert not captured.any()
        x_MD.copy_(exact_inputs(300, 64, 600, torch.bfloat16)[0])
        graph.replay()
        assert_same_bits(captured, layer(x_MD))
        torch.cuda.set_sync_debug_mode("error")
        try:
            layer(x_MD)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    with pytest.raises(DtypeError, match="take bfloat16 and float16"):
        ops.gated_ffn(x_MD.float(), gate_HD.float(), up_HD.float(), down_HD.float(), backend="hopper")


def test_no_tokens() -> None:
    x_MD, gate_HD, up_HD, down_HD = exact_inputs(0, 64, 600, torch.bfloat16)
    assert block.gated_ffn(x_MD, gate_HD, up_HD, down_HD).shape == (0, 64)
    assert block.gate_pack(x_MD, gate_HD).shape == (0, 600)


@pytest.mark.slow
def test_many_tokens() -> None:
    x_MD, gate_HD, up_HD, down_HD = exact_inputs(131_073, 64, 300, torch.bfloat16)
    whole = block.gated_ffn(x_MD, gate_HD, up_HD, down_HD)
    assert_same_bits(whole[-77:], block.gated_ffn(x_MD[-77 - 1024 :], gate_HD, up_HD, down_HD)[-77:])
    actual = block.gate_pack(x_MD, gate_HD)
    assert_same_twell(actual, reference.pack(exact_gate(x_MD, gate_HD)))
