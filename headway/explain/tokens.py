"""Tokens as people can read them: spaces and line breaks visible, parts of characters as their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.text.tokenizer import Tokenizer

SIGNS = {" ": "␣", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(frozen=True)
class Token:
    """A token of a text and what to call it."""

    position: int
    id: int
    text: str


def label(tokenizer: Tokenizer | None, ids: Sequence[int]) -> tuple[Token, ...]:
    """The tokens of a text, named; without a tokenizer by their ids, as #17."""
    return tuple(Token(position, token, name(tokenizer, token)) for position, token in enumerate(ids))


def name(tokenizer: Tokenizer | None, token: int) -> str:
    """What to call one token: its text, or #17 where it has none."""
    raw = b"" if tokenizer is None else tokenizer.token_bytes(token)
    return readable(raw) or f"#{token}"


def readable(raw: bytes) -> str:
    """Bytes as text in which nothing is invisible; ⟨e4⟩ is a byte that is no character by itself."""
    text, rest = "", raw
    while rest:
        try:
            return text + _visible(rest.decode())
        except UnicodeDecodeError as error:
            text += _visible(rest[: error.start].decode())
            text += "".join(f"⟨{byte:02x}⟩" for byte in rest[error.start : error.end])
            rest = rest[error.end :]
    return text


def _visible(text: str) -> str:
    return "".join(SIGNS.get(letter) or (letter if letter.isprintable() else _code(letter)) for letter in text)


def _code(letter: str) -> str:
    return f"\\u{ord(letter):04x}"
