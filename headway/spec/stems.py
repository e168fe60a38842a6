"""How input becomes vectors, and how vectors become answers."""

from __future__ import annotations

from dataclasses import dataclass

from headway.spec.parts import Norm
from headway.spec.position import LearnedPositions, SinusoidalPositions


@dataclass(frozen=True, kw_only=True)
class TokenStem:
    """x = norm(scale * tokens[id] + positions[p] + types[t]), then a projection when `width` differs from the stack's.

    `round_scale` rounds the scale to the dtype of the weights before it multiplies, as Gemma does.
    """

    vocab: int
    width: int
    positions: LearnedPositions | SinusoidalPositions | None = None
    types: int = 0  # rows of the segment-type table (BERT); 0 is none
    norm: Norm | None = None
    scale: float = 1.0
    round_scale: bool = False
    drop: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LMHead:
    """logits = cap * tanh(scale * (W x + b) / cap); `softcap=0` leaves them as they are."""

    name: str
    stack: str
    vocab: int
    bias: bool = False
    scale: float = 1.0
    softcap: float = 0.0


Stem = TokenStem
Head = LMHead
