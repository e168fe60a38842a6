"""The engine on a tape: the same answers, logprobs, beams and scores as on modules."""

from __future__ import annotations

from typing import Any

import pytest

from headway.generate import Beams, Engine, Request, Sampling, score, search
from tests.tape.specs import pair

PROMPTS = [(7, 0, 9), (5,), (5, 1, 88, 3, 3, 17, 96, 40, 2, 0, 0, 54), (61, 2, 3, 4, 5, 0, 0)]
# A cached rope of two tables, a rope of a table per length, rings, biases, positions from a table.
NAMES = ["rotary", "longrope", "scaled_ropes", "window", "sinks_window", "bucketed", "learned", "parallel"]


def engines(name: str, **options: Any) -> tuple[Engine, Engine]:
    modules, tape = pair(name)
    return Engine(modules, **options), Engine(tape.program, **options)


def requests(**changes: Any) -> list[Request]:
    return [Request(**{"prompt": prompt, "max_tokens": 10, "logprobs": True, **changes}) for prompt in PROMPTS]


@pytest.mark.parametrize("chunk", [3, 512])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_answers(name: str, chunk: int) -> None:
    modules, tape = engines(name, chunk=chunk)
    for theirs, ours in zip(modules.complete(requests()), tape.complete(requests()), strict=True):
        assert ours.tokens == theirs.tokens
        assert [one.logprob for one in ours.logprobs] == pytest.approx(
            [one.logprob for one in theirs.logprobs], abs=1e-4
        )


def test_greedy_answers_without_a_cache() -> None:
    modules, tape = engines("window", cached=False)
    assert [one.tokens for one in tape.complete(requests())] == [one.tokens for one in modules.complete(requests())]


def test_sampled_answers_in_several_choices() -> None:
    modules, tape = engines("rotary")
    asked = requests(n=3, seed=11, sampling=Sampling(temperature=0.9, top_p=0.95))
    assert [one.tokens for one in tape.complete(asked)] == [one.tokens for one in modules.complete(asked)]


def test_beams() -> None:
    modules, tape = engines("window")
    theirs, ours = (search(engine, requests(logprobs=False), Beams(beams=3)) for engine in (modules, tape))
    assert [one.tokens for one in ours] == [one.tokens for one in theirs]
    assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=1e-4)


def test_scores() -> None:
    modules, tape = engines("softcap_sandwich", chunk=4)
    theirs, ours = (score(engine, [list(prompt) for prompt in PROMPTS], top=2) for engine in (modules, tape))
    for one, other in zip(ours, theirs, strict=True):
        got = [token.logprob for token in one.tokens]
        assert got == pytest.approx([token.logprob for token in other.tokens], abs=1e-4)
