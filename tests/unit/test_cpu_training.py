"""The sparse training step: output, L1 and all gradients are those of dense autograd, in less memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from twell import DeviceError, ShapeError
from twell.train_ops import SecondDerivativeError, ffn_train, gated_ffn_train

from tests.helpers import DTYPES, assert_same_bits

L1_SCALE = 0.3


def inputs(m: int, d: int, h: int, *, seed: int = 0, shift: float = 0.0, exact: bool = False) -> list[Tensor]:
    """x, gate, up, down; ``shift`` moves the gate's pre-activation, which sets the density."""
    generator = torch.Generator().manual_seed(seed)
    if exact:
        arrays = [torch.randint(-2, 3, (n, d), generator=generator).float() for n in (m, h, h, h)]
    else:
        arrays = [torch.randn(n, d, generator=generator) for n in (m, h, h, h)]
    x, gate, *_ = arrays
    x[:, 0] = 1.0
    gate[:, 0] += shift
    return arrays


def dense(arrays: list[Tensor], gated: bool) -> tuple[Tensor, Tensor]:
    x, gate, up, down = arrays
    h = F.relu(x @ gate.T)
    if gated:
        h = h * (x @ up.T)
    return h @ down, h.abs().sum() / max(1, len(x))


def sparse(arrays: list[Tensor], gated: bool) -> tuple[Tensor, Tensor, Tensor]:
    x, gate, up, down = arrays
    return gated_ffn_train(x, gate, up, down) if gated else ffn_train(x, gate, down)


def gradients(y: Tensor, l1: Tensor, arrays: list[Tensor], weight_MD: Tensor) -> list[Tensor | None]:
    loss = (y * weight_MD.to(y.dtype)).sum() + L1_SCALE * l1.to(y.dtype)
    return list(torch.autograd.grad(loss, arrays, allow_unused=True))


def compare(arrays: list[Tensor], gated: bool, tolerance: float) -> None:
    """All results against dense autograd in float64, relative to the largest magnitude."""
    weight_MD = torch.randn(arrays[0].shape, generator=torch.Generator().manual_seed(9)).sign()
    ours = [a.clone().requires_grad_() for a in arrays]
    theirs = [a.double().requires_grad_() for a in arrays]
    y, l1, activity = sparse(ours, gated)
    y_dense, l1_dense = dense(theirs, gated)
    assert activity.tolist() == (theirs[0] @ theirs[1].T > 0).sum(0).tolist()
    found = [y, l1, *gradients(y, l1, ours, weight_MD)]
    expected = [y_dense, l1_dense, *gradients(y_dense, l1_dense, theirs, weight_MD)]
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
            continue
        assert one.shape == other.shape
        scale = float(other.detach().abs().max()) if other.numel() else 0.0
        torch.testing.assert_close(one.double(), other, rtol=0, atol=tolerance * scale)


SHAPES = st.tuples(
    st.sampled_from((0, 1, 2, 7, 31, 33)), st.sampled_from((1, 8, 17)), st.sampled_from((1, 255, 256, 257, 513))
)


@settings(max_examples=30, deadline=None)
@given(shape=SHAPES, gated=st.booleans(), shift=st.sampled_from((-100.0, -3.0, 0.0, 100.0)), seed=st.integers(0, 99))
def test_fp32_equals_dense_autograd(shape: tuple[int, int, int], gated: bool, shift: float, seed: int) -> None:
    compare(inputs(*shape, seed=seed, shift=shift), gated, 1e-5)


@settings(max_examples=20, deadline=None)
@given(shape=SHAPES, gated=st.booleans(), shift=st.sampled_from((-2.0, 0.0)), seed=st.integers(0, 99))
def test_small_integers_are_exact(shape: tuple[int, int, int], gated: bool, shift: float, seed: int) -> None:
    arrays = inputs(*shape, seed=seed, shift=shift, exact=True)
    ours, theirs = ([a.to(t).requires_grad_() for a in arrays] for t in (torch.float32, torch.float64))
    y, _, _ = sparse(ours, gated)
    y_dense, _ = dense(theirs, gated)
    assert_same_bits(y.detach(), y_dense.detach().float())
    for one, other in zip(
        torch.autograd.grad(y.sum(), ours, allow_unused=True),
        torch.autograd.grad(y_dense.sum(), theirs, allow_unused=True),
        strict=True,
    ):
        if other is not None:
            assert_same_bits(one, other.float())


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_low_precision_storage(gated: bool, dtype: torch.dtype, tolerance: float) -> None:
    arrays = [a.to(dtype).float() for a in inputs(40, 16, 600, shift=-4.0)]
    weight_MD = torch.ones(40, 16)
    ours = [a.to(dtype).requires_grad_() for a in arrays]
    theirs = [a.clone().requires_grad_() for a in arrays]
    y, l1, _ = sparse(ours, gated)
    assert (y.dtype, l1.dtype) == (dtype, torch.float32)
    y_dense, l1_dense = dense(theirs, gated)
    found = [y, l1, *gradients(y, l1, ours, weight_MD)]
    expected = [y_dense, l1_dense, *gradients(y_dense, l1_dense, theirs, weight_MD)]
    for one, other in zip(found, expected, strict=True):
        if other is not None:
            assert float((one.float() - other).detach().abs().max()) <= tolerance * float(other.detach().abs().max())


