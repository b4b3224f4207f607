"""Thresholds from text: as many small values dropped as asked for, with no training.

Letters: B sequences, N positions, M tokens, D model width, H hidden width.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from twellviz.data.tokens import TokenArray
from twellviz.errors import ConfigError
from twellviz.models.config import require_int
from twellviz.models.lm import LM
from twellviz.sparsifiers.base import require_share
from twellviz.sparsifiers.block import ThresholdBlock


def threshold_for(size: Tensor, sparsity: float) -> float:
    """The smallest of these magnitudes at or below which a share of at least ``sparsity`` of them lies.

    Parameters
    ----------
    size : Tensor, any shape
        Magnitudes; one at least.
    sparsity : float
        From 0 to below 1.

    Returns
    -------
    float
        0 for ``sparsity=0``. Dropping what is ``<=`` it drops that share, rounded up to a whole value, and ties.

    Raises
    ------
    ConfigError

    Examples
    --------
    >>> import torch
    >>> from twellviz.sparsifiers import threshold_for
    >>> threshold_for(torch.tensor([4.0, 1.0, 3.0, 2.0]), 0.5)
    2.0
    """
    require_share("sparsity", sparsity, zero=True)
    if size.numel() == 0:
        raise ConfigError("size is empty: a threshold needs at least one value")
    if sparsity == 0:
        return 0.0
    # A product such as 0.07 * 100, which floating point puts above 7, must not ask for one more.
    place = max(1, int(np.ceil(round(sparsity * size.numel(), 6))))
    return float(size.detach().float().flatten().kthvalue(place).values)


@torch.no_grad()
def calibrate(
    model: LM, tokens: TokenArray, *, sparsity: float, seq_len: int | None = None, max_windows: int = 16
) -> list[float]:
    """Set the threshold of every layer to its quantile on a text; the model must be of ``teal`` or ``cats``.

    Layer by layer from the first, each on what the layers before it write once they are thinned (a choice of ours: with
    thresholds from the dense model the later layers miss the target). On other text the share dropped is near
    ``sparsity``, not equal.

    Parameters
    ----------
    model : LM
    tokens : uint16 or uint32 [n_tokens]
        Text that is not the one on which the model is judged.
    sparsity : float
        Share of the neurons to drop, from 0 to below 1.
    seq_len : int, optional
        N; the model's ``max_seq_len``, or what the text holds, if not given.
    max_windows : int
        Take this many windows, spread evenly over the text. All their magnitudes are held at once: N x H floats a
        window.

    Returns
    -------
    list of float
        The thresholds by layer.

    Raises
    ------
    ConfigError
        The model has no thresholds to calibrate, or the text is too short.
    """
    require_share("sparsity", sparsity, zero=True)
    require_int("max_windows", max_windows, least=1)
    if not model.cfg.method.calibrated:
        raise ConfigError(
            f"model has sparsifier={model.cfg.sparsifier!r}, which is not calibrated: make it of teal or cats "
            '(with_sparsifier(model, "cats"))'
        )
    N = max(1, min(model.cfg.max_seq_len, len(tokens) - 1)) if seq_len is None else seq_len
    n_windows = len(tokens) // N
    if n_windows < 1:
        raise ConfigError(f"tokens has {len(tokens)} entries: one window of seq_len={N} is needed")
    take = min(n_windows, max_windows)
    starts = (np.arange(take) * n_windows // take)[:, None] * N
    tokens_BN = torch.from_numpy(tokens[starts + np.arange(N)].astype(np.int64))

    blocks = [module for module in model.modules() if isinstance(module, ThresholdBlock)]
    for block in blocks:
        block.set_threshold(0.0)
    tokens_BN = tokens_BN.to(next(model.parameters()).device)
    found = []
    for layer, block in enumerate(blocks):
        found.append(threshold_for(block.compared(block_inputs(model, tokens_BN)[layer]), sparsity))
        block.set_threshold(found[-1])
    return found


@torch.no_grad()
def block_inputs(model: LM, tokens_BN: Tensor) -> list[Tensor]:
    """What each layer's feed-forward block reads on these tokens: [M, D] by layer, M = B N.

    Parameters
    ----------
    model : LM
    tokens_BN : Tensor, integer [B, N]
        On the model's device.
    """
    inputs: list[Tensor] = []

    def note(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        inputs.append(arguments[0].detach().flatten(0, -2))

    handles = [layer.get_submodule("ffn").register_forward_pre_hook(note) for layer in model.layers]
    try:
        model(tokens_BN)
    finally:
        for handle in handles:
            handle.remove()
    return inputs
