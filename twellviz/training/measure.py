"""Loss and activity on held-out text, with the feed-forward blocks and without.

Letters: B sequences, N positions, L layers, H hidden width.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from twellviz.data.tokens import TokenArray
from twellviz.errors import ConfigError
from twellviz.models.config import require_int
from twellviz.models.lm import LM
from twellviz.training.distributed import ALONE, Ranks


@dataclass(frozen=True)
class Evaluation:
    """What a model does on held-out text.

    Attributes
    ----------
    loss : float
        Mean cross-entropy in nats a token.
    loss_without_ffn : float or None
        The same with all feed-forward blocks left out, where it was asked for.
    l0_L : tuple of float
        Mean number of active neurons of a token, per layer.
    dead_L : tuple of float
        Share of neurons that no token fired, per layer.
    n_tokens : int
        Tokens predicted.
    """

    loss: float
    loss_without_ffn: float | None
    l0_L: tuple[float, ...]
    dead_L: tuple[float, ...]
    n_tokens: int

    @property
    def l0(self) -> float:
        """Mean of ``l0_L`` over the layers."""
        return sum(self.l0_L) / len(self.l0_L)

    @property
    def ffn_worth(self) -> float | None:
        """How much the loss rises without the feed-forward blocks."""
        return None if self.loss_without_ffn is None else self.loss_without_ffn - self.loss


@torch.no_grad()
def evaluate(
    model: LM,
    tokens: TokenArray,
    *,
    seq_len: int | None = None,
    batch_size: int = 16,
    max_windows: int | None = None,
    without_ffn: bool = True,
    dtype: str = "float32",
    ranks: Ranks = ALONE,
) -> Evaluation:
    """Measure a model on a text, in windows that do not overlap.

    Parameters
    ----------
    model : LM
    tokens : uint16 or uint32 [n_tokens]
        See :func:`twellviz.data.load_tokens`.
    seq_len : int, optional
        N; the model's ``max_seq_len``, or what the text holds, if not given.
    batch_size : int
        Windows of one pass; decides memory, not the result (up to rounding).
    max_windows : int, optional
        Take this many windows, spread evenly over the text.
    without_ffn : bool
        Measure the loss without the feed-forward blocks too.
    dtype : {"float32", "bfloat16"}
        Of the computation.
    ranks : Ranks
        The processes that share the model and the windows; each must call this, and gets the same numbers.

    Returns
    -------
    Evaluation

    Raises
    ------
    ConfigError
        The text is shorter than one window, or a number is out of range.
    """
    require_int("batch_size", batch_size, least=1)
    if max_windows is not None:
        require_int("max_windows", max_windows, least=1)
    if seq_len is None:
        seq_len = max(1, min(model.cfg.max_seq_len, len(tokens) - 1))
    require_int("seq_len", seq_len, least=1)
    n_windows = (len(tokens) - 1) // seq_len
    if n_windows < 1:
        raise ConfigError(f"seq_len={seq_len}: the text has {len(tokens)} tokens, one window needs {seq_len + 1}")
    take = n_windows if max_windows is None else min(n_windows, max_windows)
    windows = np.arange(take) * n_windows // take

    device = next(model.parameters()).device
    # Sums stay on the device in float64: one wait at the end, and the same result for any batch size.
    loss_sum = torch.zeros((), dtype=torch.float64, device=device)
    without_sum = torch.zeros_like(loss_sum)
    activity_LH = torch.zeros(model.cfg.n_layers, model.cfg.d_hidden, dtype=torch.int64, device=device)
    for first in range(0, take, batch_size * ranks.world):
        several = windows[first : first + batch_size * ranks.world]
        own = several[ranks.share(len(several))]
        # A process without a window runs one too, for the others need its rows of the weights, and does not count it.
        starts = (own if len(own) else several[:1])[:, None] * seq_len
        block = torch.from_numpy(tokens[starts + np.arange(seq_len + 1)].astype(np.int64)).to(device)
        inputs_BN, targets_BN = block[:, :-1], block[:, 1:]
        with autocast(device, dtype), _uncompiled(model):
            output = model(inputs_BN, targets_BN, with_stats=True, with_logits=False)
            loss_sum += output.loss.double() * len(own)
            if len(own):
                activity_LH += torch.stack([stats.activity for stats in output.stats])
            if without_ffn:
                output = model(inputs_BN, targets_BN, skip_ffn=True, with_logits=False)
                without_sum += output.loss.double() * len(own)
    for total in (loss_sum, without_sum, activity_LH):
        ranks.sum_(total)
    n_tokens = take * seq_len
    return Evaluation(
        loss=loss_sum.item() / take,
        loss_without_ffn=without_sum.item() / take if without_ffn else None,
        l0_L=tuple((activity_LH.sum(1).double() / n_tokens).tolist()),
        dead_L=tuple((activity_LH == 0).double().mean(1).tolist()),
        n_tokens=n_tokens,
    )


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[object]:
    """Compute matrix products in bfloat16 where asked for."""
    return torch.autocast(device.type, torch.bfloat16) if dtype == "bfloat16" else nullcontext()


def _uncompiled(model: LM) -> AbstractContextManager[object]:
    """Shapes differ from those of training: compiled layers would be compiled anew for each."""
    compiled = any(getattr(layer, "_compiled_call_impl", None) is not None for layer in model.layers)
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()
