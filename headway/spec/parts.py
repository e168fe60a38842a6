"""The small values that layers share: norms, scales, activations, initialisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["relu", "gelu", "gelu_tanh", "gelu_quick", "silu", "sigmoid", "tanh"]
ACTIVATIONS: tuple[str, ...] = ("relu", "gelu", "gelu_tanh", "gelu_quick", "silu", "sigmoid", "tanh")


@dataclass(frozen=True, kw_only=True)
class Norm:
    """LayerNorm (arXiv 1607.06450) or RMSNorm (arXiv 1910.07467): y = normed(x) * (weight + offset) + bias.

    `offset=1.0` is Gemma's: the file keeps the weight's distance from one.
    """

    kind: Literal["layer", "rms"]
    eps: float
    offset: float = 0.0
    weight: bool = True
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class HeadNorm:
    """A norm of queries and keys before rotation: of each head alone, or of all heads together (OLMo 2)."""

    norm: Norm
    over: Literal["head", "heads"] = "head"


@dataclass(frozen=True, kw_only=True)
class LayerScale:
    """A learned vector that multiplies a branch (arXiv 2103.17239)."""

    initial: float


@dataclass(frozen=True, kw_only=True)
class Init:
    """Normal initialisation; `depth_scaled` divides what writes to the residual by sqrt(number of branches) (GPT-2)."""

    std: float = 0.02
    depth_scaled: bool = True
