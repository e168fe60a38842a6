"""One request, one answer: alone, batched, chunked, uncached, forked, whoever else is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from headway import reference
from headway.batch import Batch
from headway.errors import CheckpointError, RequestError
from headway.generate import Completion, Engine, Request, Sampling, score
from headway.generate.engine import Running
from headway.generate.past import Past
from headway.nn import Transformer, build
from headway.spec import DynamicScaling, Mask, Rope
from tests.generate.scripted import Pieces, scripted
from tests.zoo import HEAD_DIM, VOCAB, ZOO, attention, decoder, layer

# Pad id 0 is a real token here, one prompt is a single token, and some are of like length.
PROMPTS = [
    (7, 0, 9),
    (5,),
    (5, 1, 88, 3, 3, 17, 96, 40, 2, 0, 0, 54),
    (61, 2, 3, 4, 5, 0, 0),
    (8, 0),
    (0, 44, 44, 12),
]
NEW = 8
SPECS = {
    **ZOO,
    "dynamic": decoder(
        layer(attention(rope=Rope(dim=HEAD_DIM, base=500.0, scaling=DynamicScaling(factor=2.0, original=6)))),
        layer(attention()),
    ),
}
every_spec = pytest.mark.parametrize("name", SPECS)


def model_of(name: str) -> Transformer:
    return build(SPECS[name], seed=3)


def requests(**changes: Any) -> list[Request]:
    return [Request(**{"prompt": prompt, "max_tokens": NEW, "logprobs": True, **changes}) for prompt in PROMPTS]


def by_hand(model: Transformer, prompt: tuple[int, ...], count: int) -> list[int]:
    """Greedy decoding as it is defined: the whole prefix anew for every token."""
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            tokens.append(int(model(Batch.of([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def assert_same(some: list[Completion], others: list[Completion]) -> None:
    assert [one.tokens for one in some] == [other.tokens for other in others]
    for one, other in zip(some, others, strict=True):
        assert (one.request, one.choice, one.text, one.finish) == (
            other.request,
            other.choice,
            other.text,
            other.finish,
        )
        for entry, other_entry in zip(one.logprobs, other.logprobs, strict=True):
            assert entry.logprob == pytest.approx(other_entry.logprob, abs=1e-4)


@every_spec
@pytest.mark.case("C02")
def test_greedy_answers_are_the_same_alone_batched_cached_uncached_and_chunked(name: str) -> None:
    model = model_of(name)
    expected = [by_hand(model, prompt, NEW) for prompt in PROMPTS]
    batched = Engine(model).complete(requests())
    assert [list(answer.tokens) for answer in batched] == expected
    alone = [replace(Engine(model).complete([one])[0], request=number) for number, one in enumerate(requests())]
    assert_same(alone, batched)
    assert_same(Engine(model, cached=False).complete(requests()), batched)
    for chunk in (1, 3, 5):
        assert_same(Engine(model, chunk=chunk).complete(requests()), batched)
    assert_same(Engine(model, rows=2).complete(requests()), batched)


@every_spec
@pytest.mark.case("C02")
def test_samples_are_the_same_alone_and_in_any_company(name: str) -> None:
    model = model_of(name)
    sampling = Sampling(temperature=1.3, top_k=40, top_p=0.95, repetition_penalty=1.2, no_repeat_ngram=3)
    asked = [replace(one, sampling=sampling, seed=11) for one in requests()]
    batched = Engine(model).complete(asked)
    company = [replace(one, seed=5, n=2) for one in asked]
    mixed = Engine(model, chunk=4).complete([asked[2], *company, asked[0], *requests()])
    assert_same([replace(mixed[0], request=2)], [batched[2]])
    assert_same([replace(next(one for one in mixed if one.request == 1 + len(company)), request=0)], [batched[0]])
    assert_same(Engine(model, cached=False, rows=1).complete(asked), batched)


def test_choices_differ_and_the_first_is_that_of_n_1() -> None:
    engine = Engine(model_of("rotary"))
    hot = Request(prompt=PROMPTS[2], max_tokens=6, sampling=Sampling(temperature=2.0), seed=4, logprobs=True)
    four = engine.complete([replace(hot, n=4)])
    assert [answer.choice for answer in four] == [0, 1, 2, 3]
    assert len({answer.tokens for answer in four}) == 4
    assert_same(engine.complete([hot]), four[:1])
    assert engine.complete([replace(hot, seed=5)])[0].tokens != four[0].tokens


def test_choices_of_many_prompts_are_those_of_each_alone() -> None:
    engine = Engine(model_of("window"))
    asked = [
        replace(one, sampling=Sampling(temperature=1.5), n=1 + number % 3) for number, one in enumerate(requests())
    ]
    alone = [replace(answer, request=number) for number, one in enumerate(asked) for answer in engine.complete([one])]
    assert_same(engine.complete(asked), alone)


@every_spec
@pytest.mark.case("C02")
def test_rows_of_any_lengths_catch_up_in_one_past(name: str) -> None:
    model = model_of(name)
    past, last = Past(model, chunk=5), {}
    while len(last) < len(PROMPTS):
        advance = past.advance(PROMPTS)
        if advance.ready:
            assert advance.logits.isfinite().all()
            last |= zip(advance.ready, advance.logits.argmax(dim=-1).tolist(), strict=True)
    assert [last[row] for row in range(len(PROMPTS))] == [by_hand(model, prompt, 1)[0] for prompt in PROMPTS]


@pytest.mark.parametrize("cached", [True, False])
def test_choices_of_a_long_prompt_share_its_computation(cached: bool) -> None:
    model = model_of("window")
    seen: list[tuple[int, int]] = []
    model.register_forward_pre_hook(lambda _, given: seen.append((given[0].rows, given[0].width)))
    Engine(model, chunk=8, cached=cached).complete([Request(prompt=PROMPTS[2], max_tokens=2, n=3)])
    assert seen == ([(1, 8), (1, 4), (3, 1)] if cached else [(1, 12), (3, 13)])


def test_a_decoding_step_computes_one_token_a_row() -> None:
    model = model_of("rotary")
    seen: list[tuple[int, int]] = []
    model.register_forward_pre_hook(lambda _, given: seen.append((given[0].rows, given[0].width)))
    Engine(model).complete([Request(prompt=(1, 2, 3), max_tokens=4), Request(prompt=(3, 2), max_tokens=4)])
    assert seen == [(2, 3), (2, 1), (2, 1), (2, 1)]


def test_prompts_of_unlike_length_are_not_padded_to_each_other() -> None:
    model = model_of("rotary")
    seen: list[tuple[int, int]] = []
    model.register_forward_pre_hook(lambda _, given: seen.append((given[0].rows, given[0].width)))
    Engine(model).complete([Request(prompt=(1,) * length, max_tokens=2) for length in (2, 30, 3, 20)])
    assert seen == [(2, 3), (2, 30), (4, 1)]


def test_a_long_prompt_that_joins_holds_nobody_up() -> None:
    running = Running(Engine(model_of("rotary"), chunk=4))
    short, long = Request(prompt=(1, 2), max_tokens=9), Request(prompt=(3,) * 14, max_tokens=2)
    assert running.add(short) == 0
    first = running.step()
    assert running.add(long) == 1
    steps = [[event.request for event in running.step()] for _ in range(5)]
    assert [event.request for event in first] == [0]
    assert steps == [[0], [0], [0], [0, 1], [0, 1]]


def test_finished_rows_leave_and_waiting_ones_come() -> None:
    model = model_of("learned")
    seen: list[int] = []
    model.register_forward_pre_hook(lambda _, given: seen.append(given[0].rows))
    lengths = [3, 1, 4, 2, 2]
    asked = [Request(prompt=PROMPTS[number], max_tokens=count) for number, count in enumerate(lengths)]
    answers = Engine(model, rows=2).complete(asked)
    assert [answer.completion_tokens for answer in answers] == lengths
    assert [list(answer.tokens) for answer in answers] == [by_hand(model, one.prompt, one.max_tokens) for one in asked]
    assert max(seen) <= 2


def test_a_cache_grows_with_a_long_answer() -> None:
    model = build(decoder(layer(attention(mask=Mask.causal(50))), layer(attention()), context=900), seed=3)
    (answer,) = Engine(model).complete([Request(prompt=(1, 2, 3), max_tokens=400)])
    with torch.inference_mode():
        whole = model(Batch.of([[1, 2, 3, *answer.tokens[:-1]]])).logits[0]
    assert answer.tokens == tuple(whole[2:].argmax(dim=-1).tolist())


def test_the_context_ends_an_answer() -> None:
    (answer,) = Engine(model_of("rotary")).complete([Request(prompt=(1,) * 60, max_tokens=50)])
    assert (answer.completion_tokens, answer.finish) == (4, "length")
    (answer,) = Engine(model_of("learned")).complete([Request(prompt=(1,) * 63, max_tokens=50)])
    assert (answer.completion_tokens, answer.finish) == (1, "length")


def test_events_come_token_by_token_and_add_up() -> None:
    engine = Engine(scripted([1, 2, 3, 9], prompt=2), Pieces({1: "a", 2: "b", 3: "c", 9: "END"}))
    events = list(engine.run([Request(prompt=(1, 2), max_tokens=9, end_ids=(9,))]))
    assert [(event.tokens, event.text, event.finish) for event in events] == [
        ((1,), "a", None),
        ((2,), "b", None),
        ((3,), "c", None),
        ((9,), "", "stop"),
    ]
    assert [(event.prompt_tokens, event.completion_tokens) for event in events] == [(2, 1), (2, 2), (2, 3), (2, 4)]


def test_a_run_that_is_dropped_leaves_the_engine_as_it_was() -> None:
    engine = Engine(model_of("rotary"))
    whole = engine.complete(requests())
    events = engine.run(requests())
    next(events)
    assert not torch.is_inference_mode_enabled()
    del events
    assert_same(engine.complete(requests()), whole)


def test_log_probabilities_are_the_models_own_whatever_the_sampling() -> None:
    model = model_of("bucketed")
    sampling = Sampling(temperature=0.7, top_k=5, repetition_penalty=2.0, logit_bias=((4, 30.0),))
    asked = Request(prompt=PROMPTS[0], max_tokens=5, sampling=sampling, logprobs=True, top_logprobs=3)
    (answer,) = Engine(model).complete([asked])
    with torch.inference_mode():
        logits = model(Batch.of([[*asked.prompt, *answer.tokens]])).logits[0]
    for place, entry in enumerate(answer.logprobs):
        expected = logits[len(asked.prompt) - 1 + place].log_softmax(dim=-1)
        values, ids = expected.topk(3)
        assert entry.token == answer.tokens[place]
        assert entry.logprob == pytest.approx(expected[entry.token].item(), abs=1e-4)
        assert [token for token, _ in entry.top] == ids.tolist()
        assert [value for _, value in entry.top] == pytest.approx(values.tolist(), abs=1e-4)


@pytest.mark.parametrize("chunk", [2, 512])
@pytest.mark.parametrize("name", ["longrope", "window", "learned"])
def test_scores_are_the_log_probabilities_of_one_pass(name: str, chunk: int) -> None:
    model = model_of(name)
    rows = [PROMPTS[2], (5, 6), (7,), PROMPTS[3]]
    scores = score(Engine(model, chunk=chunk, rows=3), rows, top=2)
    for row, got in zip(rows, scores, strict=True):
        with torch.inference_mode():
            expected = model(Batch.of([row])).logits[0].log_softmax(dim=-1)
        own = [expected[place, token].item() for place, token in enumerate(row[1:])]
        assert [entry.logprob for entry in got.tokens] == pytest.approx(own, abs=1e-4)
        assert got.total == pytest.approx(sum(own), abs=1e-3)
        assert all(entry.top[0][1] >= entry.logprob - 1e-6 for entry in got.tokens)


@pytest.mark.case("C24")
def test_penalties_act_on_each_rows_own_tokens() -> None:
    engine = Engine(scripted([1, 1, 1, 1], prompt=1))
    once = Request(prompt=(2,), max_tokens=4, sampling=Sampling(no_repeat_ngram=1))
    plain = Request(prompt=(2,), max_tokens=4)
    first, second = engine.complete([once, plain])
    assert len(set(first.tokens)) == 4
    assert 2 not in first.tokens
    assert second.tokens == (1, 1, 1, 1)


def test_all_ids_are_in_reach() -> None:
    assert VOCAB == 97  # PROMPTS hold the last id


@every_spec
def test_greedy_answers_are_those_of_the_reference(name: str) -> None:
    model = model_of(name)
    weights = {path: parameter.tolist() for path, parameter in model.named_parameters()}
    (answer,) = Engine(model, chunk=4).complete([Request(prompt=(7, 0, 9, 61, 4, 0), max_tokens=5)])
    assert list(answer.tokens) == reference.greedy(SPECS[name], weights, (7, 0, 9, 61, 4, 0), 5)


@pytest.mark.parametrize("options", [{"chunk": 0}, {"rows": 0}, {"rows": 1.5}])
def test_an_engine_refuses_an_impossible_size(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(options))):
        Engine(model_of("rotary"), **options)


def test_a_model_without_a_head_generates_nothing() -> None:
    with pytest.raises(RequestError, match="no language-model head"):
        Engine(build(replace(ZOO["rotary"], heads=(), ties=()), seed=3))


def test_a_tokenizer_of_another_model_is_refused() -> None:
    with pytest.raises(CheckpointError, match="another model"):
        Engine(model_of("rotary"), Pieces({}, known=[4000]))
