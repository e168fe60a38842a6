"""What a spec weighs, from pure data: every parameter's path and shape, cache bytes, operations per token."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import singledispatch

from headway.spec.mixers import Attention, FeedForward, Mixer
from headway.spec.model import LayerSpec, ModelSpec, StackSpec
from headway.spec.parts import LayerScale, Norm
from headway.spec.position import BucketBias, LearnedPositions
from headway.spec.state import states

Shape = tuple[int, ...]
Named = Iterator[tuple[str, Shape]]


def shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Path -> shape of every parameter that the model owns; what is tied to another is left out.

    Paths are those of the built module: `stacks.decoder.layers.3.attention.q.weight`. Matrices are [out, in].
    """
    found: dict[str, Shape] = {}
    for stack in spec.stacks:
        found.update((f"stacks.{stack.name}.{path}", shape) for path, shape in _stack(stack))
    for head in spec.heads:
        width = spec.stack(head.stack).width
        found.update((f"heads.{head.name}.{path}", s) for path, s in linear("", head.vocab, width, head.bias))
    aliases = tuple(tie.alias for tie in spec.ties)
    return {path: shape for path, shape in found.items() if not is_under(path, aliases)}


def is_under(path: str, roots: tuple[str, ...]) -> bool:
    """Whether `path` is one of `roots` or inside one of them."""
    return any(path == root or path.startswith(root + ".") for root in roots)


def parameters(spec: ModelSpec) -> int:
    """Number of parameters, each counted once."""
    return sum(math.prod(shape) for shape in shapes(spec).values())


def cache_numbers_per_token(spec: ModelSpec) -> int:
    """Numbers that the cache keeps for one more token while every window still has room."""
    return sum(state.numbers for state in states(spec).values())


def cache_bytes(spec: ModelSpec, tokens: int, batch: int, bytes_per_number: int) -> int:
    """Bytes of the cache that holds `tokens` tokens of `batch` sequences (beams count as sequences)."""
    return batch * bytes_per_number * sum(s.numbers * s.tokens(tokens) for s in states(spec).values())


def flops_per_token(spec: ModelSpec, past: int) -> int:
    """Multiplications and additions to compute one token that sees `past` tokens: 2 per weight used, 4 per score."""
    total = 0
    for stack in spec.stacks:
        for layer in stack.layers:
            total += sum(2 * math.prod(shape) for _, shape in _layer(layer, stack.width) if len(shape) == 2)
    total += sum(2 * head.vocab * spec.stack(head.stack).width for head in spec.heads)
    for stack in spec.stacks:
        for layer in stack.layers:
            for mixer in (branch.mixer for branch in layer.branches):
                if isinstance(mixer, Attention):
                    seen = past if mixer.mask.window is None else min(past, mixer.mask.window)
                    total += 2 * seen * mixer.heads * (mixer.head_dim + mixer.value_dim)
    return total


def linear(path: str, out: int, width: int, bias: bool) -> Named:
    """Weight [out, in] and bias [out] of a projection."""
    dot = f"{path}." if path else ""
    yield f"{dot}weight", (out, width)
    if bias:
        yield f"{dot}bias", (out,)


def norm(path: str, spec: Norm | None, width: int) -> Named:
    """Weight and bias of a norm, where it has them."""
    if spec is None:
        return
    if spec.weight:
        yield f"{path}.weight", (width,)
    if spec.bias:
        yield f"{path}.bias", (width,)


def _stack(stack: StackSpec) -> Named:
    stem = stack.stem
    yield "stem.tokens.weight", (stem.vocab, stem.width)
    if isinstance(stem.positions, LearnedPositions):
        yield "stem.positions.weight", (stem.positions.length + stem.positions.offset, stem.width)
    if stem.types:
        yield "stem.types.weight", (stem.types, stem.width)
    yield from norm("stem.norm", stem.norm, stem.width)
    if stem.width != stack.width:
        yield from linear("stem.project", stack.width, stem.width, bias=True)
    for bias in stack.biases:
        if isinstance(bias, BucketBias):
            yield f"biases.{bias.name}.weight", (bias.buckets, bias.heads)
    for index, layer in enumerate(stack.layers):
        yield from ((f"layers.{index}.{path}", shape) for path, shape in _layer(layer, stack.width))
    yield from norm("final_norm", stack.final_norm, stack.width)


def _layer(layer: LayerSpec, width: int) -> Named:
    for step in layer.steps:
        first = step.branches[0].name
        yield from norm(f"{first}_inner", step.inner, width)
        for branch in step.branches:
            yield from norm(f"{branch.name}_norm", branch.norm, width)
            yield from ((f"{branch.name}.{path}", shape) for path, shape in mixer_shapes(branch.mixer, width))
            yield from norm(f"{branch.name}_norm_out", branch.norm_out, width)
            if isinstance(branch.scale, LayerScale):
                yield f"{branch.name}_scale.weight", (width,)
        yield from norm(f"{first}_outer", step.outer, width)


@singledispatch
def mixer_shapes(mixer: Mixer, width: int) -> Named:
    """Path -> shape of a mixer's parameters; every kind of mixer registers its own."""
    raise AssertionError(f"no shapes for {type(mixer).__name__}")


@mixer_shapes.register
def _attention(mixer: Attention, width: int) -> Named:
    queries, keys, values = (
        mixer.heads * mixer.head_dim,
        mixer.kv_heads * mixer.head_dim,
        mixer.kv_heads * mixer.value_dim,
    )
    yield from linear("q", queries, width, "q" in mixer.biases)
    yield from linear("k", keys, width, "k" in mixer.biases)
    yield from linear("v", values, width, "v" in mixer.biases)
    yield from linear("o", width, mixer.heads * mixer.value_dim, "o" in mixer.biases)
    if mixer.qk_norm is not None:
        each = mixer.qk_norm.over == "head"
        yield from norm("q_norm", mixer.qk_norm.norm, mixer.head_dim if each else queries)
        yield from norm("k_norm", mixer.qk_norm.norm, mixer.head_dim if each else keys)
    if mixer.sinks:
        yield "sinks", (mixer.heads,)


@mixer_shapes.register
def _feed_forward(mixer: FeedForward, width: int) -> Named:
    if mixer.gated:
        yield from linear("gate", mixer.hidden, width, mixer.bias)
    yield from linear("up", mixer.hidden, width, mixer.bias)
    yield from linear("down", width, mixer.hidden, mixer.bias)
