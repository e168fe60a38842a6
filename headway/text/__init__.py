"""Tokenizers, chat templates and streaming decode, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.text.stream import StreamDecoder
    from headway.text.template import ChatTemplate
    from headway.text.tokenizer import Tokenizer, load_tokenizer

__all__ = ["ChatTemplate", "StreamDecoder", "Tokenizer", "load_tokenizer"]

_HOMES = {
    "ChatTemplate": "headway.text.template",
    "StreamDecoder": "headway.text.stream",
    "Tokenizer": "headway.text.tokenizer",
    "load_tokenizer": "headway.text.tokenizer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
