"""Names of tokens: nothing invisible, and bytes that are no character by themselves."""

from __future__ import annotations

import pytest

from headway.explain import Token, label, readable


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b" cat", "␣cat"),
        (b"\n\t\r", "\\n\\t\\r"),
        ("你好".encode(), "你好"),
        ("你".encode()[:2], "⟨e4⟩⟨bd⟩"),
        ("你".encode()[2:], "⟨a0⟩"),
        (b"a" + "你".encode()[:1] + b" b", "a⟨e4⟩␣b"),
        ("\u200b\u3000".encode(), "\\u200b\\u3000"),
        (b"", ""),
    ],
)
def test_bytes_are_readable(raw: bytes, text: str) -> None:
    assert readable(raw) == text


def test_without_a_tokenizer_ids_are_the_names() -> None:
    assert label(None, [17, 3]) == (Token(0, 17, "#17"), Token(1, 3, "#3"))
