"""Attention step by step: by hand, and what heads, windows, sinks and caps must keep."""

from __future__ import annotations

import math
from typing import Literal

import pytest

from headway.reference import Surroundings, attend, attention_steps, project
from headway.reference.attention import attention, bias_matrix, place
from headway.reference.parameters import Below
from headway.reference.position import head_bias
from headway.spec import Alibi, Attention, BucketBias, HeadNorm, Mask, Norm, Rope
from tests.reference.tiny import WIDTH, decoder, layer, weights_for
from tests.reference.tiny import attention as tiny_attention

Q = [[1.0, 0.0], [0.0, 2.0]]
K = [[1.0, 1.0], [3.0, math.log(3) + 1]]
V = [[1.0, 0.0, 4.0], [5.0, 8.0, 0.0]]
X = [[math.sin(1 + 3 * t + i) for i in range(WIDTH)] for t in range(7)]


def parameters(mixer: Attention) -> Below:
    return Below(weights_for(decoder(layer(mixer))), "stacks.decoder.layers.0.attention")


def test_every_step_by_hand() -> None:
    steps = attend(Q, K, V, scale=0.5, mask=Mask.causal())
    assert steps.scores == [[1.0, 3.0], [2.0, 2 * math.log(3) + 2]]
    assert steps.scaled == [[0.5, 1.5], [1.0, math.log(3) + 1]]
    assert steps.biased == steps.capped == steps.scaled
    assert steps.masked[0] == [0.5, -math.inf]
    assert steps.weights[0] == [1.0, 0.0]
    assert steps.weights[1] == pytest.approx([0.25, 0.75])
    assert steps.output[0] == V[0]
    assert steps.output[1] == pytest.approx([4.0, 6.0, 1.0])


def test_cap_comes_before_bias_and_bias_before_mask() -> None:
    steps = attend(Q, K, V, scale=100.0, mask=Mask.causal(), cap=2.0, bias=[[-1.0, -1.0], [-1.0, 0.5]])
    assert steps.capped[0] == pytest.approx([2.0, 2.0])
    assert steps.biased[1] == pytest.approx([1.0, 2.5])
    assert steps.masked[0] == [pytest.approx(1.0), -math.inf]


def test_a_sink_takes_its_share_and_reads_nothing() -> None:
    steps = attend([[1.0]], [[0.0], [0.0]], [[6.0], [2.0]], scale=1.0, mask=Mask(), sink=math.log(2))
    assert steps.weights == [pytest.approx([0.25, 0.25])]
    assert steps.output == [pytest.approx([2.0])]


def test_query_heads_share_their_groups_key() -> None:
    mixer = tiny_attention()
    heads = attention_steps(mixer, parameters(mixer), X)
    assert len(heads) == 4
    assert heads[0].k == heads[1].k != heads[2].k == heads[3].k
    assert len({str(head.q) for head in heads}) == 4
    assert len(heads[0].output[0]) == mixer.value_dim


@pytest.mark.case("C26")
def test_a_window_leaves_as_many_weights_as_it_counts() -> None:
    mixer = tiny_attention(mask=Mask.causal(4))
    for head in attention_steps(mixer, parameters(mixer), X):
        assert [sum(weight > 0 for weight in row) for row in head.weights] == [1, 2, 3, 4, 4, 4, 4]


def test_a_causal_token_never_feels_the_future() -> None:
    mixer = tiny_attention(rope=Rope(dim=6, base=100.0))
    whole = attention(mixer, parameters(mixer), X, Surroundings(length=7))
    prefix = attention(mixer, parameters(mixer), X[:4], Surroundings(length=4))
    assert whole[:4] == prefix


def test_weights_stay_when_every_position_moves_together() -> None:
    mixer = tiny_attention(rope=Rope(dim=6, base=100.0), mask=Mask.causal(2))
    first = attention_steps(mixer, parameters(mixer), X[2:])[0]
    later = attention_steps(mixer, parameters(mixer), X)[0]
    assert later.weights[5][4:6] == pytest.approx(first.weights[3][2:4])


@pytest.mark.parametrize("over", ["head", "heads"])
def test_queries_and_keys_are_normed_before_they_are_turned(over: Literal["head", "heads"]) -> None:
    norm = Norm(kind="rms", eps=0.0, weight=False)
    mixer = tiny_attention(qk_norm=HeadNorm(norm=norm, over=over), rope=Rope(dim=6, base=100.0))
    weights = parameters(mixer)
    plain = project(mixer, weights, X)
    placed = place(mixer, weights, plain, Surroundings(length=7))
    sizes = [sum(value * value for value in head[5]) / mixer.head_dim for head in placed.q]
    assert sum(sizes) / 4 == pytest.approx(1.0)
    assert (sizes == pytest.approx([1.0] * 4)) is (over == "head")
    assert placed.v == plain.v


def test_alibi_lowers_the_scaled_score_by_slope_times_distance() -> None:
    mixer = tiny_attention(bias="alibi", mask=Mask())
    bias = Alibi(name="alibi", heads=4)
    weights = Below(weights_for(decoder(layer(mixer), biases=(bias,))), "stacks.decoder.layers.0.attention")
    around = Surroundings(length=7, biases={"alibi": head_bias(bias, {})})
    head = attention_steps(mixer, weights, X, around)[1]
    assert head.scaled[5][2] - head.biased[5][2] == pytest.approx(3 * 2**-4)
    assert head.scaled[2][5] - head.biased[2][5] == pytest.approx(3 * 2**-4)


def test_a_bucket_bias_reads_its_table_by_key_minus_query_and_head() -> None:
    bias = BucketBias(name="rel", heads=4, buckets=4, max_distance=8, bidirectional=True)
    table = {"weight": [[0, 0], [10, 11], [20, 21], [30, 31]]}
    assert bias_matrix(head_bias(bias, table), 1, 3, 3) == [[0, 31, 31], [11, 0, 31], [11, 11, 0]]


def test_cross_attention_reads_the_memory() -> None:
    mixer = tiny_attention(mask=Mask(), source="memory")
    weights = parameters(tiny_attention())
    steps = attention_steps(mixer, weights, X[:2], Surroundings(length=2, memory=X))
    assert (len(steps[0].q), len(steps[0].k), len(steps[0].weights[0])) == (2, 7, 7)
    with pytest.raises(ValueError, match="memory"):
        attention_steps(mixer, weights, X)
