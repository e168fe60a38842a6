"""Rotary positions: tables of cos and sin, and the rotation itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.ops.tables import frequencies
from headway.spec.position import Pairing, Rope

__all__ = ["Rotation", "frequencies", "rotate", "rotation", "unturned"]


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
