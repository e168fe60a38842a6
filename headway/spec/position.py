"""How a model knows where a token stands: masks, rotary and its scalings, tables, additive biases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Pairing = Literal["half", "interleaved"]


@dataclass(frozen=True, kw_only=True)
class Mask:
    """Which keys a query sees: `-before <= key_position - query_position <= after`, itself always included.

    `None` is no limit. A causal window of w keys (Mistral counts the token itself) is `before=w-1, after=0`.
    """

    before: int | None = None
    after: int | None = None

    @classmethod
    def causal(cls, window: int | None = None) -> Mask:
        """The mask of a decoder; `window` counts visible keys with the token itself, None or 0 is all of them."""
        return cls(before=window - 1 if window else None, after=0)

    @property
    def window(self) -> int | None:
        """Visible keys of a causal window, or None when the past is unlimited."""
        return None if self.before is None else self.before + 1


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """Positions divided by a factor (position interpolation, arXiv 2306.15595)."""

    factor: float


@dataclass(frozen=True, kw_only=True)
class DynamicScaling:
    """NTK-aware base that grows with the length of the sequence once it passes the original one."""

    factor: float
    original: int


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Three bands of wavelengths: keep the short, divide the long, blend between (Llama 3.1)."""

    factor: float
    low: float
    high: float
    original: int


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """NTK by parts with a ramp over dimensions, cos and sin multiplied by `attention` (arXiv 2309.00071)."""

    factor: float
    original: int
    beta_fast: float
    beta_slow: float
    attention: float
    truncate: bool


@dataclass(frozen=True, kw_only=True)
class LongRopeScaling:
    """One divisor per frequency, a short and a long set, chosen by the sequence's length (arXiv 2402.13753)."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    original: int
    attention: float


@dataclass(frozen=True, kw_only=True)
class GivenScaling:
    """One divisor per frequency, as a file states them (GGUF's `rope_freqs`)."""

    divisors: tuple[float, ...]


Scaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongRopeScaling | GivenScaling


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary positions (arXiv 2104.09864) on the first `dim` entries of a head; the others pass unchanged.

    `pairing="half"` turns entry i with entry i + dim/2; `"interleaved"` turns 2i with 2i + 1.
    """

    dim: int
    base: float
    pairing: Pairing = "half"
    scaling: Scaling | None = None

    def regime(self, length: int) -> int:
        """A number that names the table used for a sequence of `length` tokens: equal numbers, equal tables.

        Nearly all ropes have one regime. LongRope has two and dynamic NTK one per length: a cache filled in
        another regime holds keys of another table, so the engine recomputes it when the number changes.
        """
        match self.scaling:
            case LongRopeScaling(original=original):
                return int(length > original)
            case DynamicScaling(original=original):
                return max(length, original)
            case _:
                return 0


@dataclass(frozen=True, kw_only=True)
class LearnedPositions:
    """A table of `length` vectors; the token at position p takes row p + offset (OPT and BART: offset 2)."""

    length: int
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class SinusoidalPositions:
    """Sines and cosines of a position (arXiv 1706.03762, section 3.5): `interleaved` as there, `half` as in Marian."""

    base: float = 10000.0
    layout: Pairing = "interleaved"
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Alibi:
    """A penalty that grows with distance, one slope per head (arXiv 2108.12409); no parameters."""

    name: str
    heads: int
    max_bias: float = 8.0


@dataclass(frozen=True, kw_only=True)
class BucketBias:
    """A learned number per head and distance bucket, half of them exact, half logarithmic (T5, arXiv 1910.10683)."""

    name: str
    heads: int
    buckets: int
    max_distance: int
    bidirectional: bool


Bias = Alibi | BucketBias


def yarn_attention(factor: float, mscale: float = 1.0) -> float:
    """YaRN's temperature as a factor on cos and sin: 0.1 * mscale * ln(factor) + 1 (equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def longrope_attention(factor: float, original: int) -> float:
    """LongRoPE's factor on cos and sin: sqrt(1 + ln(factor) / ln(original))."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
