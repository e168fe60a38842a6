"""Beam search finds the likeliest answers and says how likely they are."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

from headway.batch import Batch
from headway.errors import RequestError
from headway.generate import Beams, Engine, Request, Sampling, search
from headway.nn import Transformer, build
from tests.generate.scripted import Pieces
from tests.zoo import ZOO, attention, decoder, layer

VOCAB = 5
PROMPT = (1, 4, 0)


@pytest.fixture(scope="module")
def small() -> Transformer:
    """Five ids, so that every answer can be tried."""
    spec = decoder(layer(attention()), layer(attention()), head={"vocab": VOCAB})
    stack = spec.stacks[0]
    return build(replace(spec, stacks=(replace(stack, stem=replace(stack.stem, vocab=VOCAB)),)), seed=1)


def every_answer(model: Transformer, length: int, end: int, penalty: float) -> list[tuple[float, tuple[int, ...]]]:
    """All answers of up to `length` tokens that the end id or the limit ends, best first."""
    found = {}
    for tail in itertools.product(range(VOCAB), repeat=length):
        cut = tail.index(end) + 1 if end in tail else length
        found[tail[:cut]] = 0.0
    rows = [[*PROMPT, *tail] for tail in found]
    with torch.inference_mode():
        logprobs = model(Batch.of(rows)).logits.log_softmax(dim=-1)
    for number, tail in enumerate(found):
        own = [logprobs[number, len(PROMPT) - 1 + place, token].item() for place, token in enumerate(tail)]
        found[tail] = sum(own) / len(tail) ** penalty
    return sorted(((value, tail) for tail, value in found.items()), reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 1.0, -0.5, 2.0])
def test_a_search_wide_enough_finds_the_best_of_all_answers(small: Transformer, penalty: float) -> None:
    request = Request(prompt=PROMPT, max_tokens=3, end_ids=(2,), n=4)
    answers = search(Engine(small, rows=125), [request], Beams(beams=125, length_penalty=penalty))
    expected = every_answer(small, 3, 2, penalty)[:4]
    assert [answer.tokens for answer in answers] == [tail for _, tail in expected]
    assert [answer.score for answer in answers] == pytest.approx([value for value, _ in expected], abs=1e-5)
    assert [answer.choice for answer in answers] == [0, 1, 2, 3]
    assert all((answer.finish == "stop") == (answer.tokens[-1] == 2) for answer in answers)


def test_one_beam_is_greedy() -> None:
    for name in ("rotary", "window", "learned"):
        engine = Engine(build(ZOO[name], seed=3))
        request = Request(prompt=(5, 1, 88), max_tokens=6)
        (greedy,) = engine.complete([request])
        assert search(engine, [request], Beams(beams=1))[0].tokens == greedy.tokens


@pytest.mark.case("C02")
@pytest.mark.parametrize("name", ["rotary", "window", "longrope", "alibi", "bucketed", "learned"])
def test_beams_are_the_same_alone_batched_cached_uncached_and_chunked(name: str) -> None:
    model, beams = build(ZOO[name], seed=3), Beams(beams=3)
    prompts = [(7, 0, 9), (5,), (5, 1, 88, 3, 3, 17, 96, 40, 2, 0)]
    asked = [Request(prompt=prompt, max_tokens=6, n=2, end_ids=(11, 30)) for prompt in prompts]
    batched = search(Engine(model), asked, beams)
    tokens = [(answer.request, answer.choice, answer.tokens) for answer in batched]
    alone = [answer for one in asked for answer in search(Engine(model), [one], beams)]
    assert [answer.tokens for answer in alone] == [answer.tokens for answer in batched]
    for engine in (Engine(model, cached=False), Engine(model, chunk=2), Engine(model, rows=4)):
        assert [(answer.request, answer.choice, answer.tokens) for answer in search(engine, asked, beams)] == tokens


def test_early_stopping_ends_at_the_first_answers_at_no_better_ones_or_at_none_possible() -> None:
    engine = Engine(build(ZOO["rotary"], seed=3))
    ends = (7, 15, 20, 22, 26, 32, 43, 56, 67, 76, 85, 86)
    request = Request(prompt=(60, 72, 21, 89), max_tokens=14, end_ids=ends, n=2)
    stops: list[bool | Literal["never"]] = [True, False, "never"]
    found = [search(engine, [request], Beams(beams=2, early_stopping=stop, length_penalty=1.5)) for stop in stops]
    assert [[answer.completion_tokens for answer in answers] for answers in found] == [[4, 3], [4, 5], [14, 14]]
    worst = [answers[-1].score for answers in found]
    assert worst[0] < worst[1] < worst[2]


def test_bias_and_bans_compose_with_beams() -> None:
    engine = Engine(build(ZOO["rotary"], seed=3))
    plain = Request(prompt=(5, 1, 88), max_tokens=8)
    best = search(engine, [plain], Beams(beams=3))[0].tokens
    sampling = Sampling(no_repeat_ngram=1, logit_bias=((best[0], -100.0),))
    (answer,) = search(engine, [Request(prompt=(5, 1, 88), max_tokens=8, sampling=sampling)], Beams(beams=3))
    assert best[0] not in answer.tokens
    assert len({5, 1, 88, *answer.tokens}) == 3 + 8


def test_a_stop_string_ends_a_beam() -> None:
    engine = Engine(build(ZOO["rotary"], seed=3), Pieces({token: f" {token}" for token in range(97)}))
    request = Request(prompt=(5, 1, 88), max_tokens=6)
    best = search(engine, [request], Beams(beams=2))[0].tokens
    stop = f" {best[1]} {best[2]}"
    stopped = Request(prompt=(5, 1, 88), max_tokens=6, stop=(stop,), n=2)
    answers = search(engine, [stopped], Beams(beams=2, early_stopping="never", length_penalty=0.0))
    assert all(stop not in answer.text for answer in answers)
    assert any(answer.stopped_by == stop and answer.finish == "stop" for answer in answers)


def test_log_probabilities_of_a_beam_add_up_to_its_score() -> None:
    engine = Engine(build(ZOO["window"], seed=3))
    request = Request(prompt=(5, 1, 88), max_tokens=6, logprobs=True, top_logprobs=2, n=2)
    for answer in search(engine, [request], Beams(beams=4, length_penalty=0.0)):
        assert [entry.token for entry in answer.logprobs] == list(answer.tokens)
        assert sum(entry.logprob for entry in answer.logprobs) == pytest.approx(answer.score, abs=1e-4)


@pytest.mark.parametrize(
    ("field", "beams", "changes"),
    [
        ("beams", 65, {}),
        ("n", 2, {"n": 3}),
        ("temperature", 2, {"sampling": Sampling(temperature=0.7)}),
    ],
)
def test_what_does_not_fit_a_search_is_refused(field: str, beams: int, changes: dict[str, Any]) -> None:
    engine = Engine(build(ZOO["rotary"], seed=3))
    with pytest.raises(RequestError, match=f"^{field} = "):
        search(engine, [Request(**{"prompt": (1,), "max_tokens": 2, **changes})], Beams(beams=beams))


def test_a_prompt_may_hold_ids_that_the_tokenizer_does_not_know() -> None:
    engine = Engine(build(ZOO["rotary"], seed=3), Pieces({}, known=range(90)))
    request = Request(prompt=(5, 95, 91), max_tokens=3, logprobs=True, top_logprobs=2)
    (greedy,), (found,) = engine.complete([request]), search(engine, [request], Beams(beams=1))
    assert found.tokens == greedy.tokens
    assert [entry.logprob for entry in found.logprobs] == pytest.approx(
        [entry.logprob for entry in greedy.logprobs], abs=1e-4
    )
