"""Record a trace: run a model over text and note which neurons fire, layer by layer.

Letters: M tokens, D model width, H hidden width, N active (token, neuron) pairs.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from twellviz._machine import versions
from twellviz.data import Document, Tokenizer
from twellviz.data.tokenizer import END_OF_TEXT
from twellviz.errors import ConfigError, TextError, TraceError
from twellviz.models import LM
from twellviz.traces.pattern import LayerPattern, id_dtype, quantise
from twellviz.traces.trace import Trace


class _Window(NamedTuple):
    """A stretch of one text that the model sees at once."""

    text: int
    ids: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int32]


class _Part(NamedTuple):
    """One layer's activity in one window."""

    counts_M: npt.NDArray[np.int64]
    ids_N: npt.NDArray[Any]
    codes_N: npt.NDArray[np.uint8]
    scale_M: npt.NDArray[np.float32]


def record(
    model: LM,
    tokenizer: Tokenizer,
    texts: str | Document | Sequence[str | Document],
    *,
    max_tokens: int | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
    name: str | None = None,
) -> Trace:
    """Run ``model`` over ``texts`` and note which neurons fire for which token.

    Each layer's activations are reduced as soon as the layer has run, so memory holds those of one layer and
    one window at a time. The model is left as it was: its hooks are removed, its mode and device restored.

    Parameters
    ----------
    model : LM
    tokenizer : Tokenizer
        The one the model was trained with.
    texts : str, Document, or a sequence of them
        A text longer than the model's ``max_seq_len`` is cut into windows that the model sees one by one, with
        a notice (a warning).
    max_tokens : int, optional
        Stop after this many tokens in all, with a notice.
    device : torch device, optional
        Where to run; where the model is if not given.
    progress : bool
        Show a progress bar when it takes more than a second.
    name : str, optional
        Name of the model in the trace; its sizes if not given.

    Returns
    -------
    Trace

    Raises
    ------
    TextError
        No text, or an empty one.
    ConfigError
        ``max_tokens`` is below 1, a token is not in the model's vocabulary, or the device is not there.
    TraceError
        A layer's feed-forward block was not called, so nothing is known about it.

    Examples
    --------
    >>> from twellviz.data import Tokenizer
    >>> from twellviz.models import LM, PRESETS
    >>> from twellviz.traces import record
    >>> trace = record(LM(PRESETS["nano"]), Tokenizer.load(), "It is a truth universally acknowledged")
    >>> trace.n_layers, trace.n_hidden
    (4, 512)
    """
    documents = _documents(texts)
    windows = _windows(documents, tokenizer, model.cfg.max_seq_len, max_tokens)
    documents = documents[: windows[-1].text + 1]
    if tokenizer.vocab_size > model.cfg.vocab_size:
        raise ConfigError(
            f"the tokenizer has {tokenizer.vocab_size} entries, the model {model.cfg.vocab_size}: "
            "give the tokenizer that the model was trained with"
        )
    parts: list[list[_Part]] = [[] for _ in range(model.cfg.n_layers)]
    with _prepared(model, device) as run_device, _hooks(model, parts), torch.inference_mode():
        for done, window in enumerate(_bar(windows, progress), start=1):
            model(torch.from_numpy(window.ids).long()[None].to(run_device))
            for layer, layer_parts in enumerate(parts):
                if len(layer_parts) != done:
                    raise TraceError(
                        f"layer {layer}: its feed-forward block was called {len(layer_parts)} times in {done} windows, "
                        f"so its activity is not known; the model must call model.layers[{layer}].ffn once a window"
                    )
    return Trace.from_patterns(
        tuple(_join(layer_parts, model.cfg.d_hidden) for layer_parts in parts),
        tokens_M=np.concatenate([window.ids for window in windows]).astype(np.int32),
        offsets_M2=np.concatenate([window.offsets for window in windows]).astype(np.int32),
        sequence_start=np.cumsum([0, *(window.ids.size for window in windows)], dtype=np.int64),
        sequence_text=np.array([window.text for window in windows], np.int32),
        texts=tuple(document.text for document in documents),
        sources=tuple(document.source or "" for document in documents),
        model=name or f"LM {model.cfg.n_layers} x {model.cfg.d_model} x {model.cfg.d_hidden}",
        settings=model.cfg.to_dict(),
        special={tokenizer.end_of_text: END_OF_TEXT},
        made={
            "date": datetime.now(UTC).date().isoformat(),
            "device": str(run_device),
            "tokenizer_sha256": tokenizer.sha256,
            **versions("torch", "twellviz"),
        },
    )


