"""Numbers that depend on positions alone, in numpy: rotary frequencies, ALiBi slopes, distance buckets, waves."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from headway.spec.position import (
    Alibi,
    BucketBias,
    DynamicScaling,
    GivenScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    SinusoidalPositions,
    YarnScaling,
)

Floats = NDArray[np.float32]


def frequencies(rope: Rope, length: int) -> tuple[np.ndarray, float]:
    """Angle per position of each pair [dim/2], and the factor on cos and sin, for a sequence of `length` tokens."""
    exponent = np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim
    plain = rope.base**-exponent
    match rope.scaling:
        case None:
            return plain, 1.0
        case LinearScaling(factor=factor):
            return plain / factor, 1.0
        case DynamicScaling(factor=factor, original=original):
            stretch = factor * max(length, original) / original - (factor - 1)
            return (rope.base * stretch ** (rope.dim / (rope.dim - 2))) ** -exponent, 1.0
        case Llama3Scaling() as bands:
            return _llama3(plain, bands), 1.0
        case YarnScaling() as yarn:
            return _yarn(plain, rope, yarn), yarn.attention
        case LongRopeScaling() as longrope:
            divisors = longrope.long if length > longrope.original else longrope.short
            return plain / np.asarray(divisors), longrope.attention
        case GivenScaling(divisors=divisors):
            return plain / np.asarray(divisors), 1.0


def _llama3(plain: np.ndarray, bands: Llama3Scaling) -> np.ndarray:
    """Keep wavelengths below original/high, divide those above original/low, blend between."""
    turns = bands.original * plain / (2 * math.pi)
    keep = np.clip((turns - bands.low) / (bands.high - bands.low), 0.0, 1.0)
    return keep * plain + (1 - keep) * plain / bands.factor


def _yarn(plain: np.ndarray, rope: Rope, yarn: YarnScaling) -> np.ndarray:
    """NTK by parts (arXiv 2309.00071, section 3.2): a linear ramp over pairs between beta_fast and beta_slow turns."""

    def pair_of(turns: float) -> float:
        return rope.dim * math.log(yarn.original / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    low, high = pair_of(yarn.beta_fast), pair_of(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    width = high - low or 0.001  # below zero where the original length is so short that the ends cross
    ramp = np.clip((np.arange(rope.dim // 2) - low) / width, 0.0, 1.0)
    return plain * (1 - ramp) + plain / yarn.factor * ramp


def turns(rope: Rope, length: int, positions: NDArray[np.integer]) -> tuple[Floats, Floats]:
    """cos and sin [N, dim/2] of each pair at `positions`, for a sequence of `length` tokens."""
    per_position, factor = frequencies(rope, length)
    theta = positions[:, None].astype(np.float32) * per_position.astype(np.float32)
    return np.cos(theta) * np.float32(factor), np.sin(theta) * np.float32(factor)


def waves(spec: SinusoidalPositions, width: int, positions: NDArray[np.integer]) -> Floats:
    """Sines and cosines [N, width] of the positions ("Attention Is All You Need", section 3.5)."""
    exponent = np.arange(0, width, 2, dtype=np.float64) / width
    angles = (positions + spec.offset)[:, None] * spec.base**-exponent
    both = np.sin(angles), np.cos(angles)
    order = np.concatenate(both, axis=-1) if spec.layout == "half" else np.stack(both, axis=-1).reshape(len(angles), -1)
    return order[:, :width].astype(np.float32)  # an odd width has one cosine less


def alibi_slopes(spec: Alibi) -> list[float]:
    """One slope per head (arXiv 2108.12409, section 3): 2^(-max_bias * i / n) for n heads.

    For head counts that are no power of two: those of the power below, then every second one of twice that.
    """
    below = 2 ** math.floor(math.log2(spec.heads))
    first = [2 ** (-spec.max_bias * i / below) for i in range(1, below + 1)]
    between = [2 ** (-spec.max_bias * i / (2 * below)) for i in range(1, 2 * below + 1, 2)]
    return first + between[: spec.heads - below]


def buckets(spec: BucketBias, distance: NDArray[np.integer]) -> NDArray[np.int64]:
    """Bucket of each `key_position - query_position`: exact for the near half, logarithmic up to max_distance."""
    count, start = spec.buckets, np.zeros(distance.shape, np.int64)
    if spec.bidirectional:
        count //= 2
        start = (distance > 0) * count
        distance = np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    exact = count // 2
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    far = exact + (ratio / np.float32(math.log(spec.max_distance / exact)) * np.float32(count - exact)).astype(np.int64)
    return start + np.where(distance < exact, distance, np.minimum(far, count - 1))
