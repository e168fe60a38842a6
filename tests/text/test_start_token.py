"""Exactly one start token, whatever the template and the tokenizer each think."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.text import Tokenizer, load_tokenizer
from tests.text.vocabularies import byte_level, library_file, sentencepiece

WRITES_IT = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
LEAVES_IT = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
WRITES_IT_TWICE = "{{ bos_token }}" + WRITES_IT

USER = [{"role": "user", "content": "hello"}]


def _tokenizer(kind: str, adds_start: bool, template: str, folder: Path) -> Tokenizer:
    if kind == "file":
        library_file(folder, adds_start)
        (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
        (folder / "chat_template.jinja").write_text(template)
        return load_tokenizer(folder)
    build = {"bytes": byte_level, "pieces": sentencepiece}[kind]
    return Tokenizer.from_gguf({**build(add_bos_token=adds_start), "tokenizer.chat_template": template})


@pytest.mark.case("C01")
@pytest.mark.parametrize("template", [WRITES_IT, LEAVES_IT, WRITES_IT_TWICE], ids=["writes", "leaves", "writes twice"])
@pytest.mark.parametrize("kind", ["file", "bytes", "pieces"])
@pytest.mark.parametrize("content", ["hello", "<s>", "<s>hello", "hello <s> there"])
def test_a_chat_begins_with_exactly_one_start_token(kind: str, template: str, content: str, tmp_path: Path) -> None:
    tokenizer = _tokenizer(kind, True, template, tmp_path)
    assert tokenizer.adds_bos
    ids = tokenizer.chat([{"role": "user", "content": content}])
    assert ids[0] == tokenizer.bos_id
    assert ids.count(tokenizer.bos_id) == 1
    assert content in tokenizer.decode(ids)


@pytest.mark.case("C01")
@pytest.mark.parametrize("kind", ["file", "bytes"])
def test_a_tokenizer_that_adds_none_follows_the_template(kind: str, tmp_path: Path) -> None:
    writes = _tokenizer(kind, False, WRITES_IT, tmp_path).chat(USER)
    leaves = _tokenizer(kind, False, LEAVES_IT, tmp_path)
    assert writes[0] == leaves.bos_id
    assert writes[1:] == leaves.chat(USER)
    assert leaves.bos_id not in leaves.chat(USER)


@pytest.mark.case("C01")
def test_a_template_may_begin_every_turn_with_the_start_token() -> None:
    template = "{% for m in messages %}{{ bos_token }}{{ m.content }}{% endfor %}"
    tokenizer = Tokenizer.from_gguf({**byte_level(add_bos_token=True), "tokenizer.chat_template": template})
    ids = tokenizer.chat([*USER, *USER])
    assert [at for at, token in enumerate(ids) if token == tokenizer.bos_id] == [0, len(ids) // 2]


@pytest.mark.case("C01")
def test_a_raw_prompt_has_one_start_token_and_takes_a_typed_one_as_text_unless_told() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(add_bos_token=True, add_eos_token=True))
    start, hello = tokenizer.bos_id, tokenizer.encode("hello")
    assert tokenizer.prompt("hello") == [start, *hello]
    assert tokenizer.prompt("") == [start]
    assert tokenizer.prompt("<s>hello") == [start, *tokenizer.encode("<s>hello")]
    assert tokenizer.prompt("<s>hello").count(start) == 1
    assert tokenizer.prompt("<s>hello", parse_special=True) == [start, *hello]
    assert tokenizer.prompt("<s><s>hello", parse_special=True) == [start, *hello]
    assert tokenizer.encode("hello", add_special=True) == [start, *hello, *tokenizer.eos_ids]


@pytest.mark.case("C01")
def test_a_raw_prompt_gets_no_start_token_where_the_tokenizer_adds_none() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(add_bos_token=False))
    assert tokenizer.prompt("hello") == tokenizer.encode("hello")
    assert tokenizer.prompt("") == []


@pytest.mark.case("C01")
@pytest.mark.parametrize(("fields", "adds"), [({}, True), ({"add_bos_token": False}, False)])
def test_sentencepiece_files_that_do_not_say_add_one(fields: dict[str, bool], adds: bool) -> None:
    assert Tokenizer.from_gguf(sentencepiece(**fields)).adds_bos is adds


@pytest.mark.case("C01")
def test_a_saved_tokenizer_keeps_its_mind(tmp_path: Path) -> None:
    for adds in (True, False):
        tokenizer = Tokenizer.from_gguf({**byte_level(add_bos_token=adds), "tokenizer.chat_template": LEAVES_IT})
        tokenizer.save(tmp_path / str(adds))
        again = load_tokenizer(tmp_path / str(adds))
        assert again.adds_bos is adds
        assert again.chat(USER) == tokenizer.chat(USER)
        assert again.prompt("hello") == tokenizer.prompt("hello")
