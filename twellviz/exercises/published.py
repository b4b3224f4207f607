"""What the paper's published inference kernels make of a tile that overflows, as a model in a few lines.

The rules are those of the published code (commit 661f1fc, default kernels at compression 8), described in our
words; they explain notebook 03's comparison and are used for nothing else.
Letters: M tokens, H hidden width, T tile width (256), S words of a tile (32).
"""

from __future__ import annotations

import torch
from torch import Tensor

from twellviz.errors import ConfigError

_TILE_WIDTH, _SLOTS = 256, 32


def published_weights(active_MH: Tensor) -> Tensor:
    """How often the published reader adds each active neuron to the token's output.

    The writer gives arrival number a of a tile the slot ``a % 32 + 1``; slot 32 does not exist in the stored
    tile, and later arrivals overwrite earlier ones. The reader takes slots 1 to count by a rotation over
    32 lanes, where lane 0 is the count and adds nothing. Arrivals are taken in column order; on a GPU their
    order varies, which changes which neurons are lost and not how many.

    Parameters
    ----------
    active_MH : Tensor, bool [M, H]

    Returns
    -------
    Tensor, int64 [M, H]
        1 where the result is right for an active neuron, 0 where it is lost, 2 or more where it counts again.

    Raises
    ------
    ConfigError
        ``active_MH`` is not a boolean matrix.
    """
    if active_MH.dtype != torch.bool or active_MH.ndim != 2:
        raise ConfigError(
            f"active_MH is {active_MH.dtype} with {active_MH.ndim} axes: a boolean matrix [tokens, neurons] is needed"
        )
    weight_MH = torch.zeros(active_MH.shape, dtype=torch.int64)
    for first in range(0, active_MH.shape[1], _TILE_WIDTH):
        active_MT = active_MH[:, first : first + _TILE_WIDTH]
        count_M1 = active_MT.sum(1, keepdim=True)
        arrival_MT = active_MT.cumsum(1) - 1
        slot_MT = arrival_MT % _SLOTS + 1
        survives_MT = active_MT & (arrival_MT + _SLOTS >= count_M1) & (slot_MT < _SLOTS)
        # Reads i = 1 .. count land on slot i % 32: slot s is met once for each 32 steps, and once more if
        # the last, incomplete round gets as far as s.
        reads_MT = (count_M1 - slot_MT) // _SLOTS + 1
        weight_MH[:, first : first + _TILE_WIDTH] = torch.where(survives_MT, reads_MT, 0)
    return weight_MH
