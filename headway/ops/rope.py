"""Rotary positions: frequencies under every scaling rule, tables of cos and sin, the rotation itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.spec.position import (
    DynamicScaling,
    GivenScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Pairing,
    Rope,
    YarnScaling,
)


@dataclass(frozen=True)
class Rotation:
    """Tables for one rope at the positions of one batch, float32 whatever the model's dtype."""

    cos: Float[Tensor, "B 1 T dim"]
    sin: Float[Tensor, "B 1 T dim"]  # with the sign that each entry's partner takes
    pairing: Pairing

    def __call__(self, x: Float[Tensor, "B H T E"]) -> Float[Tensor, "B H T E"]:
        """x turned."""
        return rotate(x, self)


def unturned(x: Tensor) -> Tensor:
    """The rotation of a layer without rope."""
    return x


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
    ramp = np.clip((np.arange(rope.dim // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    return plain * (1 - ramp) + plain / yarn.factor * ramp


@lru_cache(maxsize=256)
def _angles(rope: Rope, regime: int, length: int, device: torch.device) -> tuple[Tensor, float]:
    per_position, factor = frequencies(rope, length)
    if rope.pairing == "half":
        spread = np.concatenate([per_position, per_position])
    else:
        spread = np.repeat(per_position, 2)
    return torch.tensor(spread, dtype=torch.float32, device=device), factor


@lru_cache(maxsize=256)
def _signs(dim: int, pairing: Pairing, device: torch.device) -> Tensor:
    signs = torch.ones(dim, device=device)
    if pairing == "half":
        signs[: dim // 2] = -1
    else:
        signs[0::2] = -1
    return signs


def rotation(rope: Rope, positions: Int[Tensor, "B T"], horizons: Sequence[int]) -> Rotation:
    """Tables for `positions`; `horizons` gives each row's whole length, which some scalings depend on."""
    regimes = [rope.regime(length) for length in horizons]
    device = positions.device
    if len(set(regimes)) == 1:
        angle, factor = _angles(rope, regimes[0], horizons[0] if regimes[0] else 0, device)
    else:
        rows = [_angles(rope, regime, length, device) for regime, length in zip(regimes, horizons, strict=True)]
        angle, factor = torch.stack([row for row, _ in rows])[:, None], rows[0][1]
    theta = (positions[..., None].float() * angle)[:, None]
    cos, sin = theta.cos(), theta.sin() * _signs(rope.dim, rope.pairing, device)
    return Rotation(cos * factor, sin * factor, rope.pairing) if factor != 1.0 else Rotation(cos, sin, rope.pairing)


def rotate(x: Float[Tensor, "B H T E"], by: Rotation) -> Float[Tensor, "B H T E"]:
    """Turn the first `dim` entries of every head; the result has x's dtype.

    Each entry becomes itself * cos + its partner * sin: the sign of the 2x2 rotation sits in the table.
    """
    dim = by.cos.shape[-1]
    turned = x if dim == x.shape[-1] else x[..., :dim]
    turned = torch.addcmul(turned * by.cos, _partner(turned, by.pairing), by.sin).to(x.dtype)
    return turned if dim == x.shape[-1] else torch.cat([turned, x[..., dim:]], dim=-1)


def _partner(x: Tensor, pairing: Pairing) -> Tensor:
    if pairing == "half":
        return x.roll(x.shape[-1] // 2, dims=-1)
    return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
