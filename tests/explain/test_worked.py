"""The worked example: plain Python and the network agree at every step, and would be seen not to."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from headway.errors import RequestError
from headway.explain import LANGUAGES, Worked, explain_step, worked_example
from headway.explain.worked import largest_difference
from headway.loader import load_network
from headway.nn import Transformer, build
from headway.text.tokenizer import load_tokenizer
from tests.zoo import HEADS, VALUE_DIM, WIDTH, ZOO

IDS = [5, 1, 88, 3, 3, 17, 96, 40, 2, 9, 11]
every_spec = pytest.mark.parametrize("name", ZOO)


def model_of(name: str) -> Transformer:
    return build(ZOO[name], seed=3)


def example(name: str, head: int = 4, layer: int = 0) -> Worked:
    return worked_example(model_of(name), IDS, layer=layer, head=head)


def keys(worked: Worked) -> list[str]:
    return [step.key for step in worked.steps]


@every_spec
def test_plain_python_and_the_network_agree_in_every_layer_and_head(name: str) -> None:
    model = model_of(name)
    for layer in range(len(ZOO[name].decoder.layers)):
        for head in (0, HEADS - 1):
            worked = worked_example(model, IDS, layer=layer, head=head)
            assert worked.agrees, [(step.key, step.difference) for step in worked.steps]
            assert {"q", "k", "v", "masked", "weights", "mixed", "output"} <= {
                step.key for step in worked.steps if step.difference is not None
            }


@every_spec
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_step_has_words(name: str, language: str) -> None:
    worked = example(name)
    for step in worked.steps:
        words = explain_step(worked, step.key, language)
        assert words.title
        assert words.sentence
        assert words.formula
        assert not set("{}") & set(words.title + words.sentence + words.formula)


def test_steps_that_an_attention_has_not_are_left_out() -> None:
    assert "q_turned" not in keys(example("learned"))
    assert "biased" in keys(example("alibi"))
    assert "normed" not in keys(example("sinusoidal_post_norm"))
    capped = keys(example("softcap_sandwich", layer=1))
    assert capped[4:13] == [
        *("v", "q_normed", "k_normed", "q_turned", "k_turned"),
        *("scores", "scaled", "capped", "masked"),
    ]


def test_each_step_follows_from_the_one_above() -> None:
    worked = example("rotary")
    query, key = worked["q_turned"].exact[5], worked["k_turned"].exact[2]
    assert worked["scores"].exact[5][2] == pytest.approx(sum(a * b for a, b in zip(query, key, strict=True)))
    assert worked["scaled"].exact[5][2] == pytest.approx(0.3 * worked["scores"].exact[5][2])
    assert worked["masked"].exact[2][5] == -math.inf
    assert sum(worked["weights"].exact[5]) == pytest.approx(1)
    assert len(worked["mixed"].exact[0]) == VALUE_DIM
    assert len(worked["share"].exact[0]) == WIDTH


def test_the_shares_of_all_heads_and_the_bias_are_the_output() -> None:
    model = model_of("learned")
    shares = [worked_example(model, IDS, head=head)["share"].exact for head in range(HEADS)]
    total = torch.tensor(shares, dtype=torch.float64).sum(0)
    total += model.get_parameter("stacks.decoder.layers.0.attention.o.bias").double()
    output = worked_example(model, IDS)["output"].exact
    assert (total - torch.tensor(output, dtype=torch.float64)).abs().max() < 1e-12


def test_a_query_head_reads_its_group_s_key_head() -> None:
    assert [example("rotary", head).kv_head for head in range(HEADS)] == [0, 0, 0, 1, 1, 1]
    assert "query head 4 reads key head 1" in explain_step(example("rotary"), "k").sentence


def test_words_say_how_scores_are_scaled() -> None:
    assert "0.3 (this model's own; 1/√d_k = 0.31623 is usual)" in explain_step(example("rotary"), "scaled").sentence


@pytest.mark.parametrize(
    ("module", "first"),
    [("attention.q", "q"), ("attention.v", "v"), ("attention_norm", "normed"), ("attention.o", "output")],
)
def test_a_network_that_computes_something_else_is_seen(module: str, first: str) -> None:
    model = model_of("rotary")
    model.get_submodule(f"stacks.decoder.layers.0.{module}").register_forward_hook(lambda _m, _a, out: out + 0.01)
    worked = worked_example(model, IDS, head=4)
    assert not worked.agrees
    wrong = [step.key for step in worked.steps if (step.difference or 0.0) > 1e-4]
    assert wrong[0] == first


def test_hooks_are_gone_afterwards() -> None:
    model = model_of("rotary")
    worked_example(model, IDS)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"layer": 2}, "layer = 2 is not there; the model has layers 0 to 1"),
        ({"layer": -1}, "layer = -1 is not there"),
        ({"head": 6}, "head = 6 is not there; layer 0 has heads 0 to 5"),
        ({"branch": "cross"}, "layer 0 has no attention called cross; its branches are attention, feed_forward"),
    ],
)
def test_what_is_not_there_is_refused(what: dict[str, int], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        worked_example(model_of("rotary"), IDS, **what)


def test_a_text_without_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="no tokens"):
        worked_example(model_of("rotary"), [])


def test_differences_count_what_is_not_finite() -> None:
    inf, nan = math.inf, math.nan
    assert largest_difference([[1.0, -inf]], [[1.5, -inf]]) == 0.5
    assert largest_difference([[0.0]], [[-inf]]) == inf
    assert largest_difference([[nan]], [[nan]]) == inf


def test_half_precision_agrees_as_far_as_it_goes() -> None:
    worked = worked_example(build(ZOO["rotary"], seed=3, dtype=torch.bfloat16), IDS)
    assert worked.dtype == "bfloat16"
    assert worked.agrees
    assert worked.difference > 1e-4


def test_smollm2_agrees_to_five_digits(smollm2_gguf: Path) -> None:
    network = load_network(smollm2_gguf).network
    tokenizer = load_tokenizer(smollm2_gguf)
    worked = worked_example(network, tokenizer.prompt("The cat 你"), layer=0, head=4, tokenizer=tokenizer)
    assert [token.text for token in worked.tokens] == ["The", "␣cat", "␣", "⟨e4⟩⟨bd⟩", "⟨a0⟩"]
    assert (worked.kv_head, worked.mixer.kv_heads, worked.backend) == (1, 3, "sdpa")
    assert worked.difference <= 1e-5
