"""Pictures of what a sparsifier does to one neuron: its value over gate and up.

Letters: G and U points along the gate and up axes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from twellviz.plots.style import PALETTE, axes_or_new


def activation_map(h_UG: npt.ArrayLike, *, reach: float = 3.0, title: str = "", ax: Axes | None = None) -> Axes:
    """The hidden activation over the gate and up products, zeros hatched.

    Parameters
    ----------
    h_UG : array [U, G]
        Values at evenly spread gate (columns) and up (rows) products from ``-reach`` to ``reach``.
    reach : float
    title : str
    ax : Axes, optional
    """
    h_UG = np.asarray(h_UG, float)
    ax = axes_or_new(ax, (3.0, 2.8))
    extent = (-reach, reach, -reach, reach)
    most = float(np.abs(h_UG).max()) or 1.0
    ax.imshow(h_UG, origin="lower", extent=extent, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    zero = np.where(h_UG == 0, 1.0, np.nan)
    ax.contourf(zero, levels=[0.5, 1.5], colors=[PALETTE["grid"]], extent=extent, hatches=["////"])
    ax.set(xlabel="gate product", ylabel="up product", title=title)
    return ax


def describe_activation_map(h_UG: npt.ArrayLike, *, reach: float = 3.0, title: str = "") -> str:
    """Alternative text."""
    h_UG = np.asarray(h_UG, float)
    named = f"{title}: " if title else ""
    return (
        f"{named}hidden activation over gate and up products from {-reach:g} to {reach:g}; exactly zero on "
        f"{float((h_UG == 0).mean()):.0%} of the square, negative on {float((h_UG < 0).mean()):.0%}."
    )
