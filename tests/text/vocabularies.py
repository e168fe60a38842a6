"""Small vocabularies as GGUF metadata: byte-level, SentencePiece-like, and files of the tokenizers library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from headway.text import Tokenizer
from headway.text.pieces import SPACE, byte_alphabet

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

CHATML = (
    "{% for message in messages %}<start>{{ message['role'] + '\n' + message['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<start>assistant\n{% endif %}"
)


def byte_level(
    control: Sequence[str] = ("<s>", "</s>", "<start>", "<end>"),
    user: Sequence[str] = (),
    merges: Sequence[str] = ("h e", "l l", "he ll", "hell o", "Ġ t", "e n"),
    **fields: Any,
) -> dict[str, Any]:
    """GGUF metadata: 256 bytes, a few merges, then control and user-defined tokens; `fields` are tokenizer.ggml.*."""
    plain = [*byte_alphabet(), *(merge.replace(" ", "") for merge in merges)]
    tokens = [*plain, *control, *user]
    types = [NORMAL] * len(plain) + [CONTROL] * len(control) + [USER] * len(user)
    ids = {"bos_token_id": "<s>", "eos_token_id": "</s>"}
    given = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": types,
        "merges": list(merges),
        **{key: tokens.index(token) for key, token in ids.items() if token in tokens},
        **fields,
    }
    metadata = {f"tokenizer.ggml.{key}": value for key, value in given.items() if value is not None}
    return {"general.architecture": "llama", "tokenizer.chat_template": CHATML, **metadata}


def sentencepiece(words: Sequence[str] = (), control: Sequence[str] = (), **fields: Any) -> dict[str, Any]:
    """GGUF metadata of a SentencePiece BPE: control tokens, 256 bytes, letters, and the steps that build `words`."""
    letters = [SPACE, *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?<>|_"]
    built: list[str] = []
    for word in ("▁Daenerys", "▁is", "▁here", "▁cat", "▁The", *words):
        built += [word[:size] for size in range(2, len(word) + 1) if word[:size] not in built]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *built, *letters, *control]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(built) + len(letters))
    types += [CONTROL] * len(control)
    scores = [0.0] * 259 + [-float(at) for at in range(len(built))] + [-1000.0 - at for at in range(len(letters))]
    scores += [0.0] * len(control)
    given = {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": scores,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **fields,
    }
    metadata = {f"tokenizer.ggml.{key}": value for key, value in given.items() if value is not None}
    return {"general.architecture": "llama", **metadata}


def library_file(folder: Path, adds_start: bool, special: Sequence[str] = ("<s>", "</s>", "<start>", "<end>")) -> Path:
    """A tokenizer.json of the tokenizers library: bytes, control tokens, and a start token if asked for."""
    vocabulary = {char: at for at, char in enumerate(byte_alphabet())}
    core = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if adds_start:
        start = special[0]
        core.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, core.token_to_id(start))]
        )
    path = folder / "tokenizer.json"
    core.save(str(path))
    return path


def wordpiece_file(folder: Path) -> Path:
    """A tokenizer.json of kind WordPiece, whose decoder looks at neighbours."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world", "play", "##ing", "##ed", ",", ".", "'", "s", "é"]
    core = tokenizers.Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    core.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in words[:4]])
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    path = folder / "tokenizer.json"
    core.save(str(path))
    return path


def streamed(tokenizer: Tokenizer, ids: Sequence[int], prompt: Sequence[int] = ()) -> list[str]:
    """The chunks of a stream, the last one from `finish`."""
    stream = tokenizer.stream(prompt)
    return [*(stream.push(at) for at in ids), stream.finish()]
