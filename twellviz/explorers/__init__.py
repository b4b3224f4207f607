"""Look into a trace by hand: choose a layer and a token, see which neurons fire and where else they do."""

from __future__ import annotations

from twellviz.explorers.explorer import Explorer, explore

__all__ = ["Explorer", "explore"]
