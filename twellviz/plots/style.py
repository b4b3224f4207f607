"""Colours, fonts and axes that all figures share.

Figures that are made here have an explicit white ground and dark text, whatever the theme of the page around
them or the rcParams of the session: a transparent picture would need text that is legible on black and on white
at once. An Axes that is passed in keeps its own ground.

The series colours are those of Okabe and Ito (Color Universal Design, 2008); the scales are viridis and YlGnBu,
which keep their order for colour-blind readers and in grey. Every series also has its own dash and marker.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from twellviz.errors import ConfigError, TraceError
from twellviz.traces.labels import visible
from twellviz.traces.trace import Trace

PALETTE: dict[str, Any] = {
    "ground": "#ffffff",
    "ink": "#1b1b1b",
    "muted": "#5a5f66",
    "grid": "#dddddd",
    "faint": "#b9bdc3",
    "accent": "#d55e00",
    "series": ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    "counts": "viridis",
    "values": "YlGnBu",
}
DASHES: tuple[Any, ...] = ("", (4, 1.5), (1, 1), (3, 1, 1, 1), (5, 1, 1, 1, 1, 1), (2, 2))
MARKERS = ("o", "^", "s", "D", "v", "P")
MAX_SERIES = len(MARKERS)
"""Lines in one picture that a reader can tell apart without colour."""

_FALLBACK_FONTS = (
    *("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans CJK KR", "WenQuanYi Zen Hei", "PingFang SC"),
    *("Hiragino Sans", "Microsoft YaHei", "Malgun Gothic", "Noto Sans Devanagari", "Noto Sans Thai"),
    *("Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Symbols2", "Arial Unicode MS"),
)
# Any: matplotlib's stubs want a literal type for the keys.
_RC: Any = {
    "axes.edgecolor": PALETTE["muted"],
    "axes.facecolor": PALETTE["ground"],
    "axes.labelcolor": PALETTE["ink"],
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": PALETTE["ground"],
    "savefig.facecolor": PALETTE["ground"],
    "text.color": PALETTE["ink"],
    "text.parse_math": False,
    "text.usetex": False,
    "xtick.color": PALETTE["muted"],
    "xtick.labelcolor": PALETTE["ink"],
    "ytick.color": PALETTE["muted"],
    "ytick.labelcolor": PALETTE["ink"],
}


def new_figure(figsize: tuple[float, float]) -> Figure:
    """An empty figure on a white ground, laid out without overlaps."""
    with mpl.rc_context(_RC):
        return plt.figure(figsize=figsize, layout="constrained")


def add_axes(figure: Figure, place: Any = 111) -> Axes:
    """Axes with dark text on a white ground, whatever the session's rcParams."""
    with mpl.rc_context(_RC):
        return figure.add_subplot(place)


def axes_or_new(ax: Axes | None, figsize: tuple[float, float]) -> Axes:
    """``ax`` as given, or the only Axes of a new figure."""
    if ax is None:
        return add_axes(new_figure(figsize))
    if not isinstance(ax, Axes):
        raise ConfigError(f"ax is {type(ax).__name__}: a matplotlib Axes is needed, or None for a new figure")
    return ax


def require_trace(trace: object) -> Trace:
    """``trace`` if it is one, else TraceError."""
    if not isinstance(trace, Trace):
        raise TraceError(
            f"trace is {type(trace).__name__}: give a twellviz.traces.Trace, from record(...) or Trace.load(path)"
        )
    return trace


def grid(ax: Axes, axis: Any = "both") -> None:
    """Faint lines behind the data."""
    ax.grid(visible=True, axis=axis, color=PALETTE["grid"], linewidth=0.6)
    ax.set_axisbelow(True)


def legend(ax: Axes, **options: Any) -> None:
    """A legend with dark text on white, where there is something to tell apart."""
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        shown = ax.legend(
            handles,
            labels,
            facecolor=PALETTE["ground"],
            edgecolor=PALETTE["grid"],
            labelcolor=PALETTE["ink"],
            **options,
        )
        shown.set_zorder(10)


def literal(*texts: Text) -> None:
    """Show texts as they are: no formulas, and fonts that have the characters."""
    for text in texts:
        text.set_parse_math(False)
        text.set_usetex(False)
        text.set_fontfamily(list(_installed_fonts()))


def drawable(text: str) -> str:
    """``text`` with visible marks, and escapes for characters that no installed font can draw."""
    return "".join(character if _has_glyph(character) else _code(character) for character in visible(text))


def spread(n: int, most: int) -> list[int]:
    """Up to ``most`` of the numbers 0 to n - 1, evenly spread, both ends included."""
    return sorted({round(place) for place in np.linspace(0, n - 1, min(n, most)).tolist()})


def chosen_layers(layers: Sequence[int] | None, n_layers: int) -> list[int]:
    """The layers to draw: those asked for, or up to six, evenly spread.

    Raises
    ------
    ConfigError
        A layer that does not exist, or more than can be told apart.
    """
    if layers is None:
        return spread(n_layers, MAX_SERIES)
    found = list(layers)
    if not 1 <= len(found) <= MAX_SERIES:
        raise ConfigError(f"layers={found}: 1 to {MAX_SERIES} layers can be told apart in one picture")
    for layer in found:
        if isinstance(layer, bool) or not isinstance(layer, int | np.integer) or not 0 <= layer < n_layers:
            raise ConfigError(f"layers={found}: there are layers 0 to {n_layers - 1}")
    return [int(layer) for layer in found]


def human_bytes(n_bytes: int) -> str:
    """1536 -> ``1.5 KiB``."""
    amount, units = float(n_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{int(amount)} B" if units[0] == "B" else f"{amount:.1f} {units[0]}"


@lru_cache(maxsize=1)
def _installed_fonts() -> tuple[str, ...]:
    # Naming a font that is not there makes matplotlib warn at each text.
    names = set(font_manager.get_font_names())
    return tuple(font for font in _FALLBACK_FONTS if font in names) or ("sans-serif",)


@lru_cache(maxsize=4096)
def _has_glyph(character: str) -> bool:
    code = ord(character)
    return any(_font(name).get_char_index(code) for name in _installed_fonts())


@lru_cache(maxsize=32)
def _font(name: str) -> Any:
    return font_manager.get_font(font_manager.findfont(name))


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"
