"""Our model under EleutherAI's evaluation harness: the extra ``eval`` (``pip install 'twellviz[eval]'``).

:class:`Scorer` answers the three kinds of request of the harness and needs nothing of it: each request has ``args``, as
``lm_eval.api.instance.Instance`` does. :func:`harness_model` makes of it what the harness takes:

    import lm_eval
    from twellviz.models.lm_eval import PAPER_TASKS, harness_model

    results = lm_eval.simple_evaluate(harness_model(model, tokenizer), tasks=list(PAPER_TASKS))

Letters: B requests of a batch, N positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from twellviz.data.tokenizer import Tokenizer
from twellviz.errors import ConfigError
from twellviz.models.config import require_float, require_int
from twellviz.models.lm import LM

PAPER_TASKS = ("hellaswag", "commonsense_qa", "piqa", "winogrande", "arc_easy", "arc_challenge", "openbookqa")
"""The paper's seven (its Table 6), by the names of the harness. It scores the answers' text in all of them; the
harness's own ``commonsense_qa`` asks for the letter."""

MAX_NEW = 256
"""Tokens that ``generate_until`` adds at most, where a request says nothing, as in the harness."""


class Request(Protocol):
    """What the harness asks: an ``Instance``."""

    @property
    def args(self) -> tuple[Any, ...]:
        """What belongs to its kind; see the methods of :class:`Scorer`."""


class _Piece(NamedTuple):
    """Token ids of which the last ``n_scored`` are scored, given those before them."""

    ids: list[int]
    n_scored: int


