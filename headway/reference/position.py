"""How a token knows its place: rotary angles under every scaling, sinusoids, ALiBi, T5's buckets, masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import singledispatch

from headway.reference.arithmetic import Vector
from headway.reference.parameters import Weights
from headway.spec import (
    Alibi,
    Bias,
    BucketBias,
    DynamicScaling,
    GivenScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Mask,
    Rope,
    Scaling,
    SinusoidalPositions,
    YarnScaling,
)

HeadBias = Callable[[int, int], float]  # (head, key position - query position) -> number added to the score


def visible(mask: Mask, query: int, key: int) -> bool:
    """Whether the query at position `query` sees the key at position `key`."""
    distance = key - query
    not_too_old = mask.before is None or distance >= -mask.before
    not_too_new = mask.after is None or distance <= mask.after
    return not_too_old and not_too_new


def plain_frequencies(dim: int, base: float) -> Vector:
    """base^(-2i/dim) for pair i: the angle that one position adds (arXiv 2104.09864, equation 15)."""
    return [base ** (-2 * i / dim) for i in range(dim // 2)]


def rope_frequencies(rope: Rope, length: int) -> Vector:
    """Angle per position of each pair [dim/2], in radians, for a sequence of `length` tokens in all."""
    return scaled_frequencies(rope.scaling, rope, length)


@singledispatch
def scaled_frequencies(scaling: Scaling | None, rope: Rope, length: int) -> Vector:
    """The frequencies of `rope` after `scaling`; every rule registers its own."""
    raise AssertionError(f"no frequencies for {type(scaling).__name__}")


@scaled_frequencies.register
def _unscaled(scaling: None, rope: Rope, length: int) -> Vector:
    return plain_frequencies(rope.dim, rope.base)


@scaled_frequencies.register
def _linear(scaling: LinearScaling, rope: Rope, length: int) -> Vector:
    """Position interpolation (arXiv 2306.15595, equation 4): position p stands where p / factor stood."""
    return [f / scaling.factor for f in plain_frequencies(rope.dim, rope.base)]


@scaled_frequencies.register
def _dynamic(scaling: DynamicScaling, rope: Rope, length: int) -> Vector:
    """Dynamic NTK: the base grows with the sequence once that is longer than the original (arXiv 2309.00071, 3.3).

    The exponent dim/(dim - 2) makes the slowest pair turn as far in the stretched length as it did in the original.
    """
    longest = max(length, scaling.original)
    stretch = scaling.factor * longest / scaling.original - (scaling.factor - 1)
    return plain_frequencies(rope.dim, rope.base * stretch ** (rope.dim / (rope.dim - 2)))


@scaled_frequencies.register
def _llama3(scaling: Llama3Scaling, rope: Rope, length: int) -> Vector:
    """Llama 3.1's bands, by how many whole turns a pair made in the original length.

    More than `high` turns: kept. Fewer than `low`: divided by `factor`. Between: a straight blend of the two.
    """
    frequencies = []
    for frequency in plain_frequencies(rope.dim, rope.base):
        turns = scaling.original * frequency / (2 * math.pi)
        kept = between_0_and_1((turns - scaling.low) / (scaling.high - scaling.low))
        frequencies.append(kept * frequency + (1 - kept) * frequency / scaling.factor)
    return frequencies


@scaled_frequencies.register
def _yarn(scaling: YarnScaling, rope: Rope, length: int) -> Vector:
    """YaRN's "NTK by parts" (arXiv 2309.00071, section 3.2): as Llama 3's bands, but the blend runs over pairs.

    Pair i turns `turns` times in the original length where i = dim * ln(original / (2 pi turns)) / (2 ln base).
    """

    def pair_with(turns: float) -> float:
        return rope.dim * math.log(scaling.original / (2 * math.pi * turns)) / (2 * math.log(rope.base))

    first, last = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.dim - 1)
    width = last - first or 0.001
    frequencies = []
    for i, frequency in enumerate(plain_frequencies(rope.dim, rope.base)):
        kept = 1 - between_0_and_1((i - first) / width)
        frequencies.append(kept * frequency + (1 - kept) * frequency / scaling.factor)
    return frequencies


@scaled_frequencies.register
def _longrope(scaling: LongRopeScaling, rope: Rope, length: int) -> Vector:
    """LongRoPE (arXiv 2402.13753, section 3): a searched divisor per pair, one set for short and one for long texts."""
    divisors = scaling.long if length > scaling.original else scaling.short
    return [f / divisor for f, divisor in zip(plain_frequencies(rope.dim, rope.base), divisors, strict=True)]


@scaled_frequencies.register
def _given(scaling: GivenScaling, rope: Rope, length: int) -> Vector:
    """A divisor per pair as the file states it."""
    return [f / divisor for f, divisor in zip(plain_frequencies(rope.dim, rope.base), scaling.divisors, strict=True)]


def rope_magnitude(rope: Rope) -> float:
    """The number that cos and sin are multiplied by: 1 but for YaRN (section 3.4) and LongRoPE."""
    match rope.scaling:
        case YarnScaling(attention=magnitude) | LongRopeScaling(attention=magnitude):
            return magnitude
        case _:
            return 1.0


def rotate(rope: Rope, x: Sequence[float], position: int, length: int) -> Vector:
    """Turn each pair (a, b) of x by its angle t = position * frequency: (a cos t - b sin t, a sin t + b cos t).

    arXiv 2104.09864, equation 34. The dot product of two turned vectors depends on the distance of their
    positions only. Entries from `rope.dim` on are not turned.
    """
    magnitude = rope_magnitude(rope)
    turned = list(x)
    for i, frequency in enumerate(rope_frequencies(rope, length)):
        first, second = (i, i + rope.dim // 2) if rope.pairing == "half" else (2 * i, 2 * i + 1)
        cos, sin = magnitude * math.cos(position * frequency), magnitude * math.sin(position * frequency)
        turned[first] = x[first] * cos - x[second] * sin
        turned[second] = x[first] * sin + x[second] * cos
    return turned


def sinusoid(positions: SinusoidalPositions, width: int, position: int) -> Vector:
    """Entry 2i is sin(p / base^(2i/width)) and 2i + 1 its cosine (arXiv 1706.03762, section 3.5).

    Layout "half" puts all the sines before all the cosines.
    """
    place = position + positions.offset
    angles = [place / positions.base ** (2 * (j // 2) / width) for j in range(width)]
    mixed = [math.cos(angle) if j % 2 else math.sin(angle) for j, angle in enumerate(angles)]
    return mixed if positions.layout == "interleaved" else mixed[0::2] + mixed[1::2]


def alibi_slopes(heads: int, max_bias: float = 8.0) -> Vector:
    """2^(-max_bias * i / n) for i = 1 .. n heads (arXiv 2108.12409, section 3).

    When n is no power of two: the slopes of the power below, then every second slope of the power above.
    """
    below = 2 ** int(math.log2(heads))
    slopes = [2 ** (-max_bias * i / below) for i in range(1, below + 1)]
    finer = [2 ** (-max_bias * i / (2 * below)) for i in range(1, 2 * below + 1, 2)]
    return slopes + finer[: heads - below]


def bucket(bias: BucketBias, distance: int) -> int:
    """T5's bucket of `distance` = key position - query position (arXiv 1910.10683, section 2.1).

    Half the buckets hold one distance each, the other half grow logarithmically up to `max_distance`; farther keys
    share the last one. A bidirectional bias gives the second half of its buckets to keys that come later; another
    one puts all of those into bucket 0.
    """
    buckets, first = bias.buckets, 0
    if bias.bidirectional:
        buckets //= 2
        first, distance = buckets if distance > 0 else 0, abs(distance)
    else:
        distance = max(0, -distance)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    farness = math.log(distance / exact) / math.log(bias.max_distance / exact)
    return first + min(exact + int(farness * (buckets - exact)), buckets - 1)


@singledispatch
def head_bias(bias: Bias, weights: Weights) -> HeadBias:
    """What `bias` adds to the score of a head at a distance; every kind registers its own."""
    raise AssertionError(f"no bias for {type(bias).__name__}")


@head_bias.register
def _alibi(bias: Alibi, weights: Weights) -> HeadBias:
    """-slope * |distance| (arXiv 2108.12409, section 3)."""
    slopes = alibi_slopes(bias.heads, bias.max_bias)
    return lambda head, distance: -slopes[head] * abs(distance)


@head_bias.register
def _bucketed(bias: BucketBias, weights: Weights) -> HeadBias:
    """The learned number of the head in the distance's bucket, from a table [buckets][heads]."""
    table = weights["weight"]
    return lambda head, distance: float(table[bucket(bias, distance)][head])


def between_0_and_1(x: float) -> float:
    """The nearest number to x in [0, 1]."""
    return min(max(x, 0.0), 1.0)
