"""Exactly one start token on every way from a chat into the model."""

from __future__ import annotations

import pytest

import headway
from headway.text import Tokenizer
from tests.text.test_start_token import LEAVES_IT, WRITES_IT
from tests.text.vocabularies import byte_level
from tests.zoo import attention, decoder, layer

CHAT = [{"role": "user", "content": "hello"}]


def model_of(template: str, vocab: int = 280) -> headway.Model:
    tokenizer = Tokenizer.from_gguf({**byte_level(add_bos_token=True), "tokenizer.chat_template": template})
    spec = decoder(layer(attention()), head={"vocab": vocab}, stem=headway.spec.TokenStem(vocab=vocab, width=40))
    return headway.build(spec, tokenizer=tokenizer)


@pytest.mark.case("C01")
@pytest.mark.parametrize("template", [WRITES_IT, LEAVES_IT], ids=["writes", "leaves"])
def test_chat_generation_streams_and_scores_begin_with_one_start_token(template: str) -> None:
    model = model_of(template)
    assert model.tokenizer is not None
    start = model.tokenizer.bos_id
    ids = model.ids(CHAT)
    assert ids[0] == start
    assert ids.count(start) == 1
    assert model.request(CHAT).prompt == tuple(ids)
    assert model.chat(CHAT, max_tokens=1).prompt_tokens == len(ids)
    assert model.chat("hello", max_tokens=1).prompt_tokens == len(ids)
    assert next(model.stream(CHAT, max_tokens=1)).prompt_tokens == len(ids)
    assert [entry.token for entry in model.score([CHAT])[0].tokens] == ids[1:]


@pytest.mark.case("C01")
@pytest.mark.parametrize("template", [WRITES_IT, LEAVES_IT], ids=["writes", "leaves"])
def test_a_plain_prompt_has_one_start_token_and_a_typed_one_is_text(template: str) -> None:
    model = model_of(template)
    assert model.tokenizer is not None
    start = model.tokenizer.bos_id
    for text in ("hello", "<s>hello"):
        ids = model.ids(text)
        assert ids[0] == start
        assert ids.count(start) == 1
        assert model.tokenizer.decode(ids) == text
