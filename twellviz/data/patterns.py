"""Recorded activity patterns: which neurons of a real sparse model fired for which tokens.

A file is the xz-compressed rows of ``np.packbits``: H / 8 bytes a token, neuron 0 in the highest bit.

Letters: M tokens, H hidden width.
"""

from __future__ import annotations

import lzma
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from twellviz._atomic import write_atomically
from twellviz.data.paths import data_path
from twellviz.errors import ConfigError, TraceError

N_HIDDEN = 5632
"""H of the model whose patterns ship (paper Table 2)."""
SHIPPED_LAYERS = (0, 7)
"""Its densest layers; layer 0 has the fullest tile (244 of 256) and the fullest token (5249 of 5632)."""


def load_pattern(layer: int, folder: str | os.PathLike[str] | None = None) -> npt.NDArray[np.bool_]:
    """Which of the 5632 neurons of a layer fired.

    Parameters
    ----------
    layer : int
        0 or 7 for what ships; with ``folder`` any layer that has a file there.
    folder : path, optional
        Folder with ``layerN.xz`` of the same encoding and any number of tokens. The shipped files hold the
        first 512 tokens of one held-out sequence.

    Returns
    -------
    bool [M, 5632]

    Raises
    ------
    ConfigError
        No such layer.
    TraceError
        The file is truncated or foreign.
    """
    if folder is None:
        if layer not in SHIPPED_LAYERS:
            raise ConfigError(
                f"layer={layer}: layers {', '.join(map(str, SHIPPED_LAYERS))} ship; give folder= for more"
            )
        path = data_path(f"patterns/layer{layer}.xz")
    else:
        path = Path(folder) / f"layer{layer}.xz"
        if not path.is_file():
            raise ConfigError(f"layer={layer}: there is no {path}; give a folder that has it")
    try:
        raw = lzma.decompress(path.read_bytes())
    except (lzma.LZMAError, EOFError) as error:
        raise TraceError(f"{path} is not a whole xz file ({error}): copy it again") from error
    row_bytes = N_HIDDEN // 8
    if not raw or len(raw) % row_bytes:
        raise TraceError(
            f"{path} holds {len(raw)} bytes: a pattern has a multiple of {row_bytes} ({N_HIDDEN} bits a token)"
        )
    return np.unpackbits(np.frombuffer(raw, np.uint8).reshape(-1, row_bytes), axis=1).view(np.bool_)


def save_pattern(path: str | os.PathLike[str], pattern_MH: npt.NDArray[np.bool_]) -> Path:
    """Write a pattern for :func:`load_pattern`.

    Parameters
    ----------
    path : path
        ``.../layerN.xz``.
    pattern_MH : bool [M, 5632]

    Raises
    ------
    ConfigError
        Another shape or dtype.
    """
    if pattern_MH.ndim != 2 or pattern_MH.shape[1] != N_HIDDEN or pattern_MH.dtype != np.bool_:
        raise ConfigError(f"pattern_MH is {pattern_MH.dtype} {pattern_MH.shape}: bool [M, {N_HIDDEN}] is needed")
    raw = lzma.compress(np.packbits(pattern_MH, axis=1).tobytes(), preset=9 | lzma.PRESET_EXTREME)
    return write_atomically(path, lambda temporary: temporary.write_bytes(raw))
