"""Text out of token ids one by one: characters come out whole, once, and joined they are the decode of all ids."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Final, Protocol

_REPLACEMENT: Final = "\ufffd"


class StreamDecoder(Protocol):
    """Takes one id at a time and gives the text that became certain.

    The joined chunks equal `Tokenizer.decode` of all ids (special tokens are skipped, ids the tokenizer does not know
    are the empty string). Bytes of a character that is not complete are held back; where the ids end in the middle of
    a character, `finish` gives what is left as U+FFFD, once.
    """

    def push(self, token: int) -> str:
        """The text that this id completes, perhaps empty."""
        ...

    def finish(self) -> str:
        """What is still held back; nothing may be pushed after it."""
        ...


class ByteStream:
    """For vocabularies whose tokens are bytes (byte-level BPE, SentencePiece): exact, constant work per id."""

    def __init__(self, spell: Callable[[int], bytes], leading: int) -> None:
        """`leading` spaces are dropped from the very beginning: 0 when the text goes on after a prompt."""
        self._spell = spell
        self._leading = leading
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The text that this id completes, perhaps empty."""
        piece = self._spell(token)
        if self._leading and piece:
            spaces = min(self._leading, len(piece) - len(piece.lstrip(b" ")))
            piece = piece[spaces:]
            self._leading = 0 if piece else self._leading - spaces
        return self._utf8.decode(piece)

    def finish(self) -> str:
        """The bytes of a cut character as U+FFFD."""
        return self._utf8.decode(b"", final=True)


class WindowStream:
    """For decoders that look at neighbouring tokens (WordPiece): decodes a short window with and without the new id."""

    CONTEXT: Final = 8

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int]) -> None:
        """`prompt` holds the ids before the stream: the window starts with its end."""
        self._decode = decode
        self._window = list(prompt[-self.CONTEXT :])
        self._shown = decode(self._window)

    def push(self, token: int) -> str:
        """The text that this id completes, perhaps empty."""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(_REPLACEMENT) or not text.startswith(self._shown):
            return ""
        return self._show(text)

    def finish(self) -> str:
        """What was held back, characters that cannot be completed included."""
        return self._show(self._decode(self._window))

    def _show(self, text: str) -> str:
        new = text[len(self._shown) :]
        self._window = self._window[-self.CONTEXT :]
        self._shown = self._decode(self._window)
        return new