def test_the_l1_gradient_is_not_lost_in_low_precision() -> None:
    # Added in bfloat16, a penalty gradient below half a unit in the last place of dh would vanish.
    arrays = [a.to(torch.bfloat16) for a in inputs(8, 16, 64)]

    def up_gradient(scale: float) -> Tensor:
        ours = [a.clone().requires_grad_() for a in arrays]
        y, l1, _ = gated_ffn_train(*ours)
        return torch.autograd.grad(0 * y.sum() + scale * l1, ours)[2].float()

    unit = up_gradient(1.0)
    assert unit.abs().max() > 0
    torch.testing.assert_close(up_gradient(2.0**-20) * 2**20, unit, rtol=0, atol=0)


@pytest.mark.parametrize("gated", [True, False])
def test_bits_repeat(gated: bool) -> None:
    arrays = inputs(70, 24, 900, shift=-2.0)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 1, 2):
            torch.set_num_threads(threads)
            ours = [a.clone().requires_grad_() for a in arrays]
            y, l1, _ = sparse(ours, gated)
            # The gate product is torch's, whose bits may differ between numbers of threads: compared for each.
            results.append([y.detach(), l1.detach(), *torch.autograd.grad(y.sum() + l1, ours, allow_unused=True)])
    finally:
        torch.set_num_threads(before)
    for one, other in ((results[0], results[2]), (results[1], results[3])):
        for a, b in zip(one, other, strict=True):
            if a is not None:
                assert_same_bits(a, b)


def held_bytes(step) -> int:  # type: ignore[no-untyped-def]
    """Bytes that autograd keeps after forward, weights apart, each storage once."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        results = step()
    assert results[0].requires_grad
    return sum(storages.values())


def test_holds_a_third_of_the_memory() -> None:
    x, gate, up, down = inputs(64, 128, 1408, shift=-26.0)
    parameters = [torch.nn.Parameter(w) for w in (gate, up, down)]
    x.requires_grad_()
    ours = held_bytes(lambda: gated_ffn_train(x, *parameters))
    theirs = held_bytes(lambda: dense([x, *parameters], gated=True))
    assert ours <= 0.35 * theirs


def test_backward_twice_and_double_backward() -> None:
    arrays = [a.requires_grad_() for a in inputs(5, 8, 40)]
    y, l1, _ = gated_ffn_train(*arrays)
    loss = y.square().sum() + l1
    first = torch.autograd.grad(loss, arrays, retain_graph=True)
    second = torch.autograd.grad(loss, arrays, create_graph=True)
    for one, other in zip(first, second, strict=True):
        assert_same_bits(one, other.detach())
    with pytest.raises(SecondDerivativeError, match='backend="dense"'):
        torch.autograd.grad(second[0].sum(), arrays)


def test_frozen_weights_and_unused_output() -> None:
    x, gate, up, down = inputs(5, 8, 40)
    x.requires_grad_()
    y, l1, _ = gated_ffn_train(x, gate, up, down)
    (only_x,) = torch.autograd.grad(y.sum(), [x], retain_graph=True)
    full = gradients(*dense([x, gate, up, down], gated=True), [x], torch.ones_like(x))
    (from_l1,) = torch.autograd.grad(l1, [x])
    torch.testing.assert_close(only_x + L1_SCALE * from_l1, full[0], rtol=1e-4, atol=1e-4)


def test_nan_reaches_output_and_gradients() -> None:
    x, gate, up, down = inputs(4, 8, 40)
    x[2, 3] = float("nan")
    x.requires_grad_()
    y, l1, activity = gated_ffn_train(x, gate, up, down)
    assert y[2].isnan().all()
    assert y[[0, 1, 3]].isfinite().all()
    assert l1.isnan()
    assert int(activity.min()) >= 1
    (dx,) = torch.autograd.grad(y[[0, 1, 3]].sum(), [x])
    assert dx[[0, 1, 3]].isfinite().all()


def test_operator_registration() -> None:
    for gated in (True, False):
        x, gate, up, down = (a.requires_grad_() for a in inputs(4, 8, 40))
        torch.library.opcheck(torch.ops.twell.train_forward, (x, gate, up if gated else None, down))


def test_bad_input_is_named() -> None:
    x, gate, up, down = inputs(4, 8, 40)
    with pytest.raises(ShapeError, match=r"down_HD .*down\.T\.contiguous"):
        gated_ffn_train(x, gate, up, down.T)
    with pytest.raises(DeviceError, match="CPU"):
        ffn_train(*(a.to("meta") for a in (x, up, down)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_any_count(dtype: torch.dtype) -> None:
    x, gate, up, down = inputs(3, 8, 700)
    gate[:, 0] = 100.0  # every neuron fires on every token: all tiles spill
    arrays = [a.to(dtype) for a in (x, gate, up, down)]
    y, _, activity = gated_ffn_train(*arrays)
    assert (activity == 3).all()
    expected, _ = dense([a.double() for a in arrays], gated=True)
    error = (y.double() - expected).abs().max() / expected.abs().max()
    assert error < {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
