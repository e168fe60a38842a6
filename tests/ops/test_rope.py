"""Rotary frequencies by hand-worked numbers, and what a rotation keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.ops.rope import frequencies, rotate, rotation
from headway.reference import rope_frequencies
from headway.spec import (
    DynamicScaling,
    GivenScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    YarnScaling,
)

ONE = torch.ones(2, 1, dtype=torch.long)
LLAMA3 = Llama3Scaling(factor=4.0, low=1.0, high=4.0, original=64)


@pytest.mark.case("C11")
def test_llama3_keeps_blends_and_divides() -> None:
    got, factor = frequencies(Rope(dim=16, base=10000.0, scaling=LLAMA3), 1)
    expected = [1.0, 0.25464791, 0.02546479, 0.00790569, 0.0025, 0.00079057, 0.00025, 0.00007906]
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=5e-9)  # the case gives eight decimals
    assert factor == 1.0


@pytest.mark.case("C11")
def test_linear_divides_every_angle_by_the_factor() -> None:
    plain, _ = frequencies(Rope(dim=16, base=10000.0), 1)
    scaled, _ = frequencies(Rope(dim=16, base=10000.0, scaling=LinearScaling(factor=4.0)), 1)
    np.testing.assert_allclose(scaled, plain / 4)


def test_dynamic_grows_its_base_only_past_the_original_length() -> None:
    rope = Rope(dim=8, base=10000.0, scaling=DynamicScaling(factor=2.0, original=10))
    plain, _ = frequencies(Rope(dim=8, base=10000.0), 1)
    np.testing.assert_array_equal(frequencies(rope, 10)[0], plain)
    np.testing.assert_allclose(frequencies(rope, 20)[0][1], (10000.0 * 3 ** (8 / 6)) ** -0.25)
    assert rope.regime(5) == rope.regime(10) != rope.regime(11) != rope.regime(12)


def test_longrope_takes_its_long_divisors_past_the_original_length() -> None:
    rope = Rope(
        dim=4, base=100.0, scaling=LongRopeScaling(short=(1.0, 2.0), long=(4.0, 8.0), original=6, attention=1.5)
    )
    np.testing.assert_allclose(frequencies(rope, 6)[0], [1.0, 0.05])
    np.testing.assert_allclose(frequencies(rope, 7)[0], [0.25, 0.0125])
    assert (rope.regime(6), rope.regime(7)) == (0, 1)


def test_rows_of_different_regimes_take_their_own_tables() -> None:
    scaling = LongRopeScaling(short=(1.0, 2.0), long=(4.0, 8.0), original=6, attention=1.0)
    rope = Rope(dim=4, base=100.0, scaling=scaling)
    places = torch.tensor([[3], [3]])
    both = rotation(rope, places, ONE, [(6,), (7,)])
    for row, horizon in enumerate([6, 7]):
        torch.testing.assert_close(both.cos[row], rotation(rope, places[:1], ONE[:1], [(horizon,)]).cos[0])


@pytest.mark.case("C11")
@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("original", [5, 9, 24, 4096])  # the shortest lets the ends of the ramp cross
@pytest.mark.parametrize("dim", [2, 6, 64])
def test_yarn_is_the_references_wherever_its_ramp_lies(dim: int, original: int, truncate: bool) -> None:
    for beta_fast, beta_slow in ((32.0, 1.0), (4.0, 0.5)):
        yarn = YarnScaling(
            factor=4.0, original=original, beta_fast=beta_fast, beta_slow=beta_slow, attention=1.1, truncate=truncate
        )
        rope = Rope(dim=dim, base=500.0, scaling=yarn)
        got, factor = frequencies(rope, 3)
        np.testing.assert_allclose(got, rope_frequencies(rope, 3), rtol=1e-12)
        assert factor == 1.1


@pytest.mark.case("C15")
def test_tables_stay_float32_whatever_the_heads_are() -> None:
    by = rotation(Rope(dim=8, base=10000.0), torch.arange(5)[None], torch.ones(1, 5, dtype=torch.long), [(5,)])
    assert by.cos.dtype == torch.float32
    assert rotate(torch.zeros(1, 2, 5, 8, dtype=torch.bfloat16), by).dtype == torch.bfloat16


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.case("C22")
def test_a_partial_rotation_leaves_the_other_entries(pairing: str) -> None:
    x = torch.randn(1, 3, 5, 16)
    turned = rotate(
        x,
        rotation(
            Rope(dim=8, base=10000.0, pairing=pairing),
            torch.arange(5)[None],
            torch.ones(1, 5, dtype=torch.long),
            [(5,)],
        ),
    )
    assert torch.equal(turned[..., 8:], x[..., 8:])
    torch.testing.assert_close(turned[..., :8].norm(dim=-1), x[..., :8].norm(dim=-1))
    assert not torch.allclose(turned[..., 1:, :8], x[..., 1:, :8])


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_scores_depend_on_distance_alone(pairing: str) -> None:
    rope = Rope(dim=8, base=50.0, pairing=pairing, scaling=GivenScaling(divisors=(1.0, 1.5, 2.0, 4.0)))
    q, k = torch.randn(1, 1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 1, 8, dtype=torch.float64)

    def score(query: int, key: int) -> torch.Tensor:
        turn = [rotation(rope, torch.tensor([[place]]), ONE[:1], [(1,)]) for place in (query, key)]
        return (rotate(q, turn[0]) * rotate(k, turn[1])).sum()

    torch.testing.assert_close(score(3, 1), score(13, 11), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(score(3, 1), score(4, 1))


def test_interleaved_is_half_split_with_its_entries_reordered() -> None:
    x, places = torch.randn(1, 1, 4, 6), torch.arange(4)[None]
    order = torch.tensor([0, 2, 4, 1, 3, 5])
    half = rotate(x[..., order], rotation(Rope(dim=6, base=100.0), places, torch.ones_like(places), [(4,)]))
    inter = rotate(x, rotation(Rope(dim=6, base=100.0, pairing="interleaved"), places, torch.ones_like(places), [(4,)]))
    torch.testing.assert_close(inter[..., order], half)
