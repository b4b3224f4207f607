"""The plan is pure, explains itself, changes where it should and does not flicker."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twell import OptionError, plan
from twell.plan import BlockShape, LayerPlan, plan_forward, plan_training

SHAPE = BlockShape(tokens=512, d_model=2048, d_hidden=5632, threads=2)


def test_dense_layers_go_densely_and_sparse_ones_do_not() -> None:
    assert plan_forward(SHAPE, 5).way == "token"
    assert plan_forward(SHAPE, 250, union=600).way == "tile"
    assert plan_forward(SHAPE, 2000).way == "dense"
    assert plan_training(SHAPE, 29).way == "sparse"
    assert plan_training(SHAPE, 2000).way == "dense"
    assert plan_training(SHAPE, None).way == "dense"


def test_neighbours_that_fire_alike_favour_tiles() -> None:
    assert plan_forward(SHAPE, 29, union=60).way == "tile"
    few = BlockShape(tokens=4, d_model=2048, d_hidden=5632, threads=2)
    assert plan_forward(few, 200).way != "tile"


@given(active=st.floats(0, 5632), previous=st.sampled_from(("dense", "sparse")))
def test_the_previous_way_stays_unless_the_other_clearly_wins(active: float, previous: str) -> None:
    chosen = plan_training(SHAPE, active, previous=previous)
    costs = {candidate.way: candidate.milliseconds for candidate in chosen.candidates}
    other = "dense" if previous == "sparse" else "sparse"
    assert chosen.way == (other if costs[other] <= plan.HYSTERESIS * costs[previous] else previous)


def test_a_density_that_wavers_at_the_border_does_not_flicker() -> None:
    low, high = 0.0, 5632.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if plan_training(SHAPE, middle).way == "sparse" else (low, middle)
    for start in ("dense", "sparse"):
        way = start
        for wobble in (0.99, 1.01, 0.98, 1.02):
            way = plan_training(SHAPE, low * wobble, previous=way).way
        assert way == start


@given(
    tokens=st.integers(0, 5000),
    hidden=st.integers(1, 20_000),
    share=st.floats(0, 1),
    gated=st.booleans(),
    threads=st.integers(1, 64),
)
def test_any_shape_has_a_plan_and_the_same_one_twice(
    tokens: int, hidden: int, share: float, gated: bool, threads: int
) -> None:
    shape = BlockShape(tokens=tokens, d_model=64, d_hidden=hidden, gated=gated, threads=threads)
    for make in (plan_forward, plan_training):
        one, two = make(shape, share * hidden), make(shape, share * hidden)
        assert one == two
        costs = {candidate.way: candidate.milliseconds for candidate in one.candidates}
        assert costs[one.way] == min(costs.values())
        assert LayerPlan.from_dict(json.loads(json.dumps(one.to_dict()))) == one


def test_it_explains_itself() -> None:
    text = plan_forward(SHAPE, 29).explain()
    assert "active neurons a token: 29.0" in text
    assert text.count(" ms") == 3
    assert "<- chosen" in text
    kept = plan_training(SHAPE, 460, previous="dense")
    if kept.way == "dense":
        assert "dense" in kept.reason


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: BlockShape(tokens=-1, d_model=1, d_hidden=1), "tokens=-1"),
        (lambda: BlockShape(tokens=1, d_model=True, d_hidden=1), "d_model=True"),
        (lambda: plan_forward(SHAPE, float("nan")), "mean_active=nan"),
        (lambda: plan_training(SHAPE, 6000), "mean_active=6000"),
        (lambda: plan_training(SHAPE, 5, previous="tile"), "previous='tile'"),
        (lambda: LayerPlan.from_dict({}), "not a plan"),
        (lambda: LayerPlan.from_dict({**plan_forward(SHAPE, 5).to_dict(), "way": "fast"}), "does not exist"),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OptionError, match=words):
        call()
