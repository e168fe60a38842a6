"""Specs refuse what cannot be, travel as JSON, and know what they weigh."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import SpecError
from headway.spec import LayerSpec, LongRopeScaling, Mask, ModelSpec, Norm, Rope, Tie, check, dumps, from_json, loads
from headway.spec.count import cache_bytes, cache_numbers_per_token, flops_per_token, parameters, shapes
from tests.zoo import ZOO, attention, decoder, feed_forward, layer

BAD_LONGROPE = LongRopeScaling(short=(1.0,), long=(1.0,), original=4, attention=1.0)


@pytest.mark.parametrize("name", ZOO)
def test_json_and_back_is_the_same_spec(name: str) -> None:
    spec = ZOO[name]
    assert loads(dumps(spec)) == spec
    assert hash(loads(dumps(spec))) == hash(spec)


@pytest.mark.parametrize(
    ("broken", "place", "way_out"),
    [
        (lambda: layer(attention(kv_heads=4)), "layers[0].attention.kv_heads = 4", "must divide heads=6"),
        (lambda: layer(attention(heads=-6)), "layers[0].attention.heads = -6", "whole number above 0"),
        (lambda: layer(attention(scale=float("nan"))), "attention.scale = nan", "finite"),
        (lambda: layer(attention(scale=0.0)), "attention.scale = 0.0", "above 0"),
        (lambda: layer(attention(softcap=-1.0)), "attention.softcap = -1.0", "0 or more"),
        (lambda: layer(attention(biases="qx")), "attention.biases = qx", '"qkvo"'),
        (lambda: layer(attention(bias="rel")), "attention.bias = rel", "must name one of the stack's biases"),
        (lambda: layer(attention(mask=Mask(before=-1))), "attention.mask.before = -1", "0 or more"),
        (lambda: layer(attention(rope=Rope(dim=12, base=1e4))), "rope.dim = 12", "must not exceed head_dim=10"),
        (lambda: layer(attention(rope=Rope(dim=5, base=1e4))), "rope.dim = 5", "even"),
        (lambda: layer(attention(rope=Rope(dim=4, base=0.0))), "rope.base = 0.0", "above 0"),
        (lambda: layer(attention(rope=Rope(dim=4, base=9.0, scaling=BAD_LONGROPE))), "rope.scaling.short", "dim/2 = 2"),
        (lambda: layer(attention(source="memory")), "attention.source = memory", "name another stack"),
        (
            lambda: layer(attention(), feed_forward(activation="gulu")),
            "feed_forward.activation = gulu",
            "must be one of",
        ),
        (lambda: layer(attention(), norm=Norm(kind="rms", eps=-1.0)), "attention.norm.eps = -1.0", "from 0 to 1"),
        (lambda: layer(attention(), norm=Norm(kind="rms", eps=2.0**40)), "attention.norm.eps = 1099", "from 0 to 1"),
        (lambda: layer(attention(), norm=Norm(kind="rms", eps=0.1, bias=True)), "norm.bias = True", "RMSNorm has none"),
        (lambda: layer(attention(), drop=1.0), "attention.drop = 1.0", "below 1"),
        (lambda: LayerSpec(steps=()), "layers[0].steps = ()", "at least one step"),
    ],
)
def test_an_impossible_value_is_named_with_its_path(broken, place: str, way_out: str) -> None:
    with pytest.raises(SpecError) as caught:
        decoder(broken())
    message = str(caught.value)
    assert message.startswith("stacks.decoder.")
    assert place in message
    assert way_out in message
    assert "\n" not in message


def test_a_branch_name_twice_in_a_layer_is_refused() -> None:
    twice = layer(attention())
    with pytest.raises(SpecError, match=r"layers\[0\] = attention appears more than once"):
        decoder(LayerSpec(steps=(twice.steps[0], twice.steps[0])))


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda data: data.update({"is": "Modelspec"}), "spec.is = 'Modelspec'"),
        (lambda data: data.update(colour="red"), "spec.colour is not a field of ModelSpec"),
        (lambda data: data.pop("stacks"), "spec.stacks is missing"),
        (lambda data: data["stacks"][0].pop("width"), "spec.stacks[0].width is missing"),
        (lambda data: data["stacks"][0]["layers"][1].update({"is": "os.system"}), "spec.stacks[0].layers[1].is"),
    ],
)
def test_json_that_is_no_spec_is_refused_by_place(change, place: str) -> None:
    data = json.loads(dumps(ZOO["rotary"]))
    change(data)
    with pytest.raises(SpecError) as caught:
        from_json(data)
    assert place in str(caught.value)


@given(st.text(max_size=40))
@settings(max_examples=50)
def test_text_that_is_no_spec_is_one_clear_error(text: str) -> None:
    try:
        found = loads(text)
    except SpecError:
        return
    assert not isinstance(found, ModelSpec)


def test_a_tied_matrix_is_counted_once() -> None:
    tied, untied = decoder(layer(attention()), tied=True), decoder(layer(attention()))
    assert parameters(untied) - parameters(tied) == 97 * 40
    assert "heads.lm.weight" not in shapes(tied)


def test_a_tied_module_leaves_out_everything_inside() -> None:
    spec = decoder(layer(attention()), layer(attention()))
    shared = Tie(alias="stacks.decoder.layers.1", owner="stacks.decoder.layers.0")
    once = replace(spec, ties=(shared,))
    assert not any(path.startswith("stacks.decoder.layers.1.") for path in shapes(once))
    assert any(path.startswith("stacks.decoder.layers.0.") for path in shapes(once))


@pytest.mark.case("C23")
def test_cache_bytes_count_key_heads_and_head_size() -> None:
    small = attention(heads=8, kv_heads=2, head_dim=8, value_dim=8, rope=None)
    assert cache_bytes(decoder(layer(small), layer(small)), 16, 1, 2) == 2048
    large = attention(heads=32, kv_heads=8, head_dim=128, value_dim=128, rope=None)
    spec = decoder(*[layer(large)] * 32)
    assert cache_numbers_per_token(spec) * 2 == 131072
    assert cache_bytes(spec, 8192, 1, 2) == 2**30
    assert cache_bytes(spec, 8192, 3, 2) == 3 * 2**30


def test_a_window_bounds_its_cache() -> None:
    spec = decoder(layer(attention(mask=Mask.causal(4))))
    assert cache_bytes(spec, 100, 1, 4) == cache_bytes(spec, 4, 1, 4)


def test_operations_are_two_per_weight_and_more_with_a_past() -> None:
    spec = decoder(layer(attention()), tied=True)
    matrices = sum(shape[0] * shape[1] for path, shape in shapes(spec).items() if len(shape) == 2)
    assert flops_per_token(spec, 0) == 2 * matrices
    assert flops_per_token(spec, 10) - flops_per_token(spec, 0) == 2 * 10 * 6 * (10 + 14)


def test_a_spec_passes_its_own_check_again() -> None:
    assert check(ZOO["window"]) is ZOO["window"]
