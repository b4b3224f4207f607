"""What a model's neurons did on a text: one object, :class:`Trace`, between computing and drawing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twellviz._lazy import lazy

if TYPE_CHECKING:
    from twellviz.traces.labels import TokenText, visible
    from twellviz.traces.pattern import LayerPattern
    from twellviz.traces.recorder import record
    from twellviz.traces.trace import Trace

__all__ = ["LayerPattern", "TokenText", "Trace", "record", "visible"]

__getattr__ = lazy(
    __name__,
    {
        "LayerPattern": "pattern",
        "TokenText": "labels",
        "Trace": "trace",
        "record": "recorder",
        "visible": "labels",
    },
)
