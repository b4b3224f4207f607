"""What all formats share: which entries are kept, which dtypes are held, what happens on overflow.

Letters: M tokens, H hidden width, N kept entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from twell.errors import DtypeError, OptionError, ShapeError

TILE_WIDTH = 256
"""Columns of a tile (paper, section 3: equal to the column tile of the gate product)."""

COMPRESSIONS = (8, 4, 2)
"""A tile of 256 columns becomes 256 / compression words: 32, 64 or 128."""

MAX_NARROW_COLUMNS = 1 << 16
"""Columns that a 16-bit index can name."""

VALUE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Overflow = Literal["spill", "raise", "clip"]
Keep = Literal["positive", "nonzero"]


@dataclass(frozen=True)
class Clipped:
    """What ``overflow="clip"`` threw away; all zero under the other policies.

    Attributes
    ----------
    entries : int
        Active neurons that were not stored.
    rows : int
        Tokens that lost at least one.
    abs_sum : float
        Sum of the absolute values of the lost entries.
    """

    entries: int = 0
    rows: int = 0
    abs_sum: float = 0.0

    def __bool__(self) -> bool:
        return self.entries > 0

    @classmethod
    def of(cls, row_N: Tensor, value_N: Tensor) -> Clipped:
        """Count the entries that are about to be dropped."""
        if row_N.numel() == 0:
            return cls()
        return cls(row_N.numel(), int(torch.unique(row_N).numel()), float(value_N.abs().double().sum()))


def check_overflow(overflow: str) -> None:
    """Raise OptionError unless ``overflow`` names a policy."""
    if overflow not in get_args(Overflow):
        raise OptionError(f'overflow={overflow!r}: choose "spill" (exact, default), "raise" or "clip"')


def check_compression(compression: int) -> None:
    """Raise OptionError unless ``compression`` is one that the format defines."""
    if type(compression) is not int or compression not in COMPRESSIONS:
        raise OptionError(
            f"compression={compression!r}: choose 8, 4 or 2 "
            f"({', '.join(f'{TILE_WIDTH // c - 1} entries a tile at {c}' for c in COMPRESSIONS)})"
        )


def tile_remedy(count: int) -> str:
    """What to do about a tile with ``count`` active neurons that does not fit."""
    fit = [c for c in COMPRESSIONS if TILE_WIDTH // c - 1 >= count]
    smaller = f"compression={max(fit)}, " if fit else ""
    return f'use overflow="spill" (exact), {smaller}or overflow="clip" to drop them'


def check_dense(h_MH: Tensor, name: str = "h_MH") -> Tensor:
    """Return ``h_MH`` contiguous, or say what is wrong with it.

    Raises
    ------
    ShapeError
        Not two axes, or no columns.
    DtypeError
        Not float32, bfloat16 or float16.
    """
    if not isinstance(h_MH, Tensor):
        raise DtypeError(f"{name} is a {type(h_MH).__name__}: pass a torch tensor (torch.from_numpy makes one)")
    if h_MH.ndim != 2:
        raise ShapeError(
            f"{name} has shape {tuple(h_MH.shape)}: two axes (tokens, hidden) are needed; flatten batch and "
            "sequence with reshape(-1, H)"
        )
    if h_MH.shape[1] == 0:
        raise ShapeError(f"{name} has shape {tuple(h_MH.shape)}: the hidden width must be at least 1")
    check_dtype(h_MH, name)
    check_layout(h_MH, name)
    return h_MH.detach().contiguous()


def check_layout(array: Tensor, name: str) -> None:
    """Raise DtypeError unless ``array`` has its values in memory, row by row.

    Sparse and nested tensors are for ``to_dense()`` first; tensors on "meta" have no values.
    """
    if array.layout != torch.strided or array.is_nested:
        raise DtypeError(f"{name} has layout {array.layout}: a dense tensor is needed; convert with .to_dense()")
    if array.is_meta:
        raise DtypeError(f'{name} is on "meta" and has no values: create it on a device that holds them')


def check_dtype(array: Tensor, name: str) -> None:
    """Raise DtypeError unless ``array`` has a dtype that the formats hold."""
    if array.dtype not in VALUE_DTYPES:
        raise DtypeError(
            f"{name} has dtype {array.dtype}: float32, bfloat16 or float16 are held; convert with .to(torch.float32)"
        )


def kept(h_MH: Tensor, keep: str) -> Tensor:
    """Boolean mask of the entries a format stores.

    ``"positive"`` is ReLU: not ``<= 0``, so NaN is kept and -0.0 is not. ``"nonzero"`` keeps signs.
    """
    if keep == "positive":
        return ~(h_MH <= 0)
    if keep == "nonzero":
        return h_MH != 0
    raise OptionError(f'keep={keep!r}: choose "positive" (ReLU, default) or "nonzero"')


def column_dtype(n_columns: int) -> torch.dtype:
    """The narrowest index dtype that names every column: uint16 up to 65,536 columns, else int32."""
    return torch.uint16 if n_columns <= MAX_NARROW_COLUMNS else torch.int32


def short_dtype(dtype: torch.dtype) -> str:
    """``torch.bfloat16`` -> ``bf16``."""
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]


def human_bytes(n_bytes: int) -> str:
    """1536 -> ``1.5 KiB``."""
    if n_bytes < 1024:
        return f"{n_bytes} B"
    amount = float(n_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} TiB"


def tensor_bytes(*arrays: Tensor) -> int:
    """Bytes of the arrays' elements."""
    return sum(array.numel() * array.element_size() for array in arrays)


def density_text(n_active: int, shape: tuple[int, int]) -> str:
    """``14848 active (29.0 a token, 0.51 %)`` for a repr."""
    n_tokens, n_hidden = shape
    per_token = n_active / n_tokens if n_tokens else 0.0
    return f"{n_active} active ({per_token:.1f} a token, {100 * per_token / n_hidden:.2f} %)"


def ratio_text(total: int, dense: int) -> str:
    """``1.4 MiB, dense 5.5 MiB (0.25 of it)`` for a repr."""
    share = total / dense if dense else 0.0
    return f"{human_bytes(total)}, dense {human_bytes(dense)} ({share:.2f} of it)"
