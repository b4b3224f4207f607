"""The kernels as torch custom operators, so that autograd, ``torch.compile`` and profilers see them.

==========================  ===========================================================================
``torch.ops.twell``         what it does
==========================  ===========================================================================
``gate_pack``               gate product, ReLU and pack; returns the buffers of a TwELL
``gated_ffn``, ``ffn``      the whole block from the tokens, gated and not; differentiable (twice)
==========================  ===========================================================================

The Python functions of the same names are the ones to call: they check, apply autocast and take the
TwELL object apart and together. ``backend="auto"`` takes the fastest one that the device can run: on a CPU the Numba
kernels, where :mod:`twell.plan` picks the way by the neurons that were really active; on an NVIDIA GPU the kernels of
:mod:`twell.simt`, for whole blocks with torch's own gate product; elsewhere the plain torch reference. ``"hopper"``,
by name only, takes the tensor core kernels of :mod:`twell.tensorcore`.

Letters: M tokens, D model width, H hidden width, T tile width, S words of a tile, K spilled tiles.
"""

from __future__ import annotations

import functools
import logging
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional as F

from twell import cpu, reference
from twell._inputs import check_tokens, check_weight
from twell.cpu.auto import auto_down, auto_ffn
from twell.errors import DeviceError, OptionError
from twell.formats import TILE_WIDTH, Clipped, TwELL
from twell.formats._rules import VALUE_DTYPES, check_compression, check_overflow
from twell.formats.twell import is_wide, n_tiles_of

BACKENDS = ("auto", "dense", "reference", "cpu", "simt", "hopper")

_logger = logging.getLogger("twell")


def check_backend(backend: str) -> None:
    """Raise OptionError unless ``backend`` names one."""
    if backend not in BACKENDS:
        raise OptionError(f"backend={backend!r}: choose one of {', '.join(BACKENDS)}")


def sparse_pays(x_MD: Tensor) -> bool:
    """Whether ``backend="auto"`` runs sparsely: a kernel exists for device and dtype, and no gradient is wanted."""
    return has_kernel(x_MD) and not torch.is_grad_enabled()


def has_kernel(x_MD: Tensor) -> bool:
    """Whether a sparse kernel exists for device and dtype of the tokens, those of an autocast region included."""
    return x_MD.device.type == "cpu" and autocast_arrays(x_MD)[0].dtype in VALUE_DTYPES


def gate_pack(
    x_MD: Tensor, gate_HD: Tensor, *, compression: int = 8, overflow: str = "spill", backend: str = "auto"
) -> TwELL:
    """``relu(x gate^T)`` in TwELL; see :func:`twell.reference.gate_pack`.

    Parameters
    ----------
    x_MD : Tensor, float32, bfloat16 or float16 [M, D]
    gate_HD : Tensor, dtype of ``x_MD`` [H, D]
    compression : {8, 4, 2}
    overflow : {"spill", "raise", "clip"}
    backend : {"auto", "reference", "cpu", "simt", "hopper"}

    Raises
    ------
    ShapeError, DtypeError, DeviceError, OptionError, CapacityError
    """
    check_compression(compression)
    check_overflow(overflow)
    check_tokens(x_MD)
    check_weight(gate_HD, "gate_HD", width=x_MD.shape[1], like=x_MD)
    _check_runs(backend, x_MD)
    words, spill_start, spill_tile, spill_values, lost = torch.ops.twell.gate_pack(
        x_MD, gate_HD, compression, overflow, backend
    )
    return TwELL(
        words=words,
        shape=(x_MD.shape[0], gate_HD.shape[0]),
        value_dtype=x_MD.dtype,
        compression=compression,
        spill_start=spill_start,
        spill_tile=spill_tile,
        spill_values=spill_values,
        clipped=_to_clipped(lost, overflow),
    )