def _documents(texts: str | Document | Sequence[str | Document]) -> list[Document]:
    """All texts as documents; a Document is a tuple, so it is told apart from a sequence first."""
    given = [texts] if isinstance(texts, str | Document) else list(texts)
    documents = [Document(text) if isinstance(text, str) else text for text in given]
    if not documents:
        raise TextError("texts=[]: give at least one text")
    for number, document in enumerate(documents):
        if not isinstance(document, Document):
            raise TextError(f"texts[{number}] is {type(document).__name__}: a str or a Document is needed")
        if not document.text:
            raise TextError(f"texts[{number}] is empty: give at least one character, or leave it out")
    return documents


def _windows(documents: list[Document], tokenizer: Tokenizer, longest: int, max_tokens: int | None) -> list[_Window]:
    """Cut the texts to what the model sees at once and to ``max_tokens`` in all, and say so."""
    if max_tokens is not None and (isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1):
        raise ConfigError(f"max_tokens={max_tokens!r}: a whole number of at least 1 is needed, or None for all")
    windows: list[_Window] = []
    n_cut, room, n_left_out = 0, sys.maxsize if max_tokens is None else max_tokens, 0
    for number, document in enumerate(documents):
        encoding = tokenizer.encode(document.text)
        n_kept = min(encoding.ids.size, room)
        n_left_out += encoding.ids.size - n_kept
        room -= n_kept
        starts = range(0, n_kept, longest)
        n_cut += len(starts) > 1
        for first in starts:
            kept = slice(first, min(first + longest, n_kept))
            windows.append(_Window(number, encoding.ids[kept], encoding.offsets[kept]))
    if n_cut:
        warnings.warn(
            f"{n_cut} of {len(documents)} texts are longer than the model's max_seq_len={longest}: cut into windows "
            "that the model sees one by one",
            stacklevel=3,
        )
    if n_left_out:
        warnings.warn(f"max_tokens={max_tokens}: the last {n_left_out} tokens of the texts are left out", stacklevel=3)
    return windows


@contextmanager
def _prepared(model: LM, device: torch.device | str | None) -> Iterator[torch.device]:
    """The model in evaluation mode on ``device``; as it was afterwards."""
    home, was_training = next(model.parameters()).device, model.training
    run_device = home if device is None else _device(device)
    try:
        model.eval()
        if run_device != home:
            model.to(run_device)
        yield run_device
    finally:
        model.train(was_training)
        if run_device != home:
            model.to(home)


def _device(device: torch.device | str) -> torch.device:
    """``device`` if this machine has it, else ConfigError."""
    try:
        found = torch.device(device)
    # torch raises RuntimeError for a name it does not know and TypeError for what is no name.
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device={device!r}: give cpu, cuda or cuda:N") from error
    # A tensor is the one test that all kinds of devices share; the meta device takes it but holds no numbers.
    try:
        torch.zeros(1, device=found).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        n_gpus = torch.cuda.device_count()
        raise ConfigError(f"device={device!r}: cannot run here (torch sees {n_gpus} CUDA GPUs); use cpu") from error
    return found


@contextmanager
def _hooks(model: LM, parts: list[list[_Part]]) -> Iterator[None]:
    """Reduce each block's activity when the block is called; remove the hooks whatever happens."""
    handles = []
    try:
        for layer, layer_parts in zip(model.layers, parts, strict=True):
            block: nn.Module = layer.get_submodule("ffn")
            handles.append(block.register_forward_pre_hook(_reducer(layer_parts)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _reducer(layer_parts: list[_Part]) -> Any:
    def reduce(block: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        gate_MH, h_MH = block.hidden(inputs[0])  # type: ignore[operator]
        active_MH = block.is_active(gate_MH)  # type: ignore[operator]
        counts_M = active_MH.sum(1).cpu().numpy()
        strengths_N = h_MH[active_MH].abs().float().cpu().numpy()
        ids_N = active_MH.nonzero()[:, 1].cpu().numpy().astype(id_dtype(gate_MH.shape[1]))
        layer_parts.append(_Part(counts_M, ids_N, *quantise(strengths_N, counts_M)))

    return reduce


def _join(layer_parts: list[_Part], n_hidden: int) -> LayerPattern:
    counts_M, ids_N, codes_N, scale_M = (np.concatenate(part) for part in zip(*layer_parts, strict=True))
    return LayerPattern.from_ids(ids_N, codes_N, scale_M, counts_M, n_hidden)


def _bar(windows: list[_Window], progress: bool) -> Any:
    if not progress or len(windows) == 1:
        return windows
    from tqdm.auto import tqdm

    return tqdm(windows, desc="recording", unit="window", delay=1, leave=False)