class Scorer:
    """Log-likelihoods and greedy continuations of a model.

    Parameters
    ----------
    model : LM
        In evaluation mode, on any device.
    tokenizer : Tokenizer
        The model's own. Its ``end_of_text`` stands before a text without context, as between the documents of training.
    batch_size : int
        Requests of one pass: memory is that of their logits, ``B N V`` numbers.

    Raises
    ------
    ConfigError
        The tokenizer has more entries than the model, or a number is out of range.
    """

    def __init__(self, model: LM, tokenizer: Tokenizer, *, batch_size: int = 8) -> None:
        require_int("batch_size", batch_size, least=1)
        if tokenizer.vocab_size > model.cfg.vocab_size:
            raise ConfigError(
                f"tokenizer has {tokenizer.vocab_size} entries, the model vocab_size={model.cfg.vocab_size}: give the "
                "tokenizer that the model was trained with"
            )
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        super().__init__()

    def loglikelihood(self, requests: Sequence[Request], *_: Any, **__: Any) -> list[tuple[float, bool]]:
        """Log-likelihood of a continuation, and whether it is what greedy decoding gives.

        A context too long for the model is cut on its left. Spaces that end a context are counted to the continuation,
        since the tokens of this family of tokenizers begin with their space.

        Parameters
        ----------
        requests : sequence of Request
            ``args``: context (may be empty) and continuation.

        Returns
        -------
        list of (float, bool)
            In nats, in the order of the requests.

        Raises
        ------
        ConfigError
            A continuation is empty or longer than the model's longest sequence.
        """
        return list(self._scores([self._pair(*request.args) for request in requests]))

    def loglikelihood_rolling(self, requests: Sequence[Request], *_: Any, **__: Any) -> list[float]:
        """Log-likelihood of whole texts, each token scored once, in windows of the model's longest sequence.

        The first token is scored after ``end_of_text``. The last window reaches back, so that its tokens too see a full
        context.

        Parameters
        ----------
        requests : sequence of Request
            ``args``: the text.

        Returns
        -------
        list of float
            In nats.
        """
        windows = [list(self._windows(request.args[0])) for request in requests]
        scores = iter(self._scores([piece for pieces in windows for piece in pieces]))
        return [sum(next(scores)[0] for _ in pieces) for pieces in windows]

    def generate_until(self, requests: Sequence[Request], *_: Any, **__: Any) -> list[str]:
        """Continue texts until a stop string, ``end_of_text``, or enough tokens.

        Parameters
        ----------
        requests : sequence of Request
            ``args``: context, and a dict with ``until`` (string or strings), ``max_gen_toks`` (256) and
            ``temperature`` (0: greedy; above, sampled from a generator seeded with 0 for each request).

        Returns
        -------
        list of str
            Without the stop string.

        Raises
        ------
        ConfigError
            A setting is out of range.
        """
        return [self._generate(*request.args) for request in requests]

    def _pair(self, context: str, continuation: str) -> _Piece:
        if not continuation:
            raise ConfigError("continuation is empty: there is nothing to score; give at least one character")
        trailing = len(context) - len(context.rstrip())
        if trailing:
            context, continuation = context[:-trailing], context[-trailing:] + continuation
        if not context:
            before, scored = [self.tokenizer.end_of_text], self._encode(continuation)
        else:
            # Together: a word must not be cut differently because of where the context ends.
            before, both = self._encode(context), self._encode(context + continuation)
            scored = both[len(before) :]
            before = both[: len(before)]
        longest = self.model.cfg.max_seq_len
        if not 1 <= len(scored) <= longest:
            raise ConfigError(
                f"continuation {continuation[:30]!r} has {len(scored)} tokens after its context: 1 to "
                f"max_seq_len={longest} are possible; shorten it"
            )
        return _Piece((before + scored)[-longest - 1 :], len(scored))

    def _windows(self, text: str) -> Iterator[_Piece]:
        ids = [self.tokenizer.end_of_text, *(self._encode(text) if text else [])]
        longest, n = self.model.cfg.max_seq_len, len(ids) - 1
        for start in range(0, n, longest):
            end = min(n, start + longest)
            yield _Piece(ids[max(0, end - longest) : end + 1], end - start)

    @torch.inference_mode()
    def _scores(self, pieces: Sequence[_Piece]) -> Iterator[tuple[float, bool]]:
        # Long ones first: batches of equal length waste little, and too large a batch fails at once.
        order = sorted(range(len(pieces)), key=lambda place: -len(pieces[place].ids))
        found: dict[int, tuple[float, bool]] = {}
        for first in range(0, len(order), self.batch_size):
            places = order[first : first + self.batch_size]
            rows = [pieces[place].ids[:-1] for place in places]
            # What stands right of a row's end is never seen by it: attention is causal.
            ids_BN = torch.tensor([row + [0] * (len(rows[0]) - len(row)) for row in rows])
            logits_BNV = self._logits(ids_BN)
            for row, place in enumerate(places):
                piece = pieces[place]
                end = len(piece.ids) - 1
                logits_NV = logits_BNV[row, end - piece.n_scored : end].float()
                wanted_N1 = torch.tensor(piece.ids[-piece.n_scored :], device=logits_NV.device).unsqueeze(1)
                logs_N1 = logits_NV.log_softmax(1).gather(1, wanted_N1)
                greedy = bool((logits_NV.argmax(1, keepdim=True) == wanted_N1).all())
                found[place] = (float(logs_N1.double().sum()), greedy)
        yield from (found[place] for place in range(len(pieces)))

    def _logits(self, ids_BN: Tensor) -> Tensor:
        logits_BNV = self.model(ids_BN.to(next(self.model.parameters()).device)).logits_BNV
        assert isinstance(logits_BNV, Tensor)
        return logits_BNV

    def _generate(self, context: str, settings: dict[str, Any]) -> str:
        until = settings.get("until") or []
        stops = [until] if isinstance(until, str) else list(until)
        limit, temperature = settings.get("max_gen_toks", MAX_NEW), float(settings.get("temperature") or 0.0)
        require_int("max_gen_toks", limit, least=0)
        require_float("temperature", temperature, least=0.0)
        device = next(self.model.parameters()).device
        generator = torch.Generator(device).manual_seed(0)
        ids_1N = torch.tensor(
            [[self.tokenizer.end_of_text, *(self._encode(context) if context else [])]], device=device
        )
        start, text = ids_1N.shape[1], ""
        for _ in range(limit):
            ids_1N = self.model.generate(ids_1N, 1, temperature=temperature, generator=generator)
            if int(ids_1N[0, -1]) == self.tokenizer.end_of_text:
                break
            text = self.tokenizer.decode(ids_1N[0, start:].tolist())
            if found := [place for stop in stops if stop and (place := text.find(stop)) >= 0]:
                return text[: min(found)]
        return text

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids.tolist()
        return ids


def harness_model(model: LM, tokenizer: Tokenizer, *, batch_size: int = 8) -> Any:
    """The model as ``lm_eval.simple_evaluate`` takes it: a :class:`Scorer` that is an ``lm_eval.api.model.LM`` too.

    Parameters
    ----------
    model, tokenizer, batch_size
        See :class:`Scorer`.

    Raises
    ------
    ConfigError
        The package ``lm_eval`` is not installed.
    """
    base = _harness_base()
    # The scorer first: its methods are those that the harness's class leaves open.
    kind: Callable[..., Any] = type("HarnessModel", (Scorer, base), {"__doc__": Scorer.__doc__})
    return kind(model, tokenizer, batch_size=batch_size)


def _harness_base() -> type:
    try:
        from lm_eval.api.model import LM as HarnessLM  # noqa: N811 - its name is that of our own model
    except ImportError as error:
        raise ConfigError(
            "the evaluation harness needs the Python package 'lm_eval': pip install 'twellviz[eval]'"
        ) from error
    base: type = HarnessLM
    return base
