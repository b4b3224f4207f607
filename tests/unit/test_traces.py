"""What a trace says about known activations.

Letters: L layers, M tokens, H hidden width, N active pairs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.trace_samples import activations, hostile_trace, sample_trace, trace_of
from twellviz.errors import TraceError
from twellviz.traces import LayerPattern, Trace, visible


@pytest.mark.parametrize(("share", "form"), [(0.001, "ids"), (0.3, "bits"), (1.0, "bits")])
@pytest.mark.parametrize("n_hidden", [1, 7, 8, 200, 513])
def test_a_pattern_gives_back_what_fired(share: float, form: str, n_hidden: int) -> None:
    h_MH = activations(1, 37, n_hidden, share)[0]
    pattern = LayerPattern.from_dense(h_MH)
    if n_hidden >= 200:
        assert pattern.form == form
    assert (pattern.dense() == (h_MH != 0)).all()
    assert (pattern.dense(5, 9) == (h_MH[5:9] != 0)).all()
    assert (pattern.activity_H() == (h_MH != 0).sum(0)).all()
    for token in (0, 18, 36):
        ids, strengths = pattern.active(token)
        assert ids.tolist() == h_MH[token].nonzero()[0].tolist()
        largest = np.abs(h_MH[token]).max()
        assert np.abs(strengths - np.abs(h_MH[token, ids])).max(initial=0) <= largest / 508 * 1.0001
    for neuron in (0, n_hidden - 1):
        tokens, strengths = pattern.tokens_of(neuron)
        assert tokens.tolist() == h_MH[:, neuron].nonzero()[0].tolist()
        assert strengths.tolist() == [
            pattern.active(token)[1][pattern.active(token)[0] == neuron][0] for token in tokens.tolist()
        ]


def test_the_form_changes_at_five_percent() -> None:
    h_MH = np.zeros((10, 100), np.float32)
    h_MH[:, :4] = 1
    h_MH[:9, 4] = 1
    assert LayerPattern.from_dense(h_MH).form == "ids"  # 4.9 %
    h_MH[9, 4] = 1
    assert LayerPattern.from_dense(h_MH).form == "bits"  # 5 %


def test_more_tokens_than_a_block_of_bits() -> None:
    h_MH = activations(1, 2500, 30, 0.3)[0]
    pattern = LayerPattern.from_dense(h_MH)
    assert pattern.form == "bits"
    assert (pattern.dense() == (h_MH != 0)).all()
    assert (pattern.activity_H() == (h_MH != 0).sum(0)).all()


def test_wide_layers_have_wider_ids() -> None:
    for n_hidden, dtype in ((65_536, np.uint16), (65_537, np.int32)):
        h_MH = np.zeros((2, n_hidden), np.float32)
        h_MH[1, -1] = 2
        pattern = LayerPattern.from_dense(h_MH)
        assert pattern.ids_N is not None
        assert pattern.ids_N.dtype == dtype
        assert pattern.active(1)[0].tolist() == [n_hidden - 1]


def test_strengths_that_are_not_finite_read_as_nan_and_come_first() -> None:
    h_MH = np.array([[np.nan, 1, -2, 0], [np.inf, 0, 0, -np.inf], [0, 0, 0, 0], [1e-45, 0, 3e38, 0]], np.float32)
    trace = trace_of(h_MH[None])
    assert trace.counts_LM.tolist() == [[3, 2, 0, 2]]
    assert np.isnan(trace.active(0, 0)[1]).tolist() == [True, False, False]
    assert trace.active(0, 0)[1][1:] == pytest.approx([1, 2], abs=2 / 508)
    assert np.isnan(trace.active(0, 1)[1]).all()
    assert trace.active(0, 2)[0].size == 0
    assert trace.active(0, 3)[1].tolist() == [0, pytest.approx(3e38, rel=1e-6)]
    assert trace.top_neurons(0, 0)[0].tolist() == [0, 2, 1]


def test_statistics_are_those_of_the_dense_activations() -> None:
    h_LMH = activations(3, 60, 120)
    h_LMH[:, :, 5] = 0
    trace = trace_of(h_LMH, sequence_lengths=[20, 30, 10])
    active_LMH = h_LMH != 0
    counts_LM = active_LMH.sum(2)
    assert (trace.n_layers, trace.n_tokens, trace.n_hidden, trace.n_sequences) == (3, 60, 120, 3)
    assert (trace.counts_LM == counts_LM).all()
    assert trace.mean_L == pytest.approx(counts_LM.mean(1))
    assert (trace.max_L == counts_LM.max(1)).all()
    for layer in range(3):
        # All but one of 60 values are at or below the second largest: the 99th percentile is the largest.
        assert trace.p99_L[layer] == sorted(counts_LM[layer])[-1]
        assert (trace.dense(layer) == active_LMH[layer]).all()
    assert trace.dead_LH[:, 5].all()
    assert trace.dead_share_L == pytest.approx((active_LMH.sum(1) == 0).mean(1))
    profile_LP = trace.position_profile()
    assert profile_LP.shape == (3, 30)
    assert profile_LP[1, 0] == pytest.approx(counts_LM[1, [0, 20, 50]].mean())
    assert profile_LP[2, 25] == counts_LM[2, 45]
    assert trace.position_M[[0, 19, 20, 59]].tolist() == [0, 19, 0, 9]
    for block in (1, 7, 60, 1000):
        expected = [active_LMH[1, i : i + block].any(0).sum() for i in range(0, 60, block)]
        assert trace.union_sizes(1, block).tolist() == expected


def test_top_lists_are_sorted_and_name_real_entries() -> None:
    h_LMH = activations(2, 50, 80, 0.2)
    trace = trace_of(h_LMH)
    ids, strengths = trace.top_neurons(1, 3, k=5)
    by_strength = np.argsort(-np.abs(h_LMH[1, 3]))[:5]
    assert strengths == pytest.approx(np.abs(h_LMH[1, 3])[by_strength], abs=float(np.abs(h_LMH[1, 3]).max()) / 508)
    assert (np.diff(strengths) <= 0).all()
    neuron = int(ids[0])
    tokens, values = trace.top_tokens(1, neuron, k=3)
    assert (np.diff(values) <= 0).all()
    assert (h_LMH[1, tokens, neuron] != 0).all()
    assert values[0] == pytest.approx(np.abs(h_LMH[1, :, neuron]).max(), rel=0.02)


def test_tables() -> None:
    trace = sample_trace()
    table = trace.table()
    assert list(table.columns) == ["sequence", "position", "source", "token", "id", "l0_0", "l0_1", "l0_2"]
    assert (table["l0_1"] == trace.counts_LM[1]).all()
    assert table["token"][3] == "␣w3"
    assert trace.layer_table()["max"].tolist() == trace.max_L.tolist()


def test_the_repr_explains() -> None:
    text = repr(sample_trace())
    assert text.startswith("Trace of sample: 40 tokens in 2 sequences, 3 layers of 200 neurons")
    assert "never fired" in text
    long = repr(sample_trace(n_layers=20, n_tokens=10, n_hidden=30))
    assert "..." in long
    assert len(long.splitlines()) == 15


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: t.active(3, 0), "layer=3: .* 0 to 2"),
        (lambda t: t.active(-1, 0), "layer=-1"),
        (lambda t: t.active(0, 40), "token=40: .* 0 to 39"),
        (lambda t: t.top_tokens(0, 200), "neuron=200: .* 0 to 199"),
        (lambda t: t.dense(1.0), r"layer=1\.0"),
        (lambda t: t.label(True), "token=True"),
        (lambda t: t.union_sizes(0, 0), "block=0"),
        (lambda t: Trace.from_patterns(()), "at least one layer"),
    ],
)
def test_wrong_indices_are_named(call: Any, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        call(sample_trace())


def test_parts_that_contradict_each_other_are_refused() -> None:
    trace = sample_trace()
    counts_LM = trace.counts_LM.copy()
    counts_LM[1, 2] += 1
    activity_LH = trace.activity_LH.copy()
    activity_LH[2, 0] += 1
    offsets_M2 = trace.offsets_M2.copy()
    offsets_M2[-1, 1] += 1
    empty: dict[str, Any] = {"counts_LM": trace.counts_LM[:, :0]}
    for change, words in (
        ({"counts_LM": counts_LM}, "counts and pattern of layer 1"),
        ({"activity_LH": activity_LH}, "activity and pattern of layer 2"),
        ({"patterns": trace.patterns[:2]}, "2 patterns for 3 layers"),
        ({"tokens_M": trace.tokens_M[1:]}, "tokens_M"),
        ({"offsets_M2": offsets_M2}, "characters that the text does not have"),
        ({"sequence_start": trace.sequence_start[:-1]}, "from 0 to 40"),
        ({"sequence_start": np.array([0, 0, 40])}, "ascend"),
        ({"sequence_text": np.array([0, 1], np.int32)}, "outside 0 to 0"),
        ({"sources": ("a", "b")}, "2 sources for 1 texts"),
        (empty, "counts_LM"),
    ):
        with pytest.raises(TraceError, match=words):
            replace(trace, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ids_N": None}, "either ids or bits"),
        ({"start": np.array([0, 2, 1, 3])}, "negative"),
        ({"start": np.array([0, 1, 2, 2])}, "add up to 2, but there are 3"),
        ({"ids_N": np.array([0, 3, 1], np.uint16)}, "do not ascend"),
        ({"ids_N": np.array([0, 1, 99], np.uint16)}, "outside 0 to 98"),
        ({"ids_N": np.array([0, 1], np.uint16)}, "2 ids for 3 codes"),
        ({"scale_M": np.array([1, np.nan, 1], np.float32)}, "scales"),
        ({"ids_N": None, "bits_MB": np.zeros((3, 13), np.uint8)}, "bits and counts differ"),
        ({"ids_N": None, "bits_MB": np.zeros((3, 12), np.uint8)}, "bits have shape"),
        ({"ids_N": None, "bits_MB": np.eye(3, 13, 12, dtype=np.uint8)}, "differ|past neuron"),
    ],
)
def test_broken_patterns_are_refused(change: dict[str, Any], words: str) -> None:
    pattern = LayerPattern(
        99,
        np.array([0, 1, 3, 3]),
        np.array([9, 8, 7], np.uint8),
        np.ones(3, np.float32),
        ids_N=np.array([5, 1, 98], np.uint16),
    )
    with pytest.raises(TraceError, match=words):
        replace(pattern, **change)


def test_bits_past_the_last_neuron_are_refused() -> None:
    with pytest.raises(TraceError, match="past neuron 98"):
        LayerPattern(
            99,
            np.array([0, 1]),
            np.zeros(1, np.uint8),
            np.ones(1, np.float32),
            bits_MB=np.eye(1, 13, 12, dtype=np.uint8),
        )


def test_labels_show_what_cannot_be_seen() -> None:
    trace = hostile_trace()
    labels = [trace.label(token) for token in range(trace.n_tokens)]
    assert labels[0] == "<script>alert(1)</script>"
    assert labels[2] == "$x_$"
    assert len(labels[4]) == 40
    assert labels[8] == "\U0001f469\\u200d\U0001f467"
    assert labels[9] == "\\x00"
    assert labels[10] == "\\u202eabc"
    assert labels[13] == "line⏎break"
    assert visible("\u0301x") == "◌\u0301x"
    assert visible(" \t") == "␣⇥"
    assert visible("") == ""


def test_pieces_of_one_character_are_numbered_and_specials_named() -> None:
    text = "a\U0001f642b"
    offsets = [[0, 1], [1, 2], [1, 2], [1, 2], [2, 3], [3, 3], [3, 3]]
    trace = replace(
        sample_trace(1, 7, 20),
        tokens_M=np.array([5, 6, 7, 8, 9, 0, 11], np.int32),
        offsets_M2=np.array(offsets, np.int32),
        texts=(text,),
    )
    assert [trace.label(token) for token in range(7)] == [
        *("a", "\U0001f642[1/3]", "\U0001f642[2/3]", "\U0001f642[3/3]", "b", "<|endoftext|>", "<11>")
    ]
    assert [shown.special for shown in trace.token_texts] == [False] * 5 + [True] * 2


def test_a_token_that_overlaps_its_neighbour_counts_as_a_piece() -> None:
    trace = replace(
        trace_of(activations(1, 3, 20)), offsets_M2=np.array([[0, 2], [1, 2], [2, 3]], np.int32), texts=("xéy",)
    )
    assert [trace.label(token) for token in range(3)] == ["xé[1/2]", "é[2/2]", "y"]


def test_context_stays_inside_the_sequence() -> None:
    trace = trace_of(activations(1, 6, 20), words=list("abcdef"), sequence_lengths=[4, 2])
    assert trace.context(2, width=1) == ("b", "c", "d")
    assert trace.context(3, width=2) == ("bc", "d", "")
    assert trace.context(4, width=5) == ("", "e", "f")
    special = replace(trace, offsets_M2=np.array([[0, 1], [1, 2], [2, 2], [2, 3], [4, 5], [5, 6]], np.int32))
    assert special.context(2, width=1) == ("b", "<2>", "c")