def gated_ffn(
    x_MD: Tensor,
    gate_HD: Tensor,
    up_HD: Tensor,
    down_HD: Tensor,
    *,
    overflow: str = "spill",
    backend: str = "auto",
) -> tuple[Tensor, Clipped]:
    """Gated feed-forward block over the active neurons only: ``(relu(x gate^T) * (x up^T)) down``.

    Parameters
    ----------
    x_MD : Tensor, float32, bfloat16 or float16 [M, D]
    gate_HD, up_HD, down_HD : Tensor, dtype of ``x_MD`` [H, D]
        One row per neuron.
    overflow : {"spill", "raise", "clip"}
    backend : {"auto", "reference", "cpu", "simt", "hopper"}

    Returns
    -------
    y_MD : Tensor, dtype of ``x_MD`` [M, D]
    clipped : Clipped
        What ``overflow="clip"`` dropped; zero otherwise.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, OptionError, CapacityError
    """
    x_MD, gate_HD, up_HD, down_HD = autocast_arrays(x_MD, gate_HD, up_HD, down_HD)
    check_overflow(overflow)
    check_tokens(x_MD)
    check_weight(gate_HD, "gate_HD", width=x_MD.shape[1], like=x_MD)
    for weight_HD, name in ((up_HD, "up_HD"), (down_HD, "down_HD")):
        check_weight(weight_HD, name, width=x_MD.shape[1], n_hidden=gate_HD.shape[0], like=x_MD)
    _check_runs(backend, x_MD)
    _check_gradient(overflow, x_MD, gate_HD, up_HD, down_HD)
    y_MD, lost = torch.ops.twell.gated_ffn(x_MD, gate_HD, up_HD, down_HD, overflow, backend)
    return y_MD, _to_clipped(lost, overflow)


def ffn(
    x_MD: Tensor, up_HD: Tensor, down_HD: Tensor, *, overflow: str = "spill", backend: str = "auto"
) -> tuple[Tensor, Clipped]:
    """Non-gated feed-forward block over the active neurons only: ``relu(x up^T) down``; see :func:`gated_ffn`."""
    x_MD, up_HD, down_HD = autocast_arrays(x_MD, up_HD, down_HD)
    check_overflow(overflow)
    check_tokens(x_MD)
    check_weight(up_HD, "up_HD", width=x_MD.shape[1], like=x_MD)
    check_weight(down_HD, "down_HD", width=x_MD.shape[1], n_hidden=up_HD.shape[0], like=x_MD)
    _check_runs(backend, x_MD)
    _check_gradient(overflow, x_MD, up_HD, down_HD)
    y_MD, lost = torch.ops.twell.ffn(x_MD, up_HD, down_HD, overflow, backend)
    return y_MD, _to_clipped(lost, overflow)


def _check_runs(backend: str, x_MD: Tensor) -> None:
    """An error where the device of the tokens cannot run the backend. Plain enough for ``torch.compile`` to trace."""
    check_backend(backend)
    if backend == "dense":
        raise OptionError('backend="dense": this function is the sparse one; use torch, or twell.nn with "dense"')
    if backend == "cpu" and x_MD.device.type != "cpu":
        raise DeviceError(f'backend="cpu" with tokens on {x_MD.device}: move them with .cpu() or use backend="auto"')


def _module(backend: str, x_MD: Tensor) -> ModuleType:
    """The module that runs a checked backend."""
    device = x_MD.device.type
    if backend == "simt" or (backend == "auto" and device == "cuda" and _gpu_runs(x_MD.device)):
        # Imported here, since numba.cuda takes its time and most calls on a CPU never need it.
        return import_module("twell.simt")
    if backend == "hopper":
        return import_module("twell.tensorcore.hopper.block")
    if backend == "cpu" or (backend == "auto" and device == "cpu"):
        return cpu
    return reference


def _gpu_runs(device: torch.device) -> bool:
    index = torch.cuda.current_device() if device.index is None else device.index
    return _gpu_runs_index(index)


