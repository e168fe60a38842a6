"""Filters, penalties, greedy answers and beams against transformers' own."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.generate import Beams, Engine, Request, Sampling, search
from headway.generate.sampling import History, adjust, narrow
from headway.loader import load_network

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

VOCAB = 61
PROMPTS = [(5, 1, 33, 3, 3), (7,), (60, 2, 3, 4, 5, 0, 0, 19, 7)]


@pytest.mark.case("C20", "C24")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("ours", "theirs", "value"),
    [
        ({"top_k": 7}, "TopKLogitsWarper", 7),
        ({"top_k": 1000}, "TopKLogitsWarper", 1000),
        ({"top_p": 0.3}, "TopPLogitsWarper", 0.3),
        ({"top_p": 0.95}, "TopPLogitsWarper", 0.95),
        ({"min_p": 0.07}, "MinPLogitsWarper", 0.07),
        ({"typical_p": 0.2}, "TypicalLogitsWarper", 0.2),
        ({"typical_p": 0.9}, "TypicalLogitsWarper", 0.9),
        ({"temperature": 0.3}, "TemperatureLogitsWarper", 0.3),
    ],
)
def test_filters_keep_what_transformers_keeps(ours: dict[str, Any], theirs: str, value: float, seed: int) -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(seed)).double() * 3
    expected = getattr(transformers, theirs)(value)(torch.zeros(3, 1, dtype=torch.long), logits.clone())
    got = narrow(logits, Sampling(**{"temperature": 1.0, **ours}))
    assert torch.allclose(got.softmax(dim=-1), expected.softmax(dim=-1), atol=1e-9)
    assert ((got > -math.inf) == (expected > -math.inf)).all()


@pytest.mark.case("C24")
@pytest.mark.parametrize(
    ("ours", "theirs", "value"),
    [
        ({"repetition_penalty": 1.7}, "RepetitionPenaltyLogitsProcessor", 1.7),
        ({"repetition_penalty": 0.6}, "RepetitionPenaltyLogitsProcessor", 0.6),
        ({"no_repeat_ngram": 2}, "NoRepeatNGramLogitsProcessor", 2),
        ({"no_repeat_ngram": 1}, "NoRepeatNGramLogitsProcessor", 1),
    ],
)
def test_penalties_are_those_of_transformers(ours: dict[str, Any], theirs: str, value: float) -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(1)).double() * 3
    rows = [[4, 5, 6, 4, 5, 9, 4], [1, 1, 1, 2, 1, 3, 1]]
    expected = getattr(transformers, theirs)(value)(torch.tensor(rows), logits.clone())
    got = adjust(logits, Sampling(**ours), [History(row) for row in rows], rows)
    assert torch.equal(got, expected)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Engine]:
    """The same tiny Llama in transformers and here."""
    torch.manual_seed(4)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=40,
        intermediate_size=52,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    folder: Path = tmp_path_factory.mktemp("llama")
    other = transformers.LlamaForCausalLM(config).eval()
    other.save_pretrained(folder)
    return other, Engine(load_network(folder, dtype="float32", device="cpu", progress=None).network)


def theirs(model: Any, prompt: tuple[int, ...], ends: tuple[int, ...], **options: Any) -> list[tuple[int, ...]]:
    """Answers of transformers, cut behind their end."""
    got = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        eos_token_id=list(ends) or None,
        pad_token_id=0,
        do_sample=False,
        **options,
    )
    answers = []
    for row in got.sequences.tolist() if hasattr(got, "sequences") else got.tolist():
        made = row[len(prompt) :]
        cut = next((place for place, token in enumerate(made) if token in ends), len(made) - 1)
        answers.append(tuple(made[: cut + 1]))
    return answers


@pytest.mark.parametrize(
    "sampling",
    [{}, {"repetition_penalty": 1.4}, {"no_repeat_ngram": 2}, {"repetition_penalty": 0.8, "no_repeat_ngram": 3}],
)
def test_greedy_answers_are_those_of_transformers(pair: tuple[Any, Engine], sampling: dict[str, Any]) -> None:
    model, engine = pair
    options = {{"no_repeat_ngram": "no_repeat_ngram_size"}.get(name, name): value for name, value in sampling.items()}
    ends = (11, 17)
    asked = [Request(prompt=p, max_tokens=20, sampling=Sampling(**sampling), end_ids=ends) for p in PROMPTS]
    expected = [theirs(model, prompt, ends, max_new_tokens=20, **options)[0] for prompt in PROMPTS]
    assert [answer.tokens for answer in engine.complete(asked)] == expected


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 1.5, -1.0])
@pytest.mark.parametrize("ends", [(), (11,), (11, 17, 23, 40), tuple(range(2, 60, 4))])
def test_beams_are_those_of_transformers(
    pair: tuple[Any, Engine], early_stopping: bool, length_penalty: float, ends: tuple[int, ...]
) -> None:
    model, engine = pair
    beams = Beams(beams=4, length_penalty=length_penalty, early_stopping=early_stopping)
    asked = [Request(prompt=prompt, max_tokens=12, end_ids=ends, n=3) for prompt in PROMPTS]
    answers = search(engine, asked, beams)
    for number, prompt in enumerate(PROMPTS):
        options = {"num_beams": 4, "num_return_sequences": 3, "max_new_tokens": 12, "length_penalty": length_penalty}
        more = {"early_stopping": early_stopping, "output_scores": True, "return_dict_in_generate": True}
        expected = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            eos_token_id=list(ends) or None,
            pad_token_id=0,
            do_sample=False,
            **options,
            **more,
        )
        mine = [answer for answer in answers if answer.request == number]
        assert [answer.score for answer in mine] == pytest.approx(expected.sequences_scores.tolist(), abs=1e-4)
        assert [answer.tokens for answer in mine] == theirs(
            model, prompt, ends, **options, early_stopping=early_stopping
        )


@pytest.mark.parametrize(
    ("repetition", "ngram"), [pair for pair in itertools.product((1.0, 1.5), (0, 2)) if pair != (1.0, 0)]
)
def test_penalties_in_a_beam_search_are_those_of_transformers(
    pair: tuple[Any, Engine], repetition: float, ngram: int
) -> None:
    model, engine = pair
    sampling = Sampling(repetition_penalty=repetition, no_repeat_ngram=ngram)
    for prompt in PROMPTS:
        request = Request(prompt=prompt, max_tokens=12, end_ids=(11,), sampling=sampling, n=2)
        options = {"repetition_penalty": repetition, "no_repeat_ngram_size": ngram}
        expected = theirs(model, prompt, (11,), num_beams=3, num_return_sequences=2, max_new_tokens=12, **options)
        assert [answer.tokens for answer in search(engine, [request], Beams(beams=3))] == expected
