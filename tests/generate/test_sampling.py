"""The functions between logits and tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.generate import Sampling
from headway.generate.sampling import (
    History,
    adjust,
    ban,
    choose,
    draw,
    greedy,
    likeliest,
    measure,
    narrow,
    penalise,
    precise,
    repeats,
    uniform,
)

LOGITS = [1.0, 3.0, 2.0, 3.0]
SEEDS = [uniform(seed, 0, 0) for seed in range(200)]


def picks(**sampling: Any) -> set[int]:
    rows = torch.tensor([LOGITS] * len(SEEDS))
    return set(choose(rows, Sampling(**sampling), SEEDS).tolist())


def kept(**sampling: Any) -> list[float]:
    return narrow(precise(torch.tensor([LOGITS])), Sampling(**{"temperature": 1.0, **sampling}))[0].tolist()


@pytest.mark.case("C20")
@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, {"temperature": 1, "top_p": 0}, {"temperature": 5, "top_k": 1}]
)
def test_greedy_choices_take_the_lowest_of_equal_ids(sampling: dict[str, Any]) -> None:
    assert picks(**sampling) == {1}


@pytest.mark.case("C20")
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1e-9},
        {"temperature": 5e-324},
        {"temperature": 1, "min_p": 1},
        {"temperature": 1, "top_k": 2},
        {"temperature": 1e-9, "top_k": 3, "top_p": 0.9, "min_p": 0.5, "typical_p": 0.9},
    ],
)
def test_cold_choices_take_either_of_the_largest(sampling: dict[str, Any]) -> None:
    assert picks(**sampling) == {1, 3}


@pytest.mark.case("C20")
@pytest.mark.parametrize("neutral", [{}, {"top_p": 1}, {"top_k": 0}, {"min_p": 0}, {"top_k": 10}, {"top_k": 4}])
def test_neutral_values_change_nothing(neutral: dict[str, Any]) -> None:
    assert kept(**neutral) == LOGITS


@pytest.mark.case("C20")
@settings(max_examples=80, deadline=None)
@given(
    logits=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=9),
    temperature=st.sampled_from([1e-300, 1e-9, 0.3, 1.0, 7.0, 1e300]),
    top_k=st.integers(0, 12),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    typical_p=st.floats(0, 1),
)
def test_filters_always_leave_a_token_and_draw_only_what_they_leave(logits: list[float], **values: Any) -> None:
    row = precise(torch.tensor([logits]))
    left = narrow(row, Sampling(**values))
    assert (left > -math.inf).any()
    assert not left.isnan().any()
    drawn = draw(left.expand(50, -1), SEEDS[:50])
    assert (left[0, drawn] > -math.inf).all()


@pytest.mark.case("C20")
def test_an_enormous_temperature_makes_all_ids_alike() -> None:
    for temperature in (10**30, 1e300):
        assert picks(temperature=temperature, repetition_penalty=1) == {0, 1, 2, 3}
    assert adjust(torch.ones(1, 2).double(), Sampling(repetition_penalty=10**30), [History([0])]).tolist()[0][1] == 1


def test_filters_keep_what_their_papers_say() -> None:
    probabilities = torch.tensor([[0.4, 0.1, 0.3, 0.2]], dtype=torch.float64)

    def left(**sampling: Any) -> list[int]:
        row = narrow(probabilities.log(), Sampling(temperature=1.0, **sampling))[0]
        return (row > -math.inf).nonzero()[:, 0].tolist()

    assert left(top_k=3) == [0, 2, 3]
    assert left(top_p=0.39) == [0]
    assert left(top_p=0.41) == [0, 2]
    assert left(top_p=0.95) == [0, 1, 2, 3]
    assert left(min_p=0.5) == [0, 2, 3]
    assert left(min_p=0.51) == [0, 2]
    # Entropy 1.28: surprises 0.92, 2.30, 1.20, 1.61 lie 0.36, 1.02, 0.08, 0.33 from it.
    assert left(typical_p=0.2) == [2]
    assert left(typical_p=0.4) == [2, 3]
    assert left(typical_p=0.6) == [0, 2, 3]
    # Top-p counts what top-k left: 0.4 and 0.3 of 0.7.
    assert left(top_k=2, top_p=0.57) == [0]
    assert left(top_k=2, top_p=0.58) == [0, 2]


def test_equal_logits_are_cut_from_the_high_ids() -> None:
    row = torch.zeros(1, 5, dtype=torch.float64)
    for sampling in (
        Sampling(temperature=1, top_k=2),
        Sampling(temperature=1, top_p=0.35),
        Sampling(temperature=1, typical_p=0.35),
    ):
        assert (narrow(row, sampling)[0] > -math.inf).tolist() == [True, True, False, False, False]


def test_top_p_looks_further_when_the_largest_do_not_reach_it() -> None:
    wide = torch.zeros(1, 5000, dtype=torch.float64)
    assert (narrow(wide, Sampling(temperature=1, top_p=0.50001))[0] > -math.inf).sum() == 2501


@pytest.mark.case("C24")
def test_repetition_divides_positive_and_multiplies_negative_logits_once() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5, 1.0]])
    for prompt, generated in (([0, 0, 0, 1], []), ([], [0, 0, 0, 1]), ([0, 1], [0, 0])):
        history = History(prompt)
        for token in generated:
            history.push(token)
        sampling = Sampling(repetition_penalty=2.0)
        assert adjust(logits.double(), sampling, [history]).tolist() == [[1.0, -2.0, 0.5, 1.0]]


@pytest.mark.case("C24")
def test_whether_the_prompt_counts_is_an_option() -> None:
    history = History([0, 0, 1])
    history.push(2)
    logits = torch.tensor([[2.0, -1.0, 0.5, 1.0]]).double()
    counted = adjust(logits, Sampling(repetition_penalty=2.0, penalise_prompt=True), [history])
    uncounted = adjust(logits, Sampling(repetition_penalty=2.0, penalise_prompt=False), [history])
    assert counted.tolist() == [[1.0, -2.0, 0.25, 1.0]]
    assert uncounted.tolist() == [[2.0, -1.0, 0.25, 1.0]]


@pytest.mark.case("C24")
def test_presence_and_frequency_count_generated_tokens_only() -> None:
    history = History([0, 0, 0])
    for token in (1, 1, 1, 2):
        history.push(token)
    logits = torch.zeros(1, 4).double()
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    assert adjust(logits, sampling, [history]).tolist() == [[0.0, -1.25, -0.75, 0.0]]


@pytest.mark.case("C24")
def test_rows_do_not_share_their_history() -> None:
    histories = [History([0]), History([1])]
    copied = histories[0].copy()
    copied.push(2)
    logits = torch.ones(3, 3).double()
    got = adjust(logits, Sampling(repetition_penalty=2.0), [*histories, copied])
    assert got.tolist() == [[0.5, 1, 1], [1, 0.5, 1], [0.5, 1, 0.5]]


def test_neutral_penalties_change_nothing() -> None:
    logits = torch.randn(2, 5).double()
    assert penalise(logits, Sampling(), [History([1]), History([2])]) is logits


@pytest.mark.parametrize(
    ("tokens", "size", "banned"),
    [
        ([1, 2, 3, 1, 2], 3, [3]),
        ([1, 2, 3, 1, 2, 4, 1, 2], 3, [3, 4]),
        ([1, 2, 1], 2, [2]),
        ([1, 2, 1], 1, [1, 2]),
        ([5], 3, []),
        ([5, 5], 3, []),
        ([5, 5, 5], 3, [5]),
    ],
)
def test_a_repeated_run_is_banned(tokens: list[int], size: int, banned: list[int]) -> None:
    assert repeats(tokens, size) == banned


@pytest.mark.case("C20")
def test_a_ban_of_everything_is_lifted() -> None:
    logits = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    assert ban(logits, [[0, 1], [1]]).tolist() == [[1.0, 2.0], [1.0, -math.inf]]


@pytest.mark.case("C30")
def test_the_ends_of_the_bias_ban_and_force() -> None:
    rows = torch.randn(200, 8, generator=torch.Generator().manual_seed(0)) * 300
    never = choose(rows, Sampling(temperature=2.0, logit_bias=((3, -100.0),)), SEEDS).tolist()
    always = choose(rows, Sampling(temperature=2.0, logit_bias=((3, 100.0), (2, 5.0))), SEEDS).tolist()
    assert 3 not in never
    assert set(always) == {3}
    assert greedy(adjust(torch.zeros(1, 8), Sampling(logit_bias=((5, 0.5),)))).tolist() == [5]


def test_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.2, 0.3], dtype=torch.float64)
    places = [(index + 0.5) / 1000 for index in range(1000)]
    drawn = draw(probabilities.log().expand(1000, -1), places)
    assert drawn.bincount(minlength=4).tolist() == [500, 0, 200, 300]
    edges = draw(probabilities.log().expand(2, -1), [0.0, 1 - 2**-52])
    assert edges.tolist() == [0, 3]


def test_a_number_depends_on_seed_choice_and_place_alone() -> None:
    assert uniform(1, 2, 3) == uniform(1, 2, 3)
    assert (
        len({uniform(seed, choice, place) for seed in (-1, 1, 12) for choice in (0, 1, 2) for place in (0, 1, 21)})
        == 27
    )
    numbers = [uniform(7, 0, place) for place in range(2000)]
    assert all(0 <= number < 1 for number in numbers)
    assert sum(numbers) / len(numbers) == pytest.approx(0.5, abs=0.02)
    assert uniform(7, 0, 0) == pytest.approx(0.19, abs=1)


def test_the_likeliest_come_best_first_and_lowest_id_first() -> None:
    values, ids = likeliest(torch.tensor([[1.0, 3.0, 2.0, 3.0, 3.0]]), 3)
    assert ids.tolist() == [[1, 3, 4]]
    assert values.tolist() == [[3.0, 3.0, 3.0]]


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.lists(st.floats(-60, 60, width=32), min_size=7, max_size=7), min_size=1, max_size=4),
    sampling=st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 1e-9, 0.4, 1.0, 3.0]),
        top_k=st.integers(0, 8),
        top_p=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
        min_p=st.sampled_from([0.0, 0.1, 1.0]),
        typical_p=st.sampled_from([0.3, 1.0]),
        repetition_penalty=st.sampled_from([1.0, 0.5, 1.3]),
        penalise_prompt=st.booleans(),
        presence_penalty=st.sampled_from([0.0, -1.0, 1.5]),
        frequency_penalty=st.sampled_from([0.0, 0.7]),
        no_repeat_ngram=st.sampled_from([0, 1, 2]),
        logit_bias=st.sampled_from([(), ((2, -100.0),), ((1, 100.0), (4, 100.0)), ((0, 3.5), (6, -100.0))]),
    ),
    past=st.lists(st.integers(0, 6), max_size=9),
)
def test_arrays_of_numpy_and_tensors_of_torch_give_the_same_ids(
    rows: list[list[float]], sampling: Sampling, past: list[int]
) -> None:
    histories = [History(past[:4]) for _ in rows]
    for history in histories:
        for token in past[4:]:
            history.push(token)
    told = SEEDS[: len(rows)], histories, [past] * len(rows)
    ours = choose(np.array(rows, np.float32), sampling, *told)
    theirs = choose(torch.tensor(rows), sampling, *told)
    assert isinstance(ours, np.ndarray)
    assert ours.tolist() == theirs.tolist()
    measured = [measure(kind(rows), ours.tolist(), 3) for kind in (np.array, lambda x: torch.tensor(x).double())]
    for one, other in zip(*measured, strict=True):
        assert (one.token, [token for token, _ in one.top]) == (other.token, [token for token, _ in other.top])
        assert one.logprob == pytest.approx(other.logprob, abs=1e-12)


def test_sampling_warns_of_no_infinity(recwarn: pytest.WarningsRecorder) -> None:
    row = np.array([[-math.inf, 1e300, -1e300, 0.0]])
    choose(row, Sampling(temperature=5e-324, top_p=0.5, typical_p=0.9), [0.5])
    measure(row, [0], 2)
    assert list(recwarn) == []


@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.7, top_p=0.9),
        Sampling(temperature=30.0, top_p=0.9),  # more ids than the first look
        Sampling(temperature=1.5, top_k=50, top_p=0.8),
        Sampling(temperature=1.5, top_k=3000, min_p=0.01),
        Sampling(temperature=1.0, top_p=0.95, typical_p=0.5),
    ],
)
def test_a_choice_is_drawn_of_what_the_filters_leave(make: Any, sampling: Sampling) -> None:
    values = np.random.default_rng(5).normal(0, 4, (3, 5000)).round(1)  # many are equal
    logits, numbers = make(values.tolist()), SEEDS[:3]
    assert choose(logits, sampling, numbers).tolist() == draw(narrow(precise(logits), sampling), numbers).tolist()