@functools.cache
def _gpu_runs_index(index: int) -> bool:
    """Whether the GPU kernels run on this device; if not, why not goes to the log, once."""
    why = import_module("twell.cuda_target").why_not(torch.device("cuda", index))
    if why:
        _logger.warning("the plain torch reference takes the place of the GPU kernels: %s", why)
    return not why


def _follows_plan(backend: str, x_MD: Tensor) -> bool:
    return backend == "auto" and x_MD.device.type == "cpu"


def _check_gradient(overflow: str, *arrays: Tensor) -> None:
    if overflow == "clip" and torch.is_grad_enabled() and any(array.requires_grad for array in arrays):
        raise OptionError(
            'overflow="clip" where a gradient is wanted: the gradient would be that of the block without clipping; '
            'use "spill", or run under torch.no_grad()'
        )


def _to_clipped(lost: Tensor, overflow: str) -> Clipped:
    # Read back only where something can have been lost: the exact policies stay free of synchronisation.
    if overflow != "clip":
        return Clipped()
    entries, rows, abs_sum = lost.detach().tolist()
    return Clipped(int(entries), int(rows), abs_sum)


def _to_lost(clipped: Clipped, like: Tensor) -> Tensor:
    # On the device of the tokens: a graph with a tensor elsewhere could not be captured.
    if not clipped:
        return _nothing_lost(like)
    return torch.tensor([clipped.entries, clipped.rows, clipped.abs_sum], dtype=torch.float64, device=like.device)


def _nothing_lost(like: Tensor) -> Tensor:
    return torch.zeros(3, dtype=torch.float64, device=like.device)


def _is_simt(module: ModuleType) -> bool:
    return module.__name__ == "twell.simt"


def _is_hopper(module: ModuleType) -> bool:
    return module.__name__ == "twell.tensorcore.hopper.block"


def _after_pack(module: ModuleType) -> ModuleType:
    """What runs up and down on a TwELL: the Hopper kernels have no form of their own for it."""
    return import_module("twell.simt") if _is_hopper(module) else module


def _product(backend: str) -> str:
    """Whose gate product a whole block takes on a GPU: tensor cores are torch's alone."""
    return "simt" if backend == "simt" else "torch"


def autocast_arrays(*arrays: Tensor) -> tuple[Tensor, ...]:
    """The arrays in the dtype of the autocast region around the call, if there is one."""
    device = arrays[0].device.type
    # Other devices, "meta" among them, have no autocast to ask about.
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return arrays
    dtype = torch.get_autocast_dtype(device)
    return tuple(array.to(dtype) for array in arrays)


