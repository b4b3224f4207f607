"""Tokenise a stream of documents into a token map, in constant memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from twellviz.data.documents import Piece
from twellviz.data.token_map import TokenMap, TokenMapWriter, write_token_map
from twellviz.data.tokenizer import Tokenizer
from twellviz.models.config import require_int

_BATCH_CHARACTERS = 1 << 21
"""Tokenised at once: enough for all threads of the tokenizer, little beside its own memory."""


def build_token_map(
    pieces: Iterable[Piece],
    tokenizer: Tokenizer,
    out: str | os.PathLike[str],
    *,
    max_tokens: int | None = None,
    made: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> TokenMap:
    """Tokenise documents and write them to ``out``, whole or not at all.

    Each document is followed by the tokenizer's ``end_of_text``, as in :func:`twellviz.data.load_tokens`: the same
    documents give the same ids.

    Parameters
    ----------
    pieces : iterable of Piece
        See :func:`twellviz.data.documents.read_files` and :func:`twellviz.data.documents.read_dataset`.
    tokenizer : Tokenizer
    out : path
    max_tokens : int, optional
        Stop after exactly this many, inside a document if need be.
    made : mapping, optional
        Command, sources, date, for the header.
    progress : bool
        Show a progress bar.

    Returns
    -------
    TokenMap

    Raises
    ------
    TextError
        A text cannot be read, or there is none.
    ConfigError
        ``max_tokens`` is below 1.
    """
    if max_tokens is not None:
        require_int("max_tokens", max_tokens, least=1)
    with write_token_map(out, tokenizer, made or {}) as writer, _bar(max_tokens, shown=progress) as advance:
        for batch in _batches(pieces):
            _append(batch, tokenizer, writer, max_tokens)
            advance(writer)
            if writer.n_tokens == max_tokens:
                break
    return TokenMap.open(out)


def _append(batch: list[Piece], tokenizer: Tokenizer, writer: TokenMapWriter, max_tokens: int | None) -> None:
    for piece, ids in zip(batch, tokenizer.encode_batch([piece.text for piece in batch]), strict=True):
        if piece.starts:
            writer.start_document()
        if piece.ends:
            ids.append(tokenizer.end_of_text)
        room = len(ids) if max_tokens is None else max_tokens - writer.n_tokens
        writer.append(ids[:room])
        if room <= len(ids) and max_tokens is not None:
            return


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@contextmanager
def _bar(max_tokens: int | None, *, shown: bool) -> Iterator[Any]:
    if not shown:
        yield lambda writer: None
        return
    from tqdm.auto import tqdm

    bar: Any = tqdm(total=max_tokens, desc="tokenise", unit="token", unit_scale=True)

    def advance(writer: TokenMapWriter) -> None:
        bar.set_postfix(documents=f"{writer.n_documents:,}", refresh=False)
        bar.update(writer.n_tokens - bar.n)

    try:
        yield advance
    finally:
        bar.close()
