"""Weights in every format beside the floats they stand for, rounded activations, and calls in one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.checkpoint.gguf_blocks import BLOCKS
from headway.native.library import Library, Pool
from headway.native.matrix import Matrix
from headway.native.program import Output, Program
from headway.native.structs import Format, Op

GGUF = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
OWN = ("I8", "I4:32", "I4:64", "I4:128", "I4:96:zeros", "I4:32:zeros")
FLOATS = ("F32", "F16", "BF16")
QUANTISED = (*GGUF, *OWN)
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}  # where 16-bit floats lie


@dataclass(frozen=True)
class Weights:
    """A matrix and the numbers it stands for."""

    matrix: Matrix
    floats: NDArray[np.float32]


def weights(library: Library, kind: str, rows: int, cols: int, seed: int = 0, scale: float = 0.01) -> Weights:
    """Random weights [rows, cols]; for GGUF's formats `cols` is made whole blocks."""
    random = np.random.default_rng(seed)
    name, *options = kind.split(":")
    if name in FLOATS:
        return _floats(library, name, random.standard_normal((rows, cols), np.float32))
    if name == "I8":
        q = random.integers(-128, 128, (rows, cols), dtype=np.int8)
        scales = (random.random(rows, np.float32) + 0.5) * np.float32(scale)
        return Weights(Matrix(library, Format.I8, rows, cols, q, scales=scales), q * scales[:, None])
    if name == "I4":
        return _four_bits(library, rows, cols, int(options[0]), "zeros" in options, random, scale)
    return _gguf(library, name, rows, cols, random, scale)


def _floats(library: Library, name: str, values: NDArray[np.float32]) -> Weights:
    rows, cols = values.shape
    if name == "F32":
        return Weights(Matrix(library, Format.F32, rows, cols, values), values)
    if name == "F16":
        half = values.astype(np.float16)
        return Weights(Matrix(library, Format.F16, rows, cols, half), half.astype(np.float32))
    brain = (values.view(np.uint32) >> 16).astype(np.uint16)
    return Weights(Matrix(library, Format.BF16, rows, cols, brain), (brain.astype(np.uint32) << 16).view(np.float32))


def _four_bits(
    library: Library, rows: int, cols: int, group: int, has_zeros: bool, random: np.random.Generator, scale: float
) -> Weights:
    groups = -(-cols // group)
    q = random.integers(0, 16, (rows, cols + cols % 2), dtype=np.uint8)
    scales = ((random.random((rows, groups)) + 0.5) * scale).astype(np.float16)
    zeros = random.integers(0, 16, (rows, groups), dtype=np.uint8) if has_zeros else None
    matrix = Matrix(
        library, Format.I4, rows, cols, q[:, ::2] | q[:, 1::2] << 4, scales=scales, zeros=zeros, group=group
    )
    zero = np.float32(8) if zeros is None else zeros.repeat(group, 1)[:, :cols].astype(np.float32)
    return Weights(matrix, (q[:, :cols] - zero) * scales.astype(np.float32).repeat(group, 1)[:, :cols])


def _gguf(library: Library, name: str, rows: int, cols: int, random: np.random.Generator, scale: float) -> Weights:
    block = BLOCKS[name]
    assert block.decode is not None
    cols = -(-cols // block.elements) * block.elements
    count = rows * cols // block.elements
    raw = random.integers(0, 256, (count, block.bytes), dtype=np.uint8)
    for at in HALVES.get(name, (0,)):
        half = (random.standard_normal(count) * scale).astype(np.float16)
        raw[:, at : at + 2] = half[:, None].view(np.uint8)
    floats = np.empty((count, block.elements), np.float32)
    block.decode(raw, floats)
    return Weights(Matrix(library, Format[name], rows, cols, raw), floats.reshape(rows, cols))


def rounded(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Activations as the quantised kernels see them: bytes times a scale for each 32 columns, and where one number
    holds more than half of a block's sum of squares, what is left over rounded once more.
    """
    n, cols = x.shape
    blocks = np.pad(x, ((0, 0), (0, -cols % 32))).reshape(n, -1, 32)
    scaled, q, scale = _bytes(blocks)
    seen = q.astype(np.float64) * scale
    uneven = (scale > 0) & ((scaled**2).sum(-1, keepdims=True) < 2 * 127**2)
    _, rest, rest_scale = _bytes(((scaled - q) * scale).astype(np.float32))
    return np.where(uneven, seen + rest.astype(np.float64) * rest_scale, seen).reshape(n, -1)[:, :cols]


def _bytes(blocks: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Blocks [..., 32] made to reach 127, the same as whole numbers, and what one of these stands for."""
    most = np.abs(blocks).max(-1, keepdims=True)
    live = most > 1e-30
    scaled = blocks * np.where(live, np.float32(127) / np.where(live, most, np.float32(1)), np.float32(0))
    return scaled, np.rint(scaled), np.where(live, most * np.float32(1 / 127), np.float32(0))


def linear(library: Library, pool: Pool, matrix: Matrix, x: NDArray[np.float32], **options: Any) -> NDArray[np.float32]:
    """y [n, rows] of one linear; `options`: bias, y (to add to), scale."""
    y = options.get("y")
    out = np.full((len(x), matrix.rows), 7, np.float32) if y is None else y.copy()
    program = Program(library, pool)
    program.linear(
        np.array([len(x)], np.int64),
        x,
        [Output(matrix, out, options.get("bias"))],
        most=len(x),
        accumulate=y is not None,
        scale=options.get("scale", 1.0),
    )
    program.run()
    return out


def run(library: Library, pool: Pool, op: Op, n: int, **fields: Any) -> None:
    """One operation, now, on `n` tokens."""
    program = Program(library, pool)
    program.add(op, n=np.array([n], np.int64), **fields)
    program.run()
