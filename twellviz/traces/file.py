"""A trace in one safetensors file: arrays as tensors, names and settings as JSON. Nothing is unpickled.

Tensors: ``counts`` int32 [L, M], ``activity`` int64 [L, H], ``tokens`` int32 [M], ``offsets`` int32 [M, 2],
``sequence_start`` int64, ``sequence_text`` int32, ``text_utf8`` uint8 (all texts, one after the other),
``text_start`` int64 (bytes); per layer i ``layer{i}.codes`` uint8 [N], ``layer{i}.scale`` float32 [M], and either
``layer{i}.ids`` uint16 or int32 [N] or ``layer{i}.bits`` uint8 [M, ceil(H / 8)]. Where a token's entries begin
follows from the counts and is not stored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from twellviz._atomic import write_atomically
from twellviz.errors import TraceError
from twellviz.traces.pattern import LayerPattern, id_dtype, start_of
from twellviz.traces.trace import Trace

FORMAT = "twellviz.trace"
VERSION = "1"

Arrays = dict[str, npt.NDArray[Any]]
_DTYPES: dict[str, type[np.generic]] = {
    "counts": np.int32,
    "activity": np.int64,
    "tokens": np.int32,
    "offsets": np.int32,
    "sequence_start": np.int64,
    "sequence_text": np.int32,
    "text_utf8": np.uint8,
    "text_start": np.int64,
}
_READABLE = {"U8": np.uint8, "U16": np.uint16, "I32": np.int32, "I64": np.int64, "F32": np.float32}


def save(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Write ``trace`` to ``path``, whole or not at all; an existing file is replaced.

    Raises
    ------
    TraceError
        Settings that JSON cannot hold, or a text that UTF-8 cannot.
    """
    try:
        texts = [text.encode() for text in trace.texts]
        info = json.dumps(
            {
                "model": trace.model,
                "settings": dict(trace.settings),
                "special": {str(token): name for token, name in trace.special.items()},
                "sources": list(trace.sources),
                "made": dict(trace.made),
            }
        )
    except (TypeError, ValueError) as error:
        raise TraceError(f"this trace cannot be written: {error}; give settings that JSON holds") from error
    arrays: Arrays = {
        "counts": trace.counts_LM,
        "activity": trace.activity_LH,
        "tokens": trace.tokens_M,
        "offsets": trace.offsets_M2,
        "sequence_start": trace.sequence_start,
        "sequence_text": trace.sequence_text,
        "text_utf8": np.frombuffer(b"".join(texts), np.uint8),
        "text_start": start_of(np.array([len(text) for text in texts])),
    }
    arrays = {name: array.astype(_DTYPES[name]) for name, array in arrays.items()}
    for layer, pattern in enumerate(trace.patterns):
        parts = (pattern.codes_N, pattern.scale_M, pattern.ids_N, pattern.bits_MB)
        held: dict[str, npt.NDArray[Any] | None] = dict(zip(_PARTS, parts, strict=True))
        arrays |= {f"layer{layer}.{part}": array for part, array in held.items() if array is not None}
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    header = {"format": FORMAT, "version": VERSION, "info": info}
    return write_atomically(path, lambda temporary: save_file(arrays, temporary, metadata=header))


