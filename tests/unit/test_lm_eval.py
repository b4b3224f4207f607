"""The adapter for the evaluation harness, on a small multiple-choice task, against the logits by hand."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from twellviz.data import Tokenizer, data_path
from twellviz.errors import ConfigError
from twellviz.models import LM, PRESETS, LMConfig, load_checkpoint
from twellviz.models.lm_eval import PAPER_TASKS, Scorer, harness_model


@dataclass
class Ask:
    """As ``lm_eval.api.instance.Instance``: the harness gives ``args``, among other things."""

    args: tuple[Any, ...]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load()


@pytest.fixture(scope="module")
def model() -> LM:
    return load_checkpoint(data_path("nano/model.safetensors"))


@pytest.fixture(scope="module")
def short() -> LM:
    """Random weights that read 8 tokens at most."""
    torch.manual_seed(0)
    cfg = LMConfig(vocab_size=2048, d_model=16, d_hidden=32, n_layers=2, n_heads=2, max_seq_len=8, init_std=0.3)
    return LM(cfg).eval()


QUESTIONS = [
    ("He did not", [" know", " purple", " xylophones"], 0),
    ("She looked at him, and then", [" she", " qqqq zzzz", " xylophone"], 0),
    ("the King of", [" walking", " France", " !!!"], 1),
]
"""Context, choices, and which of them goes on the text."""


def by_hand(model: LM, before: list[int], scored: list[int]) -> tuple[float, bool]:
    """One token after the other, each from a pass of its own."""
    total, greedy = 0.0, True
    for place in range(len(scored)):
        ids = (before + scored[:place])[-model.cfg.max_seq_len :]
        with torch.inference_mode():
            logs = model(torch.tensor([ids])).logits_BNV[0, -1].double().log_softmax(0)
        total += float(logs[scored[place]])
        greedy &= int(logs.argmax()) == scored[place]
    return total, greedy


def test_choices_are_scored_as_by_hand(model: LM, tokenizer: Tokenizer) -> None:
    asked = [Ask((context, choice)) for context, choices, _ in QUESTIONS for choice in choices]
    scores = Scorer(model, tokenizer, batch_size=4).loglikelihood(asked)
    for request, (score, greedy) in zip(asked, scores, strict=True):
        context, choice = request.args
        before = tokenizer.encode(context).ids.tolist()
        scored = tokenizer.encode(context + choice).ids.tolist()[len(before) :]
        expected, would_say = by_hand(model, before, scored)
        assert score == pytest.approx(expected, rel=1e-4)
        assert greedy == would_say
    # The batch decides nothing but the speed.
    alone = Scorer(model, tokenizer, batch_size=1).loglikelihood(asked)
    assert [score for score, _ in scores] == pytest.approx([score for score, _ in alone], rel=1e-5)
    # A model of novels knows how a sentence goes on.
    for number, (_, choices, answer) in enumerate(QUESTIONS):
        found = [scores[number * len(choices) + place][0] for place in range(len(choices))]
        assert found.index(max(found)) == answer


def test_greedy_is_said_where_it_is(model: LM, tokenizer: Tokenizer) -> None:
    scorer = Scorer(model, tokenizer)
    context = "It was the"
    [said] = scorer.generate_until([Ask((context, {"max_gen_toks": 4}))])
    assert said
    # generate_until begins with end_of_text; loglikelihood does so for an empty context alone.
    ids = tokenizer.encode(context).ids.tolist()
    best = model.generate(torch.tensor([ids]), 1)[0, -1:].tolist()
    [(_, greedy)] = scorer.loglikelihood([Ask((context, tokenizer.decode(best)))])
    assert greedy


def test_spaces_and_empty_contexts(model: LM, tokenizer: Tokenizer) -> None:
    scorer = Scorer(model, tokenizer)
    [with_space], [without] = (scorer.loglikelihood([Ask(args)]) for args in (("the ", "King"), ("the", " King")))
    assert with_space == without
    [(empty, _)] = scorer.loglikelihood([Ask(("", "The King"))])
    scored = tokenizer.encode("The King").ids.tolist()
    assert empty == pytest.approx(by_hand(model, [tokenizer.end_of_text], scored)[0], rel=1e-4)


def test_a_long_context_is_cut_on_its_left(short: LM, tokenizer: Tokenizer) -> None:
    context, choice = "one two three four five six seven eight nine ten", " eleven"
    before = tokenizer.encode(context).ids.tolist()
    scored = tokenizer.encode(context + choice).ids.tolist()[len(before) :]
    assert len(before) > 8
    [(score, _)] = Scorer(short, tokenizer).loglikelihood([Ask((context, choice))])
    ids = (before + scored)[-9:]
    with torch.inference_mode():
        logs = short(torch.tensor([ids[:-1]])).logits_BNV[0].double().log_softmax(1)
    places = range(8 - len(scored), 8)
    assert score == pytest.approx(sum(float(logs[place, ids[place + 1]]) for place in places), rel=1e-5)


def test_rolling_scores_each_token_once_with_all_the_context_there_is(short: LM, tokenizer: Tokenizer) -> None:
    text = "It was the best of times, it was the worst of times, it was the age of wisdom"
    ids = [tokenizer.end_of_text, *tokenizer.encode(text).ids.tolist()]
    n = len(ids) - 1
    assert n > 16
    assert n % 8, "the last window must be a short one"
    expected = 0.0
    for start in range(0, n, 8):
        end = min(n, start + 8)
        first = max(0, end - 8)
        with torch.inference_mode():
            logs = short(torch.tensor([ids[first:end]])).logits_BNV[0].double().log_softmax(1)
        expected += sum(float(logs[place - 1 - first, ids[place]]) for place in range(start + 1, end + 1))
    found = Scorer(short, tokenizer, batch_size=2).loglikelihood_rolling([Ask((text,)), Ask(("",)), Ask((text,))])
    assert found == [pytest.approx(expected, rel=1e-5), 0, pytest.approx(expected, rel=1e-5)]


def test_generation_stops(model: LM, tokenizer: Tokenizer) -> None:
    scorer = Scorer(model, tokenizer)
    [free] = scorer.generate_until([Ask(("It was the", {"max_gen_toks": 12}))])
    words = free.split()
    assert len(words) > 2
    stop = words[2]
    cut, listed = scorer.generate_until(
        [Ask(("It was the", {"max_gen_toks": 12, "until": until})) for until in (stop, ["@@@", stop])]
    )
    assert cut == listed == free[: free.index(stop)]
    assert scorer.generate_until([Ask(("It was", {"max_gen_toks": 0}))]) == [""]
    warm = [Ask(("It was the", {"max_gen_toks": 8, "temperature": 1.5}))]
    assert scorer.generate_until(warm) == scorer.generate_until(warm)


def test_what_cannot_be_scored(short: LM, model: LM, tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="continuation is empty"):
        Scorer(model, tokenizer).loglikelihood([Ask(("a", ""))])
    with pytest.raises(ConfigError, match=r"has \d+ tokens after its context: 1 to max_seq_len=8 are possible"):
        Scorer(short, tokenizer).loglikelihood([Ask(("a", " b c d e f g h i j k l m n"))])
    small = LM(LMConfig(vocab_size=100, d_model=16, d_hidden=32, n_layers=1, n_heads=2, max_seq_len=8))
    with pytest.raises(ConfigError, match="tokenizer has 2048 entries, the model vocab_size=100"):
        Scorer(small, tokenizer)
    with pytest.raises(ConfigError, match="max_gen_toks=-1"):
        Scorer(model, tokenizer).generate_until([Ask(("a", {"max_gen_toks": -1}))])
    with pytest.raises(ConfigError, match="batch_size=0"):
        Scorer(model, tokenizer, batch_size=0)


def test_the_extra_is_named_where_it_is_missing(
    model: LM, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    with pytest.raises(ConfigError, match=r"'lm_eval': pip install 'twellviz\[eval\]'"):
        harness_model(model, tokenizer)
    assert len(PAPER_TASKS) == 7
    assert PRESETS["nano"].vocab_size == tokenizer.vocab_size


def test_the_harness_takes_it(model: LM, tokenizer: Tokenizer, tmp_path: Any) -> None:
    """The real harness, where it is installed, on these questions as a local task."""
    harness = pytest.importorskip("lm_eval", reason="the extra eval is not installed")
    import json

    rows = [{"context": c, "choices": choices, "answer": answer} for c, choices, answer in QUESTIONS]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = {
        "task": "goes_on",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "questions.jsonl")}, "cache_dir": str(tmp_path)},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{context}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    found = harness.simple_evaluate(harness_model(model, tokenizer), tasks=[task], bootstrap_iters=0)
    assert found["results"]["goes_on"]["acc,none"] == 1.0
