"""The trigram yardstick is a probability, and learns what trigrams tell."""

from __future__ import annotations

import numpy as np
import pytest

from twellviz.data import Tokenizer, load_tokens
from twellviz.errors import ConfigError
from twellviz.training.trigram import Trigram


@pytest.mark.parametrize("context", [(0, 1), (3, 3), (4, 0)])  # seen, half seen, never seen
def test_the_probabilities_of_all_words_sum_to_one(context: tuple[int, int]) -> None:
    text = np.array([0, 1, 2, 0, 1, 3, 3, 1, 0, 1, 2, 2, 0], np.uint16)
    model = Trigram(text, 5)
    each = [np.exp(-model.loss(np.array([*context, word], np.uint16))) for word in range(5)]
    assert sum(each) == pytest.approx(1)
    assert min(each) > 0


def test_by_hand() -> None:
    # After "0 1" stood 2 twice and 3 once; 1 was followed by 2, 3, 2; the text has 9 tokens.
    text = np.array([0, 1, 2, 0, 1, 3, 0, 1, 2], np.uint16)
    model = Trigram(text, 4, discount=0.5)
    unigram = (2 + 1) / (9 + 4)
    bigram = (2 - 0.5) / 3 + 0.5 * 2 / 3 * unigram
    trigram = (2 - 0.5) / 3 + 0.5 * 2 / 3 * bigram
    assert np.exp(-model.loss(np.array([0, 1, 2], np.uint16))) == pytest.approx(trigram)


def test_it_learns_a_text_that_repeats_and_no_more_than_chance_of_noise() -> None:
    generator = np.random.default_rng(0)
    repeating = np.tile(np.arange(50, dtype=np.uint16), 200)
    assert Trigram(repeating, 50).loss(repeating) < 0.1
    noise, other = generator.integers(0, 50, (2, 20_000)).astype(np.uint16)
    loss = Trigram(noise, 50).loss(other)
    assert np.log(50) < loss < 1.2 * np.log(50)  # it cannot know more than chance, and believes a little in what it saw


def test_real_text_is_between_chance_and_the_shipped_model() -> None:
    tokenizer = Tokenizer.load()
    model = Trigram(load_tokens("train", tokenizer), tokenizer.vocab_size)
    loss = model.loss(load_tokens("validation", tokenizer))
    assert 3.5 < loss < 5.5 < np.log(tokenizer.vocab_size)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Trigram(np.array([1, 2], np.uint16), 4), "at least 3"),
        (lambda: Trigram(np.array([1, 2, 9], np.uint16), 4), "0 to 3"),
        (lambda: Trigram(np.array([1, 2, 3], np.uint16), 4, discount=1.0), "discount"),
        (lambda: Trigram(np.array([1, 2, 3], np.uint16), 0), "vocab_size"),
        (lambda: Trigram(np.array([1.5, 2, 3]), 4), "integer"),  # type: ignore[arg-type]
    ],
)
def test_wrong_input_is_named(call, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=says):
        call()
