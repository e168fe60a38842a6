"""Files made byte by byte, so that a test can make exactly the one that is wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def safetensors(header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file; `length` lies about the header's."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype: str, shape: Sequence[int], begin: int, end: int) -> dict[str, Any]:
    """One entry of a safetensors header."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def string(text: str | bytes) -> bytes:
    """A GGUF string."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, code: int, value: bytes) -> bytes:
    """One piece of GGUF metadata."""
    return string(key) + struct.pack("<I", code) + value


def text(key: str, value: str) -> bytes:
    """Metadata that is a string."""
    return pair(key, 8, string(value))


def whole(key: str, value: int) -> bytes:
    """Metadata that is a uint32."""
    return pair(key, 4, struct.pack("<I", value))


def info(name: str | bytes, dims: Sequence[int], code: int, offset: int) -> bytes:
    """One GGUF tensor description; `dims` innermost first."""
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, code, offset)


def gguf(
    pairs: Sequence[bytes] = (),
    infos: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_infos: int | None = None,
    num_pairs: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A GGUF file; the two counts can lie."""
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(infos) if num_infos is None else num_infos,
        len(pairs) if num_pairs is None else num_pairs,
    )
    head += b"".join(pairs) + b"".join(infos)
    return head + b"\0" * (-len(head) % alignment) + data


def small_gguf() -> bytes:
    """A sound file with every kind of metadata value and three tensors of different types."""
    floats = np.arange(6, dtype="<f4").tobytes()
    halves = np.arange(4, dtype="<f2").tobytes()
    blocks = bytes(range(18)) * 2
    return gguf(
        [
            text("general.architecture", "llama"),
            pair("a.u8", 0, b"\x07"),
            pair("a.i8", 1, b"\xff"),
            pair("a.u16", 2, struct.pack("<H", 65535)),
            pair("a.i16", 3, struct.pack("<h", -2)),
            whole("a.u32", 1 << 31),
            pair("a.i32", 5, struct.pack("<i", -3)),
            pair("a.f32", 6, struct.pack("<f", 0.5)),
            pair("a.bool", 7, b"\x01"),
            pair("a.u64", 10, struct.pack("<Q", 1 << 63)),
            pair("a.i64", 11, struct.pack("<q", -4)),
            pair("a.f64", 12, struct.pack("<d", 0.25)),
            pair("a.words", 9, struct.pack("<IQ", 8, 3) + string("a") + string("") + string("Zürich 世界")),
            pair("a.numbers", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
            pair("a.flags", 9, struct.pack("<IQ", 7, 2) + b"\x00\x01"),
            pair("a.none", 9, struct.pack("<IQ", 6, 0)),
            pair("a.nested", 9, struct.pack("<IQ", 9, 2) + struct.pack("<IQ2H", 2, 2, 1, 2) + struct.pack("<IQ", 8, 0)),
        ],
        [info("weight", (3, 2), 0, 0), info("half", (4,), 1, 32), info("packed", (32, 2), 2, 64)],
        floats + b"\0" * 8 + halves + b"\0" * 24 + blocks,
    )


def put(folder: Path, name: str, content: bytes) -> Path:
    """`content` in a file."""
    path = folder / name
    path.write_bytes(content)
    return path
