"""Configs of both dialects become the same specs, and specs become configs that say the same."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import families
from headway.errors import CheckpointError, HeadwayError, SpecError
from headway.families.kit import Config, Family, token_ids
from headway.families.ropes import llama3_divisors
from headway.spec import (
    Attention,
    DynamicScaling,
    FeedForward,
    GivenScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Mask,
    ModelSpec,
    Norm,
    Rope,
    YarnScaling,
    check,
)
from headway.spec.count import shapes
from headway.spec.position import longrope_attention, yarn_attention

TINY = [
    pytest.param(family, config, id=f"{family.name}-{name}")
    for family in families.all_families()
    for name, config in family.tiny.items()
]


def read(config: dict[str, Any]) -> ModelSpec:
    file = "models/tiny/config.json"
    return families.for_config(config, file).read(Config(config, file))


def tiny(family: str, name: str, **changes: Any) -> dict[str, Any]:
    return {**families.by_name(family).tiny[name], **changes}


def attentions(spec: ModelSpec) -> list[Attention]:
    mixers = (branch.mixer for layer in spec.decoder.layers for branch in layer.branches)
    return [mixer for mixer in mixers if isinstance(mixer, Attention)]


def rope(config: dict[str, Any]) -> Rope:
    found = attentions(read(config))[0].rope
    assert found is not None
    return found


@pytest.mark.parametrize(("family", "config"), TINY)
def test_what_is_written_reads_back_as_the_same_spec(family: Family, config: dict[str, Any]) -> None:
    spec = check(family.read(Config(config)))
    written = json.loads(json.dumps(family.write(spec)))
    assert read(written) == spec


@pytest.mark.parametrize(("family", "config"), TINY)
def test_a_name_of_the_users_does_not_hinder_writing(family: Family, config: dict[str, Any]) -> None:
    spec = replace(family.read(Config(config)), name="my model")
    assert read(family.write(spec)) == replace(spec, name=family.name)


# Sizes are what the config says


@pytest.mark.case("C22")
def test_the_head_size_is_the_configs_and_not_width_over_heads() -> None:
    sizes = {"hidden_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    spec = read(tiny("llama", "default", **sizes))
    found = shapes(spec)
    path = "stacks.decoder.layers.0.attention"
    assert [found[f"{path}.{part}.weight"] for part in "qkvo"] == [(64, 40), (32, 40), (32, 40), (40, 64)]
    first = attentions(spec)[0]
    assert first.scale == 1 / 4
    assert first.rope is not None
    assert first.rope.dim == 16
    assert families.by_name("llama").write(spec)["head_dim"] == 16


@pytest.mark.case("C22")
@pytest.mark.parametrize(
    ("head_dim", "share", "dim"), [(16, 0.5, 8), (16, 1.0, 16), (128, 0.75, 96), (10, 0.5, 6), (98, 24 / 49, 48)]
)
def test_a_share_of_the_head_is_turned_and_written_as_such(head_dim: int, share: float, dim: int) -> None:
    config = tiny("phi3", "default", head_dim=head_dim, partial_rotary_factor=share)
    assert rope(config).dim == dim
    assert rope(families.by_name("phi3").write(read(config))).dim == dim
    inside = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share}
    assert rope(tiny("phi3", "default", head_dim=head_dim, rope_parameters=inside)).dim == dim


@pytest.mark.case("C22")
def test_qwen2_has_a_bias_on_queries_keys_and_values_alone_and_qwen3_a_norm_of_each_head() -> None:
    second, third = (attentions(read(tiny("qwen", name)))[0] for name in ("qwen2", "qwen3"))
    assert second.biases == "qkv"
    assert second.qk_norm is None
    assert third.biases == ""
    assert third.qk_norm is not None
    assert third.qk_norm.over == "head"


# Rope in every dialect

LLAMA3 = {
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SETS = {"short_factor": [1.0, 1.5, 2.0, 2.5, 3.0], "long_factor": [1.0, 2.5, 5.0, 7.5, 9.0]}
LONGROPE = {**SETS, "original_max_position_embeddings": 24}
RULES: dict[str, tuple[dict[str, Any], Any]] = {
    "linear": ({"factor": 3.0}, LinearScaling(factor=3.0)),
    "dynamic": ({"factor": 2.0}, DynamicScaling(factor=2.0, original=96)),
    "llama3": (LLAMA3, Llama3Scaling(factor=4.0, low=1.0, high=4.0, original=64)),
    "yarn": (
        {"factor": 4.0, "original_max_position_embeddings": 24},
        YarnScaling(
            factor=4.0, original=24, beta_fast=32.0, beta_slow=1.0, attention=yarn_attention(4.0), truncate=True
        ),
    ),
    "longrope": (
        LONGROPE,
        LongRopeScaling(
            short=(1.0, 1.5, 2.0, 2.5, 3.0),
            long=(1.0, 2.5, 5.0, 7.5, 9.0),
            original=24,
            attention=longrope_attention(96 / 24, 24),
        ),
    ),
}


@pytest.mark.case("C11")
@pytest.mark.parametrize("kind", RULES)
def test_every_dialect_of_rope_gives_the_same_rule(kind: str) -> None:
    fields, rule = RULES[kind]
    dialects = [
        {"rope_theta": 500.0, "rope_scaling": {"type": kind, **fields}},
        {"rope_theta": 500.0, "rope_scaling": {"rope_type": kind, **fields}},
        {"rope_theta": 500.0, "rope_scaling": {"rope_type": kind, "type": kind, **fields}},
        {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **fields}},
        {"rope_parameters": {"rope_type": kind, **fields}, "rope_theta": 500.0},
        {"rope_parameters": {"full_attention": {"rope_type": kind, "rope_theta": 500.0, **fields}}},
    ]
    for dialect in dialects:
        assert rope(tiny("llama", "default", rope_theta=None) | dialect) == Rope(dim=10, base=500.0, scaling=rule)


@pytest.mark.case("C11")
def test_the_bands_of_llama3_keep_blend_and_divide() -> None:
    config = tiny("llama", "default", head_dim=16, rope_theta=10000.0, rope_scaling={"rope_type": "llama3", **LLAMA3})
    found = rope(config)
    assert isinstance(found.scaling, Llama3Scaling)
    frequencies = 10000.0 ** (-np.arange(0, 16, 2) / 16) / llama3_divisors(found.scaling, found.base, found.dim)
    right = [1.0, 0.25464791, 0.02546479, 0.00790569, 0.0025, 0.00079057, 0.00025, 0.00007906]
    assert np.allclose(frequencies, right, rtol=1e-6, atol=5e-9)


@pytest.mark.case("C11")
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("word", ["type", "rope_type"])
def test_an_unknown_kind_of_rope_is_an_error_that_lists_the_known(name: str, word: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tiny("llama", "default", **{name: {word: "spiral", "factor": 2.0}}))
    text = str(caught.value)
    assert text.startswith(f"models/tiny/config.json: {name}.{word} = 'spiral'")
    assert "llama3" in text
    assert "\n" not in text


@pytest.mark.case("C11")
def test_a_config_without_a_theta_has_its_familys_own() -> None:
    def silent(family: str, name: str) -> list[float]:
        config = tiny(family, name)
        for field in ("rope_theta", "rope_local_base_freq", "rope_scaling", "rope_parameters"):
            config.pop(field, None)
        return [found.rope.base for found in attentions(read(config)) if found.rope is not None]

    assert set(silent("llama", "default")) == {10000.0}
    assert set(silent("mistral", "open")) == {10000.0}
    assert set(silent("qwen", "qwen3")) == {10000.0}
    assert set(silent("phi3", "default")) == {10000.0}
    assert silent("gemma", "gemma3") == [10000.0] * 5 + [1000000.0, 10000.0]


@pytest.mark.case("C11")
def test_gemma3_scales_the_rope_of_global_layers_only() -> None:
    for config in (tiny("gemma", "gemma3"), families.by_name("gemma").write(read(tiny("gemma", "gemma3")))):
        ropes = [found.rope for found in attentions(read(config))]
        assert ropes[5] == Rope(dim=10, base=1000000.0, scaling=LinearScaling(factor=8.0))
        assert ropes[:5] + ropes[6:] == [Rope(dim=10, base=1000.0)] * 6


def test_early_phi3_kinds_are_longrope_whose_original_length_lies_beside() -> None:
    sets = {"short_factor": [1.0, 1.5, 2.0, 2.5, 3.0], "long_factor": [1.0, 2.5, 5.0, 7.5, 9.0]}
    found = [
        rope(tiny("phi3", "default", rope_scaling={"type": kind, **sets}, original_max_position_embeddings=32))
        for kind in ("longrope", "su", "yarn")
    ]
    assert found[0] == found[1] == found[2]
    assert found[0].scaling == LongRopeScaling(
        short=(1.0, 1.5, 2.0, 2.5, 3.0),
        long=(1.0, 2.5, 5.0, 7.5, 9.0),
        original=32,
        attention=longrope_attention(3.0, 32),
    )


def test_a_phi3_config_has_the_three_scaling_fields_that_older_tools_insist_on() -> None:
    written = families.by_name("phi3").write(read(tiny("phi3", "longrope")))
    assert written["rope_scaling"].keys() == {"type", "short_factor", "long_factor"}
    assert written["original_max_position_embeddings"] == 24


@pytest.mark.parametrize(
    ("kind", "fields", "context"),
    [
        ("linear", {"factor": 4.0}, 96),
        ("dynamic", {"factor": 4.0}, 384),
        ("yarn", {"factor": 4.0, "original_max_position_embeddings": 96}, 384),
        ("yarn", {"factor": 4.0, "original_max_position_embeddings": 24}, 96),
        ("longrope", LONGROPE, 96),
    ],
)
def test_the_context_reaches_as_far_as_the_scaling_does(kind: str, fields: dict[str, Any], context: int) -> None:
    spec = read(tiny("llama", "default", rope_scaling={"rope_type": kind, **fields}))
    assert spec.decoder.context == context
    assert read(families.by_name("llama").write(spec)).decoder.context == context


def test_divisors_that_a_file_states_survive_a_config() -> None:
    spec = read(tiny("llama", "default"))
    given = Rope(dim=10, base=500.0, scaling=GivenScaling(divisors=(1.0, 1.0, 2.0, 3.5, 8.0)))
    layers = tuple(
        replace(
            layer,
            steps=tuple(
                replace(
                    step,
                    branches=tuple(
                        replace(b, mixer=replace(b.mixer, rope=given)) if isinstance(b.mixer, Attention) else b
                        for b in step.branches
                    ),
                )
                for step in layer.steps
            ),
        )
        for layer in spec.decoder.layers
    )
    changed = replace(spec, stacks=(replace(spec.decoder, layers=layers),))
    assert read(families.by_name("llama").write(changed)) == changed


# What a window sees


@pytest.mark.case("C26")
@pytest.mark.parametrize(
    ("family", "name"), [("mistral", "window"), ("phi3", "window"), ("qwen", "qwen2-window"), ("gemma", "gemma2")]
)
@pytest.mark.parametrize("nothing", [0, None])
def test_a_window_of_zero_or_null_means_full_attention(family: str, name: str, nothing: int | None) -> None:
    masks = {found.mask for found in attentions(read(tiny(family, name, sliding_window=nothing)))}
    assert masks == {Mask.causal()}


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_a_gemma_without_local_layers_still_states_a_window_as_long_as_its_context(name: str) -> None:
    config = tiny("gemma", name)
    spec = read(config | {"layer_types": ["full_attention"] * config["num_hidden_layers"]})
    written = families.by_name("gemma").write(spec)
    assert written["sliding_window"] == spec.decoder.context
    assert {found.mask for found in attentions(read(written))} == {Mask.causal()}


@pytest.mark.case("C26")
def test_a_window_counts_the_token_itself() -> None:
    assert attentions(read(tiny("mistral", "window")))[0].mask == Mask(before=6, after=0)


def test_a_mistral_config_that_says_nothing_of_a_window_has_the_familys_own() -> None:
    config = tiny("mistral", "window")
    del config["sliding_window"]
    assert attentions(read(config))[0].mask.window == 4096


def test_only_the_upper_layers_of_qwen_slide_and_only_when_asked() -> None:
    def windows(**changes: Any) -> list[int | None]:
        return [found.mask.window for found in attentions(read(tiny("qwen", "qwen2-window", **changes)))]

    assert windows() == [None, None, 7, 7]
    assert windows(use_sliding_window=False) == [None] * 4
    kinds = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    assert windows(layer_types=kinds) == [7, None, None, 7]


def test_gemma_alternates_local_and_global_layers() -> None:
    def windows(name: str, **changes: Any) -> list[int | None]:
        return [found.mask.window for found in attentions(read(tiny("gemma", name, **changes)))]

    assert windows("gemma2") == [7, None, 7]
    assert windows("gemma3") == [7, 7, 7, 7, 7, None, 7]
    assert windows("gemma3", sliding_window_pattern=3) == [7, 7, None, 7, 7, None, 7]
    assert windows("gemma3-layers") == [None, 7, None, 7]


# What else is particular


def test_gemma_has_sandwich_norms_from_one_a_rounded_scale_and_its_own_query_scale() -> None:
    spec = read(tiny("gemma", "gemma3"))
    norm = Norm(kind="rms", eps=1e-6, offset=1.0)
    for branch in spec.decoder.layers[0].branches:
        assert (branch.norm, branch.norm_out) == (norm, norm)
    first = attentions(spec)[0]
    assert first.scale == 24**-0.5
    assert first.softcap == 0.0
    assert first.qk_norm is not None
    assert first.qk_norm.norm == norm
    assert (spec.decoder.stem.scale, spec.decoder.stem.round_scale) == (6.0, True)


def test_gemma2_caps_scores_and_logits() -> None:
    spec = read(tiny("gemma", "gemma2"))
    assert attentions(spec)[0].softcap == 2.0
    assert spec.heads[0].softcap == 3.0
    silent = {k: v for k, v in tiny("gemma", "gemma2").items() if "softcapping" not in k}
    assert attentions(read(silent))[0].softcap == 50.0
    assert read(silent | {"final_logit_softcapping": None}).heads[0].softcap == 0.0


def test_the_text_half_of_a_gemma3_that_also_sees_is_read_alone() -> None:
    alone = tiny("gemma", "gemma3")
    text = {name: value for name, value in alone.items() if name != "model_type"}
    nested = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}}
    assert read(nested) == read(alone)
    assert read({**nested, "tie_word_embeddings": False}).ties == ()


def test_gpt2_scales_are_values_of_each_layer() -> None:
    def scales(**changes: Any) -> list[float]:
        return [found.scale for found in attentions(read(tiny("gpt2", "default", **changes)))]

    usual = 10**-0.5
    assert scales() == [usual] * 3
    assert scales(scale_attn_by_inverse_layer_idx=True) == [usual, usual / 2, usual / 3]
    assert scales(scale_attn_weights=False) == [1.0] * 3


def test_gpt2_feeds_forward_through_four_widths_unless_told_otherwise() -> None:
    def hidden(name: str, **changes: Any) -> int:
        mixer = list(read(tiny("gpt2", name, **changes)).decoder.layers[0].branches)[1].mixer
        assert isinstance(mixer, FeedForward)
        return mixer.hidden

    assert hidden("default", n_inner=None) == 120
    assert hidden("inner") == 67


# Refusals

BAD: list[tuple[str, str, dict[str, Any], str]] = [
    ("llama", "default", {"num_attention_heads": -4}, "num_attention_heads = -4"),
    ("llama", "default", {"num_attention_heads": 5, "num_key_value_heads": 2}, "kv_heads = 2"),
    ("llama", "default", {"hidden_size": None}, "hidden_size is missing"),
    ("llama", "default", {"hidden_size": "many"}, "hidden_size = 'many'"),
    ("llama", "default", {"num_hidden_layers": 10**12}, "num_hidden_layers = 1000000000000"),
    ("llama", "default", {"hidden_act": "sine"}, "hidden_act = 'sine'"),
    ("llama", "default", {"rms_norm_eps": math.nan}, "rms_norm_eps = nan"),
    ("llama", "default", {"attention_bias": "yes"}, "attention_bias = 'yes'"),
    ("llama", "default", {"head_dim": 7}, "rope.dim = 8"),
    ("llama", "default", {"rope_theta": math.inf}, "rope_theta = inf"),
    ("llama", "default", {"rope_scaling": [1]}, "rope_scaling = [1] must be an object"),
    ("llama", "default", {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
    ("llama", "default", {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.factor is missing"),
    ("llama", "default", {"rms_norm_eps": 2.0**40}, "norm.eps = 1099511627776.0"),
    ("llama", "longrope", {"rope_parameters": {"rope_type": "longrope", **LONGROPE, "long_factor": [1.0]}}, "long"),
    ("llama", "llama3", {"rope_parameters": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}}, "high_freq"),
    ("mistral", "window", {"sliding_window": -1}, "sliding_window = -1"),
    ("qwen", "qwen2-window", {"layer_types": ["full_attention"]}, "layer_types"),
    ("qwen", "qwen2-window", {"layer_types": ["full_attention", "odd"] * 2}, "layer_types = 'odd'"),
    ("gemma", "gemma2", {"final_logit_softcapping": -1.0}, "final_logit_softcapping = -1.0"),
    ("gemma", "gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
    ("phi3", "default", {"partial_rotary_factor": 1.5}, "partial_rotary_factor = 1.5"),
    ("gpt2", "default", {"n_head": 7}, "n_head = 7"),
    ("gpt2", "default", {"add_cross_attention": True}, "add_cross_attention = True"),
]


@pytest.mark.parametrize(("family", "name", "changes", "message"), BAD, ids=[bad[3] for bad in BAD])
def test_an_impossible_value_is_one_line_that_names_file_and_field(
    family: str, name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(HeadwayError) as caught:
        read(tiny(family, name, **changes))
    text = str(caught.value)
    assert text.startswith("models/tiny/config.json: ")
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"scale": 0.3}, "layers[0].steps[0].branches[0].mixer.scale"),
        ({"sinks": True}, "layers[0].steps[0].branches[0].mixer.sinks"),
        ({"softcap": 5.0}, "layers[0].steps[0].branches[0].mixer.softcap"),
    ],
)
def test_a_spec_that_the_config_cannot_hold_is_refused_by_the_place_that_would_be_lost(
    change: dict[str, Any], path: str
) -> None:
    spec = read(tiny("llama", "default"))
    layer = spec.decoder.layers[0]
    step = layer.steps[0]
    branch = replace(step.branches[0], mixer=replace(step.branches[0].mixer, **change))
    other = replace(layer, steps=(replace(step, branches=(branch,)), layer.steps[1]))
    changed = replace(spec, stacks=(replace(spec.decoder, layers=(other, *spec.decoder.layers[1:])),))
    with pytest.raises(SpecError, match="does not fit into a llama config.json") as caught:
        families.by_name("llama").write(changed)
    assert path in str(caught.value)


def test_training_settings_that_a_config_cannot_hold_do_not_hinder_writing() -> None:
    spec = read(tiny("llama", "default"))
    decoder = replace(spec.decoder, stem=replace(spec.decoder.stem, drop=0.1))
    assert families.by_name("llama").write(replace(spec, stacks=(decoder,)))["model_type"] == "llama"


GARBAGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.floats(), max_size=6),
    st.sampled_from(["linear", "dynamic", "llama3", "yarn", "longrope", "full_attention", "gelu", 10**400, 1e308]),
)
NESTED = st.one_of(
    GARBAGE,
    st.dictionaries(
        st.sampled_from(
            [
                "type", "rope_type", "rope_theta", "factor", "short_factor", "long_factor", "attention_factor",
                "mscale", "mscale_all_dim", "beta_fast", "truncate", "original_max_position_embeddings",
                "low_freq_factor", "high_freq_factor", "partial_rotary_factor", "full_attention", "sliding_attention",
            ]
        ),
        GARBAGE | st.dictionaries(st.sampled_from(["rope_type", "factor", "rope_theta"]), GARBAGE),
        max_size=6,
    ),
)  # fmt: skip
CONFIGS = [config for family in families.all_families() for config in family.tiny.values()]
FIELDS = sorted(
    {name for config in CONFIGS for name in (*config, *families.for_config(config, "").write(read(config)))}
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([param.values for param in TINY]), st.dictionaries(st.sampled_from(FIELDS), NESTED, max_size=4))
def test_garbage_in_any_field_is_an_error_of_headway_or_a_spec_that_can_be_written(
    case: tuple[Family, dict[str, Any]], changes: dict[str, Any]
) -> None:
    family, config = case
    try:
        spec = read({**config, **changes, "model_type": config["model_type"]})
    except HeadwayError as error:
        assert "\n" not in str(error)
        return
    assert check(spec) == spec
    try:
        written = family.write(spec)
    except SpecError:
        assert family.name == "phi3"
        return
    assert read(written) == spec


def test_token_ids_are_taken_along_and_null_where_a_config_names_none() -> None:
    assert token_ids({"eos_token_id": [1, 2], "hidden_size": 8}) == {
        "bos_token_id": None,
        "eos_token_id": [1, 2],
        "pad_token_id": None,
    }
    nested = {"eos_token_id": 7, "text_config": {"eos_token_id": 1, "bos_token_id": 2}}
    assert token_ids(nested) == {"bos_token_id": 2, "eos_token_id": 7, "pad_token_id": None}
