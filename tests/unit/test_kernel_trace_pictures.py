"""Pictures, film and words of a recording: what they say, not how the pixels fall."""

from __future__ import annotations

import re
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import ipywidgets
import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle
from numba import cuda, float32

from twellviz import kernel_trace
from twellviz.errors import ConfigError, TraceError
from twellviz.kernel_trace import KernelTrace, empty, record_kernel
from twellviz.kernel_trace.cells import cell_grid
from twellviz.kernel_trace.pictures import tint
from twellviz.kernel_trace.warps import warp_access


@pytest.fixture(autouse=True)
def _close() -> Any:
    yield
    plt.close("all")


def add_ten(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        out[i] = a[i] + 10


def reverse(out: Any, a: Any) -> None:
    tile = cuda.shared.array((8, 4), float32)
    y, x = cuda.threadIdx.y, cuda.threadIdx.x
    tile[y, x] = a[cuda.blockIdx.x, y, x]
    cuda.syncthreads()
    out[cuda.blockIdx.x, y, x] = tile[7 - y, x]


@pytest.fixture(scope="module")
def added() -> KernelTrace:
    return record_kernel(add_ten, 3, 16, empty(40, np.float32), np.arange(40, dtype=np.float32)).check()


@pytest.fixture(scope="module")
def reversed_() -> KernelTrace:
    a = np.arange(64, dtype=np.float32).reshape(2, 8, 4)
    return record_kernel(reverse, 2, (4, 8), empty((2, 8, 4), np.float32), a).check()


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_cells_are_labelled_by_their_thread(added: KernelTrace) -> None:
    ax = kernel_trace.draw(added, "out", values=True)
    assert texts(ax)[:4] == ["W0:0", "10", "W0:1", "11"]
    assert texts(ax)[-2:] == ["W2:7", "49"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["[0]", "[16]", "[32]"]
    assert "block:thread" in ax.get_xlabel()
    assert ax.get_title(loc="left") == "out"


def test_a_step_marks_its_cells(added: KernelTrace) -> None:
    grid = cell_grid(added, "out", step=3)
    cells = [cell for row in grid.rows for cell in row]
    assert [cell.now for cell in cells] == [False] * 16 + [True] * 16 + [False] * 8
    assert [cell.label for cell in cells[14:18]] == ["W0:14", "W0:15", "W1:0", "W1:1"]
    assert {cell.label for cell in cells[32:]} == {""}
    assert {cell.value for cell in cells[32:]} == {"?"}
    assert grid.title == "out, step 3 of 5"
    frames = [
        patch
        for patch in kernel_trace.draw(added, "out", step=3).patches
        if isinstance(patch, Rectangle) and not patch.get_fill()
    ]
    assert len(frames) == 16


def test_shared_arrays_by_epoch(reversed_: KernelTrace) -> None:
    figure = kernel_trace.draw_epochs(reversed_, "tile", block=1, values=True)
    first, second = figure.axes
    assert first.get_title(loc="left") == "tile (shared, block 1), before any barrier"
    assert second.get_title(loc="left") == "tile (shared, block 1), after 1 barrier"
    assert texts(first)[:2] == ["W0", "32"]
    # Thread (0, 7) of the block reads the cell in the first row; what it holds is what thread 0 wrote.
    assert texts(second)[:2] == ["R28", "32"]
    assert [label.get_text() for label in first.get_yticklabels()][:2] == ["[0, 0]", "[1, 0]"]


def test_three_axes_become_rows_and_owners_may_be_warps_or_blocks(reversed_: KernelTrace) -> None:
    by_block = cell_grid(reversed_, "out", by="block")
    assert len(by_block.rows) == 16
    assert by_block.row_labels[9] == "[1, 1, 0]"
    assert [row[0].label for row in by_block.rows] == ["W0"] * 8 + ["W1"] * 8
    assert {cell.label for row in cell_grid(reversed_, "out", by="warp").rows for cell in row} == {"W0:0", "W1:0"}
    only = cell_grid(reversed_, "a", block=1)
    assert [row[0].label for row in only.rows[7:9]] == ["", "R1:0"]
    assert only.title == "a, block 1 only"


def test_many_readers_and_atomics() -> None:
    def kernel(out: Any, a: Any) -> None:
        cuda.atomic.add(out, 0, a[0])

    trace = record_kernel(kernel, 1, 5, np.zeros(2), np.ones(1)).check()
    assert cell_grid(trace, "a").rows[0][0].label == "R\u00d75"
    cells = cell_grid(trace, "out").rows[0]
    assert [(cell.label, cell.value) for cell in cells] == [("A\u00d75", "5"), ("", "0")]


def test_large_arrays_are_cut_with_a_notice() -> None:
    def kernel(out: Any) -> None:
        out[cuda.blockIdx.x, cuda.threadIdx.x] = 1

    trace = record_kernel(kernel, 40, 50, empty((40, 50), np.float32)).check()
    grid = cell_grid(trace, "out")
    assert (len(grid.rows), len(grid.rows[0])) == (32, 32)
    assert grid.notices == ("1024 of 2000 cells shown",)
    part = cell_grid(trace, "out", rows=slice(38, 40), columns=slice(45, 50))
    assert part.rows[0][0].label == "W38:45"
    assert part.notices == ("10 of 2000 cells shown",)
    assert kernel_trace.draw(trace, "out", rows=slice(38, 40)).get_xlabel().endswith("; 64 of 2000 cells shown")


def test_tints_carry_dark_text() -> None:
    def luminance(colour: str) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    ink = luminance("#1b1b1b")
    for owner in range(8):
        assert (luminance(tint(owner)) + 0.05) / (ink + 0.05) > 7
    assert len({tint(owner) for owner in range(8)}) == 8


def test_arrays_below_each_other(added: KernelTrace) -> None:
    figure = kernel_trace.draw_arrays(added, step=0)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["out, step 0 of 5", "a, step 0 of 5"]


@pytest.fixture(scope="module")
def transposed() -> KernelTrace:
    a = np.arange(64, dtype=np.float32).reshape(2, 32)

    def kernel(out: Any, a: Any) -> None:
        tile = cuda.shared.array((32, 32), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        for row in range(y, 32, 2):
            tile[row, x] = 0
        cuda.syncthreads()
        out[x, y] = a[y, x] + tile[x, y]

    return record_kernel(kernel, 1, (32, 2), empty((32, 2), np.float32), a).check()


def test_coalescing_diagram(transposed: KernelTrace) -> None:
    ax = kernel_trace.draw_coalescing(transposed, "a", operation="read")
    assert len(ax.lines) == 32
    assert texts(ax)[:3] == ["0", "1", "2"]
    assert [text for text in texts(ax)[32:] if text == "8"] == ["8"] * 4
    title = ax.get_title(loc="left")
    assert "32 lanes touch 4 sectors of 32 bytes in 1 line of 128; 4 would do: efficiency 100.0%" in title
    assert title == kernel_trace.describe_coalescing(transposed, "a", operation="read")
    second = kernel_trace.draw_coalescing(transposed, "out", warp=1)
    assert "8 sectors of 32 bytes in 2 lines of 128; 4 would do: efficiency 50.0%" in second.get_title(loc="left")


def test_bank_diagram(transposed: KernelTrace) -> None:
    conflict = kernel_trace.draw_banks(transposed, "tile", operation="read")
    assert [label.get_text() for label in conflict.get_yticklabels()] == [f"pass {i + 1}" for i in range(32)]
    assert texts(conflict) == [str(lane) for lane in range(32)]
    assert "served in 32 passes: 1 would do" in conflict.get_title(loc="left")
    free = kernel_trace.draw_banks(transposed, "tile", operation="write", nth=2)
    assert "served in 1 pass: no conflict" in free.get_title(loc="left")
    access = warp_access(transposed, "tile", operation="read")
    assert access.passes()[3] == {0: (3 * 32, [3])}
    assert "32 passes" in kernel_trace.describe_banks(transposed, "tile", operation="read")


def test_broadcast_and_wide_elements_in_the_bank_diagram() -> None:
    def kernel(out: Any) -> None:
        tile = cuda.shared.array(32, np.int64)
        t = cuda.threadIdx.x
        tile[t] = t
        cuda.syncthreads()
        out[t] = tile[t // 8]

    trace = record_kernel(kernel, 1, 32, empty(32, np.int64)).check()
    wide = warp_access(trace, "tile", operation="write").passes()
    assert len(wide) == 2
    assert (wide[0][0], wide[0][31], wide[1][0]) == ((0, [0]), (31, [15]), (32, [16]))
    ax = kernel_trace.draw_banks(trace, "tile", operation="read")
    assert texts(ax) == ["0-7", "0-7", "8-15", "8-15", "16-23", "16-23", "24-31", "24-31"]
    assert "no conflict" in ax.get_title(loc="left")


def test_the_film(reversed_: KernelTrace) -> None:
    player = kernel_trace.play(reversed_)
    assert isinstance(player, ipywidgets.VBox)
    assert repr(player) == "Player of reverse: 8 steps, arrays out, a, tile"
    assert player.slider.max == 7
    assert player.text.startswith("block 0, warp 0: 32 threads, 0 to 31, read a[0, 0, 0] to a[0, 7, 3]; line ")
    assert "<svg" not in player.view.value
    assert len(player.view.value) < 200_000
    before = player.view.value
    player.slider.value = 5
    assert player.view.value != before
    assert "tile (shared, block 1), step 5 of 7" in player.view.value
    assert "W0<br>32" in player.view.value
    assert 'aria-live="polite"' in player.view.value
    # Every cell names its own ground and ink: the page's theme does not matter.
    cells = re.findall(r"<td style=\"([^\"]*)\"", player.view.value)
    assert cells
    assert all("background:" in style and ";color:" in style for style in cells)


def test_the_film_escapes_source_text() -> None:
    def kernel(out: Any) -> None:
        out[0] = "<b>" < "<c>"

    player = kernel_trace.play(record_kernel(kernel, 1, 1, empty(1, np.int32)))
    assert "&lt;b&gt;" in player.view.value
    assert "<b>" not in player.view.value


def test_a_film_of_nothing() -> None:
    def kernel(out: Any) -> None:
        pass

    player = kernel_trace.play(record_kernel(kernel, 1, 1, empty(1, np.int32)))
    assert player.text == "kernel touched no array"


def test_words(added: KernelTrace) -> None:
    text = kernel_trace.describe(added)
    assert text.startswith("add_ten: 3 blocks of 16 threads, 80 accesses.")
    assert "out (global, 40 float32), 40 cells written once; warps move 160 bytes, 100% of them needed." in text
    assert text.endswith("No faults.")
    line = add_ten.__code__.co_firstlineno + 3
    assert kernel_trace.describe(added, "out", step=1) == (
        "out, step 1 of 5: 16 of 40 shown cells touched. block 0, warp 0: 16 threads, 0 to 15, write out[0] to "
        f"out[15]; line {line}: out[i] = a[i] + 10. Labels (R read, W written, A atomic): out[0] W0:0, out[1] W0:1, "
        "..., out[15] W0:15."
    )
    wrong = record_kernel(add_ten, 1, 4, np.zeros(2), np.zeros(3))
    assert "1 faults, the first: out of range" in kernel_trace.describe(wrong)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t: kernel_trace.draw(t, "b"), TraceError, "add_ten used out, a"),
        (lambda t: kernel_trace.draw(t, "a", step=6), TraceError, "steps 0 to 5"),
        (lambda t: kernel_trace.draw(t, "a", by="lane"), ConfigError, "by='lane'"),
        (lambda t: kernel_trace.draw(t, "a", width=0), ConfigError, "width=0"),
        (lambda t: kernel_trace.draw_coalescing(t, "a", nth=1), TraceError, "makes 1 such accesses to a"),
        (lambda t: kernel_trace.draw_coalescing(t, "a", operation="load"), TraceError, "operation='load'"),
        (lambda t: kernel_trace.draw_banks(t, "a"), TraceError, "draw_coalescing shows global"),
        (lambda t: kernel_trace.play(t, ["b"]), TraceError, "used out, a"),
        (lambda t: kernel_trace.play(t, ["a"] * 7), ConfigError, "at most 6"),
        (lambda t: kernel_trace.play(t, step=3), ConfigError, "step=3: play takes"),
    ],
)
def test_bad_options(call: Any, error: type[Exception], message: str, added: KernelTrace) -> None:
    with pytest.raises(error, match=message):
        call(added)


def test_shared_arrays_of_a_block_that_is_not_there(reversed_: KernelTrace) -> None:
    with pytest.raises(TraceError, match="block=5, thread=0: tile is not made there"):
        kernel_trace.draw(reversed_, "tile", block=5)
