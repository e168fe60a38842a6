"""Positions: numbers worked by hand, and what rotation, slopes, buckets and masks must keep."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.reference import alibi_slopes, bucket, rope_frequencies, rotate, sinusoid, visible
from headway.reference.arithmetic import dot
from headway.reference.position import rope_magnitude
from headway.spec import (
    BucketBias,
    DynamicScaling,
    GivenScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Mask,
    Rope,
    Scaling,
    SinusoidalPositions,
    YarnScaling,
)
from headway.spec.position import Pairing

vectors = st.lists(st.floats(-10, 10), min_size=8, max_size=8)
positions = st.integers(0, 500)
pairings: st.SearchStrategy[Pairing] = st.sampled_from(("half", "interleaved"))


def frequencies(scaling: Scaling | None, dim: int = 8, base: float = 10000.0, length: int = 1) -> list[float]:
    return rope_frequencies(Rope(dim=dim, base=base, scaling=scaling), length)


@pytest.mark.case("C11")
def test_llama3_keeps_blends_and_divides() -> None:
    scaling = Llama3Scaling(factor=4.0, low=1.0, high=4.0, original=64)
    expected = [1.0, 0.25464791, 0.02546479, 0.00790569, 0.0025, 0.00079057, 0.00025, 0.00007906]
    assert frequencies(scaling, dim=16) == pytest.approx(expected, rel=1e-6, abs=5e-9)


def test_plain_frequencies_fall_by_a_constant_ratio() -> None:
    assert frequencies(None) == pytest.approx([1.0, 0.1, 0.01, 0.001])


@pytest.mark.case("C11")
def test_linear_divides_every_position() -> None:
    assert frequencies(LinearScaling(factor=8.0)) == pytest.approx([0.125, 0.0125, 0.00125, 0.000125])


def test_given_divides_each_pair_by_its_own() -> None:
    assert frequencies(GivenScaling(divisors=(1.0, 2.0, 4.0, 5.0))) == pytest.approx([1.0, 0.05, 0.0025, 0.0002])


def test_longrope_chooses_by_the_length_of_the_whole_sequence() -> None:
    scaling = LongRopeScaling(short=(1.0, 1.0, 1.0, 2.0), long=(2.0, 4.0, 8.0, 16.0), original=32, attention=1.25)
    assert frequencies(scaling, length=32) == pytest.approx([1.0, 0.1, 0.01, 0.0005])
    assert frequencies(scaling, length=33) == pytest.approx([0.5, 0.025, 0.00125, 0.0000625])
    assert rope_magnitude(Rope(dim=8, base=10000.0, scaling=scaling)) == 1.25


def test_dynamic_is_plain_up_to_the_original_length_and_then_slows_the_last_pair_by_the_stretch() -> None:
    scaling = DynamicScaling(factor=2.0, original=100)
    assert frequencies(scaling, length=7) == frequencies(scaling, length=100) == frequencies(None)
    # At factor 2 and twice the length, stretch = 2 * 2 - 1 = 3: the last of 4 pairs turns 3 times slower.
    stretched = frequencies(scaling, length=200)
    assert stretched[0] == 1.0
    assert stretched[-1] == pytest.approx(0.001 / 3)


def test_yarn_ramps_between_its_two_pairs() -> None:
    # Pair i turns t times in 2000 pi positions when 10^i = 1000 / t: t = 100 at pair 1, t = 1 at pair 3.
    scaling = YarnScaling(factor=5.0, original=6283, beta_fast=100.0, beta_slow=1.0, attention=1.1, truncate=False)
    assert frequencies(scaling) == pytest.approx([1.0, 0.1, 0.006, 0.0002], rel=1e-4)
    assert rope_magnitude(Rope(dim=8, base=10000.0, scaling=scaling)) == 1.1


def test_yarn_truncated_widens_the_ramp_to_whole_pairs() -> None:
    # Pairs 1.3 and 2.3 become 1 and 3, so that pair 2 is half divided.
    fast, slow = 10**1.7, 10**0.7
    scaling = YarnScaling(factor=5.0, original=6283, beta_fast=fast, beta_slow=slow, attention=1.0, truncate=True)
    assert frequencies(scaling) == pytest.approx([1.0, 0.1, 0.006, 0.0002])


def test_yarn_ramps_inside_the_pairs_that_there_are() -> None:
    # Pair i turns t times in 2000 pi positions when 10^(i/2) = 1000 / t: t = 2000 at pair -0.6, t = 1 at pair 6.
    scaling = YarnScaling(factor=4.0, original=6283, beta_fast=2000.0, beta_slow=1.0, attention=1.0, truncate=True)
    plain = frequencies(None, dim=4, base=10.0)
    assert frequencies(scaling, dim=4, base=10.0) == pytest.approx([plain[0], plain[1] * (2 / 3 + 1 / 3 / 4)])


def test_yarn_of_a_sequence_shorter_than_one_turn_keeps_the_first_pair_alone() -> None:
    scaling = YarnScaling(factor=4.0, original=4, beta_fast=32.0, beta_slow=1.0, attention=1.0, truncate=True)
    assert frequencies(scaling) == pytest.approx([1.0, 0.025, 0.0025, 0.00025])


def test_rotation_by_a_quarter_turn_in_both_pairings() -> None:
    quarter = GivenScaling(divisors=(2 / math.pi, 2 / math.pi))
    half = Rope(dim=4, base=1.0, pairing="half", scaling=quarter)
    interleaved = Rope(dim=4, base=1.0, pairing="interleaved", scaling=quarter)
    assert rotate(half, [1, 2, 3, 4, 5], 1, 1) == pytest.approx([-3, -4, 1, 2, 5])
    assert rotate(interleaved, [1, 2, 3, 4, 5], 1, 1) == pytest.approx([-2, 1, -4, 3, 5])


@given(vectors, positions, pairings)
@settings(max_examples=30)
def test_rotation_keeps_the_length_of_a_vector(x: list[float], position: int, pairing: Pairing) -> None:
    turned = rotate(Rope(dim=6, base=100.0, pairing=pairing), x, position, 1)
    assert dot(turned, turned) == pytest.approx(dot(x, x), abs=1e-9)
    assert turned[6:] == x[6:]


@given(vectors, vectors, positions, positions, st.integers(0, 99), pairings)
@settings(max_examples=30)
def test_scores_of_rotated_vectors_depend_on_distance_alone(
    q: list[float], k: list[float], at: int, past: int, shift: int, pairing: Pairing
) -> None:
    rope = Rope(dim=8, base=100.0, pairing=pairing)
    near = dot(rotate(rope, q, at, 1), rotate(rope, k, past, 1))
    far = dot(rotate(rope, q, at + shift, 1), rotate(rope, k, past + shift, 1))
    assert near == pytest.approx(far, abs=1e-9)


def test_magnitude_multiplies_only_what_is_turned() -> None:
    scaling = LongRopeScaling(short=(1.0,), long=(1.0,), original=8, attention=2.0)
    assert rotate(Rope(dim=2, base=10.0, scaling=scaling), [3, 4, 5], 0, 1) == [6, 8, 5]


def test_sinusoids_in_both_layouts() -> None:
    sines, cosines = [math.sin(3), math.sin(0.03)], [math.cos(3), math.cos(0.03)]
    paper = sinusoid(SinusoidalPositions(), 4, 3)
    fairseq = sinusoid(SinusoidalPositions(layout="half"), 4, 3)
    assert paper == pytest.approx([sines[0], cosines[0], sines[1], cosines[1]])
    assert fairseq == pytest.approx(sines + cosines)
    assert sinusoid(SinusoidalPositions(offset=2), 4, 1) == paper


def test_alibi_slopes_for_eight_and_for_six_heads() -> None:
    assert alibi_slopes(8) == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(6) == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
    assert alibi_slopes(2, max_bias=4.0) == [2**-2, 2**-4]


def test_buckets_of_a_decoder() -> None:
    bias = BucketBias(name="rel", heads=1, buckets=8, max_distance=16, bidirectional=False)
    behind = [0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 15, 16, 99]
    assert [bucket(bias, -distance) for distance in behind] == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7, 7]
    assert [bucket(bias, distance) for distance in (1, 5, 99)] == [0, 0, 0]


def test_buckets_of_an_encoder_mirror_each_other() -> None:
    bias = BucketBias(name="rel", heads=1, buckets=8, max_distance=16, bidirectional=True)
    behind = [bucket(bias, -distance) for distance in range(1, 40)]
    ahead = [bucket(bias, distance) for distance in range(1, 40)]
    assert ahead == [number + 4 for number in behind]
    assert bucket(bias, 0) == 0
    assert max(ahead) == 7


@pytest.mark.case("C26")
def test_a_window_counts_the_token_itself() -> None:
    def seen(mask: Mask) -> list[int]:
        return [sum(visible(mask, query, key) for key in range(8)) for query in range(8)]

    assert seen(Mask.causal(4)) == [1, 2, 3, 4, 4, 4, 4, 4]
    assert (
        seen(Mask.causal(8)) == seen(Mask.causal(9)) == seen(Mask.causal(0)) == seen(Mask.causal()) == list(range(1, 9))
    )
    assert seen(Mask()) == [8] * 8
    assert seen(Mask(before=1, after=2)) == [3, 4, 4, 4, 4, 4, 3, 2]
