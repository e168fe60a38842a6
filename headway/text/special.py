"""Control tokens in text: where they stand, and how those that a user typed stay ordinary text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from headway.errors import DataError

# A plane of characters that Unicode leaves to private agreements: stand-ins for what a user typed.
_PRIVATE: Final = range(0xF0000, 0xFFFFE)

FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")

Text = Callable[[str], str]


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in text before anything else is done to it, with the flags of the tokenizers library."""

    id: int
    text: str
    special: bool
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class ControlTokens:
    """The control tokens of a tokenizer, and the search for them in text (longest first, as the library matches)."""

    def __init__(self, added: Iterable[AddedToken]) -> None:
        self._by_text = {token.text: token for token in added if token.text}
        self.texts = tuple(text for text, token in self._by_text.items() if token.special)

    @cached_property
    def typed(self) -> re.Pattern[str]:
        """Matches the text of a control token."""
        return re.compile(_alternatives(self.texts))

    @cached_property
    def _any_added(self) -> re.Pattern[str]:
        return re.compile(_alternatives(self._by_text))

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        return frozenset(text[:end] for text in self.texts for end in range(1, len(text)))

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.texts), default=0)

    def cut(self, text: str) -> Iterator[str | int]:
        """The text in order, each control token in it as its id."""
        start = 0
        for match in self._any_added.finditer(text):
            token = self._by_text[match[0]]
            if not token.special or (token.single_word and _inside_word(text, match)):
                continue
            first, last = match.span()
            if token.lstrip:
                first = start + len(text[start:first].rstrip())
            if token.rstrip:
                last += len(text[last:]) - len(text[last:].lstrip())
            if first > start:
                yield text[start:first]
            yield token.id
            start = max(start, last)
        if start < len(text):
            yield text[start:]

    def first(self, text: str) -> tuple[int, ...]:
        """The first control token in a text; if there is none, the first other added token that is more than blanks."""
        added = [self._by_text[match[0]] for match in self._any_added.finditer(text)]
        added = [token for token in added if token.special] or [token for token in added if token.text.strip()]
        return tuple(token.id for token in added[:1])

    def open_end(self, text: str) -> str:
        """The end of a text that could become a control token with what follows it, '' for most texts."""
        for size in range(min(len(text), self._longest - 1), 0, -1):
            if text[-size:] in self._beginnings:
                return text[-size:]
        return ""


class Shield:
    """One stand-in character for each text that must not become a control token, chosen so that none occurs already."""

    def __init__(self, control: ControlTokens, taken: str) -> None:
        """`taken` is everything that will be seen beside the stand-ins: the user's strings and the template."""
        used = {char for char in taken if ord(char) >= _PRIVATE.start}
        self._free = (chr(code) for code in _PRIVATE if chr(code) not in used)
        self._control = control
        self._by_text: dict[str, str] = {}

    def hide(self, text: str, open_end: bool = False) -> str:
        """The text with a stand-in for each control token, and with `open_end` for an end that could begin one."""
        hidden = self._control.typed.sub(lambda match: self._stand_in(match[0]), text)
        if open_end and (rest := self._control.open_end(hidden)):
            hidden = hidden[: -len(rest)] + self._stand_in(rest)
        return hidden

    def restore(self, text: str) -> str:
        """The text with what each stand-in stands for."""
        for original, stand_in in self._by_text.items():
            text = text.replace(stand_in, original)
        return text

    def __bool__(self) -> bool:
        return bool(self._by_text)

    def _stand_in(self, text: str) -> str:
        if text not in self._by_text:
            free = next(self._free, None)
            if free is None:
                raise DataError("messages: every character from U+F0000 to U+FFFFD is in use; leave some of them out")
            self._by_text[text] = free
        return self._by_text[text]


def strings(value: Any) -> Iterator[str]:
    """Every string inside plain data, keys of mappings included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings(key)
            yield from strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings(item)


def map_strings(value: Any, change: Text) -> Any:
    """The same plain data with every string changed, keys of mappings included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_strings(key, change): map_strings(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [map_strings(item, change) for item in value]
    return value


def _inside_word(text: str, match: re.Match[str]) -> bool:
    before, after = text[max(match.start() - 1, 0) : match.start()], text[match.end() : match.end() + 1]
    return bool(re.match(r"\w", before) or re.match(r"\w", after))


def _alternatives(texts: Iterable[str]) -> str:
    """A regular expression for any of the texts, longest first; shared beginnings are tried once.

    Some vocabularies have thousands of control tokens, and a flat list of them would be tried one by one.
    """
    root: dict[str, Any] = {}
    for text in texts:
        node = root
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return _branch(root) if root else "(?!)"


def _branch(node: dict[str, Any]) -> str:
    ways = []
    for char, after in node.items():
        if not char:
            continue
        run = re.escape(char)
        while len(after) == 1 and "" not in after:
            (char, after), *_ = after.items()
            run += re.escape(char)
        ways.append(run + _branch(after))
    if not ways:
        return ""
    group = ways[0] if len(ways) == 1 and "" not in node else f"(?:{'|'.join(ways)})"
    return f"{group}?" if "" in node else group
