"""Whole models: the algebra of steps by hand, ties, prefixes, regimes, worked examples, greedy decoding."""

from __future__ import annotations

import ast
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headway.reference
from headway.reference import attention_steps, forward, greedy, hidden, worked, worked_from
from headway.reference.arithmetic import standardize
from headway.reference.attention import Surroundings
from headway.reference.decode import likeliest
from headway.reference.model import attention_at, embed, logits, run_step
from headway.reference.parameters import Below, Tied
from headway.spec import (
    Branch,
    DynamicScaling,
    FeedForward,
    LayerScale,
    LearnedPositions,
    LMHead,
    Norm,
    Rope,
    Step,
    Tie,
    TokenStem,
)
from tests.reference.tiny import VOCAB, WIDTH, attention, decoder, layer, weights_for

TOKENS = [4, 17, 2, 2, 30, 9, 11]
ALONE = Surroundings(length=1)
DOUBLE: dict[str, Any] = {"a.up.weight": [[2, 0], [0, 2]], "a.down.weight": [[1, 0], [0, 1]]}
TRIPLE: dict[str, Any] = {"b.up.weight": [[3, 0], [0, 3]], "b.down.weight": [[1, 0], [0, 1]]}
SIMPLE = FeedForward(hidden=2, activation="relu")


def test_a_step_adds_its_scaled_branches_to_the_scaled_residual() -> None:
    step = Step(branches=(Branch(name="a", mixer=SIMPLE, scale=0.5), Branch(name="b", mixer=SIMPLE)), residual=10.0)
    assert run_step(step, DOUBLE | TRIPLE, [[1.0, 2.0]], ALONE) == [[14.0, 28.0]]


def test_a_layer_scale_multiplies_entry_by_entry() -> None:
    step = Step(branches=(Branch(name="a", mixer=SIMPLE, scale=LayerScale(initial=0.1)),))
    assert run_step(step, DOUBLE | {"a_scale.weight": [10, 0]}, [[1.0, 2.0]], ALONE) == [[21.0, 2.0]]


def test_each_norm_sits_where_the_algebra_says() -> None:
    plain = Norm(kind="layer", eps=0.0, weight=False)
    unit = Norm(kind="rms", eps=0.0)
    x = [[1.0, 5.0]]
    weights = DOUBLE | {"a_norm_out.weight": [3.0, 4.0]}

    def run(**places: Any) -> list[float]:
        branch = {name: norm for name, norm in places.items() if name.startswith("norm")}
        step = {name: norm for name, norm in places.items() if not name.startswith("norm")}
        return run_step(Step(branches=(Branch(name="a", mixer=SIMPLE, **branch),), **step), weights, x, ALONE)[0]

    assert run(norm=plain) == run(inner=plain) == [1.0, 7.0]
    assert run(outer=plain) == standardize([3.0, 15.0], 0.0)
    size = math.sqrt((2**2 + 10**2) / 2)
    assert run(norm_out=unit) == pytest.approx([1 + 3 * 2 / size, 5 + 4 * 10 / size])


def test_a_norms_offset_is_added_to_its_weight() -> None:
    step = Step(branches=(Branch(name="a", mixer=SIMPLE),), outer=Norm(kind="layer", eps=0.0, offset=1.0, bias=True))
    weights = DOUBLE | {"a_outer.weight": [0.5, 1.0], "a_outer.bias": [0.0, 7.0]}
    assert run_step(step, weights, [[1.0, 2.0]], ALONE) == [pytest.approx([-1.5, 9.0])]


def test_a_gate_multiplies_after_its_activation() -> None:
    mixer = FeedForward(hidden=1, activation="relu", gated=True, bias=True)
    step = Step(branches=(Branch(name="a", mixer=mixer),), residual=0.0)
    weights = {"a.gate.weight": [[1, 0]], "a.gate.bias": [-1], "a.up.weight": [[0, -1]], "a.up.bias": [0]}
    weights |= {"a.down.weight": [[1], [2]], "a.down.bias": [0, 1]}
    assert run_step(step, weights, [[3.0, 5.0]], ALONE) == [[-10.0, -19.0]]
    assert run_step(step, weights, [[0.0, 5.0]], ALONE) == [[0.0, 1.0]]


def test_a_stem_scales_places_types_norms_and_projects() -> None:
    stem = TokenStem(vocab=2, width=2, positions=LearnedPositions(length=2, offset=1), types=2, scale=3.0)
    weights = {
        "tokens.weight": [[1, 1], [2, 0]],
        "positions.weight": [[9, 9], [0.5, 0], [0, 0.5]],
        "types.weight": [[0, 0], [100, 0]],
        "project.weight": [[1, 1], [1, 0], [0, 1]],
        "project.bias": [0, 0, 5],
    }
    assert embed(stem, weights, [1, 0], (), 2) == [[6.5, 0.0], [3.0, 3.5]]
    assert embed(stem, weights, [1, 0], (0, 1), 3) == [[6.5, 6.5, 5.0], [106.5, 103.0, 8.5]]


