"""What each token is in bytes, for decoders that join tokens byte by byte."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

SPACE: Final = "\u2581"
BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-F]{2})>")


@cache
def byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in GPT-2's vocabulary: printable Latin-1 as it is, the rest from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(others)}


def _byte_level(token: str) -> bytes:
    alphabet = byte_alphabet()
    try:
        return bytes(alphabet[char] for char in token)
    except KeyError:
        return token.encode()


def _marked_spaces(token: str) -> bytes:
    return token.replace(SPACE, " ").encode()


def _marked_spaces_and_bytes(token: str) -> bytes:
    if byte := BYTE_TOKEN.fullmatch(token):
        return bytes([int(byte[1], 16)])
    return _marked_spaces(token)


@dataclass(frozen=True)
class Joining:
    """A decoder that puts tokens together byte by byte.

    Attributes:
        spell: the bytes of a token of the vocabulary.
        spell_added: the bytes of an added token, which is written as it reads.
        leading: how many spaces the text loses at its very beginning (the one that the encoder put there).
    """

    spell: Callable[[str], bytes]
    spell_added: Callable[[str], bytes]
    leading: int = 0


def joining(decoder: Any) -> Joining | None:
    """How a decoder of the tokenizers library joins bytes; None when it does anything else, as WordPiece does."""
    if decoder is None:
        return None
    state = json.loads(decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return Joining(_byte_level, str.encode)
    falls_back = "ByteFallback" in kinds
    kinds = [kind for kind in kinds if kind not in ("ByteFallback", "Fuse")]
    spell = _marked_spaces_and_bytes if falls_back else _marked_spaces
    if kinds == ["Metaspace"] and steps[kinds.index("Metaspace")].get("replacement", SPACE) == SPACE:
        return Joining(spell, _marked_spaces, leading=_metaspace_leading(steps))
    if kinds == ["Replace"] and _replaces_mark(steps[0]):
        return Joining(spell, _marked_spaces)
    if kinds == ["Replace", "Strip"] and _replaces_mark(steps[0]) and _strips_start(steps[-1]):
        return Joining(spell, _marked_spaces, leading=steps[-1]["start"])
    return None


def _metaspace_leading(steps: list[dict[str, Any]]) -> int:
    metaspace = next(step for step in steps if step["type"] == "Metaspace")
    return 0 if metaspace.get("prepend_scheme", "always") == "never" else 1


def _replaces_mark(step: Mapping[str, Any]) -> bool:
    return step.get("pattern") == {"String": SPACE} and step.get("content") == " "


def _strips_start(step: Mapping[str, Any]) -> bool:
    return step.get("content") == " " and step.get("stop") == 0
