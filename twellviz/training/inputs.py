"""The texts of a run: arrays or token maps, checked against the model and against each other."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from twellviz.data.token_map import TokenMap
from twellviz.data.tokenizer import Tokenizer
from twellviz.data.tokens import TokenArray, load_tokens
from twellviz.errors import ConfigError
from twellviz.training.config import TrainConfig


class Text(NamedTuple):
    """Token ids and the SHA-256 of their bytes, by which a resumed run knows its text."""

    tokens: TokenArray
    sha256: str


def training_texts(
    train: TokenArray | TokenMap | None, validation: TokenArray | TokenMap | None, config: TrainConfig
) -> tuple[Text, Text]:
    """Both texts of a run; the shipped ones where none is given.

    Raises
    ------
    ConfigError
        An id is beyond the model's vocabulary, or the texts are of two tokenizers.
    """
    hashes = [given.tokenizer_sha256 for given in (train, validation) if isinstance(given, TokenMap)]
    if hashes and (train is None or validation is None):
        hashes.append(Tokenizer.load().sha256)
    if len(set(hashes)) > 1:
        raise ConfigError(
            f"train_tokens and validation_tokens are of two tokenizers ({' and '.join(name[:12] for name in hashes)}): "
            "tokenise both texts with the same"
        )
    return _text("train", train, config), _text("validation", validation, config)


def _text(split: str, given: TokenArray | TokenMap | None, config: TrainConfig) -> Text:
    entries = config.lm.vocab_size
    if isinstance(given, TokenMap):
        # The map was checked against its tokenizer when it was made: no need to read all of it.
        if given.vocab_size > entries:
            raise ConfigError(
                f"{split}_tokens: {given.path} is of a tokenizer with {given.vocab_size} entries, the model has "
                f"vocab_size={entries}; set it to the tokenizer's"
            )
        return Text(given.tokens, given.tokens_sha256)
    if given is None:
        tokenizer = Tokenizer.load()
        if tokenizer.vocab_size > entries:
            raise ConfigError(
                f"vocab_size={entries}: the shipped tokenizer has {tokenizer.vocab_size} entries; "
                "enlarge the model's vocabulary or give tokens of another tokenizer"
            )
        given = load_tokens(split, tokenizer)
    elif given.ndim != 1 or given.dtype not in (np.uint16, np.uint32):
        raise ConfigError(f"{split}_tokens is {given.dtype} {given.shape}: uint16 or uint32 [n_tokens] is needed")
    elif given.size and int(given.max()) >= entries:
        raise ConfigError(
            f"{split}_tokens holds id {int(given.max())}: the model knows 0 to {entries - 1}; "
            "set vocab_size to the tokenizer's"
        )
    return Text(given, hashlib.sha256(np.ascontiguousarray(given).data).hexdigest())
