"""Figures of traces, training runs, sparsifiers, packed layouts and rooflines.

Axes-level functions are called as ``f(data, *, ax=None, ...)`` and return the Axes; the figure-level ones,
:func:`training_curves` and :func:`compare_layouts`, return the Figure. The numbers behind a picture come from a
function of their own (``*_table``), and :func:`describe` says in a sentence what a picture shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twellviz._lazy import lazy

if TYPE_CHECKING:
    from twellviz.plots.activations import activation_map
    from twellviz.plots.alternative import describe
    from twellviz.plots.heatmap import heatmap_table, layer_token_heatmap
    from twellviz.plots.layouts import (
        compare_layouts,
        dense_layout,
        ell_layout,
        hybrid_layout,
        tile_union_layout,
        twell_layout,
    )
    from twellviz.plots.methods import pareto, speed_by_method
    from twellviz.plots.profiles import layer_profile, layer_profile_table, position_profile, position_profile_table
    from twellviz.plots.roof import roofline, roofline_table
    from twellviz.plots.several_gpus import memory_parts, memory_table, sharding, sharding_table
    from twellviz.plots.slots import bytes_table, layout_table
    from twellviz.plots.style import PALETTE
    from twellviz.plots.sweep import loss_by_sparsity, sparsity_by_coefficient
    from twellviz.plots.training import dead_curve, l0_curve, loss_curve, training_curves, training_table

_WHERE = {
    "PALETTE": "style",
    "activation_map": "activations",
    "bytes_table": "slots",
    "compare_layouts": "layouts",
    "dead_curve": "training",
    "dense_layout": "layouts",
    "describe": "alternative",
    "ell_layout": "layouts",
    "heatmap_table": "heatmap",
    "hybrid_layout": "layouts",
    "l0_curve": "training",
    "layer_profile": "profiles",
    "layer_profile_table": "profiles",
    "layer_token_heatmap": "heatmap",
    "layout_table": "slots",
    "loss_by_sparsity": "sweep",
    "loss_curve": "training",
    "memory_parts": "several_gpus",
    "memory_table": "several_gpus",
    "pareto": "methods",
    "position_profile": "profiles",
    "position_profile_table": "profiles",
    "roofline": "roof",
    "roofline_table": "roof",
    "sharding": "several_gpus",
    "sharding_table": "several_gpus",
    "sparsity_by_coefficient": "sweep",
    "speed_by_method": "methods",
    "tile_union_layout": "layouts",
    "training_curves": "training",
    "training_table": "training",
    "twell_layout": "layouts",
}

__all__ = [
    "PALETTE",
    "activation_map",
    "bytes_table",
    "compare_layouts",
    "dead_curve",
    "dense_layout",
    "describe",
    "ell_layout",
    "heatmap_table",
    "hybrid_layout",
    "l0_curve",
    "layer_profile",
    "layer_profile_table",
    "layer_token_heatmap",
    "layout_table",
    "loss_by_sparsity",
    "loss_curve",
    "memory_parts",
    "memory_table",
    "pareto",
    "position_profile",
    "position_profile_table",
    "roofline",
    "roofline_table",
    "sharding",
    "sharding_table",
    "sparsity_by_coefficient",
    "speed_by_method",
    "tile_union_layout",
    "training_curves",
    "training_table",
    "twell_layout",
]

__getattr__ = lazy(__name__, _WHERE)