@torch.library.custom_op("twell::gate_pack", mutates_args=())
def _gate_pack(
    x_MD: Tensor, gate_HD: Tensor, compression: int, overflow: str, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    packed: TwELL = _module(backend, x_MD).gate_pack(x_MD, gate_HD, compression=compression, overflow=overflow)
    return packed.words, packed.spill_start, packed.spill_tile, packed.spill_values, _to_lost(packed.clipped, x_MD)


@_gate_pack.register_fake
def _(
    x_MD: Tensor, gate_HD: Tensor, compression: int, overflow: str, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    n_tokens, n_hidden = x_MD.shape[0], gate_HD.shape[0]
    word_dtype = torch.int64 if is_wide(x_MD.dtype, n_hidden) else torch.int32
    # How many tiles spill is known only once the values are.
    n_spilled = torch.library.get_ctx().new_dynamic_size()
    return (
        x_MD.new_empty(n_tokens, n_tiles_of(n_hidden) * (TILE_WIDTH // compression), dtype=word_dtype),
        x_MD.new_empty(n_tokens + 1, dtype=torch.int64),
        x_MD.new_empty(n_spilled, dtype=torch.int32),
        x_MD.new_empty(n_spilled, TILE_WIDTH),
        x_MD.new_empty(3, dtype=torch.float64),
    )


@torch.library.custom_op("twell::gated_ffn", mutates_args=())
def _gated_ffn(
    x_MD: Tensor, gate_HD: Tensor, up_HD: Tensor, down_HD: Tensor, overflow: str, backend: str
) -> tuple[Tensor, Tensor]:
    module = _module(backend, x_MD)
    if _is_hopper(module) and overflow == "spill":
        return module.gated_ffn(x_MD, gate_HD, up_HD, down_HD), _nothing_lost(x_MD)
    if _is_simt(module) and overflow == "spill":
        y_MD = module.gated_ffn(x_MD, gate_HD, up_HD, down_HD, product=_product(backend))
        return y_MD, _nothing_lost(x_MD)
    packed: TwELL = module.gate_pack(x_MD, gate_HD, overflow=overflow)
    follow = auto_ffn if _follows_plan(backend, x_MD) else _after_pack(module).token_ffn
    return follow(x_MD, packed, up_HD, down_HD), _to_lost(packed.clipped, x_MD)


@_gated_ffn.register_fake
def _(
    x_MD: Tensor, gate_HD: Tensor, up_HD: Tensor, down_HD: Tensor, overflow: str, backend: str
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x_MD, memory_format=torch.contiguous_format), torch.empty(
        3, dtype=torch.float64, device=x_MD.device
    )


def _save_gated(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs[:4])


def _gated_backward(ctx, dy_MD: Tensor, _lost):  # type: ignore[no-untyped-def]
    """Gradients by the dense formulas, in differentiable torch: right for every input, and twice."""
    x_MD, gate_HD, up_HD, down_HD = ctx.saved_tensors
    gate_MH = F.relu(F.linear(x_MD, gate_HD))
    up_MH = F.linear(x_MD, up_HD)
    dh_MH = F.linear(dy_MD, down_HD)
    dgate_MH = torch.where(gate_MH <= 0, 0, dh_MH * up_MH)
    dup_MH = dh_MH * gate_MH
    dx_MD = dgate_MH @ gate_HD + dup_MH @ up_HD
    return dx_MD, dgate_MH.T @ x_MD, dup_MH.T @ x_MD, (gate_MH * up_MH).T @ dy_MD, None, None


_gated_ffn.register_autograd(_gated_backward, setup_context=_save_gated)


@torch.library.custom_op("twell::ffn", mutates_args=())
def _ffn(x_MD: Tensor, up_HD: Tensor, down_HD: Tensor, overflow: str, backend: str) -> tuple[Tensor, Tensor]:
    module = _module(backend, x_MD)
    if _is_hopper(module) and overflow == "spill":
        return module.ffn(x_MD, up_HD, down_HD), _nothing_lost(x_MD)
    if _is_simt(module) and overflow == "spill":
        return module.ffn(x_MD, up_HD, down_HD, product=_product(backend)), _nothing_lost(x_MD)
    packed: TwELL = module.gate_pack(x_MD, up_HD, overflow=overflow)
    follow = auto_down if _follows_plan(backend, x_MD) else _after_pack(module).token_down
    return follow(packed, down_HD), _to_lost(packed.clipped, x_MD)


@_ffn.register_fake
def _(x_MD: Tensor, up_HD: Tensor, down_HD: Tensor, overflow: str, backend: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x_MD, memory_format=torch.contiguous_format), torch.empty(
        3, dtype=torch.float64, device=x_MD.device
    )


def _save_plain(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs[:3])


def _plain_backward(ctx, dy_MD: Tensor, _lost):  # type: ignore[no-untyped-def]
    x_MD, up_HD, down_HD = ctx.saved_tensors
    h_MH = F.relu(F.linear(x_MD, up_HD))
    dh_MH = torch.where(h_MH <= 0, 0, F.linear(dy_MD, down_HD))
    return dh_MH @ up_HD, dh_MH.T @ x_MD, h_MH.T @ dy_MD, None, None


_ffn.register_autograd(_plain_backward, setup_context=_save_plain)
