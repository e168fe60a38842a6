"""GGUF vocabularies: each kind as the original tokenizer has it, and files that do not fit refused by field."""

from __future__ import annotations

import io
import unicodedata
from functools import cache
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from headway.errors import TokenizerError
from headway.text import Tokenizer
from headway.text.gguf_vocab import read_vocabulary
from headway.text.pieces import byte_alphabet
from headway.text.pre_tokenizers import CUTS
from tests.text.samples import SAMPLES
from tests.text.vocabularies import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER, byte_level, sentencepiece

# What sentencepiece reads as something else, and marks that the library's character maps compose otherwise.
_NOT_FOR_SENTENCEPIECE = ("\x00", "\u2581", "\u1112", "\u0300\u0301")


@cache
def _trained(**options: Any) -> Any:
    """A sentencepiece model trained on the samples."""
    library = pytest.importorskip("sentencepiece")
    out = io.BytesIO()
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    text = [line for sample in SAMPLES for line in sample.splitlines() if line.strip()] * 3
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=out,
        vocab_size=options.pop("vocab_size", 1200),
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return library.SentencePieceProcessor(model_proto=out.getvalue())


def _metadata(model: str, peer: Any, **fields: Any) -> dict[str, Any]:
    """A trained model as a converter writes it."""
    tokens, types, scores = [], [], []
    for at in range(peer.get_piece_size()):
        tokens.append(peer.id_to_piece(at))
        scores.append(peer.get_score(at))
        kinds = {UNKNOWN: peer.is_unknown, CONTROL: peer.is_control, BYTE: peer.is_byte, UNUSED: peer.is_unused}
        found = next((kind for kind, test in kinds.items() if test(at)), NORMAL)
        types.append(found)
    given = {
        "model": model,
        "tokens": tokens,
        "token_type": types,
        "scores": np.asarray(scores, np.float32),
        "bos_token_id": peer.bos_id(),
        "eos_token_id": peer.eos_id(),
        "unknown_token_id": peer.unk_id(),
        **fields,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in given.items()}


def _texts() -> list[str]:
    return [text for text in SAMPLES if not any(sign in text for sign in _NOT_FOR_SENTENCEPIECE)]


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("collapse", [True, False])
def test_sentencepiece_bpe_encodes_as_sentencepiece(prefix: bool, collapse: bool) -> None:
    peer = _trained(
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=collapse,
        split_digits=True,
    )
    metadata = _metadata("llama", peer, add_space_prefix=prefix, remove_extra_whitespaces=collapse)
    tokenizer = Tokenizer.from_gguf(metadata)
    for text in _texts():
        ids = tokenizer.encode(text)
        assert ids == peer.encode(text), text
        assert tokenizer.decode(ids) == peer.decode(ids), text
    assert tokenizer.prompt("a") == [peer.bos_id(), *peer.encode("a")]


def test_user_defined_pieces_are_found_before_everything() -> None:
    peer = _trained(
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        user_defined_symbols=("<td>", "\n\n", "\n", "▁▁▁▁", "▁▁"),
    )
    metadata = _metadata("llama", peer, add_space_prefix=False)
    for symbol in ("<td>", "\n\n", "\n", "▁▁▁▁", "▁▁"):
        metadata["tokenizer.ggml.token_type"][metadata["tokenizer.ggml.tokens"].index(symbol)] = USER
    tokenizer = Tokenizer.from_gguf(metadata)
    for text in (*_texts(), "a<td>b", "a  b", "a   b", "a      b\n\n\nc <td> d"):
        ids = tokenizer.encode(text)
        assert ids == peer.encode(text), text
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("byte_fallback", [True, False])
@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc"])
def test_unigram_encodes_as_sentencepiece(rule: str, byte_fallback: bool) -> None:
    peer = _trained(
        model_type="unigram", byte_fallback=byte_fallback, normalization_rule_name=rule, vocab_size=900, pad_id=3
    )
    charsmap = np.frombuffer(_charsmap(peer), np.uint8)
    metadata = _metadata("t5", peer, precompiled_charsmap=charsmap, padding_token_id=3)
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.pad_id == 3
    for text in _texts():
        ids, expected = tokenizer.encode(text), peer.encode(text)
        if ids != expected:
            assert peer.decode(ids) == peer.decode(expected), text
            if any(tokenizer.token_text(at) in text for at in tokenizer.control_ids):
                continue  # a control token as text: sentencepiece looks for pieces in it, we take it sign by sign
            # Two ways to cut a text can be equally likely; which of them is found first is nobody's promise.
            assert sum(map(peer.get_score, ids)) == pytest.approx(sum(map(peer.get_score, expected))), text
        assert tokenizer.encode(text, add_special=True) == [*ids, peer.eos_id()]
    assert tokenizer.decode(peer.encode("Hello, world!")) == "Hello, world!"


