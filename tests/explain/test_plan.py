"""Plans: weights and cache to the byte, activations as a real forward has them, and nothing read for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import headway
from headway.checkpoint.files import Store
from headway.errors import CheckpointError, HeadwayError, RequestError
from headway.explain import Plan, measure, outline_of, plan
from headway.explain.plan import pairs, prefill_flops
from headway.loader import load_network
from headway.nn import build
from headway.spec import Mask, ModelSpec, Tie
from headway.spec.count import flops_per_token, shapes
from tests.zoo import ZOO, attention, decoder, layer

every_spec = pytest.mark.parametrize("name", ZOO)
# Fused attention wants values as wide as keys, which the zoo has not.
FUSED: dict[str, ModelSpec] = {
    "fused": decoder(*(layer(attention(value_dim=10)) for _ in range(3)), tied=True),
    "fused_window": decoder(*(layer(attention(value_dim=10, mask=Mask.causal(w))) for w in (5, None, 5))),
    "fused_alibi": replace(ZOO["alibi"], stacks=(replace(ZOO["alibi"].decoder, layers=(
        *(layer(attention(value_dim=10, rope=None, bias="alibi")) for _ in range(2)),)),)),
}  # fmt: skip


def grouped(layers: int, heads: int, kv_heads: int, size: int, mask: Mask | None = None) -> ModelSpec:
    one = attention(
        heads=heads, kv_heads=kv_heads, head_dim=size, value_dim=size, mask=mask or Mask.causal(), rope=None
    )
    return decoder(*(layer(one) for _ in range(layers)), context=8192)


def both(spec: ModelSpec, dtype: torch.dtype = torch.float32, **run: Any) -> tuple[Plan, Any]:
    planned = plan(spec, dtype=dtype, **run)
    return planned, measure(build(spec, dtype=dtype), planned)


@pytest.mark.case("C23")
def test_a_cache_counts_key_heads_and_not_query_heads() -> None:
    planned, real = both(grouped(2, 8, 2, 8), torch.float16, tokens=16)
    assert planned.cache_bytes == real.cache_bytes == 2048


@pytest.mark.case("C23")
def test_a_cache_counts_the_head_size_that_the_model_states() -> None:
    planned = plan(grouped(32, 32, 8, 128), dtype="float16", tokens=8192)
    assert planned.cache_bytes_per_token == 131072
    assert planned.cache_bytes == 2**30
    assert plan(grouped(32, 32, 8, 128), dtype="float16", tokens=8192, batch=3).cache_bytes == 3 * 2**30


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in ZOO),
        *((n, torch.bfloat16) for n in ("rotary", "window", "softcap_sandwich")),
    ],
)
@pytest.mark.case("C23")
def test_what_is_planned_is_what_real_tensors_take(name: str, dtype: torch.dtype) -> None:
    planned, real = both(ZOO[name], dtype, tokens=24, batch=2, chunk=16)
    assert planned.weight_bytes == real.weight_bytes
    assert planned.cache_bytes == real.cache_bytes
    assert planned.prefill == real.prefill
    assert planned.decode == real.decode


@pytest.mark.parametrize(
    ("name", "dtype", "tokens"),
    [*((name, torch.float32, 24) for name in FUSED), ("fused", torch.bfloat16, 12), ("fused", torch.bfloat16, 24)],
)
def test_fused_attention_is_counted_with_what_it_makes_inside(name: str, dtype: torch.dtype, tokens: int) -> None:
    planned, real = both(FUSED[name], dtype, tokens=tokens, batch=2, chunk=12)
    assert planned.prefill == real.prefill
    assert planned.decode == real.decode


@pytest.mark.case("C23")
def test_a_window_stops_the_cache_from_growing() -> None:
    spec = ZOO["window"]
    few, many = (plan(spec, tokens=tokens) for tokens in (3, 20))
    assert [(kind.window, kind.kept_tokens) for kind in few.cache] == [(4, 3), (None, 3), (7, 3)]
    assert [(kind.window, kind.kept_tokens) for kind in many.cache] == [(4, 4), (None, 20), (7, 7)]
    assert few.cache_bytes == 3 * few.cache_bytes_per_token
    assert many.cache_bytes == 31 * 2 * (10 + 14) * 4


def test_a_cache_type_of_its_own_counts_for_the_cache_alone() -> None:
    planned, real = both(ZOO["rotary"], tokens=10, cache_dtype="float16")
    assert planned.cache_bytes == real.cache_bytes == 10 * 2 * 2 * (10 + 14) * 2
    assert planned.weight_bytes == plan(ZOO["rotary"], tokens=10).weight_bytes


def test_tied_weights_count_once_and_types_each_by_itself() -> None:
    spec = ZOO["rotary"]
    types = {path: torch.float32 if len(shape) == 1 else torch.bfloat16 for path, shape in shapes(spec).items()}
    planned = plan(spec, dtype=types, tokens=8)
    network = build(spec)
    for path, dtype in types.items():
        network.get_parameter(path).data = network.get_parameter(path).data.to(dtype)
    assert planned.weight_bytes == measure(network, planned).weight_bytes
    assert {held.dtype: held.bytes // held.parameters for held in planned.weights} == {"bfloat16": 2, "float32": 4}
    assert planned.cache_dtype == "bfloat16"
    untied = plan(replace(spec, ties=()), tokens=8)
    assert untied.parameters - planned.parameters == 97 * 40


def test_layers_that_share_their_weights_are_planned() -> None:
    tie = Tie(alias="stacks.decoder.layers.1", owner="stacks.decoder.layers.0")
    planned, real = both(replace(ZOO["rotary"], ties=(*ZOO["rotary"].ties, tie)), tokens=8)
    assert planned.weight_bytes == real.weight_bytes
    assert planned.cache_bytes == real.cache_bytes
    assert planned.prefill == real.prefill


@pytest.mark.parametrize("window", [None, 1, 4, 9, 50])
def test_pairs_are_the_keys_that_all_queries_see(window: int | None) -> None:
    assert pairs(9, window) == sum(min(t, window or t) for t in range(1, 10))


@every_spec
def test_a_prompt_costs_its_tokens_with_one_row_of_logits(name: str) -> None:
    spec = ZOO[name]
    head = 2 * 97 * 40
    assert prefill_flops(spec, 12) == sum(flops_per_token(spec, past) for past in range(1, 13)) - 11 * head
    assert plan(spec, tokens=12, batch=3).decode_flops == 3 * flops_per_token(spec, 12)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"tokens": 65}, "tokens = 65 is more than the model's context of 64"),
        ({"tokens": -1}, "tokens = -1 is not a count"),
        ({"batch": 0}, "batch = 0 is not a count"),
        ({"dtype": "int3"}, "dtype = int3 is not one of"),
        ({"cache_dtype": "int3"}, "dtype = int3 is not one of"),
    ],
)
def test_impossible_runs_are_refused(run: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        plan(ZOO["rotary"], **run)


def test_without_a_count_it_is_the_whole_context() -> None:
    assert plan(ZOO["rotary"]).tokens == 64


def test_an_outline_reads_no_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headway.build(ZOO["rotary"], dtype="bfloat16").save(tmp_path / "model")
    for name in ("read", "read_into", "floats"):
        monkeypatch.setattr(Store, name, lambda *_: pytest.fail("a tensor was read"))
    found = outline_of(tmp_path / "model")
    assert found.spec == ZOO["rotary"]
    assert set(found.dtypes.values()) == {torch.bfloat16}
    assert found.file_bytes == plan(found.spec, dtype=found.dtypes, tokens=8).weight_bytes
    assert set(outline_of(tmp_path / "model", "float32").dtypes.values()) == {torch.float32}


LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 5e5,
}


@pytest.mark.parametrize(("named", "item"), [({"torch_dtype": "bfloat16"}, 2), ({"dtype": "float32"}, 4), ({}, 4)])
@pytest.mark.case("C23")
def test_a_config_alone_is_enough(tmp_path: Path, named: dict[str, str], item: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **named}))
    found = outline_of(tmp_path)
    planned = plan(found.spec, dtype=found.dtypes, file_bytes=found.file_bytes)
    assert planned.parameters == 8_030_261_248
    assert planned.weight_bytes == item * planned.parameters
    assert planned.cache_bytes_per_token == 32 * 2 * 8 * 128 * item
    assert planned.file_bytes == 0


def test_a_file_that_lacks_a_tensor_has_no_plan(tmp_path: Path) -> None:
    model = headway.build(ZOO["rotary"])
    model.save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["spec"]["stacks"][0]["layers"].append(config["spec"]["stacks"][0]["layers"][0])
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="is missing"):
        outline_of(tmp_path / "model")


def test_smollm2_is_planned_to_the_byte(smollm2_gguf: Path) -> None:
    found = outline_of(smollm2_gguf)
    planned = plan(found.spec, dtype=found.dtypes, tokens=16, file_bytes=found.file_bytes)
    assert (planned.parameters, planned.cache_bytes_per_token) == (134_515_008, 30 * 2 * 3 * 64 * 4)
    real = measure(load_network(smollm2_gguf).network, planned)
    assert (planned.weight_bytes, planned.cache_bytes) == (real.weight_bytes, real.cache_bytes)
    assert (planned.prefill, planned.decode) == (real.prefill, real.decode)


def test_a_batch_beyond_any_machine_is_one_clear_line() -> None:
    with pytest.raises(RequestError, match="batch = 100000000000000") as caught:
        plan(ZOO["rotary"], tokens=10, batch=10**14)
    assert "\n" not in str(caught.value)
