"""Open a trace, or a model and a text, in an explorer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from twellviz.errors import TraceError
from twellviz.explorers.explorer import Explorer
from twellviz.traces.trace import Trace

if TYPE_CHECKING:
    from twellviz.data import Document, Tokenizer
    from twellviz.models import LM

RECORDED = 2048
"""Tokens that are recorded on the spot; a longer text is cut, with a notice."""


def explore(
    trace: Trace | LM,
    tokenizer: Tokenizer | None = None,
    text: str | Document | Sequence[str | Document] | None = None,
    *,
    layer: int = 0,
    token: int = 0,
    max_tokens: int = RECORDED,
) -> Explorer:
    """Open a trace in an :class:`Explorer`, or record one of a model on the spot.

    Parameters
    ----------
    trace : Trace, or LM
    tokenizer : Tokenizer, optional
        Of the model.
    text : str, Document, or a sequence of them, optional
        What the model reads; see :func:`twellviz.traces.record`.
    layer, token : int
        What is shown first.
    max_tokens : int
        Stop recording after so many tokens, with a notice (a warning).

    Raises
    ------
    TraceError
        Neither a trace alone nor a model with tokenizer and text; no such layer or token.
    TextError
        The text has no token.

    Examples
    --------
    >>> from twellviz.data import Tokenizer, data_path
    >>> from twellviz.models import load_checkpoint
    >>> from twellviz.traces import Trace
    >>> explore(Trace.load(data_path("nano/trace.safetensors")), layer=1, token=5)
    Explorer of nano: 4 layers, 3840 tokens; layer 1, token 5
    >>> model = load_checkpoint(data_path("nano/model.safetensors"))
    >>> explore(model, Tokenizer.load(), "The king of France", layer=2).trace.n_tokens
    5
    """
    return Explorer(recorded(trace, tokenizer, text, max_tokens), layer=layer, token=token)


def recorded(source: Any, tokenizer: Any, text: Any, max_tokens: int) -> Trace:
    """``source`` if it is a trace, else a recording of it."""
    if isinstance(source, Trace) and tokenizer is None and text is None:
        return source
    if tokenizer is None or text is None or isinstance(source, Trace):
        given = "with" if tokenizer is not None or text is not None else "without"
        raise TraceError(
            f"trace is {type(source).__name__}: give a twellviz.traces.Trace, from record(...) or Trace.load(path), "
            f"alone, or a model, its tokenizer and a text; this came {given} a tokenizer or a text"
        )
    from twellviz.traces.recorder import record

    return record(source, tokenizer, text, max_tokens=max_tokens)
