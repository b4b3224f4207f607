"""Pictures of a recording: which thread touches which cell, at a step, or by barrier epoch.

A cell carries a letter (R read, W written, A atomic) and its thread's number, so that nothing hangs on colour; the
colours are light tints under dark text. Letters: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from twellviz.kernel_trace.cells import CellGrid, cell_grid
from twellviz.kernel_trace.recording import LOCAL
from twellviz.kernel_trace.trace import KernelTrace
from twellviz.plots.style import PALETTE, add_axes, axes_or_new, literal, new_figure

MAX_EPOCHS = 12


def tint(owner: int) -> str:
    """Light colour of an owner; they repeat after eight, the label tells them apart."""
    series = (*PALETTE["series"], "#f0e442", "#999999")
    mixed = [0.42 * part + 0.58 for part in to_rgb(series[owner % len(series)])]
    return "#" + "".join(f"{round(255 * part):02x}" for part in mixed)


UNTOUCHED = "#f4f4f4"


def draw(trace: KernelTrace, array: str, *, ax: Axes | None = None, values: bool = False, **options: Any) -> Axes:
    """Draw an array with the threads that touched its cells.

    Parameters
    ----------
    trace : KernelTrace
    array : str
    ax : Axes, optional
        A new figure if left out.
    values : bool
        Write what each cell holds below its label.
    **options
        ``step``, ``epoch``, ``block``, ``thread``, ``by``, ``width``, ``rows``, ``columns`` as in
        :func:`twellviz.kernel_trace.cells.cell_grid`. With ``step`` the cells of that step have a thick frame.

    Returns
    -------
    Axes
    """
    grid = cell_grid(trace, array, **options)
    ax = axes_or_new(ax, _size(_columns(grid), max(len(grid.rows), 1), values=values))
    _draw_grid(ax, grid, values=values)
    by = options.get("by", "thread")
    legend = f"R read, W written, A atomic, then the {by}"
    if by != "block" and trace.n_blocks > 1 and ":" in "".join(cell.label for row in grid.rows for cell in row):
        legend = f"R read, W written, A atomic, then block:{by}"
    literal(ax.set_xlabel("; ".join((legend, *grid.notices)), fontsize=8, color=PALETTE["muted"]))
    return ax


def draw_arrays(
    trace: KernelTrace, arrays: Sequence[str] | None = None, *, values: bool = True, **options: Any
) -> Figure:
    """Draw several arrays below each other, at the same step.

    Parameters
    ----------
    trace : KernelTrace
    arrays : sequence of str, optional
        All but local ones if left out.
    values : bool
        Write what each cell holds.
    **options
        As for :func:`draw`, without ``ax``.

    Returns
    -------
    Figure
        With one Axes for each array.
    """
    if arrays is None:
        arrays = [name for name in trace.arrays if trace.find_any(name).space != LOCAL]
    grids = [cell_grid(trace, name, **options) for name in arrays]
    sizes = [_size(_columns(grid), max(len(grid.rows), 1), values=values) for grid in grids]
    figure = new_figure((max(width for width, _ in sizes), sum(height - 0.3 for _, height in sizes)))
    places = figure.add_gridspec(len(grids), 1, height_ratios=[height for _, height in sizes])
    widest = max(map(_columns, grids))
    for place, grid in enumerate(grids):
        ax = add_axes(figure, places[place, 0])
        _draw_grid(ax, grid, values=values)
        ax.set_xlim(0, widest)
    return figure


def draw_epochs(trace: KernelTrace, array: str, *, block: int = 0, values: bool = False, **options: Any) -> Figure:
    """Draw an array once for each stretch between barriers, below each other.

    Parameters
    ----------
    trace : KernelTrace
    array : str
    block : int
        Barriers are those of this block.
    values : bool
        Write what each cell holds.
    **options
        As for :func:`draw`, without ``step``, ``epoch`` and ``ax``.

    Returns
    -------
    Figure
        With one Axes for each epoch in which the block touched the array, at most 12.
    """
    storage = trace.find(array, block=block, thread=options.get("thread", 0))
    mine = (trace.storage == storage.id) & (trace.block_of == block)
    epochs = sorted(set(trace.epoch[mine].tolist()))[:MAX_EPOCHS] or [0]
    grids = [cell_grid(trace, array, epoch=epoch, block=block, **options) for epoch in epochs]
    width, height = _size(_columns(grids[0]), max(len(grids[0].rows), 1), values=values)
    figure = new_figure((width, len(epochs) * (height - 0.3)))
    places = figure.add_gridspec(len(epochs), 1)
    for place, grid in enumerate(grids):
        _draw_grid(add_axes(figure, places[place, 0]), grid, values=values)
    return figure


def _columns(grid: CellGrid) -> int:
    return max((len(row) for row in grid.rows), default=1)


def _size(n_columns: int, n_rows: int, *, values: bool) -> tuple[float, float]:
    """Inches of a figure: cells shrink where there are many."""
    width = 0.52 if n_columns <= 20 else 0.4
    height = 0.6 if values else 0.42 if n_rows <= 20 else 0.3
    return 1.3 + width * n_columns, 0.85 + height * n_rows


def _draw_grid(ax: Axes, grid: CellGrid, *, values: bool) -> None:
    texts = []
    for y, row in enumerate(grid.rows):
        for x, cell in enumerate(row):
            face = tint(cell.owner) if cell.owner >= 0 else UNTOUCHED
            ax.add_patch(Rectangle((x, y), 1, 1, facecolor=face, edgecolor="white", linewidth=1))
            if cell.now:
                frame = Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, fill=False, edgecolor=PALETTE["ink"], linewidth=2.2)
                ax.add_patch(frame)
            size = 9 if len(cell.label) < 5 else 7 if len(cell.label) < 7 else 6
            middle = y + (0.32 if values else 0.5)
            style: dict[str, Any] = {"ha": "center", "va": "center", "color": PALETTE["ink"]}
            texts.append(ax.text(x + 0.5, middle, cell.label, fontsize=size, **style))
            if values:
                texts.append(
                    ax.text(x + 0.5, y + 0.72, cell.value, fontsize=7 if len(cell.value) < 6 else 5.5, **style)
                )
    literal(*texts)
    ax.set(xlim=(0, _columns(grid)), ylim=(max(len(grid.rows), 1), 0))
    ax.set_yticks([y + 0.5 for y in range(len(grid.rows))], labels=list(grid.row_labels), fontsize=8)
    ax.set_xticks([])
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    literal(ax.set_title(grid.title, fontsize=10, loc="left", color=PALETTE["ink"]))
