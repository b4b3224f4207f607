"""Diagrams of one warp access: the memory sectors it touches, and the banks of shared memory it waits for.

Letters: none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from twellviz.errors import TraceError
from twellviz.kernel_trace.lockstep import steps
from twellviz.kernel_trace.measures import BANK_BYTES, BANKS, LINE, SECTOR, addresses
from twellviz.kernel_trace.pictures import UNTOUCHED, tint
from twellviz.kernel_trace.recording import GLOBAL, OPERATIONS, SHARED
from twellviz.kernel_trace.trace import WARP, KernelTrace
from twellviz.plots.style import PALETTE, axes_or_new, literal

SECTORS_OF_LINE = LINE // SECTOR


@dataclass(frozen=True)
class Warp:
    """One warp access.

    Attributes
    ----------
    title : str
        The array, who, and the line of code.
    lanes : tuple of int
        Lanes that take part.
    addresses : tuple of int
        Byte in the array where each lane's element begins.
    itemsize : int
        Bytes of an element.
    """

    title: str
    lanes: tuple[int, ...]
    addresses: tuple[int, ...]
    itemsize: int

    @property
    def sectors(self) -> list[int]:
        """Numbers of the 32-byte sectors touched."""
        return sorted({address // SECTOR for address in self.addresses})

    @property
    def lines(self) -> list[int]:
        """Numbers of the 128-byte lines touched."""
        return sorted({address // LINE for address in self.addresses})

    @property
    def ideal_sectors(self) -> int:
        """Sectors that the distinct bytes would fill if they lay together."""
        return -(-len(set(self.addresses)) * self.itemsize // SECTOR)

    def passes(self) -> list[dict[int, tuple[int, list[int]]]]:
        """For each pass over shared memory: bank to the word it serves and the lanes that get it.

        Elements of 8 bytes take two banks and go half a warp at a time.
        """
        found: list[dict[int, tuple[int, list[int]]]] = []
        halves = [range(WARP)] if self.itemsize < 8 else [range(WARP // 2), range(WARP // 2, WARP)]
        for half in halves:
            words: dict[int, list[int]] = {}
            for lane, address in zip(self.lanes, self.addresses, strict=True):
                if lane in half:
                    for word in range(address // BANK_BYTES, -(-(address + self.itemsize) // BANK_BYTES)):
                        words.setdefault(word, []).append(lane)
            queues: dict[int, list[tuple[int, list[int]]]] = {}
            for word, lanes in sorted(words.items()):
                queues.setdefault(word % BANKS, []).append((word, lanes))
            n = max((len(queue) for queue in queues.values()), default=0)
            found += [{bank: queue[i] for bank, queue in queues.items() if i < len(queue)} for i in range(n)]
        return found


def warp_access(
    trace: KernelTrace,
    array: str,
    *,
    operation: str | None = None,
    line: int | None = None,
    block: int = 0,
    warp: int = 0,
    nth: int = 0,
) -> Warp:
    """The n-th access of a warp to an array, in the order of steps.

    Parameters
    ----------
    trace : KernelTrace
    array : str
    operation : {"read", "write", "atomic"}, optional
    line : int, optional
        Only accesses from this line of the code.
    block, warp, nth : int

    Raises
    ------
    TraceError
        There are not that many.
    """
    order = steps(trace)
    ids = [storage.id for storage in trace.storages if storage.name == trace.find_any(array).name]
    first = order.first
    keep = np.isin(trace.storage[first], ids) & (trace.block_of[first] == block) & (trace.warp[first] == warp)
    if operation is not None:
        if operation not in OPERATIONS[:3]:
            raise TraceError(f"operation={operation!r}: choose one of {', '.join(OPERATIONS[:3])}")
        keep &= trace.operation[first] == OPERATIONS.index(operation)
    if line is not None:
        keep &= np.array([trace.sites[i].line == line for i in trace.site[first]], dtype=bool)
    found = np.flatnonzero(keep)
    if not 0 <= nth < len(found):
        lines = sorted({trace.sites[i].line for i in trace.site[trace.of_array(array)]})
        raise TraceError(
            f"nth={nth}: warp {warp} of block {block} makes {len(found)} such accesses to {array}, which is used at "
            f"lines {', '.join(map(str, lines))}"
        )
    members = order.members(int(found[nth]))
    site = trace.sites[trace.site[members[0]]]
    where = f"block {block}, warp {warp}" if trace.n_blocks > 1 else f"warp {warp}"
    return Warp(
        title=f"{OPERATIONS[site.operation]} of {array} by {where}, line {site.line}: {site.source}",
        lanes=tuple(trace.lane[members].tolist()),
        addresses=tuple(addresses(trace)[members].tolist()),
        itemsize=trace.find_any(array).dtype.itemsize,
    )


def describe_coalescing(trace: KernelTrace, array: str, **options: int | str | None) -> str:
    """The numbers of :func:`draw_coalescing` in a sentence, for alternative text; takes the same options."""
    return _coalescing_text(_global(trace, array, options))


def describe_banks(trace: KernelTrace, array: str, **options: int | str | None) -> str:
    """The numbers of :func:`draw_banks` in a sentence, for alternative text; takes the same options."""
    return _banks_text(_shared(trace, array, options))


def draw_coalescing(trace: KernelTrace, array: str, *, ax: Axes | None = None, **options: int | str | None) -> Axes:
    """Draw the lanes of one warp access and the memory sectors that must move for them.

    Parameters
    ----------
    trace : KernelTrace
    array : str
        An array in global memory.
    ax : Axes, optional
    **options
        ``operation``, ``line``, ``block``, ``warp``, ``nth`` as in :func:`warp_access`.

    Returns
    -------
    Axes
    """
    access = _global(trace, array, options)
    ax = axes_or_new(ax, (9.5, 3.2))
    lines = access.lines
    width = WARP / len(lines)
    for lane in range(WARP):
        _box(ax, (lane, 0), (1, 1), str(lane), tint(0) if lane in access.lanes else UNTOUCHED)
    counts = dict.fromkeys(access.sectors, 0)
    for address in access.addresses:
        counts[address // SECTOR] += 1
    for place, line in enumerate(lines):
        for part in range(SECTORS_OF_LINE):
            sector, x = line * SECTORS_OF_LINE + part, place * width + part * width / SECTORS_OF_LINE
            used = sector in counts
            text = str(counts[sector]) if used else ""
            _box(ax, (x, 4), (width / SECTORS_OF_LINE, 1), text, tint(1) if used else UNTOUCHED)
        ax.add_patch(Rectangle((place * width, 4), width, 1, fill=False, edgecolor=PALETTE["ink"], linewidth=1.2))
        for part in range(SECTORS_OF_LINE if len(lines) <= 3 else 1):
            if len(lines) <= 12 or place % 4 == 0:
                x = place * width + part * width / SECTORS_OF_LINE
                start = str(line * LINE + part * SECTOR)
                literal(ax.text(x, 5.5, start, fontsize=8, color=PALETTE["ink"], ha="left"))
    for lane, address in zip(access.lanes, access.addresses, strict=True):
        x = (lines.index(address // LINE) + (address % LINE + access.itemsize / 2) / LINE) * width
        ax.plot([lane + 0.5, x], [1.05, 3.95], color=PALETTE["series"][0], linewidth=0.9)
    ax.set(xlim=(-0.1, WARP + 0.1), ylim=(5.9, -0.1))
    _labels(ax, [(0.5, "lane"), (4.5, "lanes in sector"), (5.35, "from byte")])
    literal(ax.set_title(_coalescing_text(access), fontsize=9, loc="left", color=PALETTE["ink"], wrap=True))
    return ax


def draw_banks(trace: KernelTrace, array: str, *, ax: Axes | None = None, **options: int | str | None) -> Axes:
    """Draw which bank of shared memory serves which lanes of one warp access in each pass.

    Parameters
    ----------
    trace : KernelTrace
    array : str
        An array in shared memory.
    ax : Axes, optional
    **options
        ``operation``, ``line``, ``block``, ``warp``, ``nth`` as in :func:`warp_access`.

    Returns
    -------
    Axes
    """
    access = _shared(trace, array, options)
    passes = access.passes()
    ax = axes_or_new(ax, (9.5, 1.3 + (0.28 if len(passes) <= 8 else 0.19) * max(len(passes), 1)))
    for y, served in enumerate(passes):
        for bank in range(BANKS):
            word_lanes = served.get(bank)
            text = _lanes_text(word_lanes[1]) if word_lanes else ""
            _box(ax, (bank, y), (1, 1), text, tint(word_lanes[1][0]) if word_lanes else UNTOUCHED)
    ax.set(xlim=(-0.1, BANKS + 0.1), ylim=(max(len(passes), 1) + 0.1, -0.1))
    _labels(ax, [(y + 0.5, f"pass {y + 1}") for y in range(len(passes))])
    ax.set_xticks([bank + 0.5 for bank in range(BANKS)], labels=[str(bank) for bank in range(BANKS)], fontsize=7)
    literal(ax.set_xlabel("bank; each box names the lanes it serves", fontsize=8, color=PALETTE["ink"]))
    literal(ax.set_title(_banks_text(access), fontsize=9, loc="left", color=PALETTE["ink"], wrap=True))
    return ax


def _global(trace: KernelTrace, array: str, options: dict[str, int | str | None]) -> Warp:
    if trace.find_any(array).space != GLOBAL:
        raise TraceError(f"array={array!r} is not in global memory: draw_banks shows shared arrays")
    return warp_access(trace, array, **options)  # type: ignore[arg-type]


def _shared(trace: KernelTrace, array: str, options: dict[str, int | str | None]) -> Warp:
    if trace.find_any(array).space != SHARED:
        raise TraceError(f"array={array!r} is not in shared memory: draw_coalescing shows global arrays")
    return warp_access(trace, array, **options)  # type: ignore[arg-type]


def _coalescing_text(access: Warp) -> str:
    n, ideal = len(access.sectors), access.ideal_sectors
    return (
        f"{access.title}\n{_plural(len(access.lanes), 'lane')} touch {_plural(n, 'sector')} of {SECTOR} bytes in "
        f"{_plural(len(access.lines), 'line')} of {LINE}; {ideal} would do: efficiency {ideal / n:.1%}"
    )


def _banks_text(access: Warp) -> str:
    n, ideal = len(access.passes()), len({lane // 16 for lane in access.lanes}) if access.itemsize == 8 else 1
    verdict = "no conflict" if n == ideal else f"{ideal} would do without bank conflicts"
    return f"{access.title}\n{_plural(len(access.lanes), 'lane')} served in {n} pass{'es' if n != 1 else ''}: {verdict}"


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _lanes_text(lanes: list[int]) -> str:
    if len(lanes) == 1:
        return str(lanes[0])
    return f"{lanes[0]}-{lanes[-1]}" if lanes == list(range(lanes[0], lanes[-1] + 1)) else f"\u00d7{len(lanes)}"


def _box(ax: Axes, corner: tuple[float, float], size: tuple[float, float], text: str, face: str) -> None:
    ax.add_patch(Rectangle(corner, *size, facecolor=face, edgecolor=PALETTE["grid"], linewidth=0.6))
    if text and size[0] > 0.35:
        middle = corner[0] + size[0] / 2, corner[1] + size[1] / 2
        fontsize = 7 if len(text) < 4 else 5
        literal(ax.text(*middle, text, fontsize=fontsize, ha="center", va="center", color=PALETTE["ink"]))


def _labels(ax: Axes, labels: list[tuple[float, str]]) -> None:
    ax.set_yticks([y for y, _ in labels], labels=[text for _, text in labels], fontsize=8)
    ax.set_xticks([])
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
