"""What moves information inside a layer: attention between tokens, feed-forward inside one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.spec.parts import Activation, HeadNorm
from headway.spec.position import Mask, Rope


@dataclass(frozen=True, kw_only=True)
class Attention:
    """softmax(scale * Q K^T + bias + mask) V over several heads (arXiv 1706.03762, equation 1).

    `kv_heads` equal to `heads` is MHA, 1 is MQA, between is GQA (arXiv 2305.13245): query head h reads
    key head h // (heads // kv_heads). Sizes are stated, never derived: q is heads * head_dim wide,
    k kv_heads * head_dim, v kv_heads * value_dim, o reads heads * value_dim.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    mask: Mask
    rope: Rope | None = None
    bias: str = ""  # name of one of the stack's additive biases; "" is none
    qk_norm: HeadNorm | None = None
    softcap: float = 0.0  # scores <- cap * tanh(scores / cap); 0 is none
    sinks: bool = False  # one learned logit per head that takes part in the softmax and reads nothing
    source: Literal["self", "memory"] = "self"  # where keys and values come from
    biases: str = ""  # which projections have a bias: letters of "qkvo"
    drop: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FeedForward:
    """down(act(up x)), or gated down(act(gate x) * up x) (arXiv 2002.05202): GLU, SwiGLU, GeGLU by activation."""

    hidden: int
    activation: Activation
    gated: bool = False
    bias: bool = False


Mixer = Attention | FeedForward
