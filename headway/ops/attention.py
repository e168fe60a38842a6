"""softmax(scale * Q K^T + bias) V: one function, two back ends with the same answers, chosen in one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Seen:
    """What queries see of keys: everything, the causal triangle (T = S), or what `allowed` says."""

    kind: str  # "all", "causal" or "some"
    allowed: Bool[Tensor, "#B 1 T S"] | None = None

    def mask(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """The boolean mask, drawn where the kind only names it; None when everything is seen."""
        if self.kind == "causal":
            return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()[None, None]
        return self.allowed


@dataclass(frozen=True)
class Scoring:
    """The numbers of one attention that no tensor carries."""

    scale: float
    softcap: float = 0.0
    drop: float = 0.0


Watch = Callable[[str, Tensor], Tensor]


def attend(
    q: Float[Tensor, "B H T E"],
    k: Float[Tensor, "B K S E"],
    v: Float[Tensor, "B K S Ev"],
    seen: Seen,
    scoring: Scoring,
    bias: Float[Tensor, "B H T S"] | None = None,
    sinks: Float[Tensor, " H"] | None = None,
    watch: Watch | None = None,
) -> Float[Tensor, "B H T Ev"]:
    """Weighted values of q over k and v (arXiv 1706.03762, equation 1); query head h reads key head h // (H/K).

    `bias` is added to the scaled scores, `sinks` join the softmax and read nothing, `watch` sees "scores"
    and "weights" and may replace them.
    """
    return BACKENDS[backend(scoring, sinks is not None, watch is not None)](q, k, v, seen, scoring, bias, sinks, watch)


def backend(scoring: Scoring, sinks: bool, watched: bool) -> str:
    """The back end's name: PyTorch's fused kernel unless the scores must be capped, joined by sinks, or shown."""
    return "eager" if scoring.softcap or sinks or watched else "sdpa"


def fused(
    q: Float[Tensor, "B H T E"],
    k: Float[Tensor, "B K S E"],
    v: Float[Tensor, "B K S Ev"],
    seen: Seen,
    scoring: Scoring,
    bias: Float[Tensor, "B H T S"] | None,
    sinks: Float[Tensor, " H"] | None,
    watch: Watch | None,
) -> Float[Tensor, "B H T Ev"]:
    """PyTorch's scaled_dot_product_attention: never forms the matrix of scores."""
    heads, keys = q.shape[1], k.shape[1]
    allowed = seen.allowed
    causal = seen.kind == "causal"
    if bias is not None:
        allowed, causal = additive(seen, bias, q, k), False
    if q.shape[2] == 1 and heads != keys and bias is None:
        # One token: the heads that share a key become its queries, so that every key is read once.
        grouped = q.view(q.shape[0], keys, heads // keys, q.shape[3])
        out = F.scaled_dot_product_attention(grouped, k, v, allowed, scoring.drop, scale=scoring.scale)
        return out.view(q.shape[0], heads, 1, v.shape[3])
    return F.scaled_dot_product_attention(
        q, k, v, allowed, scoring.drop, causal, scale=scoring.scale, enable_gqa=heads != keys
    )


def eager(
    q: Float[Tensor, "B H T E"],
    k: Float[Tensor, "B K S E"],
    v: Float[Tensor, "B K S Ev"],
    seen: Seen,
    scoring: Scoring,
    bias: Float[Tensor, "B H T S"] | None,
    sinks: Float[Tensor, " H"] | None,
    watch: Watch | None,
) -> Float[Tensor, "B H T Ev"]:
    """The formula written out, scores and softmax in float32; the readable twin of `fused`."""
    _batch, heads, queries, _ = q.shape
    groups = heads // k.shape[1]
    grouped = q.unflatten(1, (k.shape[1], groups))
    scores = (grouped.float() @ k.float()[:, :, None].transpose(-1, -2)).flatten(1, 2) * scoring.scale
    if scoring.softcap:
        scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
    if bias is not None:
        scores = scores + bias
    mask = seen.mask(queries, k.shape[2], q.device)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if watch is not None:
        scores = watch("scores", scores)
    weights = softmax_with_sinks(scores, sinks)
    if watch is not None:
        weights = watch("weights", weights)
    weights = F.dropout(weights, scoring.drop, training=scoring.drop > 0)
    grouped_weights = weights.unflatten(1, (k.shape[1], groups))
    return (grouped_weights @ v.float()[:, :, None]).flatten(1, 2).to(q.dtype)


def softmax_with_sinks(scores: Float[Tensor, "B H T S"], sinks: Float[Tensor, " H"] | None) -> Float[Tensor, "B H T S"]:
    """Softmax over keys; each head's sink takes its share and the rest sum to less than one."""
    if sinks is None:
        return scores.softmax(dim=-1)
    column = sinks.float().view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
    return torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1]


def additive(
    seen: Seen, bias: Float[Tensor, "B H T S"], q: Float[Tensor, "B H T E"], k: Float[Tensor, "B K S E"]
) -> Float[Tensor, "B H T S"]:
    """Bias and mask as one tensor in q's dtype, minus infinity where nothing is seen."""
    mask = seen.mask(q.shape[2], k.shape[2], q.device)
    return (bias if mask is None else bias.masked_fill(~mask, float("-inf"))).to(q.dtype)


BACKENDS: dict[str, Callable[..., Tensor]] = {"sdpa": fused, "eager": eager}
