"""Alternative text: what a figure shows, from the same data, for those who do not see it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twellviz.errors import ConfigError
from twellviz.plots import activations, heatmap, layouts, methods, profiles, roof, several_gpus, sweep, training

_SENTENCES: dict[Callable[..., Any], Callable[..., str]] = {
    activations.activation_map: activations.describe_activation_map,
    heatmap.layer_token_heatmap: heatmap.describe_layer_token_heatmap,
    layouts.compare_layouts: layouts.describe_compare_layouts,
    layouts.dense_layout: partial(layouts.describe_layout, "dense"),
    layouts.ell_layout: partial(layouts.describe_layout, "ELL"),
    layouts.hybrid_layout: partial(layouts.describe_layout, "Hybrid"),
    layouts.tile_union_layout: partial(layouts.describe_layout, "TileUnion"),
    layouts.twell_layout: partial(layouts.describe_layout, "TwELL"),
    methods.pareto: methods.describe_pareto,
    methods.speed_by_method: methods.describe_speed_by_method,
    profiles.layer_profile: profiles.describe_layer_profile,
    profiles.position_profile: profiles.describe_position_profile,
    roof.roofline: roof.describe_roofline,
    several_gpus.memory_parts: several_gpus.describe_memory_parts,
    several_gpus.sharding: several_gpus.describe_sharding,
    sweep.loss_by_sparsity: sweep.describe_loss_by_sparsity,
    sweep.sparsity_by_coefficient: sweep.describe_sparsity_by_coefficient,
    training.dead_curve: training.describe_dead_curve,
    training.l0_curve: training.describe_l0_curve,
    training.loss_curve: training.describe_loss_curve,
    training.training_curves: training.describe_training_curves,
}


def describe(plot: Callable[..., Any], data: Any, **options: Any) -> str:
    """Alternative text for a figure.

    Parameters
    ----------
    plot : callable
        A plot function of this package, such as ``plots.layer_profile``.
    data
        What it is called with.
    **options
        Its other options, without ``ax``.

    Returns
    -------
    str
        The main numbers of the picture in a sentence or two.

    Raises
    ------
    ConfigError
        ``plot`` is no plot function of this package.

    Examples
    --------
    >>> import torch
    >>> from twellviz import plots
    >>> plots.describe(plots.dense_layout, torch.eye(2))  # doctest: +ELLIPSIS
    'dense layout of 2 tokens by 2 neurons, 2 active, 100% of 4 slots filled: every value is stored; 16 B, ...'
    """
    if plot not in _SENTENCES:
        names = ", ".join(sorted(known.__name__ for known in _SENTENCES))
        raise ConfigError(f"plot={getattr(plot, '__name__', plot)!r}: choose one of {names}")
    return _SENTENCES[plot](data, **options)
