"""The special tokens that stand round a text or a pair of texts, as a post-processor of the tokenizers library."""

from __future__ import annotations

import json
from typing import Any

Token = tuple[str, int]


def wrapping(start: Token | None, end: Token | None, separates: bool = False) -> Any:
    """A post-processor that puts `start` before and `end` after each text.

    With `separates` the second text of a pair has no start of its own ([CLS] a [SEP] b [SEP]).
    """
    from tokenizers.processors import TemplateProcessing

    first = [*_special(start, 0), _sequence("A", 0), *_special(end, 0)]
    second = [*_special(None if separates else start, 1), _sequence("B", 1), *_special(end, 1)]
    tokens = {token: {"id": token, "ids": [at], "tokens": [token]} for token, at in filter(None, (start, end))}
    state = {"type": "TemplateProcessing", "single": first, "pair": [*first, *second], "special_tokens": tokens}
    # The constructor would read a colon inside a token as the beginning of a type id.
    processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    processor.__setstate__(json.dumps(state).encode())
    return processor


def _special(token: Token | None, kind: int) -> list[dict[str, Any]]:
    return [] if token is None else [{"SpecialToken": {"id": token[0], "type_id": kind}}]


def _sequence(name: str, kind: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": kind}}
