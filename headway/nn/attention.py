"""Attention between tokens: project, norm, rotate, remember, attend, project back."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from headway.nn.frame import Frame
from headway.nn.parts import Linear, make_norm, parameter
from headway.ops.attention import Scoring, attend
from headway.ops.bias import alibi, bucketed
from headway.spec.mixers import Attention as AttentionSpec
from headway.spec.parts import HeadNorm
from headway.spec.position import Alibi, Bias


class Attention(nn.Module):
    """Multi-head, grouped or multi-query attention (spec.mixers.Attention), B T D -> B T D."""

    def __init__(self, spec: AttentionSpec, width: int, path: str, bias: AdditiveBias | None) -> None:
        super().__init__()
        self.spec, self.path = spec, path
        self.q = Linear(width, spec.heads * spec.head_dim, "q" in spec.biases)
        self.k = Linear(width, spec.kv_heads * spec.head_dim, "k" in spec.biases)
        self.v = Linear(width, spec.kv_heads * spec.value_dim, "v" in spec.biases)
        self.o = Linear(spec.heads * spec.value_dim, width, "o" in spec.biases)
        self.q_norm = make_head_norm(spec.qk_norm, spec.heads, spec.head_dim)
        self.k_norm = make_head_norm(spec.qk_norm, spec.kv_heads, spec.head_dim)
        self.sinks = parameter(spec.heads) if spec.sinks else None
        self._bias = no_bias if bias is None else bias.between

    def forward(self, x: Tensor, frame: Frame) -> Tensor:
        spec, tap, path = self.spec, frame.tap, self.path
        q = self.q_norm(self.q(x).unflatten(-1, (spec.heads, spec.head_dim))).transpose(1, 2)
        k = self.k_norm(self.k(x).unflatten(-1, (spec.kv_heads, spec.head_dim))).transpose(1, 2)
        v = self.v(x).unflatten(-1, (spec.kv_heads, spec.value_dim)).transpose(1, 2)
        turn = frame.rotation(spec.rope)
        q, k, v = tap(f"{path}.queries", turn(q)), tap(f"{path}.keys", turn(k)), tap(f"{path}.values", v)
        k, v = frame.remember(path, k, v)
        out = attend(
            q,
            k,
            v,
            frame.seen(spec.mask, path),
            Scoring(spec.scale, spec.softcap, spec.drop if self.training else 0.0),
            self._bias(frame, path),
            self.sinks,
            self._watch(frame),
        )
        out = tap(f"{path}.mixed", out)
        return tap(f"{path}.output", self.o(out.transpose(1, 2).flatten(2)))

    def _watch(self, frame: Frame) -> Callable[[str, Tensor], Tensor] | None:
        """How attention shows its scores and weights, when somebody looks."""
        tap, path = frame.tap, self.path
        if not (tap.wants(f"{path}.scores") or tap.wants(f"{path}.weights")):
            return None
        return lambda site, x: tap(f"{path}.{site}", x)


class AdditiveBias(nn.Module):
    """A bias that the layers of a stack share; the stack owns its table."""

    def __init__(self, spec: Bias) -> None:
        super().__init__()
        self.spec = spec
        if not isinstance(spec, Alibi):
            self.weight = parameter(spec.buckets, spec.heads)

    def between(self, frame: Frame, path: str) -> Tensor:
        """float32 [B, H, T, S] between this batch's queries and the keys that the mixer at `path` reads."""
        return frame.once(("bias", self.spec, frame.layout(path)), lambda: self._table(frame, path))

    def _table(self, frame: Frame, path: str) -> Tensor:
        positions, key_positions = frame.batch.positions, frame.keys(path).positions
        if isinstance(self.spec, Alibi):
            return alibi(self.spec, positions, key_positions)
        return bucketed(self.spec, self.weight, positions, key_positions)


def no_bias(frame: Frame, path: str) -> None:
    """The bias of an attention that has none."""


def make_head_norm(spec: HeadNorm | None, heads: int, head_dim: int) -> nn.Module:
    """The norm of queries or keys [..., heads, head_dim]: over each head, over all of them, or none."""
    if spec is None:
        return nn.Identity()
    return make_norm(spec.norm, *((head_dim,) if spec.over == "head" else (heads, head_dim)))
