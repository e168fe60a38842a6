"""Softmax, losses, norms and activations against numbers worked by hand and properties that must hold."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.reference import cross_entropy, log_softmax, softmax
from headway.reference.arithmetic import ACTIVATIONS, affine, rms_normalize, sigmoid, softcap, standardize, weighted_sum
from headway.spec import ACTIVATIONS as NAMES

numbers = st.lists(st.floats(-50, 50), min_size=1, max_size=8)


def test_softmax_of_logarithms_is_their_share() -> None:
    assert softmax([math.log(1), math.log(2), math.log(5)]) == pytest.approx([0.125, 0.25, 0.625])


@given(numbers, st.floats(-1000, 1000))
@settings(max_examples=30)
def test_softmax_ignores_a_shift_and_sums_to_one(x: list[float], shift: float) -> None:
    assert softmax([value + shift for value in x]) == pytest.approx(softmax(x), rel=1e-6, abs=1e-12)
    assert sum(softmax(x)) == pytest.approx(1)


def test_softmax_survives_huge_scores_and_gives_nothing_to_minus_infinity() -> None:
    assert softmax([1e6, -math.inf, 1e6]) == [0.5, 0.0, 0.5]


@given(numbers)
@settings(max_examples=30)
def test_log_softmax_is_the_logarithm_of_softmax(x: list[float]) -> None:
    assert [math.exp(value) for value in log_softmax(x)] == pytest.approx(softmax(x), abs=1e-12)


def test_log_softmax_keeps_what_softmax_rounds_to_zero() -> None:
    assert log_softmax([0.0, -2000.0])[1] == -2000.0


def test_cross_entropy_is_a_sum_and_a_count() -> None:
    logits = [[math.log(1), math.log(3)], [math.log(1), math.log(1)]]
    total, count = cross_entropy(logits, [1, 0])
    assert total == pytest.approx(math.log(4 / 3) + math.log(2))
    assert count == 2


def test_cross_entropy_never_looks_at_a_target_of_weight_zero() -> None:
    total, count = cross_entropy([[0.0, 0.0], [0.0, 0.0]], [1, -100], [0.5, 0.0])
    assert total == pytest.approx(0.5 * math.log(2))
    assert count == 0.5


def test_cross_entropy_refuses_targets_of_another_length() -> None:
    with pytest.raises(ValueError, match="zip"):
        cross_entropy([[0.0, 1.0]], [0, 1])


def test_affine_and_weighted_sum_by_hand() -> None:
    assert affine([[1, 2], [3, 4], [5, 6]], [10, 1], [0, 0, 7]) == [12, 34, 63]
    assert weighted_sum([0.5, 2.0], [[2, 4, 6], [1, 0, -1]]) == [3, 2, 1]


def test_layer_norm_by_hand() -> None:
    assert standardize([1.0, 3.0, 5.0], eps=1 / 3) == pytest.approx([-2 / 3**0.5, 0, 2 / 3**0.5])


def test_rms_norm_by_hand_keeps_the_mean() -> None:
    assert rms_normalize([1.0, 7.0], eps=0.0) == pytest.approx([0.2, 1.4])
    assert rms_normalize([0.0, 0.0], eps=1e-6) == [0.0, 0.0]


def test_softcap_bounds_and_zero_is_none() -> None:
    assert softcap(1e9, 30.0) == pytest.approx(30.0)
    assert softcap(0.01, 30.0) == pytest.approx(0.01, rel=1e-6)
    assert softcap(1e9, 0.0) == 1e9


def test_every_activation_of_the_spec_exists() -> None:
    assert set(ACTIVATIONS) == set(NAMES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("relu", 1.0),
        ("gelu", 0.841344746),
        ("gelu_tanh", 0.841191991),
        ("gelu_quick", 0.845795759),
        ("silu", 0.731058579),
        ("sigmoid", 0.731058579),
        ("tanh", 0.761594156),
    ],
)
def test_activations_at_one(name: str, value: float) -> None:
    assert ACTIVATIONS[name](1.0) == pytest.approx(value, rel=1e-8)


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "gelu_quick", "silu"])
def test_rectifiers_vanish_far_below_zero(name: str) -> None:
    assert ACTIVATIONS[name](-1000.0) == pytest.approx(0.0, abs=1e-12)


def test_sigmoid_never_overflows() -> None:
    assert (sigmoid(-1e4), sigmoid(1e4)) == (0.0, 1.0)