def _charsmap(peer: Any) -> bytes:
    """The precompiled character map of a serialized model: field 2 of its normalizer's description, field 3."""
    data = peer.serialized_model_proto()
    spec = dict(_fields(data)).get(3, b"")
    return dict(_fields(spec)).get(2, b"")


def _fields(data: bytes) -> list[tuple[int, bytes]]:
    at, found = 0, []
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 2:
            size, at = _varint(data, at)
            found.append((key >> 3, data[at : at + size]))
            at += size
        elif key & 7 == 0:
            _, at = _varint(data, at)
        else:
            at += {1: 8, 5: 4}[key & 7]
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def test_t5s_blanks_get_their_names() -> None:
    tokens = ["<pad>", "</s>", "<unk>", "▁", "a", *(f"[PAD{at}]" for at in range(5, 133))]
    metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 3 + [-2.0, -3.0] + [0.0] * 128,
        "tokenizer.ggml.token_type": [CONTROL, CONTROL, UNKNOWN, NORMAL, NORMAL] + [UNUSED] * 128,
    }
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.id_of("<extra_id_0>") == 104
    assert tokenizer.id_of("<extra_id_99>") == 5
    assert tokenizer.encode("a <extra_id_0>", parse_special=True)[-1] == 104
    assert (tokenizer.pad_id, tokenizer.eos_ids, tokenizer.unk_id) == (0, (1,), 2)
    assert tokenizer.decode([110]) == ""


WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[unused0]",
    *"abcdefghijklmnopqrstuvwxyz0123456789.,!?'\"()[]<>|_-",
]
WORDS += [f"##{char}" for char in "abcdefghijklmnopqrstuvwxyz0123456789"]
WORDS += ["hello", "world", "##ing", "play", "the", "\u4e16", "caf\u00e9", "cafe", "##cafe"]


def _phantom(word: str) -> str:
    if word.startswith("[") and word.endswith("]"):
        return word
    return word[2:] if word.startswith("##") else f"▁{word}"


@pytest.mark.parametrize("cased", [False, True])
def test_wordpiece_encodes_as_the_original(cased: bool) -> None:
    words = [*WORDS, "Hello", "H", "##E"] if cased else WORDS
    peer = tokenizers.Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    peer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    peer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    peer.decoder = decoders.WordPiece()
    peer.add_special_tokens(words[:5])
    peer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    metadata = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": [_phantom(word) for word in words],
        "tokenizer.ggml.token_type": [CONTROL] * 5 + [NORMAL] * (len(words) - 5),
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.mask_token_id": 4,
    }
    tokenizer = Tokenizer.from_gguf(metadata)
    for text in SAMPLES:
        expected = peer.encode(text)
        assert tokenizer.encode(text, add_special=True, parse_special=True) == expected.ids
        assert tokenizer.decode(expected.ids) == peer.decode(expected.ids)
    assert (tokenizer.pad_id, tokenizer.unk_id) == (0, 1)