def load(path: str | os.PathLike[str]) -> Trace:
    """Read a trace; see :meth:`twellviz.traces.Trace.load`."""
    name = os.fspath(path)
    if not Path(path).is_file():
        raise TraceError(f"no file at {name}: a trace of `python -m twellviz record` is expected")
    try:
        with safe_open(path, framework="numpy") as file:
            header = dict(file.metadata() or {})
            _check_header(header, name)
            arrays = {key: _read(file, key, name) for key in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise TraceError(f"{name} is truncated or no safetensors file ({error}): copy or record it again") from error
    try:
        return _build(arrays, _info(header, name))
    except TraceError as error:
        raise TraceError(f"{name}: {error}; record it again") from error


def _check_header(header: Mapping[str, str], name: str) -> None:
    if header.get("format") != FORMAT:
        raise TraceError(f"{name} has format {header.get('format')!r}: {FORMAT!r} is expected")
    if header.get("version") != VERSION:
        raise TraceError(
            f"{name} has version {header.get('version')!r}: this program reads {FORMAT} version {VERSION!r}"
        )


def _read(file: Any, key: str, name: str) -> npt.NDArray[Any]:
    # NumPy has no bfloat16 and the library fails on it obscurely: look before reading.
    dtype = file.get_slice(key).get_dtype()
    if dtype not in _READABLE:
        raise TraceError(f"{name}: {key} is {dtype}; a trace holds {', '.join(_READABLE)}")
    array: npt.NDArray[Any] = file.get_tensor(key)
    return array


def _info(header: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        info = json.loads(header.get("info", ""))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{name}: its info is not JSON ({error})") from error
    kinds = {"model": str, "settings": dict, "special": dict, "sources": list, "made": dict}
    for key, kind in kinds.items():
        if not isinstance(info, dict) or not isinstance(info.get(key), kind):
            raise TraceError(f"{name}: its info needs {key!r} as a JSON {kind.__name__}")
    if not all(isinstance(source, str) for source in info["sources"]):
        raise TraceError(f"{name}: its sources must be strings")
    if not all(key.isdecimal() and isinstance(value, str) for key, value in info["special"].items()):
        raise TraceError(f"{name}: its special tokens must map numbers to names")
    return dict(info)


def _build(arrays: Arrays, info: Mapping[str, Any]) -> Trace:
    for key, dtype in _DTYPES.items():
        _expect(arrays, key, dtype)
    counts_LM, activity_LH = arrays["counts"], arrays["activity"]
    if counts_LM.ndim != 2 or activity_LH.ndim != 2 or activity_LH.shape[0] != counts_LM.shape[0]:
        raise TraceError(
            f"counts {counts_LM.shape} and activity {activity_LH.shape}: [layers, tokens], [layers, neurons] expected"
        )
    n_layers, n_hidden = activity_LH.shape
    expected = {*_DTYPES, *(f"layer{layer}.{part}" for layer in range(n_layers) for part in _PARTS)}
    if unexpected := sorted(set(arrays) - expected):
        raise TraceError(f"{unexpected[0]} is not a part of a trace with {n_layers} layers")
    return Trace(
        counts_LM=counts_LM,
        activity_LH=activity_LH,
        patterns=tuple(_pattern(arrays, layer, counts_LM[layer], n_hidden) for layer in range(n_layers)),
        tokens_M=arrays["tokens"],
        offsets_M2=arrays["offsets"],
        sequence_start=arrays["sequence_start"],
        sequence_text=arrays["sequence_text"],
        texts=_texts(arrays["text_utf8"], arrays["text_start"]),
        sources=tuple(info["sources"]),
        model=info["model"],
        settings=info["settings"],
        special={int(token): text for token, text in info["special"].items()},
        made=info["made"],
    )


_PARTS = ("codes", "scale", "ids", "bits")


def _expect(arrays: Arrays, key: str, dtype: type[np.generic]) -> npt.NDArray[Any]:
    if key not in arrays:
        raise TraceError(f"lacks {key}")
    if arrays[key].dtype != dtype:
        raise TraceError(f"{key} is {arrays[key].dtype}: {np.dtype(dtype)} is expected")
    return arrays[key]


def _pattern(arrays: Arrays, layer: int, counts_M: npt.NDArray[np.int32], n_hidden: int) -> LayerPattern:
    prefix = f"layer{layer}."
    codes_N, scale_M = _expect(arrays, prefix + "codes", np.uint8), _expect(arrays, prefix + "scale", np.float32)
    if codes_N.ndim != 1 or scale_M.ndim != 1:
        raise TraceError(f"{prefix}codes {codes_N.shape} and {prefix}scale {scale_M.shape}: one axis each is expected")
    if (counts_M < 0).any():
        raise TraceError(f"counts of layer {layer} are negative")
    held: dict[str, npt.NDArray[Any]] = {}
    if prefix + "ids" in arrays:
        held["ids_N"] = _expect(arrays, prefix + "ids", id_dtype(n_hidden))
    if prefix + "bits" in arrays:
        held["bits_MB"] = _expect(arrays, prefix + "bits", np.uint8)
    return LayerPattern(n_hidden, start_of(counts_M), codes_N, scale_M, **held)


def _texts(utf8: npt.NDArray[Any], start: npt.NDArray[Any]) -> tuple[str, ...]:
    rises = start.ndim == 1 and start.size > 0 and bool((np.diff(start) >= 0).all())
    if utf8.ndim != 1 or not rises or start[0] != 0 or start[-1] != utf8.size:
        raise TraceError(f"text_start must run from 0 to {utf8.size} without falling")
    raw = utf8.tobytes()
    try:
        return tuple(
            raw[first:last].decode() for first, last in zip(start[:-1].tolist(), start[1:].tolist(), strict=True)
        )
    except UnicodeDecodeError as error:
        raise TraceError(f"its text is not UTF-8 ({error})") from error
