"""Plain rounding to GGUF's blocks of 32, every number within half a step; and bits put into bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headway.checkpoint.dtypes import Bytes, Floats

Halves = NDArray[np.float16]


def half_up(values: Floats) -> Halves:
    """The least float16 that is not below each of `values`, which are not negative."""
    halves = values.astype(np.float16)
    return np.where(halves < values, np.nextafter(halves, np.float16(np.inf)), halves)


def half_down(values: Floats) -> Halves:
    """The greatest float16 that is not above each value."""
    halves = values.astype(np.float16)
    return np.where(halves > values, np.nextafter(halves, np.float16(-np.inf)), halves)


def inverse(steps: Floats) -> Floats:
    """1 / step, and 0 for a step of (almost) 0, where every code is 0."""
    return np.divide(1, steps, out=np.zeros_like(steps), where=np.abs(steps) > 1e-37)


def extreme(rows: Floats) -> Floats:
    """Of each row the number farthest from 0, with its sign: [N, 1]."""
    return np.take_along_axis(rows, np.abs(rows).argmax(-1, keepdims=True), -1)


def packed(values: Bytes, span: int, width: int) -> Bytes:
    """Fields of `width` bits put into bytes: in each group of `span` bytes first all lowest fields, then the next."""
    runs = 8 // width
    fields = values.reshape(len(values), -1, runs, span)
    out = fields[:, :, 0].copy()
    for run in range(1, runs):
        out |= fields[:, :, run] << (width * run)
    return out.reshape(len(values), -1)


def q8_0(blocks: Floats) -> Bytes:
    """w = q * d: [N, 32] to [N, 34]."""
    d = half_up(np.abs(blocks).max(-1, keepdims=True) / np.float32(127))
    q = np.rint(blocks * inverse(d.astype(np.float32)))
    return _joined(d, np.clip(q, -127, 127).astype(np.int8).view(np.uint8))


def q4_0(blocks: Floats) -> Bytes:
    """w = (q - 8) * d: [N, 32] to [N, 18]."""
    d, q = _signed(blocks, 8)
    return _joined(d, packed(q, 16, 4))


def q5_0(blocks: Floats) -> Bytes:
    """w = (q - 16) * d: [N, 32] to [N, 22]."""
    d, q = _signed(blocks, 16)
    return _joined(d, _fifth(q), packed(q & np.uint8(15), 16, 4))


def q4_1(blocks: Floats) -> Bytes:
    """w = q * d + m: [N, 32] to [N, 20]."""
    d, m, q = _above(blocks, 15)
    return _joined(d, m, packed(q, 16, 4))


def q5_1(blocks: Floats) -> Bytes:
    """w = q * d + m: [N, 32] to [N, 24]."""
    d, m, q = _above(blocks, 31)
    return _joined(d, m, _fifth(q), packed(q & np.uint8(15), 16, 4))


def _signed(blocks: Floats, levels: int) -> tuple[Halves, Bytes]:
    """Scale and codes, the number farthest from 0 at code 0, whose side has one level more."""
    top = extreme(blocks)
    sign = np.where(top < 0, np.float32(1), np.float32(-1))
    other = (blocks * sign).max(-1, keepdims=True)
    d = half_up(np.maximum(np.abs(top) / np.float32(levels), other / np.float32(levels - 0.5)))
    signed = d * sign.astype(np.float16)
    q = np.rint(blocks * inverse(signed.astype(np.float32))) + levels
    return signed, np.clip(q, 0, 2 * levels - 1).astype(np.uint8)


def _above(blocks: Floats, levels: int) -> tuple[Halves, Halves, Bytes]:
    """Scale, least value and codes."""
    m = half_down(blocks.min(-1, keepdims=True))
    above = blocks - m.astype(np.float32)
    d = half_up(above.max(-1, keepdims=True) / np.float32(levels))
    q = np.rint(above * inverse(d.astype(np.float32)))
    return d, m, np.clip(q, 0, levels).astype(np.uint8)


def _fifth(q: Bytes) -> Bytes:
    """The fifth bit of 32 numbers, four bytes."""
    return np.packbits(q >> 4, axis=1, bitorder="little")


def _joined(*parts: NDArray[np.generic]) -> Bytes:
    """Fields of every block side by side, as bytes."""
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], axis=1)