@pytest.mark.parametrize("pre", sorted(CUTS))
def test_byte_level_text_comes_back_whatever_cuts_it(pre: str) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(pre=pre))
    for text in SAMPLES:
        expected = unicodedata.normalize("NFC", text) if CUTS[pre].normalizer else text
        assert tokenizer.decode(tokenizer.encode(text)) == expected


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "I'm 1234  ok\n\n x", ["I", "'m", " 1234", " ", " ok", "\n\n", " x"]),
        ("smollm", "I'm 1234  ok   56", ["I", "'m", " ", "1", "2", "3", "4", " ", " ok", "   ", "5", "6"]),
        ("llama-bpe", "I'M 12345  ok\n\n x", ["I", "'M", " ", "123", "45", " ", " ok", "\n\n", " x"]),
        ("qwen2", "I'M 123  ok\n\n x", ["I", "'M", " ", "1", "2", "3", " ", " ok", "\n\n", " x"]),
        ("gpt-4o", "iPhone12345's DON'T", ["i", "Phone", "123", "45", "'s", " DON'T"]),
        ("tekken", "iPhone12 DON'T a/b", ["i", "Phone", "1", "2", " DON", "'T", " a", "/b"]),
        ("deepseek-v3", "ab12345\u4e16\u754cc !x", ["ab", "123", "45", "\u4e16\u754c", "c", " !", "x"]),
        ("deepseek-coder", "ab 123 !\n", ["ab", " ", "1", "2", "3", " !", "\n"]),
        ("deepseek-llm", "ab 123 \u4e16!\n", ["ab", " ", "1", "2", "3", " ", "\u4e16", "!", "\n"]),
        ("falcon", "a1234b, c", ["a", "123", "4", "b", ",", " c"]),
        ("bloom", "Hi there, you.", ["Hi", " there", ",", " you", "."]),
    ],
)
def test_text_is_cut_as_published(pre: str, text: str, pieces: list[str]) -> None:
    alphabet = {byte: char for char, byte in byte_alphabet().items()}
    found = [piece for piece, _ in CUTS[pre].build().pre_tokenize_str(text)]
    assert found == ["".join(alphabet[byte] for byte in piece.encode()) for piece in pieces]


def test_vocabularies_that_take_whole_pieces_do_not_merge_them() -> None:
    fields = {"merges": ("h e", "l l"), "user": ()}
    tokens = [*byte_level(**fields)["tokenizer.ggml.tokens"], "hello"]
    types = [*byte_level(**fields)["tokenizer.ggml.token_type"], NORMAL]
    for pre, expected in (("llama-bpe", 1), ("qwen2", 3)):
        metadata = {
            **byte_level(pre=pre, **fields),
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": types,
        }
        assert len(Tokenizer.from_gguf(metadata).encode("hello")) == expected


@pytest.mark.parametrize(("pre", "adds"), [("llama-bpe", True), ("tekken", True), ("qwen2", False), ("gpt-2", False)])
def test_start_tokens_that_a_kind_adds_unless_the_file_says_otherwise(pre: str, adds: bool) -> None:
    assert Tokenizer.from_gguf(byte_level(pre=pre)).adds_bos is adds
    assert Tokenizer.from_gguf(byte_level(pre=pre, add_bos_token=not adds)).adds_bos is not adds


def test_an_unknown_pre_tokenizer_is_refused_by_name_with_the_known_ones() -> None:
    with pytest.raises(TokenizerError, match="'nothing-known'.*llama-bpe.*smollm") as error:
        Tokenizer.from_gguf(byte_level(pre="nothing-known"))
    assert "\n" not in str(error.value)
    assert Tokenizer.from_gguf(byte_level(pre="nothing-known"), pre="gpt-2").encode("hello")


def test_a_missing_pre_tokenizer_is_settled_by_the_architecture_or_refused() -> None:
    metadata = byte_level(pre=None)
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.pre: missing.*'llama'"):
        Tokenizer.from_gguf(metadata)
    expected = Tokenizer.from_gguf(byte_level()).encode_batch(SAMPLES)
    assert Tokenizer.from_gguf({**metadata, "general.architecture": "gpt2"}).encode_batch(SAMPLES) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "rwkv"}, r"tokenizer\.ggml\.model: 'rwkv'.*known: gpt2, llama"),
        ({"model": "no_vocab"}, r"tokenizer\.ggml\.model: 'no_vocab'"),
        ({"model": None}, r"tokenizer\.ggml\.model: missing"),
        ({"tokens": None}, r"tokenizer\.ggml\.tokens: missing"),
        ({"tokens": []}, r"tokenizer\.ggml\.tokens: missing"),
        ({"tokens": [1, 2]}, r"tokenizer\.ggml\.tokens: not a list of strings"),
        ({"merges": None}, r"tokenizer\.ggml\.merges: missing"),
        ({"merges": ["he"]}, r"tokenizer\.ggml\.merges\[0\]: 'he'"),
        ({"merges": ["h e", "h zz"]}, r"tokenizer\.ggml\.merges: .*zz"),
        ({"token_type": [1, 1]}, r"tokenizer\.ggml\.token_type: 2 values"),
        ({"token_type": ["a"]}, r"tokenizer\.ggml\.token_type: not a list of numbers"),
        ({"bos_token_id": 100_000}, r"tokenizer\.ggml\.bos_token_id: 100000 is outside"),
        ({"eot_token_id": -7}, r"tokenizer\.ggml\.eot_token_id: -7 is outside"),
    ],
)
def test_fields_that_do_not_fit_are_named(changes: dict[str, Any], message: str) -> None:
    metadata = byte_level()
    for key, value in changes.items():
        metadata[f"tokenizer.ggml.{key}"] = value
        if value is None:
            del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(TokenizerError, match=message) as error:
        Tokenizer.from_gguf(metadata)
    assert "\n" not in str(error.value)


