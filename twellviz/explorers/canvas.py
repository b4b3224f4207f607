"""The widget around the canvas module: bytes in, the chosen row and column out."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import anywidget
import traitlets

from twellviz.explorers.charts import json_bytes


@cache
def module_text() -> str:
    """The canvas module's source; a saved page has it inside."""
    return files("twellviz.explorers").joinpath("dense.js").read_text(encoding="utf-8")


@cache
def style_text() -> str:
    """Its styles."""
    return files("twellviz.explorers").joinpath("dense.css").read_text(encoding="utf-8")


class CanvasView(anywidget.AnyWidget):
    """One dense view. Keys and mouse move ``row`` and ``col``; ``on_msg`` hears of cells that are turned over.

    Attributes
    ----------
    spec : bytes
        JSON in UTF-8, as ``Grid.spec`` and ``Lines.spec`` give it.
    values : bytes
        float32, little endian.
    row, col : int
        What is chosen.
    """

    _esm = module_text()
    _css = style_text()
    spec = traitlets.Bytes().tag(sync=True)
    values = traitlets.Bytes().tag(sync=True)
    row = traitlets.Int(0).tag(sync=True)
    col = traitlets.Int(0).tag(sync=True)

    def show(self, data: Any, row: int, col: int) -> None:
        """Draw other data, with a row and column chosen, in one message; only what differs is sent."""
        with self.hold_sync():
            self.spec = json_bytes(data.spec())
            self.values = data.values().astype("<f4").tobytes()
            self.row, self.col = row, col

    def move(self, row: int, col: int) -> None:
        """Choose a row and a column, in one message."""
        with self.hold_sync():
            self.row, self.col = row, col

    def __repr__(self) -> str:
        return f"CanvasView of {len(self.values) // 4} values"
