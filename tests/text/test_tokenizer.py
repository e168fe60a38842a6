"""Text to ids and back: what a tokenizer promises whatever file it came from."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import DataError, TokenizerError
from headway.text import Tokenizer, load_tokenizer
from tests.text.samples import SAMPLES
from tests.text.vocabularies import CHATML, byte_level, library_file, sentencepiece, wordpiece_file

BYTES = Tokenizer.from_gguf(byte_level(user=("<tool>",)))
PIECES = Tokenizer.from_gguf(sentencepiece())

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["bytes", "pieces"])
@pytest.mark.parametrize("text", SAMPLES)
def test_ordinary_text_comes_back_and_holds_no_control_token(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    marked = text.replace("\u2581", " ") if tokenizer is PIECES else text
    assert tokenizer.decode(ids) == marked
    assert tokenizer.control_ids.isdisjoint(ids)


@given(any_text)
@settings(max_examples=60, deadline=None)
def test_any_text_comes_back(text: str) -> None:
    assert BYTES.decode(BYTES.encode(text)) == text
    if "\u2581" not in text:
        assert PIECES.decode(PIECES.encode(text)) == text


def test_attributes_name_the_special_tokens() -> None:
    assert BYTES.bos_id == BYTES.id_of("<s>")
    assert BYTES.eos_ids == (BYTES.id_of("</s>"),)
    assert BYTES.pad_id is None
    assert BYTES.unk_id is None
    assert PIECES.unk_id == 0
    assert {BYTES.token_text(at) for at in BYTES.control_ids} == {"<s>", "</s>", "<start>", "<end>"}
    assert BYTES.vocab_size == len(BYTES.known_ids) == 256 + 6 + 4 + 1
    assert BYTES.chat_template == CHATML
    assert "BPE" in repr(BYTES)


def test_end_tokens_of_a_turn_and_of_a_message_are_all_named() -> None:
    metadata = byte_level()
    tokens = metadata["tokenizer.ggml.tokens"]
    metadata["tokenizer.ggml.eot_token_id"] = tokens.index("<end>")
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.eos_ids == (tokens.index("</s>"), tokens.index("<end>"))


def test_the_template_tells_where_a_turn_ends() -> None:
    assert BYTES.turn_end_ids == (BYTES.id_of("<end>"),)
    assert PIECES.turn_end_ids == ()


def test_a_turn_may_end_with_a_token_that_is_not_flagged_as_control() -> None:
    tokens = byte_level(control=("<s>", "</s>"), user=("\n", "<end_of_turn>"))
    template = "{% for m in messages %}{{ m.content }}\n<end_of_turn>\n{% endfor %}"
    tokenizer = Tokenizer.from_gguf({**tokens, "tokenizer.chat_template": template})
    assert tokenizer.turn_end_ids == (tokenizer.id_of("<end_of_turn>"),)


def test_named_tokens_are_control_tokens_whatever_their_flag_says(tmp_path: Path) -> None:
    path = library_file(tmp_path, adds_start=False)
    state = json.loads(path.read_text())
    for token in state["added_tokens"]:
        token["special"] = False
    path.write_text(json.dumps(state))
    tokenizer = Tokenizer.from_file(path, {"bos_token": "<s>", "eos_token": "<end>"})
    assert tokenizer.control_ids == {tokenizer.bos_id, *tokenizer.eos_ids}
    assert tokenizer.control_ids.isdisjoint(tokenizer.encode("a<end>b"))
    metadata = byte_level()
    metadata["tokenizer.ggml.token_type"][-1] = 4
    metadata["tokenizer.ggml.eot_token_id"] = len(metadata["tokenizer.ggml.tokens"]) - 1
    assert Tokenizer.from_gguf(metadata).control_ids == BYTES.control_ids


def test_control_tokens_are_parsed_only_on_request() -> None:
    text = "a<end>b"
    assert BYTES.id_of("<end>") not in BYTES.encode(text)
    assert BYTES.encode(text, parse_special=True) == [BYTES.id_of("a"), BYTES.id_of("<end>"), BYTES.id_of("b")]
    assert BYTES.decode(BYTES.encode(text, parse_special=True)) == "ab"
    assert BYTES.decode(BYTES.encode(text, parse_special=True), skip_special=False) == text


def test_added_tokens_that_are_not_control_are_found_in_any_text() -> None:
    ids = BYTES.encode("x<tool>y")
    assert ids == [BYTES.id_of("x"), BYTES.id_of("<tool>"), BYTES.id_of("y")]
    assert BYTES.decode(ids) == "x<tool>y"


def test_a_batch_encodes_as_each_text_alone() -> None:
    for tokenizer in (BYTES, PIECES):
        for options in ({}, {"add_special": True}, {"parse_special": True}):
            expected = [tokenizer.encode(text, **options) for text in SAMPLES]
            assert tokenizer.encode_batch(SAMPLES, **options) == expected
    assert BYTES.encode_batch([]) == []


def test_offsets_are_characters_of_the_text() -> None:
    text = "hello \u4e16 t"
    ids, offsets = BYTES.encode_with_offsets(text)
    assert ids == BYTES.encode(text)
    assert [text[start:end] for start, end in offsets][:2] == ["hello", " "]
    assert all(text[start:end] == "\u4e16" for start, end in offsets[2:5])


def test_threads_share_a_tokenizer() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    expected = [(tokenizer.encode(text), tokenizer.encode(text, parse_special=True)) for text in SAMPLES]
    fresh = Tokenizer.from_gguf(byte_level())
    with ThreadPoolExecutor(8) as pool:
        plain = pool.map(fresh.encode, SAMPLES * 4)
        parsed = pool.map(lambda text: fresh.encode(text, parse_special=True), SAMPLES * 4)
        assert list(zip(plain, parsed, strict=True)) == expected * 4


@pytest.mark.parametrize("text", [None, b"bytes", 3, ["a"]])
def test_what_is_no_string_is_refused(text: object) -> None:
    with pytest.raises(DataError, match="give a string"):
        BYTES.encode(text)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"texts\[1\]"):
        BYTES.encode_batch(["a", text])  # type: ignore[list-item]


def test_ids_as_a_string_are_refused() -> None:
    with pytest.raises(DataError, match="give token ids"):
        BYTES.decode("1 2")  # type: ignore[arg-type]


def test_half_of_a_surrogate_pair_is_refused_with_its_place() -> None:
    with pytest.raises(DataError, match="character 2"):
        BYTES.encode("ab\ud83d")
    for content in ("\ud83d", "<end>\ud83d"):
        with pytest.raises(DataError, match="surrogate"):
            BYTES.chat([{"role": "user", "content": content}])


@pytest.mark.case("C29")
def test_unknown_ids_and_gaps_decode_to_the_empty_string() -> None:
    metadata = byte_level()
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "[PAD266]", "[PAD267]", "<late>"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 5, 5, 4]
    tokenizer = Tokenizer.from_gguf(metadata)
    late = tokenizer.id_of("<late>")
    assert late == 268
    assert tokenizer.vocab_size == 269
    assert {266, 267}.isdisjoint(tokenizer.known_ids)
    for unknown in (266, 267, 269, 10_000, -1, 2**31, 2**40):
        assert tokenizer.decode([unknown]) == ""
        assert tokenizer.token_bytes(unknown) == b""
        assert tokenizer.token_text(unknown) == ""
        stream = tokenizer.stream()
        assert stream.push(unknown) + stream.finish() == ""
    a = tokenizer.encode("a")[0]
    assert tokenizer.decode([a, 266, a, 300, a, late]) == "aaa<late>"
    assert tokenizer.encode("a<late>") == [a, late]


@pytest.mark.case("C29")
def test_unknown_ids_are_nothing_for_decoders_that_look_at_neighbours(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(wordpiece_file(tmp_path))
    ids = tokenizer.encode("hello, playing")
    assert tokenizer.decode([*ids[:2], 95, *ids[2:]]) == tokenizer.decode(ids) == "hello, playing"


def test_files_and_folders_and_gguf_vocabularies_are_one_object(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    metadata = byte_level()
    writer.add_tokenizer_model(metadata["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(metadata["tokenizer.ggml.pre"])
    writer.add_token_list(metadata["tokenizer.ggml.tokens"])
    writer.add_token_types(metadata["tokenizer.ggml.token_type"])
    writer.add_token_merges(metadata["tokenizer.ggml.merges"])
    writer.add_bos_token_id(metadata["tokenizer.ggml.bos_token_id"])
    writer.add_eos_token_id(metadata["tokenizer.ggml.eos_token_id"])
    writer.add_chat_template(CHATML)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    from_gguf = load_tokenizer(path)
    from_gguf.save(tmp_path / "folder")
    found = [from_gguf, load_tokenizer(tmp_path / "folder"), load_tokenizer(tmp_path / "folder" / "tokenizer.json")]
    for tokenizer in found:
        assert (tokenizer.bos_id, tokenizer.eos_ids) == (found[0].bos_id, found[0].eos_ids)
        assert tokenizer.chat_template == CHATML
        assert tokenizer.control_ids == found[0].control_ids
        assert tokenizer.encode_batch(SAMPLES) == found[0].encode_batch(SAMPLES)


def test_numpy_arrays_in_metadata_are_as_good_as_lists() -> None:
    metadata = sentencepiece()
    for key in ("scores", "token_type"):
        metadata[f"tokenizer.ggml.{key}"] = np.asarray(metadata[f"tokenizer.ggml.{key}"], np.float32)
    assert Tokenizer.from_gguf(metadata).encode_batch(SAMPLES) == PIECES.encode_batch(SAMPLES)


def test_named_tokens_come_from_the_config_or_from_what_the_file_puts_round_a_text(tmp_path: Path) -> None:
    path = library_file(tmp_path, adds_start=True)
    alone = Tokenizer.from_file(path)
    assert (alone.bos_id, alone.adds_bos) == (alone.id_of("<s>"), True)
    config = {"bos_token": {"content": "<start>"}, "eos_token": "<end>", "pad_token": None}
    named = Tokenizer.from_file(path, config)
    assert (named.bos_id, named.eos_ids) == (named.id_of("<start>"), (named.id_of("<end>"),))
    assert named.pad_id is None


def test_flags_of_the_config_decide_over_the_files_post_processor(tmp_path: Path) -> None:
    path = library_file(tmp_path, adds_start=True)
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    for start in (True, False):
        for end in (True, False):
            tokenizer = Tokenizer.from_file(path, {**config, "add_bos_token": start, "add_eos_token": end})
            expected = [0] if start else []
            ids = tokenizer.encode("a", add_special=True)
            assert ids == [tokenizer.bos_id][: len(expected)] + tokenizer.encode("a") + [*tokenizer.eos_ids][:end]
            assert tokenizer.adds_bos is start


def test_tokens_that_only_older_files_declare_are_added(tmp_path: Path) -> None:
    library_file(tmp_path, adds_start=False)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<pad>", "bos_token": "<s>"}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<old>": 260}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"additional_special_tokens": ["<extra>"]}))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.id_of("<old>") == 260
    assert tokenizer.pad_id == tokenizer.id_of("<pad>")
    assert {tokenizer.pad_id, tokenizer.id_of("<extra>")} <= tokenizer.control_ids
    assert tokenizer.encode("<old>") == [260]


def test_named_chat_templates_are_read_from_configs_and_files(tmp_path: Path) -> None:
    library_file(tmp_path, adds_start=False)
    several = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with {{ tools | length }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    chat = [{"role": "user", "content": "a"}]
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.render(chat) == "plain"
    assert tokenizer.render(chat, tools=[{}]) == "with 1"
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert load_tokenizer(tmp_path).render(chat) == "from the file"
    tokenizer.save(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again").render(chat, tools=[{}, {}]) == "with 2"


def test_truncation_and_padding_in_a_file_do_not_shorten_or_lengthen_texts(tmp_path: Path) -> None:
    path = library_file(tmp_path, adds_start=False)
    state = json.loads(path.read_text())
    state["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    state["padding"] = {
        "strategy": {"Fixed": 16},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<s>",
    }
    path.write_text(json.dumps(state))
    tokenizer = load_tokenizer(path)
    assert len(tokenizer.encode("abcdefgh")) == 8
    assert len(tokenizer.encode("a")) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "no such file"),
        ("tokenizer.json", "", "not a tokenizer.json"),
        ("tokenizer.json", "{", "not a tokenizer.json"),
        ("tokenizer.json", '{"model": {"type": "BPE"', "not a tokenizer.json"),
        ("tokenizer.json", '{"model": {"type": "Nothing"}}', "not a tokenizer.json"),
        ("tokenizer_config.json", "[]", "expected an object"),
        ("tokenizer_config.json", "{", "not readable as JSON"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": 1}}', "added_tokens_decoder"),
        ("tokenizer_config.json", '{"chat_template": 3}', "chat_template"),
        ("special_tokens_map.json", "{", "not readable as JSON"),
    ],
)
def test_broken_files_are_named_in_one_line(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    path = library_file(tmp_path, adds_start=False)
    if content is None:
        path.unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(TokenizerError, match=message) as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value)


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no such file or folder"):
        load_tokenizer(tmp_path / "nothing")


def test_a_cut_tokenizer_json_is_refused_at_every_length(tmp_path: Path) -> None:
    path = library_file(tmp_path, adds_start=False)
    whole = path.read_bytes()
    for size in range(0, len(whole) - 1, len(whole) // 13):
        path.write_bytes(whole[:size])
        with pytest.raises(TokenizerError):
            load_tokenizer(tmp_path)


def test_importing_text_brings_in_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "tokenizers", "jinja2")
    code = f"import sys, headway.text; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_loading_and_chatting_needs_neither_torch_nor_transformers(tmp_path: Path) -> None:
    BYTES.save(tmp_path)
    code = (
        "import sys\nfrom headway.text import load_tokenizer\n"
        f"load_tokenizer({str(tmp_path)!r}).chat([{{'role': 'user', 'content': 'hello'}}])\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"
