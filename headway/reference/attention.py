"""softmax(scale * Q K^T + bias + mask) V, one head at a time and step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from headway.reference.arithmetic import Matrix, add, dot, softcap, softmax, times, weighted_sum
from headway.reference.parameters import Weights, linear, normalize
from headway.reference.position import HeadBias, rotate, visible
from headway.spec import Attention, Mask, Rope


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a mixer may see beside its own input: the whole sequence's length, the stack's biases, the memory."""

    length: int
    biases: Mapping[str, HeadBias] = field(default_factory=dict)
    memory: Matrix | None = None  # [S][D], the output of the stack that cross-attention reads


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Queries, keys and values, split into heads."""

    q: list[Matrix]  # [H][T][E]
    k: list[Matrix]  # [K][S][E]
    v: list[Matrix]  # [K][S][Ev]


@dataclass(frozen=True, kw_only=True)
class Attended:
    """The attention of one head, step by step; each step reads the one above it."""

    q: Matrix  # [T][E], as they meet: after norm and rotation
    k: Matrix  # [S][E]
    v: Matrix  # [S][Ev]
    scores: Matrix  # [T][S], q . k
    scaled: Matrix  # [T][S], scale * scores
    capped: Matrix  # [T][S], cap * tanh(scaled / cap), or `scaled` without a cap
    biased: Matrix  # [T][S], bias added, or `capped` without a bias
    masked: Matrix  # [T][S], minus infinity where nothing may be seen
    weights: Matrix  # [T][S], softmax: each row sums to 1, or to less when a sink takes its share
    output: Matrix  # [T][Ev], the values' weighted sums


def attention(mixer: Attention, weights: Weights, x: Matrix, around: Surroundings) -> Matrix:
    """Multi-head attention (arXiv 1706.03762, section 3.2.2): the heads' outputs side by side, then projected."""
    heads = attention_steps(mixer, weights, x, around)
    side_by_side = join([head.output for head in heads])
    return linear(weights, "o", side_by_side, "o" in mixer.biases)


def attention_steps(
    mixer: Attention, weights: Weights, x: Matrix, around: Surroundings | None = None
) -> list[Attended]:
    """Every head of an attention whose (normed) input is x [T][D]; `weights` holds "q.weight" and so on.

    Query head h reads key head h // (heads / kv_heads) (arXiv 2305.13245, section 2.2).
    """
    around = around or Surroundings(length=len(x))
    placed = place(mixer, weights, project(mixer, weights, x, around.memory), around)
    bias = around.biases[mixer.bias] if mixer.bias else None
    group = mixer.heads // mixer.kv_heads
    return [
        attend(
            placed.q[head],
            placed.k[head // group],
            placed.v[head // group],
            scale=mixer.scale,
            mask=mixer.mask,
            cap=mixer.softcap,
            bias=bias_matrix(bias, head, len(x), len(placed.k[0])) if bias is not None else None,
            sink=weights["sinks"][head] if mixer.sinks else None,
        )
        for head in range(mixer.heads)
    ]


def project(mixer: Attention, weights: Weights, x: Matrix, memory: Matrix | None = None) -> Heads:
    """Q = x Wq, K = source Wk, V = source Wv, each with its bias; the source is x itself, or the memory."""
    source = x if mixer.source == "self" else memory
    if source is None:
        raise ValueError("cross-attention reads a memory; give the tokens of the stack that makes it")
    return Heads(
        q=split(linear(weights, "q", x, "q" in mixer.biases), mixer.heads),
        k=split(linear(weights, "k", source, "k" in mixer.biases), mixer.kv_heads),
        v=split(linear(weights, "v", source, "v" in mixer.biases), mixer.kv_heads),
    )


def place(mixer: Attention, weights: Weights, heads: Heads, around: Surroundings) -> Heads:
    """Norm the queries and keys, then turn them by their positions; values stay as they are."""
    q, k = heads.q, heads.k
    if mixer.qk_norm is not None and mixer.qk_norm.over == "head":
        q = [normalize(mixer.qk_norm.norm, weights, "q_norm", head) for head in q]
        k = [normalize(mixer.qk_norm.norm, weights, "k_norm", head) for head in k]
    elif mixer.qk_norm is not None:
        q = split(normalize(mixer.qk_norm.norm, weights, "q_norm", join(q)), mixer.heads)
        k = split(normalize(mixer.qk_norm.norm, weights, "k_norm", join(k)), mixer.kv_heads)
    if mixer.rope is not None:
        past = around.length if mixer.source == "self" else len(k[0])
        q = [turn(mixer.rope, head, around.length) for head in q]
        k = [turn(mixer.rope, head, past) for head in k]
    return Heads(q=q, k=k, v=heads.v)


def attend(
    q: Matrix,
    k: Matrix,
    v: Matrix,
    *,
    scale: float,
    mask: Mask,
    cap: float = 0.0,
    bias: Matrix | None = None,
    sink: float | None = None,
) -> Attended:
    """One head: softmax(scale * Q K^T + bias + mask) V (arXiv 1706.03762, equation 1), every step kept.

    A sink is one more logit in each row's softmax that reads nothing: it only takes weight away.
    """
    scores = [[dot(query, key) for key in k] for query in q]
    scaled = [times(scale, row) for row in scores]
    capped = [[softcap(score, cap) for score in row] for row in scaled]
    biased = [add(row, shift) for row, shift in zip(capped, bias, strict=True)] if bias is not None else capped
    masked = [
        [score if visible(mask, t, s) else -math.inf for s, score in enumerate(row)] for t, row in enumerate(biased)
    ]
    weights = [softmax(row) if sink is None else softmax([*row, sink])[:-1] for row in masked]
    output = [weighted_sum(row, v) for row in weights]
    return Attended(
        q=q,
        k=k,
        v=v,
        scores=scores,
        scaled=scaled,
        capped=capped,
        biased=biased,
        masked=masked,
        weights=weights,
        output=output,
    )


def bias_matrix(bias: HeadBias, head: int, queries: int, keys: int) -> Matrix:
    """[T][S], what `bias` adds to each score of a head."""
    return [[bias(head, key - query) for key in range(keys)] for query in range(queries)]


def turn(rope: Rope, head: Matrix, length: int) -> Matrix:
    """Rotate row t of a head by position t."""
    return [rotate(rope, row, position, length) for position, row in enumerate(head)]


def split(x: Matrix, heads: int) -> list[Matrix]:
    """[T][H * E] as [H][T][E]."""
    size = len(x[0]) // heads
    return [[row[head * size : (head + 1) * size] for row in x] for head in range(heads)]


def join(heads: list[Matrix]) -> Matrix:
    """[H][T][E] as [T][H * E]."""
    return [list(chain(*rows)) for rows in zip(*heads, strict=True)]
