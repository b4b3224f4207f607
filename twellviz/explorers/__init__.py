"""Look into traces, recordings and layouts by hand; every view live, as a figure, as a page, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twellviz._lazy import lazy
from twellviz.explorers.chart import Chart
from twellviz.explorers.comparison import Comparison, compare
from twellviz.explorers.explorer import Explorer
from twellviz.explorers.opening import explore

if TYPE_CHECKING:
    from twellviz.explorers.layouts import LayoutExplorer, explore_layouts
    from twellviz.kernel_trace.player import Player, play

__all__ = [
    "Chart",
    "Comparison",
    "Explorer",
    "LayoutExplorer",
    "Player",
    "compare",
    "explore",
    "explore_layouts",
    "play",
]

_layouts = lazy(__name__, {"LayoutExplorer": "layouts", "explore_layouts": "layouts"})
_player = lazy("twellviz.kernel_trace", {"Player": "player", "play": "player"})


def __getattr__(name: str) -> object:
    return _player(name) if name in ("Player", "play") else _layouts(name)
