"""Rounding matrices to formats: plain rounding, and the one place where a calibrated method takes its stead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headway.checkpoint.dtypes import Bytes, Floats
from headway.checkpoint.gguf_blocks import BLOCKS
from headway.checkpoint.integers import Integers, halves, spread, whole_row
from headway.errors import CheckpointError
from headway.quant import blocks, super_blocks
from headway.quant.formats import Format
from headway.tape.weights import Raw

_CHUNK = 1 << 18  # numbers rounded at a time: what is worked with stays in the processor's cache

ENCODERS: dict[str, Callable[[Floats], Bytes]] = {
    "Q4_0": blocks.q4_0,
    "Q4_1": blocks.q4_1,
    "Q5_0": blocks.q5_0,
    "Q5_1": blocks.q5_1,
    "Q8_0": blocks.q8_0,
    "Q4_K": super_blocks.q4_k,
    "Q5_K": super_blocks.q5_k,
    "Q6_K": super_blocks.q6_k,
}


class Rounding(Protocol):
    """How one matrix becomes another format.

    Plain rounding looks at the weights alone. A method that is calibrated (GPTQ, AWQ) is an object that was made
    from what its inputs were, kept by `path`, and is put wherever a Rounding is asked for.
    """

    def __call__(self, path: str, weights: Floats, format: Format, *, group: int, symmetric: bool) -> Raw:
        """`weights` [out, in] in `format`; `group` and `symmetric` are int4's."""


def plain(path: str, weights: Floats, format: Format, *, group: int = 64, symmetric: bool = True) -> Raw:
    """Each number to the nearest that its block or group can hold; see `Rounding`.

    CheckpointError names the matrix when it holds NaN, infinities, or numbers too large for the format's scales.
    """
    check(path, weights, format)
    shape = weights.shape
    if format.code in ENCODERS:
        return Raw(format.code, shape, in_blocks(weights, format.code))
    if format.floating:
        return Raw("F32", shape, weights).to(format.code)
    made = eight_bits(weights) if format.bits == 8 else four_bits(weights, group=group, symmetric=symmetric)
    return Raw.of(made)


def check(path: str, weights: Floats, format: Format) -> None:
    """CheckpointError unless every number can be held."""
    most = float(np.abs(weights).max()) if weights.size else 0.0  # NaN if there is one
    if not np.isfinite(most):
        count = int((~np.isfinite(weights)).sum())
        raise CheckpointError(f"{path} holds {count} numbers that are not finite; a model with them cannot be rounded")
    limit = 65504.0
    if most > limit and format.name not in ("int8", "bfloat16"):
        raise CheckpointError(f"{path} holds {most:.3g}, and {format.name} reaches to {limit:g}; choose int8")


def in_blocks(weights: Floats, code: str) -> Bytes:
    """Rows of GGUF blocks, [rows, bytes of a row]."""
    kind = BLOCKS[code]
    each = np.ascontiguousarray(weights, np.float32).reshape(-1, kind.elements)
    out = np.empty((len(each), kind.bytes), np.uint8)
    step = _CHUNK // kind.elements
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for start in range(0, len(each), step):
            out[start : start + step] = ENCODERS[code](each[start : start + step])
    return out.reshape(len(weights), -1)


def eight_bits(weights: Floats) -> Integers:
    """A scale for each row; a row of zeros has scale 1."""
    most = np.abs(weights).max(1)
    least = np.finfo(np.float32).tiny
    scales = np.where(most > 0, np.maximum(most / np.float32(127), least), np.float32(1))
    codes = np.clip(np.rint(weights / scales[:, None]), -127, 127).astype(np.int8)
    return Integers(bits=8, cols=weights.shape[1], codes=codes, scales=scales)


def four_bits(weights: Floats, *, group: int, symmetric: bool) -> Integers:
    """A scale for each group of columns, -1 the whole row; asymmetric ones have a zero too. Empty groups: scale 1."""
    rows, cols = weights.shape
    group = whole_row(cols) if group == -1 else group
    groups = -(-cols // group)
    padded = np.zeros((rows, groups * group), np.float32)
    padded[:, :cols] = weights
    each = padded.reshape(rows, groups, group)
    high, low = np.maximum(each.max(-1), 0), np.minimum(each.min(-1), 0)
    span = (high - low) / np.float32(15) if not symmetric else np.maximum(high, -low) / np.float32(7.5)
    halves_up = blocks.half_up(span)
    scales = np.where(halves_up > 0, halves_up, np.float16(1))
    wide = scales.astype(np.float32)
    zeros = None if symmetric else np.rint(-low / wide).astype(np.uint8)
    middle = np.float32(8) if zeros is None else spread(zeros, group, cols)
    codes = np.rint(weights / spread(wide, group, cols)) + middle
    return Integers(
        bits=4,
        cols=cols,
        codes=halves(np.clip(codes, 0, 15).astype(np.uint8)),
        scales=scales,
        zeros=zeros,
        group=group,
    )


@dataclass(frozen=True, kw_only=True)
class Rounded:
    """What rounding did to one matrix."""

    path: str
    format: str
    error: float  # root mean square of the change over that of the weights
    empty_groups: int  # all zeros, which they stay
    lost_groups: int  # not all zeros, but all zeros now: smaller than the least scale


def examined(path: str, before: Floats, after: Raw, block: int) -> Rounded:
    """`before` and what became of it, in groups of `block` columns (0: whole rows)."""
    values = after.floats()
    change = float(np.linalg.norm(values - before))
    size = float(np.linalg.norm(before))
    edges = np.arange(0, before.shape[1], block or before.shape[1])
    was, now = (np.add.reduceat(each != 0, edges, axis=1) for each in (before, values))
    return Rounded(
        path=path,
        format=after.dtype,
        error=change / size if size else 0.0,
        empty_groups=int((was == 0).sum()),
        lost_groups=int(((was > 0) & (now == 0)).sum()),
    )
