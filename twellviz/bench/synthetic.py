"""Layers with synthetic weights whose activity is as uneven as that of a trained model.

Plain random gates are half active and measure nothing. Here feature 0 of every token is close to 1, and each
neuron's gate row carries a threshold on it: a share of the neurons is dead and the others fire with log-normally
distributed rates, scaled so that a token fires a given number of neurons on average.

Letters: M tokens, D model width, H hidden width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from twellviz.errors import ConfigError

DEAD_SHARE = 0.3
"""Neurons that never fire (paper, section 4: more than 30 % at the recommended penalty)."""
RATE_SIGMA = 1.0
"""Spread of the logarithm of the neurons' firing rates."""
ROW_SIGMA = 0.1
"""Spread of feature 0, which makes some tokens fire many more neurons than others."""

MARGIN = 1e-5
"""Least distance of a pre-activation from zero; a float32 sum of products of this size is off by about 1e-6."""


class Layer(NamedTuple):
    """Tokens and weights of one block: x [M, D] and gate, up, down [H, D]."""

    x_MD: Tensor
    gate_HD: Tensor
    up_HD: Tensor
    down_HD: Tensor


def make_layer(
    tokens: int, width: int, hidden: int, density: float, *, dtype: torch.dtype, seed: int, device: str = "cpu"
) -> Layer:
    """Draw a layer that fires ``density`` neurons a token on average, measured in fp32 before rounding to ``dtype``;
    no pre-activation is within rounding of zero. Another device draws other numbers from the same seed.

    Raises
    ------
    ConfigError
        A size is below its least value, or so few neurons cannot fire ``density`` of them.
    """
    for name, size, least in (("tokens", tokens, 1), ("width", width, 2), ("hidden", hidden, 1)):
        if size < least:
            raise ConfigError(f"{name}={size}: at least {least} is needed")
    highest = 0.5 * (1 - DEAD_SHARE) * hidden
    if not 0 < density <= highest:
        raise ConfigError(
            f"density={density:g}: above 0 and at most {highest:g} active neurons of {hidden} are possible"
        )
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    x_MD = normal(tokens, width)
    x_MD[:, 0] = 1 + ROW_SIGMA * normal(tokens)
    gate_HD = normal(hidden, width) / (width - 1) ** 0.5
    gate_HD[:, 0] = 0
    rate_H = torch.exp(RATE_SIGMA * normal(hidden))
    rate_H[torch.rand(hidden, generator=generator, device=device) < DEAD_SHARE] = 0
    z_MH = x_MD @ gate_HD.T
    # More of the scale means more activity: bisect its logarithm.
    low, high = -30.0, 10.0
    for _ in range(50):
        middle = (low + high) / 2
        threshold_H = _thresholds(rate_H, middle)
        active = float((z_MH > threshold_H * x_MD[:, :1]).sum()) / tokens
        low, high = (middle, high) if active < density else (low, middle)
    gate_HD[:, 0] = -_thresholds(rate_H, high)
    up_HD, down_HD = (normal(hidden, width) / width**0.5 for _ in range(2))
    layer = Layer(*(array.to(dtype) for array in (x_MD, gate_HD, up_HD, down_HD)))
    _keep_from_zero(layer)
    return layer


def _keep_from_zero(layer: Layer) -> None:
    """Move the thresholds of neurons whose pre-activation is within rounding of zero for some token.

    Whether such a neuron fires depends on the order of summation, so two right kernels could differ there.
    """
    for _ in range(20):
        z_MH = layer.x_MD.double() @ layer.gate_HD.double().T
        undecided_H = (z_MH.abs() < MARGIN).any(0)
        if not undecided_H.any():
            return
        layer.gate_HD[undecided_H, 0] *= 1.01


def _thresholds(rate_H: Tensor, log_scale: float) -> Tensor:
    """Where a standard normal must be exceeded to be so with these rates; far away for dead neurons."""
    probability_H = (rate_H.double() * torch.tensor(log_scale, dtype=torch.float64).exp()).clamp(max=0.5)
    threshold_H = torch.special.ndtri(1 - probability_H)
    return torch.where(rate_H > 0, threshold_H.clamp(max=8), 100.0).float()
