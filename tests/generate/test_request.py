"""A request's values are refused where they are made, in one line with field, value and range."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headway.errors import RequestError
from headway.generate import Beams, Engine, Request, Sampling
from headway.generate.request import STOP_LIMIT
from tests.generate.scripted import scripted

BAD_SAMPLING: list[tuple[str, Any]] = [
    ("temperature", -1),
    ("temperature", math.nan),
    ("temperature", 10**400),
    ("repetition_penalty", 10**400),
    ("temperature", math.inf),
    ("temperature", "hot"),
    ("temperature", True),
    ("top_k", -1),
    ("top_k", 1.5),
    ("top_p", 1.2),
    ("top_p", -0.1),
    ("top_p", math.nan),
    ("min_p", 1.01),
    ("min_p", math.nan),
    ("typical_p", -1),
    ("repetition_penalty", 0),
    ("repetition_penalty", -2.0),
    ("penalise_prompt", 1),
    ("presence_penalty", 2.5),
    ("frequency_penalty", math.nan),
    ("no_repeat_ngram", -3),
    ("logit_bias", {3: 1.0}),
    ("logit_bias", ((3, 1000),)),
    ("logit_bias", ((3, "x"),)),
    ("logit_bias", (("AI", -100),)),
    ("logit_bias", ((-1, 1),)),
    ("logit_bias", ((3, 1), (3, 2))),
    ("logit_bias", (3, 1)),
]

BAD_REQUEST: list[tuple[str, Any]] = [
    ("prompt", ()),
    ("prompt", [1, 2]),
    ("prompt", (1, -2)),
    ("prompt", (1, 2.0)),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 1.5),
    ("max_tokens", "5"),
    ("max_tokens", True),
    ("stop", "END"),
    ("stop", ("",)),
    ("stop", (5,)),
    ("stop", ("x",) * (STOP_LIMIT + 1)),
    ("end_ids", (1.5,)),
    ("end_ids", 5),
    ("ignore_end", "yes"),
    ("top_logprobs", -1),
    ("top_logprobs", 5),
    ("logprobs", 1),
    ("n", 0),
    ("n", -1),
    ("n", 2.0),
    ("seed", "abc"),
    ("seed", 1.0),
]


def assert_names(error: RequestError, field: str, value: Any) -> None:
    message = str(error)
    assert field.split("_")[0] in message
    assert "\n" not in message
    assert isinstance(error, ValueError)


@pytest.mark.case("C20", "C30")
@pytest.mark.parametrize(("field", "value"), BAD_SAMPLING, ids=str)
def test_sampling_refuses_a_value_out_of_range(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        Sampling(**{field: value})
    assert_names(caught.value, field, value)


@pytest.mark.case("C07", "C30")
@pytest.mark.parametrize(("field", "value"), BAD_REQUEST, ids=lambda value: str(value)[:20])
def test_a_request_refuses_a_value_out_of_range(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        Request(**{"prompt": (1,), "max_tokens": 4, field: value})
    assert_names(caught.value, field, value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("beams", 0),
        ("beams", 2.5),
        ("length_penalty", math.inf),
        ("length_penalty", 1e308),
        ("length_penalty", 10**400),
        ("length_penalty", "long"),
        ("early_stopping", "always"),
        ("early_stopping", 1),
        ("early_stopping", None),
    ],
)
def test_beams_refuse_a_value_out_of_range(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=field):
        Beams(**{field: value})


def test_a_message_shows_field_value_and_range() -> None:
    with pytest.raises(RequestError, match=r"^top_p = 1\.2 must be a number from 0 to 1$"):
        Sampling(top_p=1.2)
    with pytest.raises(RequestError, match=r"^max_tokens = 0 must be a whole number, 1 or more$"):
        Request(prompt=(1,), max_tokens=0)


@pytest.mark.case("C07")
def test_a_prompt_longer_than_the_context_names_both_numbers() -> None:
    engine = Engine(scripted([1], prompt=1, context=24))
    with pytest.raises(RequestError, match=r"100 tokens.*context of 24 tokens"):
        engine.run([Request(prompt=(1,) * 100, max_tokens=4)])


@pytest.mark.case("C07")
def test_a_prompt_must_leave_room_for_one_token() -> None:
    engine = Engine(scripted([7], prompt=23, context=24))
    with pytest.raises(RequestError, match="24 tokens"):
        engine.run([Request(prompt=(1,) * 24, max_tokens=1)])
    (answer,) = engine.complete([Request(prompt=(1,) * 23, max_tokens=10**9)])
    assert (answer.tokens, answer.finish) == ((7,), "length")


@pytest.mark.case("C30")
@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("prompt", {"prompt": (1, 96)}),
        ("logit_bias", {"sampling": Sampling(logit_bias=((999999, 1.0),))}),
        ("logit_bias", {"sampling": Sampling(logit_bias=tuple((token, -100.0) for token in range(96)))}),
        ("n", {"n": 10**6}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 97}),
        ("stop", {"stop": ("x",)}),
    ],
)
def test_what_this_model_cannot_take_is_refused_before_anything_runs(field: str, changes: dict[str, Any]) -> None:
    engine = Engine(scripted([1], prompt=1))
    good = Request(prompt=(1,), max_tokens=1)
    with pytest.raises(RequestError, match=field):
        engine.run([good, Request(**{"prompt": (1,), "max_tokens": 1, **changes})])
