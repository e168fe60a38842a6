"""Where an answer ends: end ids from three files, an explicit set, none at all; ids nobody knows."""

from __future__ import annotations

from typing import Any

import pytest

from headway.errors import CheckpointError
from headway.generate import Engine, Request, Sampling, defaults, score
from headway.generate.defaults import MAX_TOKENS, end_ids
from tests.generate.scripted import Pieces, scripted

PIECES = Pieces({token: f"<{token}>" for token in range(96)})
CONFIG, GENERATION, TOKENIZER = {"eos_token_id": 5}, {"eos_token_id": [5, 6]}, [7]


@pytest.mark.case("C04")
@pytest.mark.parametrize("end", [5, 6, 7])
def test_an_end_id_of_any_of_the_three_files_ends_the_answer(end: int) -> None:
    engine = Engine(scripted([1, 2, 3, end, 7, 7], prompt=2), PIECES)
    usual = defaults(GENERATION, CONFIG, TOKENIZER)
    assert usual.end_ids == (5, 6, 7)
    (got,) = engine.complete([usual.request((8, 9), max_tokens=6)])
    assert (got.finish, got.stopped_by, got.text) == ("stop", end, "<1><2><3>")
    assert got.tokens == (1, 2, 3, end)


@pytest.mark.case("C04")
def test_an_explicit_set_replaces_the_files() -> None:
    engine = Engine(scripted([1, 2, 3, 6, 4, 7], prompt=2), PIECES)
    (got,) = engine.complete([defaults(GENERATION, CONFIG, TOKENIZER).request((8, 9), max_tokens=6, end_ids=(4,))])
    assert (got.finish, got.stopped_by, got.text) == ("stop", 4, "<1><2><3><6>")


@pytest.mark.case("C04")
def test_ignoring_the_end_runs_to_the_limit() -> None:
    engine = Engine(scripted([1, 2, 3, 6, 4, 7], prompt=2), PIECES)
    (got,) = engine.complete([defaults(GENERATION, CONFIG, TOKENIZER).request((8, 9), max_tokens=5, ignore_end=True)])
    assert (got.finish, got.stopped_by, got.tokens) == ("length", None, (1, 2, 3, 6, 4))


@pytest.mark.case("C04")
@pytest.mark.parametrize(("stated", "ids"), [({"eos_token_id": 5}, (5,)), ({"eos_token_id": [5, 6]}, (5, 6))])
def test_one_id_and_a_list_are_read(stated: dict[str, Any], ids: tuple[int, ...]) -> None:
    assert end_ids("config.json", stated) == ids


@pytest.mark.case("C04")
@pytest.mark.parametrize("stated", [{}, {"eos_token_id": None}, {"eos_token_id": []}])
def test_an_absent_end_is_no_end(stated: dict[str, Any]) -> None:
    assert defaults(stated, stated).end_ids == ()
    assert defaults(stated, CONFIG, TOKENIZER).end_ids == (5, 7)


@pytest.mark.parametrize("value", ["5", 1.5, True, [[5]], -1, {"id": 5}])
def test_an_impossible_end_id_names_its_file(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id"):
        defaults({"eos_token_id": value}, {})


def test_defaults_sample_only_where_the_files_say_so() -> None:
    stated = {"temperature": 0.6, "top_p": 0.9, "top_k": None, "repetition_penalty": 1.05, "max_new_tokens": 77}
    on = defaults({**stated, "do_sample": True}, {})
    assert on.sampling == Sampling(temperature=0.6, top_p=0.9, repetition_penalty=1.05)
    assert on.max_tokens == 77
    assert defaults(stated, {}).sampling == Sampling(repetition_penalty=1.05)
    assert defaults({"do_sample": True}, {}).sampling == Sampling(temperature=1.0)
    assert defaults({}, {"do_sample": True, "top_k": 50}).sampling == Sampling(temperature=1.0, top_k=50)
    assert defaults({"top_k": 5}, {"do_sample": True, "top_k": 50}).sampling == Sampling(temperature=1.0, top_k=5)
    assert defaults({}, {}).max_tokens == MAX_TOKENS


@pytest.mark.parametrize("stated", [{"do_sample": True, "top_p": 3}, {"max_new_tokens": 0}, {"num_beams": -1}])
def test_an_impossible_default_names_its_file(stated: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        defaults(stated, {})


@pytest.mark.case("C29")
@pytest.mark.parametrize("known", [range(90), [*range(40), *range(41, 90)]], ids=["padded", "gap"])
def test_ids_that_the_tokenizer_does_not_know_have_no_probability(known: Any) -> None:
    network = scripted([95, 95, 95, 3], prompt=1)
    network.heads["lm"].weight.data[40] = network.heads["lm"].weight.data[95]
    tokenizer = Pieces({token: str(token) for token in range(96)}, known=[*known])
    engine = Engine(network, tokenizer)
    hot = Sampling(temperature=3.0)
    requests = [
        Request(prompt=(1,), max_tokens=4, logprobs=True, top_logprobs=len(tokenizer.known_ids)),
        *(Request(prompt=(1,), max_tokens=4, sampling=hot, seed=seed) for seed in range(40)),
    ]
    answers = engine.complete(requests)
    assert all(set(answer.tokens) <= set(known) for answer in answers)
    assert all(answer.finish == "length" for answer in answers)
    for entry in answers[0].logprobs:
        assert {token for token, _ in entry.top} == set(known)
    chances = [2.718281828459045**logprob for _, logprob in answers[0].logprobs[0].top]
    assert sum(chances) == pytest.approx(1.0)


@pytest.mark.case("C29")
def test_scores_leave_unknown_ids_out_as_generation_does() -> None:
    network = scripted([95, 3], prompt=1)
    engine = Engine(network, Pieces({}, known=range(90)))
    (answer,) = engine.complete([Request(prompt=(1,), max_tokens=2, logprobs=True)])
    (scored,) = score(engine, [(1, *answer.tokens)])
    assert [entry.logprob for entry in scored.tokens] == pytest.approx([entry.logprob for entry in answer.logprobs])
