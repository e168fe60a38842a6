"""The block formats of GGUF files, each turned into float32 by a few whole-array numpy steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headway.checkpoint.dtypes import PLAIN, Block, Bytes, Decode, Floats

# One bit field of `width` bits per byte, eight bytes at a time.
_MASKS = {1: 0x0101010101010101, 2: 0x0303030303030303, 4: 0x0F0F0F0F0F0F0F0F}


def fields(packed: Bytes, span: int, width: int) -> Bytes:
    """Bit fields of N x (groups * span) bytes: in each group first the lowest field of every byte, then the next."""
    count, runs = len(packed), 8 // width
    words = np.ascontiguousarray(packed).view(np.uint64).reshape(count, -1, span // 8)
    out = np.empty((count, words.shape[1], runs, span // 8), np.uint64)
    for run in range(runs):
        for column in range(span // 8):  # one long strided loop each, instead of many short rows
            np.right_shift(words[:, :, column], width * run, out=out[:, :, run, column])
    out &= np.uint64(_MASKS[width])
    return out.view(np.uint8).reshape(count, -1)


def _halves(blocks: Bytes, at: int) -> Floats:
    """The half-precision number at byte `at` of each block, as N x 1."""
    return blocks[:, at : at + 2].view("<f2").astype(np.float32)


def _scaled(out: Floats, values: NDArray[np.uint8] | NDArray[np.int8], scale: Floats, shift: Floats | None) -> None:
    """out = values * scale + shift, where scale and shift (N x runs) each serve an equal run of the row."""
    out[...] = values
    runs = out.reshape(*scale.shape, -1)
    runs *= scale[..., None]
    if shift is not None:
        runs += shift[..., None]


def _high_bits(packed: Bytes) -> Bytes:
    """Bit i of each block's 32 as the fifth bit of number i."""
    return np.left_shift(np.unpackbits(packed, axis=1, bitorder="little"), 4)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    _scaled(out, blocks[:, 2:].view(np.int8), _halves(blocks, 0), None)


def _q4_0(blocks: Bytes, out: Floats) -> None:
    values = fields(blocks[:, 2:], 16, 4).view(np.int8)
    values -= 8
    _scaled(out, values, _halves(blocks, 0), None)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    _scaled(out, fields(blocks[:, 4:], 16, 4), _halves(blocks, 0), _halves(blocks, 2))


def _q5_0(blocks: Bytes, out: Floats) -> None:
    values = fields(blocks[:, 6:], 16, 4)
    values |= _high_bits(blocks[:, 2:6])
    signed = values.view(np.int8)
    signed -= 16
    _scaled(out, signed, _halves(blocks, 0), None)


def _q5_1(blocks: Bytes, out: Floats) -> None:
    values = fields(blocks[:, 8:], 16, 4)
    values |= _high_bits(blocks[:, 4:8])
    _scaled(out, values, _halves(blocks, 0), _halves(blocks, 2))


def _q2_k(blocks: Bytes, out: Floats) -> None:
    scale = _halves(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32)
    least = _halves(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32)
    _scaled(out, fields(blocks[:, 16:80], 32, 2), scale, -least)


def q3_k_parts(blocks: Bytes) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Numbers from -4 to 3 (N x 256) and the signed scales of runs of 16 (N x 16), before the block's own scale."""
    scales = fields(blocks[:, 96:104], 8, 4)
    high = blocks[:, 104:108]
    for run in range(4):
        scales[:, 4 * run : 4 * run + 4] |= ((high >> (2 * run)) & 3) << 4
    signed = scales.view(np.int8)
    signed -= 32
    values = fields(blocks[:, 32:96], 32, 2)
    values |= fields(blocks[:, :32], 32, 1) << 2  # a set bit means that 4 is not taken off
    numbers = values.view(np.int8)
    numbers -= 4
    return numbers, signed


def _q3_k(blocks: Bytes, out: Floats) -> None:
    numbers, scales = q3_k_parts(blocks)
    _scaled(out, numbers, _halves(blocks, 108) * scales.astype(np.float32), None)


def _six_bit_pairs(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight scales and eight minima of six bits each (N x 8) from N x 12 bytes."""
    low, mid, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.concatenate([low & 63, (high & 15) | ((low >> 2) & 48)], axis=1)
    least = np.concatenate([mid & 63, (high >> 4) | ((mid >> 2) & 48)], axis=1)
    return scale.astype(np.float32), least.astype(np.float32)


def _q4_k(blocks: Bytes, out: Floats) -> None:
    scale, least = _six_bit_pairs(blocks[:, 4:16])
    values = fields(blocks[:, 16:], 32, 4)
    _scaled(out, values, _halves(blocks, 0) * scale, -(_halves(blocks, 2) * least))


def _q5_k(blocks: Bytes, out: Floats) -> None:
    scale, least = _six_bit_pairs(blocks[:, 4:16])
    values = fields(blocks[:, 48:], 32, 4)
    values |= fields(blocks[:, 16:48], 32, 1) << 4
    _scaled(out, values, _halves(blocks, 0) * scale, -(_halves(blocks, 2) * least))


def _q6_k(blocks: Bytes, out: Floats) -> None:
    values = fields(blocks[:, :128], 64, 4)
    values |= fields(blocks[:, 128:192], 32, 2) << 4
    signed = values.view(np.int8)
    signed -= 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    _scaled(out, signed, _halves(blocks, 208) * scales, None)


def _packed(name: str, code: int, elements: int, size: int, decode: Decode) -> Block:
    return Block(name, code, elements, size, np.dtype(np.uint8), decode)


BLOCKS: dict[str, Block] = {
    **{name: block for name, block in PLAIN.items() if block.code >= 0},
    **{
        block.name: block
        for block in (
            _packed("Q4_0", 2, 32, 18, _q4_0),
            _packed("Q4_1", 3, 32, 20, _q4_1),
            _packed("Q5_0", 6, 32, 22, _q5_0),
            _packed("Q5_1", 7, 32, 24, _q5_1),
            _packed("Q8_0", 8, 32, 34, _q8_0),
            _packed("Q2_K", 10, 256, 84, _q2_k),
            _packed("Q3_K", 11, 256, 110, _q3_k),
            _packed("Q4_K", 12, 256, 144, _q4_k),
            _packed("Q5_K", 13, 256, 176, _q5_k),
            _packed("Q6_K", 14, 256, 210, _q6_k),
        )
    },
}

# Types that exist and that headway does not decode: the message can name them.
OTHERS: dict[int, str] = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}
