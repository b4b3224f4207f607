"""Settings for nbval, which runs these notebooks and compares every stored output with a new one.

Run it as ``pytest --nbval --nbval-current-env --nbval-sanitize-with notebooks/sanitize.cfg notebooks``.
"""

from __future__ import annotations

from typing import Any

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
NOT_COMPARED = ("text/html", "image/svg+xml", "application/javascript", "stderr", WIDGET_VIEW)
OUTPUT_TIMEOUT = 120


def pytest_collectstart(collector: Any) -> None:
    """Leave out what differs between equal runs: ids in HTML and SVG, warnings, widget models."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += NOT_COMPARED


def pytest_itemcollected(item: Any) -> None:
    """Wait longer for a busy machine, and compare without live widgets, which are never committed."""
    if not hasattr(item, "output_timeout"):
        return
    # After a cell has ended nbval waits this long for its last output; its own 5 s are too few beside other
    # work, and no option sets them.
    item.output_timeout = OUTPUT_TIMEOUT
    compare = item.compare_outputs
    item.compare_outputs = lambda test, ref, *args: compare(_static(test), _static(ref), *args)


def _static(outputs: list[Any]) -> list[Any]:
    return [output for output in outputs if WIDGET_VIEW not in output.get("data", {})]
