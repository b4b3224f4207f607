"""Token texts for people: from the offsets into the text, never from decoding one id.

Decoding a single id gives U+FFFD for a part of a character and nothing for a special token. Offsets give the
characters a token covers; tokens that share a character say which piece they are.

Letters: M tokens.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

SPACE, NEWLINE, TAB = "␣", "⏎", "⇥"
_MARKS = {" ": SPACE, "\n": NEWLINE, "\t": TAB}
# Control, format (text direction, joiners), surrogate, private and unassigned characters, line and paragraph
# separators: invisible, or able to reorder what stands around them.
_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_LONGEST = 40


class TokenText(NamedTuple):
    """How one token reads.

    Attributes
    ----------
    text : str
        Characters of the text that the token covers, wholly or in part; a special token's name.
    piece, pieces : int
        Tokens that share characters are numbered 1 to ``pieces``; 1 of 1 otherwise.
    special : bool
        The token stands for no character of the text.
    """

    text: str
    piece: int = 1
    pieces: int = 1
    special: bool = False

    @property
    def label(self) -> str:
        """Short visible form: marks for blanks, escapes for what cannot be seen, ``[2/4]`` for pieces."""
        part = f"[{self.piece}/{self.pieces}]" if self.pieces > 1 else ""
        return shorten(visible(self.text)) + part


def visible(text: str) -> str:
    r"""Text in which every character can be seen.

    Space, newline and tab become marks; control, format and other invisible characters become escapes such as
    ``\x00`` and ``\u202e``; a combining mark without a base gets a dotted circle.

    Examples
    --------
    >>> visible(" a\n\x00")
    '␣a⏎\\x00'
    """
    shown = "".join(_MARKS.get(character) or _escape(character) for character in text)
    return "◌" + shown if shown and unicodedata.combining(shown[0]) else shown


def shorten(text: str, longest: int = _LONGEST) -> str:
    """``text`` with its middle cut out where it has more than ``longest`` characters."""
    if len(text) <= longest:
        return text
    head = (longest - 1) // 2
    return f"{text[:head]}…{text[len(text) - (longest - 1 - head) :]}"


def token_texts(
    tokens_M: npt.NDArray[Any],
    offsets_M2: npt.NDArray[Any],
    text_M: npt.NDArray[Any],
    texts: Sequence[str],
    special: Mapping[int, str],
) -> list[TokenText]:
    """Texts of all tokens.

    Parameters
    ----------
    tokens_M : int [M]
    offsets_M2 : int [M, 2]
        First and one past the last character.
    text_M : int [M]
        Which of ``texts`` a token belongs to.
    texts : sequence of str
    special : mapping of int to str
        Names of token ids that cover no character.
    """
    found: list[TokenText] = []
    run: list[str] = []
    ids, spans, owners = tokens_M.tolist(), offsets_M2.tolist(), text_M.tolist()

    def close_run() -> None:
        found.extend(TokenText(text, k, len(run)) for k, text in enumerate(run, start=1))
        run.clear()

    run_end, run_owner = -1, -1
    for token, (first, last), owner in zip(ids, spans, owners, strict=True):
        if last <= first:
            close_run()
            found.append(TokenText(special.get(token, f"<{token}>"), special=True))
            continue
        if run and (owner != run_owner or first >= run_end):
            close_run()
        run.append(texts[owner][first:last])
        run_end, run_owner = last, owner
    close_run()
    return found


def _escape(character: str) -> str:
    if unicodedata.category(character) not in _ESCAPED:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
