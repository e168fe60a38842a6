"""The public face: what a user of the library types, and what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headway
from headway.errors import CheckpointError, DataError, HeadwayError, RequestError, SpecError
from tests.zoo import ZOO


@pytest.fixture(scope="module")
def tiny() -> headway.Model:
    return headway.build(ZOO["rotary"], seed=3)


@pytest.fixture(scope="module")
def smol(smollm2_gguf: Path) -> headway.Model:
    return headway.load(smollm2_gguf)


def test_ids_come_as_a_list_as_lists_as_a_tensor_or_as_an_array(tiny: headway.Model) -> None:
    expected = tiny.logits([5, 1, 88])
    assert expected.shape == (1, 3, 97)
    assert expected.dtype == torch.float32
    for ids in ([[5, 1, 88]], torch.tensor([5, 1, 88]), torch.tensor([[5, 1, 88]]), np.array([5, 1, 88]), (5, 1, 88)):
        assert torch.equal(tiny.logits(ids), expected)


def test_ragged_rows_answer_as_alone_and_say_where_they_end(tiny: headway.Model) -> None:
    rows = [[5, 1, 88, 3], [7]]
    for ask in (tiny.logits, tiny.hidden):
        both = ask(rows)
        torch.testing.assert_close(both[0], ask(rows[0])[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(both[1, :1], ask(rows[1])[0], atol=1e-5, rtol=0)
        assert both[1, 1:].isnan().all()


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([], "no token ids were given"),
        ([[1], []], "row 1 of the token ids is empty"),
        ([97], "token id 97; this model's ids are 0 to 96"),
        ([-1], "token id -1"),
        ([0] * 65, "65 tokens, but the model's context is 64"),
        (["a"], "token ids are a list of whole numbers"),
        ([1.5], "token ids are a list of whole numbers"),
        ([[1, [2]]], "token ids are a list of whole numbers"),
        (torch.zeros(1, 2, 3, dtype=torch.long), "[1, 2, 3]"),
        (torch.zeros(3), "torch.float32"),
    ],
)
def test_impossible_ids_are_one_clear_line(tiny: headway.Model, ids: Any, says: str) -> None:
    with pytest.raises(DataError) as caught:
        tiny.logits(ids)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_without_tokenizer_answers_in_ids(tiny: headway.Model) -> None:
    answer = tiny.generate([5, 1, 88], max_tokens=6)
    assert len(answer.tokens) == 6
    assert [event.tokens[0] for event in tiny.stream([5, 1, 88], max_tokens=6)] == list(answer.tokens)
    with pytest.raises(RequestError, match="no tokenizer"):
        tiny.generate("hello")


def test_a_misspelt_option_is_named_with_the_nearest(tiny: headway.Model) -> None:
    with pytest.raises(RequestError, match="temprature is not an option of a generation; did you mean temperature"):
        tiny.generate([5], temprature=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"top_p": 2}, "top_p"),
    ],
)
def test_a_value_out_of_range_names_its_field(tiny: headway.Model, options: Any, field: str) -> None:
    with pytest.raises(RequestError, match=field):
        tiny.generate([5], **options)


def test_many_prompts_and_beams(tiny: headway.Model) -> None:
    prompts = [[5, 1, 88], [7]]
    both = tiny.generate_all(prompts, max_tokens=5)
    assert [answer.tokens for answer in both] == [tiny.generate(p, max_tokens=5).tokens for p in prompts]
    searched = tiny.generate_all(prompts, max_tokens=5, beams=3, n=2)
    assert [(answer.request, answer.choice) for answer in searched] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    with pytest.raises(RequestError, match="cannot be streamed"):
        tiny.stream([5], beams=2)


def test_building_twice_with_one_seed_is_the_same_model() -> None:
    one, other = headway.build(ZOO["yarn"], seed=1), headway.build(ZOO["yarn"], seed=1)
    assert torch.equal(one.logits([1, 2]), other.logits([1, 2]))
    assert not torch.equal(one.logits([1, 2]), headway.build(ZOO["yarn"], seed=2).logits([1, 2]))


def test_an_unknown_model_or_dtype_is_one_clear_line(tmp_path: Path) -> None:
    for ask in (lambda: headway.load(tmp_path / "no"), lambda: headway.load("smollm3", dtype="auto")):
        with pytest.raises(CheckpointError) as caught:
            ask()
        assert "\n" not in str(caught.value)
    with pytest.raises(SpecError, match="dtype"):
        headway.build(ZOO["rotary"], dtype="int3")
    assert issubclass(HeadwayError, ValueError)


def test_a_saved_model_is_the_same_model_with_its_tokenizer(smollm2_gguf: Path, tmp_path: Path) -> None:
    smol = headway.load(smollm2_gguf, engine="modules")
    smol.save(tmp_path / "m")
    again = headway.load(tmp_path / "m", engine="modules")
    prompt = "The capital of France is"
    assert again.tokenizer is not None
    assert again.tokenizer.encode(prompt) == smol.tokenizer.encode(prompt)
    assert torch.equal(again.logits(again.ids(prompt)), smol.logits(smol.ids(prompt)))
    assert again.defaults.end_ids == smol.defaults.end_ids


def test_a_real_model_answers_streams_chats_scores_and_explains(smol: headway.Model) -> None:
    answer = smol.chat("What is the capital of France?")
    assert "Paris" in answer.text
    assert answer.finish == "stop"
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    assert "".join(event.text for event in smol.stream(messages)) == answer.text
    likely, unlikely = smol.score(["The cat sat on the mat.", "mat the on. sat cat The"])
    assert likely.total > unlikely.total
    explained = smol.explain("The capital of France is", top=1)
    assert explained.candidates[0].text.endswith("Paris")
    assert len(explained.layers) == 30
    weights = smol.attentions([smol.ids("The cat"), smol.ids("A")])
    assert all(w.shape[:2] == (2, 9) for w in weights.values())
