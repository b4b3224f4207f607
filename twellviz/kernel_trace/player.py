"""A recording as a film: a slider over its steps, the arrays as tables. Core ipywidgets only. Letters: none."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import ipywidgets as widgets

from twellviz.errors import ConfigError
from twellviz.kernel_trace.cells import Cell, CellGrid, cell_grid, step_text
from twellviz.kernel_trace.lockstep import steps
from twellviz.kernel_trace.pictures import UNTOUCHED, tint
from twellviz.kernel_trace.recording import LOCAL
from twellviz.kernel_trace.trace import KernelTrace
from twellviz.plots.style import PALETTE

MAX_ARRAYS = 6


class Player(widgets.VBox):  # type: ignore[misc]
    """Slider, buttons and tables of a recording; made by :func:`play`.

    Attributes
    ----------
    slider : IntSlider
        The step; set ``slider.value`` to go to one.
    view : HTML
        What is shown; ``view.value`` is its source.
    """

    def __init__(self, trace: KernelTrace, arrays: Sequence[str], options: dict[str, Any]) -> None:
        self._trace, self._arrays, self._options = trace, tuple(arrays), options
        last = max(steps(trace).n - 1, 0)
        self.slider = widgets.IntSlider(value=0, min=0, max=last, description="step", continuous_update=True)
        run = widgets.Play(value=0, min=0, max=last, interval=600)
        widgets.jslink((run, "value"), (self.slider, "value"))
        self.view = widgets.HTML()
        self.slider.observe(self._show, names="value")
        self._show()
        super().__init__([widgets.HBox([run, self.slider]), self.view])

    @property
    def text(self) -> str:
        """What happens in the step that is shown, in a sentence."""
        if not steps(self._trace).n:
            return f"{self._trace.name} touched no array"
        return step_text(self._trace, self.slider.value)

    def _show(self, _: Any = None) -> None:
        shown = _block_options(self._trace, self.slider.value)
        tables = [
            _table(
                cell_grid(
                    self._trace, name, step=self.slider.value, **_for_array(self._trace, name, shown), **self._options
                )
            )
            for name in self._arrays
            if steps(self._trace).n and _exists(self._trace, name, shown)
        ]
        # Its own ground and ink, so that it reads the same on a light and on a dark page.
        style = f"background:{PALETTE['ground']};color:{PALETTE['ink']};padding:8px;overflow-x:auto"
        self.view.value = (
            f'<div style="{style}"><p aria-live="polite" style="margin:0 0 6px">{escape(self.text)}</p>'
            f"{''.join(tables)}"
            '<p style="margin:6px 0 0;font-size:smaller">R read, W written, A atomic, then the thread; a thick frame '
            "marks the step's cells</p></div>"
        )

    def __repr__(self) -> str:
        return f"Player of {self._trace.name}: {steps(self._trace).n} steps, arrays {', '.join(self._arrays)}"


def play(trace: KernelTrace, arrays: Sequence[str] | None = None, **options: Any) -> Player:
    """Step through a recording in a notebook.

    Parameters
    ----------
    trace : KernelTrace
    arrays : sequence of str, optional
        Which to show, at most 6; all global and shared ones if left out.
    **options
        ``by``, ``width``, ``rows``, ``columns`` as in :func:`twellviz.kernel_trace.cells.cell_grid`. Shared arrays are
        those of the block whose step is shown.

    Returns
    -------
    Player
        Shown by Jupyter when it is the last value of a cell.

    Raises
    ------
    ConfigError
        Too many arrays, or an option that does not exist.
    TraceError
        No such array.
    """
    if arrays is None:
        arrays = [name for name in trace.arrays if trace.find_any(name).space != LOCAL][:MAX_ARRAYS]
    if len(arrays) > MAX_ARRAYS:
        raise ConfigError(f"arrays has {len(arrays)} names: at most {MAX_ARRAYS} fit")
    unknown = sorted(set(options) - {"by", "width", "rows", "columns"})
    if unknown:
        raise ConfigError(f"{unknown[0]}={options[unknown[0]]!r}: play takes by, width, rows and columns")
    for name in arrays:
        trace.find_any(name)
    return Player(trace, arrays, options)


def _block_options(trace: KernelTrace, step: int) -> dict[str, int]:
    """Block and thread of a step."""
    if not steps(trace).n:
        return {"block": 0, "thread": 0}
    order = int(steps(trace).members(step)[0])
    return {"block": int(trace.block_of[order]), "thread": int(trace.thread[order]) % trace.threads_per_block}


def _for_array(trace: KernelTrace, name: str, shown: dict[str, int]) -> dict[str, Any]:
    """Which copy of an array to show; of a global one all blocks are shown."""
    return {} if trace.find_any(name).space == "global" else shown


def _exists(trace: KernelTrace, name: str, shown: dict[str, int]) -> bool:
    """Whether the block has made the array yet."""
    first = trace.find_any(name)
    if first.space == "global":
        return True
    owner = shown["block"] * trace.threads_per_block + shown["thread"]
    return any(
        storage.name == name and (storage.thread == owner if first.space == LOCAL else storage.block == shown["block"])
        for storage in trace.storages
    )


def _table(grid: CellGrid) -> str:
    rows = "".join(
        f'<tr><th scope="row" style="font-weight:normal;padding-right:6px">{escape(label)}</th>'
        f"{''.join(map(_cell, row))}</tr>"
        for label, row in zip(grid.row_labels, grid.rows, strict=True)
    )
    notices = f" ({escape('; '.join(grid.notices))})" if grid.notices else ""
    caption = f'<caption style="text-align:left;caption-side:top;color:inherit">{escape(grid.title)}{notices}</caption>'
    return f'<table style="border-collapse:separate;border-spacing:2px;font:12px monospace">{caption}{rows}</table>'


def _cell(cell: Cell) -> str:
    face = tint(cell.owner) if cell.owner >= 0 else UNTOUCHED
    frame = f"2px solid {PALETTE['ink']}" if cell.now else "2px solid transparent"
    style = f"background:{face};color:{PALETTE['ink']};border:{frame};text-align:center;min-width:34px;padding:1px 2px"
    return f'<td style="{style}">{escape(cell.label) or "&nbsp;"}<br>{escape(cell.value)}</td>'
