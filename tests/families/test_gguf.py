"""GGUF metadata say what a config.json says, under names that llama.cpp's own table gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import families
from headway.checkpoint.gguf import read_gguf
from headway.checkpoint.rules import Add, Pairs, Rule, Split, Transpose, expand
from headway.errors import CheckpointError, HeadwayError
from headway.families.kit import Config, Family
from headway.families.ropes import given_scaling, llama3_divisors
from headway.spec import GivenScaling, Llama3Scaling, ModelSpec, to_json
from headway.spec.count import shapes
from tests.families.converter import ARCHITECTURES, convert, held

# What GGUF has no place for.
BEYOND = {"dynamic", "longrope", "scaled", "qwen2-window", "qwen3-window", "gemma3-layers"}
TINY = [
    pytest.param(family, held(config), id=f"{family.name}-{name}")
    for family in families.all_families()
    for name, config in family.tiny.items()
    if family.name != "mistral" and (name not in BEYOND or family.name == "phi3")
]


class Shown(dict[str, np.ndarray]):
    """Tensors in memory, as a GGUF reader shows them."""

    def floats(self, name: str) -> np.ndarray:
        return self[name]


def weights(family: Family, spec: ModelSpec) -> dict[str, np.ndarray]:
    """Small weights of every shape, under the names of a safetensors file."""
    found: dict[str, np.ndarray] = {}
    random = np.random.default_rng(0)
    for rule in expand(family.names(spec), spec):
        arrays = [random.standard_normal(shapes(spec)[path]).astype(np.float32) for path in rule.paths]
        found.update(zip(rule.keys, rule.undo(arrays), strict=True))
    return found


def spec_of(metadata: Mapping[str, Any], tensors: Any) -> ModelSpec:
    meta = Config(metadata, "model.gguf")
    family = families.for_gguf(meta.text("general.architecture"), "model.gguf")
    return family.read(Config(family.gguf_config(meta, tensors), "model.gguf"))


@pytest.mark.case("C11", "C22")
@pytest.mark.parametrize(("family", "config"), TINY)
def test_a_converted_model_has_the_spec_of_its_config(family: Family, config: dict[str, Any], tmp_path: Path) -> None:
    spec = family.read(Config(config))
    with read_gguf(convert(tmp_path / "model.gguf", config, weights(family, spec))) as store:
        found = spec_of(store.metadata, store)
        names = {key for rule in expand(family.gguf_names(spec), spec) for key in rule.keys}
        assert {name for name in store.names if not name.startswith("rope_")} == names
    drops_gone = {"drop": 0.0, "init": None}
    assert _plain(found, drops_gone) == _plain(spec, drops_gone)


def _plain(spec: ModelSpec, instead: Mapping[str, Any]) -> Any:
    """A spec as JSON, 32-bit floats, with what files of no kind need to agree on replaced."""

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: instead.get(name, walk(item)) for name, item in value.items()}
        if isinstance(value, list):
            return [walk(item) for item in value]
        return float(np.float32(value)) if isinstance(value, float) else value

    return walk(to_json(spec))


@pytest.mark.parametrize(("family", "config"), TINY)
def test_names_are_those_of_the_gguf_package(family: Family, config: dict[str, Any]) -> None:
    spec = family.read(Config(config))
    layers = len(spec.decoder.layers)
    table = gguf.get_tensor_name_map(ARCHITECTURES[config["model_type"]], layers)
    ours = expand(family.gguf_names(spec), spec)
    theirs = expand(family.names(spec), spec)
    assert len(ours) == len(theirs)
    for rule, other in zip(ours, theirs, strict=True):
        assert rule.paths == other.paths
        assert rule.keys[0] == table.get_name(other.keys[0], try_suffixes=(".weight", ".bias"))


@pytest.mark.parametrize("naming", ["names", "gguf_names"])
@pytest.mark.parametrize(("family", "config"), TINY)
def test_what_rules_do_they_undo_to_the_last_bit(family: Family, config: dict[str, Any], naming: str) -> None:
    spec = family.read(Config(config))
    owned = shapes(spec)
    random = np.random.default_rng(1)
    for rule in expand(getattr(family, naming)(spec), spec):
        # Norms that a file has raised by 1 lie above it, where taking it away and adding it loses nothing.
        arrays = [random.uniform(0.5, 2.0, owned[path]).astype(np.float32) for path in rule.paths]
        stored = rule.undo([array - np.float32(1.0) for array in arrays])
        again = rule.undo(rule.apply(stored))
        assert all(np.array_equal(one, other) for one, other in zip(stored, again, strict=True))
        assert [array.shape for array in rule.apply(stored)] == [owned[path] for path in rule.paths]


def test_values_are_never_computed_from_bits() -> None:
    assert Rule(("a",), ("b",), (Add(-1.0),)).computes
    assert not Rule(("a",), ("b",), (Transpose(), Pairs(4))).computes
    with pytest.raises(AssertionError, match="bits"):
        Add(-1.0).apply([np.zeros(2, np.uint16)])


BASE: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.vocab_size": 64,
    "llama.embedding_length": 32,
    "llama.block_count": 2,
    "llama.feed_forward_length": 48,
    "llama.attention.head_count": 4,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "llama.context_length": 128,
}


def llama(tensors: Mapping[str, np.ndarray] | None = None, **changes: Any) -> ModelSpec:
    return spec_of(
        BASE | {f"llama.{name.replace('__', '.')}": value for name, value in changes.items()}, Shown(tensors or {})
    )


def test_a_float_of_32_bits_is_the_number_that_was_meant() -> None:
    assert llama().decoder.final_norm.eps == 1e-5  # type: ignore[union-attr]


def test_no_output_matrix_means_that_the_head_is_the_embedding() -> None:
    assert llama().ties
    assert not llama({"output.weight": np.zeros((64, 32), np.float32)}).ties


def test_the_vocabulary_is_as_long_as_the_list_of_tokens_where_no_size_is_stated() -> None:
    metadata = {**BASE, "tokenizer.ggml.tokens": ["a", "b", "c"]}
    del metadata["llama.vocab_size"]
    assert spec_of(metadata, Shown()).decoder.stem.vocab == 3


@pytest.mark.case("C11")
@pytest.mark.parametrize(
    ("rule", "theta", "dim"),
    [
        (Llama3Scaling(factor=8.0, low=1.0, high=4.0, original=8192), 500000.0, 128),
        (Llama3Scaling(factor=32.0, low=1.0, high=4.0, original=8192), 500000.0, 64),
        (Llama3Scaling(factor=4.0, low=1.0, high=4.0, original=64), 10000.0, 16),
    ],
)
def test_llama3s_rule_is_known_by_the_table_that_it_makes(rule: Llama3Scaling, theta: float, dim: int) -> None:
    table = llama3_divisors(rule, theta, dim).astype(np.float32)
    assert given_scaling(table, theta, dim) == rule


@pytest.mark.case("C11")
def test_another_table_is_kept_as_it_is() -> None:
    table = np.array([1.0, 1.5, 2.0, 8.0], np.float32)
    rope = next(llama({"rope_freqs.weight": table}).decoder.layers[0].branches).mixer.rope  # type: ignore[union-attr]
    assert rope is not None
    assert rope.scaling == GivenScaling(divisors=(1.0, 1.5, 2.0, 8.0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embedding_length": "wide"}, "llama.embedding_length = 'wide'"),
        ({"attention__head_count_kv": [1, 2]}, r"llama.attention.head_count_kv = \[1, 2\]"),
        ({"attention__head_count_kv": 3}, "kv_heads = 3"),
        ({"expert_count": 8}, "llama.expert_count = 8"),
        ({"rope__scaling__type": "spiral"}, "llama.rope.scaling.type = 'spiral'"),
        ({"rope__scaling__type": "longrope"}, "rope_factors_long.weight"),
        ({"attention__value_length": 4}, "llama.attention.value_length = 4"),
    ],
)
def test_impossible_metadata_are_one_line_that_names_file_and_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"^model.gguf: .*{message}") as caught:
        llama(**changes)
    assert "\n" not in str(caught.value)


GARBAGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.lists(st.integers(), max_size=3),
)
KEYS = [
    "vocab_size", "embedding_length", "block_count", "feed_forward_length", "context_length", "expert_count",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon", "attention.sliding_window", "attention.sliding_window_pattern", "attention.scale",
    "rope.freq_base", "rope.freq_base_swa", "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor", "final_logit_softcapping", "rope.scale_linear",
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt2"]),
    st.dictionaries(st.sampled_from(KEYS), GARBAGE, max_size=4),
    st.lists(st.floats(width=32), max_size=5),
)
def test_garbage_in_metadata_is_an_error_of_headway_or_a_spec(
    architecture: str, changes: dict[str, Any], factors: list[float]
) -> None:
    metadata = {key.replace("llama.", f"{architecture}."): value for key, value in BASE.items()}
    metadata |= {"general.architecture": architecture, f"{architecture}.attention.layer_norm_epsilon": 1e-5}
    table = np.array(factors, np.float32)
    tensors = Shown({"rope_freqs.weight": table} if factors else {})
    try:
        spec = spec_of(metadata | {f"{architecture}.{key}": value for key, value in changes.items()}, tensors)
    except HeadwayError as error:
        assert "\n" not in str(error)
        return
    assert spec.decoder.layers


@pytest.mark.parametrize("shape", [(), (0, 5), (8, 0), (7, 3)])
def test_shapes_that_cannot_be_turned_or_cut_are_left_for_the_caller_to_report(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.float32)
    for form in (Pairs(8), Split((6, 4))):
        assert [found.shape for found in form.apply([array])] == [shape]
