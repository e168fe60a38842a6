"""Streams: whole characters, each once, and joined the decode of all ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.text import Tokenizer, load_tokenizer
from tests.text.samples import SAMPLES
from tests.text.vocabularies import byte_level, library_file, sentencepiece, streamed, wordpiece_file

BYTES = Tokenizer.from_gguf(byte_level(merges=()))
PIECES = Tokenizer.from_gguf(sentencepiece())
WITHOUT_PREFIX = Tokenizer.from_gguf(sentencepiece(add_space_prefix=False))

TEXT = "A \u4e16ab \U0001f600 \u010f end"


@pytest.mark.case("C05")
@pytest.mark.parametrize("tokenizer", [BYTES, PIECES, WITHOUT_PREFIX], ids=["bytes", "pieces", "no prefix"])
def test_characters_come_whole_and_once(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    chunks = streamed(tokenizer, ids)
    assert "".join(chunks) == tokenizer.decode(ids) == TEXT
    assert not any("\ufffd" in chunk for chunk in chunks)
    assert len(ids) > len(TEXT)


@pytest.mark.case("C05")
@pytest.mark.parametrize("kept", [1, 2, 3])
@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["bytes", "pieces"])
def test_a_cut_character_comes_out_once_at_the_end_as_replacement(tokenizer: Tokenizer, kept: int) -> None:
    ids = tokenizer.encode("ok \U0001f600")
    cut = ids[: len(ids) - 4 + kept]
    *chunks, last = streamed(tokenizer, cut)
    assert "".join(chunks) == "ok "
    assert last == "\ufffd"
    assert tokenizer.decode(cut) == "ok \ufffd"
    for chunk in (*chunks, last):
        chunk.encode()


@pytest.mark.case("C05")
def test_a_token_carries_its_raw_bytes() -> None:
    ids = BYTES.encode("\U0001f600")
    assert b"".join(BYTES.token_bytes(at) for at in ids) == b"\xf0\x9f\x98\x80"
    assert [BYTES.token_text(at) for at in ids] == ["\ufffd"] * 4
    assert [PIECES.token_bytes(at) for at in PIECES.encode("\u4e16")][1:] == [b"\xe4", b"\xb8", b"\x96"]


@pytest.mark.case("C05")
@given(st.lists(st.integers(0, 255), max_size=24))
@settings(max_examples=150, deadline=None)
def test_any_bytes_stream_as_they_decode(ids: list[int]) -> None:
    chunks = streamed(BYTES, ids)
    assert "".join(chunks) == BYTES.decode(ids)
    assert "".join(chunks) == b"".join(map(BYTES.token_bytes, ids)).decode("utf-8", errors="replace")


@pytest.mark.case("C05", "C21")
@given(st.lists(st.integers(0, 400), max_size=24), st.integers(0, 24))
@settings(max_examples=150, deadline=None)
def test_any_ids_stream_as_they_decode_wherever_the_prompt_ends(ids: list[int], cut: int) -> None:
    assert "".join(streamed(PIECES, ids)) == PIECES.decode(ids)
    prompt, answer = ids[:cut], ids[cut:]
    whole, before = PIECES.decode(ids), PIECES.decode(prompt)
    if not before.endswith("\ufffd") and before and whole.startswith(before):
        assert before + "".join(streamed(PIECES, answer, prompt)) == whole


@pytest.mark.parametrize("text", SAMPLES)
def test_samples_stream_as_they_decode(text: str) -> None:
    for tokenizer in (BYTES, PIECES, WITHOUT_PREFIX):
        ids = tokenizer.encode(text)
        chunks = streamed(tokenizer, ids)
        assert "".join(chunks) == tokenizer.decode(ids)
        assert "\ufffd" not in "".join(chunks)


@pytest.mark.case("C21")
def test_words_keep_their_spaces_from_the_beginning_and_after_a_prompt() -> None:
    assert "".join(streamed(PIECES, PIECES.encode("Daenerys is here"))) == "Daenerys is here"
    prompt = PIECES.prompt("The")
    answer = PIECES.encode("cat")
    assert "".join(streamed(PIECES, answer, prompt)) == " cat"
    assert PIECES.decode([*prompt, *answer]).removeprefix(PIECES.decode(prompt)) == " cat"


@pytest.mark.case("C21")
@pytest.mark.parametrize("text", ["  two before", " one before", "two  inside", "two after  "])
@pytest.mark.parametrize("tokenizer", [PIECES, WITHOUT_PREFIX, BYTES], ids=["pieces", "no prefix", "bytes"])
def test_two_spaces_survive(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids) == text
    assert "".join(streamed(tokenizer, ids, prompt=tokenizer.encode("The"))).endswith(text)


@pytest.mark.case("C21")
def test_a_prompt_of_control_tokens_alone_is_still_the_beginning() -> None:
    start = PIECES.id_of("<s>")
    assert start is not None
    assert "".join(streamed(PIECES, PIECES.encode("cat"), [start])) == "cat"
    assert PIECES.decode([start, *PIECES.encode("cat")]) == "cat"


def test_control_tokens_are_left_out_of_a_stream() -> None:
    ids = BYTES.encode("a<end>b</s>", parse_special=True)
    assert streamed(BYTES, ids) == ["a", "", "b", "", ""]


def test_a_control_token_inside_a_character_changes_nothing() -> None:
    first, *rest = BYTES.encode("\u4e16")
    end = BYTES.id_of("<end>")
    assert end is not None
    assert "".join(streamed(BYTES, [first, end, *rest])) == BYTES.decode([first, end, *rest]) == "\u4e16"


@pytest.mark.case("C05", "C21")
def test_decoders_that_look_at_neighbours_stream_as_they_decode(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(wordpiece_file(tmp_path))
    ids = tokenizer.encode("hello, playing world. hello played, world's hello world playing playing.", add_special=True)
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)
    cut = 4
    text = tokenizer.decode(ids[:cut]) + "".join(streamed(tokenizer, ids[cut:], ids[:cut]))
    assert text == tokenizer.decode(ids)


def test_a_metaspace_decoder_drops_one_space_only(tmp_path: Path) -> None:
    import tokenizers

    path = library_file(tmp_path, adds_start=False)
    core = tokenizers.Tokenizer.from_file(str(path))
    core.model = tokenizers.models.Unigram([("<unk>", 0.0), *((char, -1.0) for char in "\u2581ab")], unk_id=0)
    core.normalizer = None
    core.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(split=False)
    core.decoder = tokenizers.decoders.Metaspace()
    core.save(str(path))
    tokenizer = load_tokenizer(path)
    ids = [tokenizer.id_of(char) for char in "\u2581\u2581a\u2581b"]
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids) == " a b"  # type: ignore[arg-type]
