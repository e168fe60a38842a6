"""A stream of single bytes: whole characters, each once, and a cut one that harms nobody."""

from __future__ import annotations

from typing import Any

import pytest

from headway.generate import Completion, Engine, Event, Request
from headway.text import Tokenizer
from tests.generate.scripted import scripted
from tests.text.vocabularies import byte_level

BYTES = Tokenizer.from_gguf(byte_level(merges=()))
TEXT = "A \u4e16ab \U0001f600 \u010f end"


def answered(**options: Any) -> tuple[list[Event], Completion]:
    ids = BYTES.encode(TEXT)
    network = scripted(ids, prompt=1, vocab=BYTES.vocab_size, context=40)
    engine = Engine(network, BYTES)
    request = Request(prompt=(65,), logprobs=True, **{"max_tokens": len(ids), **options})
    return list(engine.run([request])), engine.complete([request])[0]


@pytest.mark.case("C05")
def test_chunks_are_whole_characters_and_their_sum_is_the_text() -> None:
    events, whole = answered()
    assert "".join(event.text for event in events) == whole.text == TEXT == BYTES.decode(whole.tokens)
    assert not any("\ufffd" in event.text for event in events)
    assert len(events) == len(TEXT.encode())


@pytest.mark.case("C05")
def test_an_answer_cut_inside_a_character_ends_as_any_other() -> None:
    cut = TEXT.encode().index(b"\xf0\x9f\x98\x80") + 2
    events, whole = answered(max_tokens=cut)
    assert whole.finish == "length"
    assert whole.text == "A \u4e16ab \ufffd"
    assert [event.text for event in events][-2:] == ["", "\ufffd"]
    for event in events:
        event.text.encode()


@pytest.mark.case("C05")
def test_log_probabilities_name_tokens_whose_bytes_are_raw() -> None:
    _, whole = answered()
    assert b"".join(BYTES.token_bytes(entry.token) for entry in whole.logprobs) == TEXT.encode()