def test_a_token_that_is_there_twice_is_refused() -> None:
    metadata = byte_level()
    metadata["tokenizer.ggml.tokens"][5] = metadata["tokenizer.ggml.tokens"][3]
    with pytest.raises(TokenizerError, match="is there twice, as 3 and as 5"):
        Tokenizer.from_gguf(metadata)


def test_sentencepiece_without_scores_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.scores: missing"):
        Tokenizer.from_gguf(sentencepiece(scores=None))


def test_a_broken_character_map_is_refused() -> None:
    metadata = {**sentencepiece(), "tokenizer.ggml.precompiled_charsmap": np.arange(9, dtype=np.uint8)}
    with pytest.raises(TokenizerError, match="precompiled_charsmap"):
        Tokenizer.from_gguf(metadata)


def test_no_id_is_written_as_minus_one() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(padding_token_id=2**32 - 1, unknown_token_id=-1))
    assert tokenizer.pad_id is None
    assert tokenizer.unk_id is None


def test_files_without_token_types_still_know_bytes_and_control_tokens() -> None:
    metadata = sentencepiece(token_type=None)
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.decode(tokenizer.encode("\u4e16 cat")) == "\u4e16 cat"
    assert tokenizer.control_ids == {0, 1, 2}


def test_templates_with_names_are_read() -> None:
    metadata = {**byte_level(), "tokenizer.chat_template.tool_use": "tools: {{ tools | length }}"}
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.render([{"role": "user", "content": "a"}], tools=[{}]) == "tools: 1"
    assert tokenizer.chat_template == metadata["tokenizer.chat_template"]


def test_a_vocabulary_with_merges_on_raw_text_uses_them() -> None:
    metadata = sentencepiece(model="gemma4", scores=None, merges=["▁ c", "▁c a", "▁ca t"], add_bos_token=True)
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.token_text(tokenizer.encode(" cat\u4e16")[0]) == " cat"
    assert tokenizer.decode(tokenizer.encode(" cat\u4e16")) == " cat\u4e16"


BASES = (
    byte_level(),
    sentencepiece(),
    {**sentencepiece(), "tokenizer.ggml.model": "t5"},
    {**byte_level(), "tokenizer.ggml.model": "bert"},
)
GARBAGE = st.one_of(
    st.sampled_from(
        [None, True, -1, 2**32 - 1, 2**63, 2**64 - 1, "", "llama", "t5", "\x00", "世界", [], [1], ["a", "a"]]
    ),
    st.floats(),
    st.sampled_from([np.array([]), np.array([1.0, np.nan]), np.arange(300), [["a"], 7]]),
)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), base=st.sampled_from(BASES))
def test_garbage_in_any_field_is_one_line_or_a_vocabulary(data: st.DataObject, base: dict[str, Any]) -> None:
    metadata = dict(base)
    for _ in range(data.draw(st.integers(1, 2))):
        key = data.draw(st.sampled_from(sorted(base)))
        value = metadata[key]
        if isinstance(value, list) and value and data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(value) - 1))
            other = data.draw(st.sampled_from([value[at - 1], type(value[at])(), value[0]]))
            metadata[key] = data.draw(st.sampled_from([value[:at], value * 2, [*value[:at], other, *value[at + 1 :]]]))
        else:
            metadata[key] = data.draw(GARBAGE)
    try:
        read_vocabulary(metadata)
    except TokenizerError as error:
        assert len(str(error).splitlines()) == 1