def test_a_head_scales_before_it_caps() -> None:
    head = LMHead(name="lm", stack="decoder", vocab=2, bias=True, scale=0.5, softcap=4.0)
    answer = logits(head, {"weight": [[1, 0], [0, 1]], "bias": [2, 0]}, [6.0, -1000.0])
    assert answer == pytest.approx([4 * math.tanh(1), -4.0])


def test_ties_reach_parameters_and_whole_modules_through_chains() -> None:
    ties = (
        Tie(alias="heads.lm", owner="b.tokens"),
        Tie(alias="b.tokens", owner="a.tokens"),
        Tie(alias="x.1", owner="x.0"),
    )
    weights = Tied({"a.tokens.weight": 7, "x.0.w": 1, "x.10.w": 2}, ties)
    assert weights["heads.lm.weight"] == 7
    assert (weights["x.1.w"], weights["x.10.w"]) == (1, 2)
    assert dict(Below(weights, "x")) == {"0.w": 1, "10.w": 2}


def test_a_tied_head_reads_the_embedding() -> None:
    spec = decoder()
    weights = weights_for(spec)
    weights["heads.lm.weight"] = weights["stacks.decoder.stem.tokens.weight"]
    tie = Tie(alias="heads.lm.weight", owner="stacks.decoder.stem.tokens.weight")
    alone = {path: value for path, value in weights.items() if path != "heads.lm.weight"}
    assert forward(replace(spec, ties=(tie,)), alone, TOKENS) == forward(spec, weights, TOKENS)


def test_logits_have_a_row_for_every_token_and_do_not_see_the_future() -> None:
    spec = decoder()
    weights = weights_for(spec)
    whole = forward(spec, weights, TOKENS)
    assert (len(whole), len(whole[0])) == (len(TOKENS), VOCAB)
    assert forward(spec, weights, TOKENS[:3]) == whole[:3]


def test_the_length_of_the_whole_sequence_chooses_the_regime() -> None:
    rope = Rope(dim=6, base=100.0, scaling=DynamicScaling(factor=2.0, original=4))
    spec = decoder(layer(attention(rope=rope)))
    weights = weights_for(spec)
    whole = forward(spec, weights, TOKENS)
    assert forward(spec, weights, TOKENS[:3], length=len(TOKENS)) == whole[:3]
    assert forward(spec, weights, TOKENS[:3]) != whole[:3]


def test_worked_from_the_layers_input_is_worked_through_the_whole_model() -> None:
    spec = decoder()
    weights = weights_for(spec)
    inputs: dict[str, Any] = {}
    hidden(spec, weights, TOKENS, watch=inputs.__setitem__)
    path = "stacks.decoder.layers.1.attention"
    needed = {name: value for name, value in weights.items() if name.startswith(path)}
    heads = worked_from(spec, needed, inputs[path], 1)
    assert heads[3] == worked(spec, weights, TOKENS, layer=1, head=3)
    mixer = attention_at(spec, 1, "attention")
    assert heads == attention_steps(mixer, Below(weights, path), inputs[path])


def test_worked_names_the_branches_when_the_asked_one_is_no_attention() -> None:
    spec = decoder()
    with pytest.raises(ValueError, match=r"layer 1 .*'feed_forward'.*attention, feed_forward"):
        worked(spec, weights_for(spec), TOKENS, layer=1, head=0, branch="feed_forward")


def test_greedy_takes_the_likeliest_of_every_prefix_and_stops_at_an_end() -> None:
    spec = decoder()
    weights = weights_for(spec)
    new = greedy(spec, weights, TOKENS[:2], 5)
    whole = forward(spec, weights, TOKENS[:2] + new)
    assert [likeliest(row) for row in whole[1:-1]] == new
    end = new[2]
    assert greedy(spec, weights, TOKENS[:2], 5, end_ids={end}) == new[: new.index(end) + 1]


def test_equal_scores_go_to_the_lowest_id() -> None:
    assert likeliest([0.0, 2.0, -1.0, 2.0]) == 1
    spec = decoder()
    weights = weights_for(spec)
    weights["heads.lm.weight"] = [[0.0] * WIDTH for _ in range(VOCAB)]
    assert greedy(spec, weights, TOKENS, 2) == [0, 0]


def test_the_oracle_leans_on_nothing_but_the_spec() -> None:
    for file in Path(headway.reference.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or "."] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                own = name.startswith(("headway.spec", "headway.reference"))
                assert own or name.split(".")[0] in sys.stdlib_module_names, f"{file.name} imports {name}"
