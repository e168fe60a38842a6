"""A template's refusal is one named error on every way into the model, and the next chat is answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headway
from headway.errors import TemplateError
from tests.cases.test_c01 import CHAT, model_of
from tests.text.test_template import ALTERNATES, NO_SYSTEM

WAYS: dict[str, Callable[[headway.Model, Any], Any]] = {
    "chat": lambda model, messages: model.chat(messages, max_tokens=1),
    "generate": lambda model, messages: model.generate_all([CHAT, messages], max_tokens=1),
    "stream": lambda model, messages: list(model.stream(messages, max_tokens=1)),
    "score": lambda model, messages: model.score([messages]),
    "explain": lambda model, messages: model.explain(messages),
}


@pytest.mark.case("C12")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("template", "roles", "words"),
    [
        (ALTERNATES, ["user", "user"], "roles must alternate"),
        (ALTERNATES, ["assistant"], "roles must alternate"),
        (NO_SYSTEM, ["system", "user"], "System role not supported"),
        (NO_SYSTEM, ["foo"], "Unknown role foo"),
    ],
)
def test_a_refused_chat_leaves_the_model_as_it_was(template: str, roles: list[str], words: str, way: str) -> None:
    model = model_of(template)
    with pytest.raises(TemplateError, match=words) as caught:
        WAYS[way](model, [{"role": role, "content": "a"} for role in roles])
    assert "\n" not in str(caught.value)
    assert model.chat(CHAT, max_tokens=1).completion_tokens == 1


@pytest.mark.case("C12")
@pytest.mark.parametrize("way", ["chat", "stream", "generate"])
def test_a_chat_of_no_messages_is_refused(way: str) -> None:
    with pytest.raises(headway.HeadwayError):
        WAYS[way](model_of(ALTERNATES), [])
