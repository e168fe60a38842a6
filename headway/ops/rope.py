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


def rotation(
    rope: Rope, positions: Int[Tensor, "B T"], segments: Int[Tensor, "B T"], horizons: Sequence[Sequence[int]]
) -> Rotation:
    """Tables for `positions`; some scalings depend on the whole length of a token's document.

    `horizons[b][d - 1]` is that length for segment d of row b.
    """
    lengths = {rope.regime(length): length for row in horizons for length in row}
    tables = {
        regime: _angles(rope, regime, length if regime else 0, positions.device) for regime, length in lengths.items()
    }
    (angle, factor), *others = tables.values()
    if others:
        order = list(tables)
        deep = max(map(len, horizons))
        chosen = [[order.index(rope.regime(row[min(d, len(row) - 1)])) for d in range(deep)] for row in horizons]
        which = torch.tensor(chosen, device=positions.device).gather(1, (segments - 1).clamp(min=0))
        angle = torch.stack([angle for angle, _ in tables.values()])[which]
    theta = (positions[..., None].float() * angle)[:, None]
    cos, sin = theta.cos(), theta.sin() * _signs(rope.dim, rope.pairing, positions.device)
    return Rotation(cos * factor, sin * factor, rope.pairing) if factor != 1.0 else Rotation(cos, sin, rope.pairing)


def rotate(x: Float[Tensor, "B H T E"], by: Rotation) -> Float[Tensor, "B H T E"]:
    """Turn the first `dim` entries of every head; the result has x's dtype.

    Each entry becomes itself * cos + its partner * sin: the sign of the 2x2 rotation sits in the table.
    """
    dim = by.cos.shape[-1]
    turned = (x if dim == x.shape[-1] else x[..., :dim]).float()
    turned = torch.addcmul(turned * by.cos, _partner(turned, by.pairing), by.sin).to(x.dtype)
    return turned if dim == x.shape[-1] else torch.cat([turned, x[..., dim:]], dim=-1)


def _partner(x: Tensor, pairing: Pairing) -> Tensor:
    if pairing == "half":
        return x.roll(x.shape[-1] // 2, dims=-1)
    return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
