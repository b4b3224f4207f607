"""Checks of what a feed-forward call is given, shared by all backends.

Letters: M tokens, D model width, H hidden width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from twell.errors import DeviceError, DtypeError, ShapeError
from twell.formats import TwELL
from twell.formats._rules import check_dtype


def check_tokens(x_MD: Tensor) -> None:
    """Two axes and a dtype that the formats hold."""
    if not isinstance(x_MD, Tensor):
        raise DtypeError(f"x_MD is a {type(x_MD).__name__}: pass a torch tensor (torch.from_numpy makes one)")
    if x_MD.ndim != 2:
        raise ShapeError(
            f"x_MD has shape {tuple(x_MD.shape)}: two axes (tokens, model width) are needed; flatten batch and "
            "sequence with reshape(-1, D)"
        )
    check_dtype(x_MD, "x_MD")
    if x_MD.layout != torch.strided:
        raise DtypeError(f"x_MD has layout {x_MD.layout}: a dense tensor is needed; convert with .to_dense()")


def check_weight(
    weight_HD: Tensor, name: str, *, width: int | None = None, n_hidden: int | None = None, like: Tensor
) -> None:
    """``weight_HD`` is [H, D], neuron-major, of the dtype and device of ``like``.

    Raises
    ------
    ShapeError, DtypeError, DeviceError
    """
    if not isinstance(weight_HD, Tensor):
        raise DtypeError(f"{name} is a {type(weight_HD).__name__}: pass a torch tensor (torch.from_numpy makes one)")
    shape = tuple(weight_HD.shape)
    if weight_HD.ndim != 2:
        raise ShapeError(f"{name} has shape {shape}: two axes (hidden, model width) are needed")
    if (width is not None and weight_HD.shape[1] != width) or (n_hidden is not None and weight_HD.shape[0] != n_hidden):
        expected = ("H" if n_hidden is None else n_hidden, "D" if width is None else width)
        transposed = (weight_HD.shape[1], weight_HD.shape[0]) == expected
        hint = (
            f"pass {name.removesuffix('_HD')}.T.contiguous()"
            if transposed
            else "each neuron is one row, so a down projection taken from nn.Linear must be transposed"
        )
        raise ShapeError(f"{name} has shape {shape}, expected [{expected[0]}, {expected[1]}]: {hint}")
    if weight_HD.dtype != like.dtype:
        raise DtypeError(
            f"{name} has dtype {weight_HD.dtype}, the tokens {like.dtype}: convert one with .to({like.dtype})"
        )
    if weight_HD.device != like.device:
        raise DeviceError(f"{name} is on {weight_HD.device}, the tokens on {like.device}: move one with .to(device)")


def check_packed(packed: TwELL, *, n_tokens: int, like: Tensor) -> None:
    """``packed`` holds the gate values of the same tokens."""
    if not isinstance(packed, TwELL):
        raise DtypeError(f"packed is a {type(packed).__name__}: pass the TwELL that gate_pack or pack returned")
    if packed.shape[0] != n_tokens:
        raise ShapeError(
            f"packed has {packed.shape[0]} rows, x_MD has {n_tokens}: pack the gate values of the same tokens"
        )
    if packed.value_dtype != like.dtype:
        raise DtypeError(
            f"packed has value dtype {packed.value_dtype}, the weights {like.dtype}: pack values of the same dtype"
        )
    if packed.device != like.device:
        raise DeviceError(f"packed is on {packed.device}, the weights on {like.device}: use one device")
