"""Element types of checkpoint files: how many bytes they take and how they become float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Decode = Callable[[Bytes, Floats], None]


@dataclass(frozen=True)
class Block:
    """The smallest unit of one type: `elements` numbers in `bytes` bytes.

    `code` is the number of the type in GGUF (-1: safetensors only), `storage` the numpy type of the raw view,
    `decode(blocks, out)` turns blocks (N x bytes) into float32 (N x elements) in `out`; None when headway has none.
    """

    name: str
    code: int
    elements: int
    bytes: int
    storage: np.dtype[Any]
    decode: Decode | None

    def nbytes(self, shape: tuple[int, ...]) -> int | None:
        """Bytes that a tensor of `shape` takes; None when it does not fill whole blocks."""
        whole, rest = divmod(math.prod(shape), self.elements)
        return None if rest else whole * self.bytes


def addressable(shape: tuple[int, ...]) -> bool:
    """False for sizes that no machine can count, even when one of them is zero."""
    return math.prod(max(size, 1) for size in shape) < 1 << 60


def _plain(name: str, code: int, storage: str) -> Block:
    dtype = np.dtype(storage)

    def decode(blocks: Bytes, out: Floats) -> None:
        np.copyto(out, blocks.view(dtype), casting="unsafe")

    return Block(name, code, 1, dtype.itemsize, dtype, decode)


def _table(name: str, code: int, storage: str, make: Callable[[], Floats]) -> Block:
    """A type with few enough bit patterns to look each one up (numpy's own half to float cast is slower)."""
    dtype = np.dtype(storage)
    values = cache(make)

    def decode(blocks: Bytes, out: Floats) -> None:
        np.take(values(), blocks.view(dtype), out=out, mode="clip")

    return Block(name, code, 1, dtype.itemsize, dtype, decode)


def _half() -> Floats:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _decode_bf16(blocks: Bytes, out: Floats) -> None:
    np.left_shift(blocks.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)


def _float8(exponent: int, mantissa: int, bias: int, special: str) -> Floats:
    """Values of the 256 patterns; `special` says what is not a number: the 'ieee' top exponent, 'fn', or 'fnuz'."""
    code = np.arange(256)
    fraction = code & ((1 << mantissa) - 1)
    power = (code >> mantissa) & ((1 << exponent) - 1)
    scale = np.exp2(np.maximum(power, 1) - bias - mantissa)
    value = np.where(power > 0, fraction + (1 << mantissa), fraction) * scale
    if special == "ieee":
        top = power == (1 << exponent) - 1
        value = np.where(top, np.where(fraction == 0, np.inf, np.nan), value)
    elif special == "fn":
        value = np.where((code & 127) == 127, np.nan, value)
    value = np.where(code >= 128, -value, value)
    if special == "fnuz":
        value[128] = np.nan
    return value.astype(np.float32)


def _power8() -> Floats:
    value = np.exp2(np.arange(256) - 127.0)
    value[255] = np.nan
    return value.astype(np.float32)


def _opaque(name: str, elements: int, size: int) -> Block:
    return Block(name, -1, elements, size, np.dtype(np.uint8), None)


# Codes: the type numbers of the GGUF format; names: the spelling of safetensors, which GGUF shares where both have one.
PLAIN: dict[str, Block] = {
    block.name: block
    for block in (
        _plain("F32", 0, "<f4"),
        _table("F16", 1, "<u2", _half),
        Block("BF16", 30, 1, 2, np.dtype("<u2"), _decode_bf16),
        _plain("F64", 28, "<f8"),
        _plain("I8", 24, "i1"),
        _plain("I16", 25, "<i2"),
        _plain("I32", 26, "<i4"),
        _plain("I64", 27, "<i8"),
        _plain("U8", -1, "u1"),
        _plain("U16", -1, "<u2"),
        _plain("U32", -1, "<u4"),
        _plain("U64", -1, "<u8"),
        _plain("BOOL", -1, "?"),
        _table("F8_E4M3", -1, "u1", lambda: _float8(4, 3, 7, "fn")),
        _table("F8_E5M2", -1, "u1", lambda: _float8(5, 2, 15, "ieee")),
        _table("F8_E4M3FNUZ", -1, "u1", lambda: _float8(4, 3, 8, "fnuz")),
        _table("F8_E5M2FNUZ", -1, "u1", lambda: _float8(5, 2, 16, "fnuz")),
        _table("F8_E8M0", -1, "u1", _power8),
        Block("C64", -1, 1, 8, np.dtype("<c8"), None),
        _opaque("F4", 2, 1),
        _opaque("F6_E2M3", 4, 3),
        _opaque("F6_E3M2", 4, 3),
    )
}
