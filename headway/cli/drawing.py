"""A spec drawn as a tree: one line for what a part is, equal layers folded into one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import singledispatch

from headway.cli.terminal import amount
from headway.spec.count import shapes
from headway.spec.mixers import Attention, FeedForward, Mixer
from headway.spec.model import Branch, LayerSpec, ModelSpec, StackSpec, Step
from headway.spec.parts import LayerScale, Norm
from headway.spec.position import (
    Alibi,
    Bias,
    BucketBias,
    DynamicScaling,
    GivenScaling,
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Mask,
    Rope,
    Scaling,
    SinusoidalPositions,
    YarnScaling,
)
from headway.spec.stems import Head, Stem

GATED = {"sigmoid": "GLU", "silu": "SwiGLU", "gelu": "GeGLU", "gelu_tanh": "GeGLU (tanh)", "relu": "ReGLU"}


@dataclass
class Node:
    """A line of the tree: what it names, what it says about it, how many parameters it owns, and what is inside."""

    name: str
    text: str = ""
    parameters: int = 0
    children: list[Node] = field(default_factory=list)


def draw(spec: ModelSpec, name: str) -> Node:
    """The tree of `spec`, a model called `name`."""
    owned = shapes(spec)
    root = Node(name, f"family {spec.family}", sum(map(math.prod, owned.values())))
    sizes = {path: math.prod(shape) for path, shape in owned.items()}
    root.children = [_stack(stack, sizes) for stack in spec.stacks]
    ties = {tie.alias: tie.owner for tie in spec.ties}
    root.children += [_head(head, sizes, ties) for head in spec.heads]
    return root


def _stack(stack: StackSpec, sizes: dict[str, int]) -> Node:
    at = f"stacks.{stack.name}"
    word = "layer" if len(stack.layers) == 1 else "layers"
    reads = f", reads {stack.memory}" if stack.memory else ""
    node = Node(
        stack.name, f"{len(stack.layers)} {word}, width {stack.width}, context {stack.context}{reads}", _sum(sizes, at)
    )
    node.children.append(Node("stem", _stem(stack.stem, stack.width), _sum(sizes, f"{at}.stem")))
    node.children += [Node("bias", _bias(bias), _sum(sizes, f"{at}.biases.{bias.name}")) for bias in stack.biases]
    for layer, places in folded(stack.layers):
        each = _sum(sizes, f"{at}.layers.{places[0]}")
        times = f"{len(places)} of {amount(each)} each" if len(places) > 1 else ""
        word = "layers" if len(places) > 1 else "layer"
        inside = Node(f"{word} {ranges(places)}", times, each * len(places))
        inside.children = [_step(step, f"{at}.layers.{places[0]}", sizes) for step in layer.steps]
        node.children.append(inside)
    if stack.final_norm is not None:
        node.children.append(Node("final norm", _norm(stack.final_norm), _sum(sizes, f"{at}.final_norm")))
    return node


def folded(layers: Iterable[LayerSpec]) -> list[tuple[LayerSpec, list[int]]]:
    """Each different layer with the places where it stands, in the order of first sight."""
    places: dict[LayerSpec, list[int]] = {}
    for index, layer in enumerate(layers):
        places.setdefault(layer, []).append(index)
    return list(places.items())


def ranges(numbers: list[int]) -> str:
    """Ascending numbers in short: 0-4, 6-10, 12."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _step(step: Step, at: str, sizes: dict[str, int]) -> Node:
    """The step's formula, and a line for each of its branches."""
    node = Node(formula(step))
    for branch in step.branches:
        text = "; ".join([describe(branch.mixer), *_extras(branch)])
        node.children.append(Node(branch.name, text, _sum(sizes, f"{at}.{branch.name}")))
    norms = {norm for branch in step.branches for norm in (branch.norm, branch.norm_out)} | {step.inner, step.outer}
    kinds = [_norm(norm) for norm in norms if norm is not None]
    if kinds:
        owned = sum(_sum(sizes, f"{at}.{name}") for name in _norm_names(step))
        node.children.append(Node("norm" if len(kinds) == 1 else "norms", "; ".join(sorted(kinds)), owned))
    return node


def formula(step: Step) -> str:
    """The step as the equation it computes: x + attention(norm(x))."""
    source = "norm(x)" if step.inner else "x"
    x = "x" if step.residual == 1 else f"{step.residual:g} x" if step.residual else ""
    terms = [term for term in (x, *(_term(branch, source) for branch in step.branches)) if term]
    total = " + ".join(terms)
    return f"x <- norm({total})" if step.outer else f"x <- {total}"


def _term(branch: Branch, source: str) -> str:
    inner = f"norm({source})" if branch.norm else source
    term = f"{branch.name}({inner})"
    term = f"norm({term})" if branch.norm_out else term
    if isinstance(branch.scale, LayerScale):
        return f"s * {term}"
    return term if branch.scale == 1 else f"{branch.scale:g} {term}"


def _extras(branch: Branch) -> Iterator[str]:
    if isinstance(branch.scale, LayerScale):
        yield f"s learned, from {branch.scale.initial:g}"
    if branch.drop:
        yield f"dropout {branch.drop:g}"


def _norm_names(step: Step) -> Iterator[str]:
    first = step.branches[0].name
    yield f"{first}_inner"
    yield f"{first}_outer"
    for branch in step.branches:
        yield f"{branch.name}_norm"
        yield f"{branch.name}_norm_out"
        yield f"{branch.name}_scale"


@singledispatch
def describe(mixer: Mixer) -> str:
    """A mixer in one line; every kind registers its own."""
    raise AssertionError(f"no description for {type(mixer).__name__}")


@describe.register
def _attention(mixer: Attention) -> str:
    said = [_heads(mixer), _mask(mixer.mask) if mixer.source == "self" else f"over {mixer.source}"]
    if not _is_usual(mixer.scale, mixer.head_dim):
        said.append(f"scale {mixer.scale:.4g}")
    said.append(_rope(mixer.rope) if mixer.rope else "no rotation")
    if mixer.bias:
        said.append(f"bias {mixer.bias}")
    if mixer.qk_norm:
        over = "each head" if mixer.qk_norm.over == "head" else "all heads"
        said.append(f"q and k normed over {over} ({_norm(mixer.qk_norm.norm)})")
    if mixer.softcap:
        said.append(f"scores capped at {mixer.softcap:g}")
    if mixer.sinks:
        said.append("sinks")
    if mixer.biases:
        said.append(f"biases on {', '.join(mixer.biases)}")
    if mixer.drop:
        said.append(f"dropout {mixer.drop:g}")
    return ", ".join(said)


@describe.register
def _feed_forward(mixer: FeedForward) -> str:
    kind = GATED.get(mixer.activation, f"gated {mixer.activation}") if mixer.gated else mixer.activation
    return f"{kind}, hidden {mixer.hidden}" + (", biases" if mixer.bias else "")


def _heads(mixer: Attention) -> str:
    kind = "MHA" if mixer.kv_heads == mixer.heads else "MQA" if mixer.kv_heads == 1 else "GQA"
    keys = "" if kind == "MHA" else f", {mixer.kv_heads} for keys and values"
    values = "" if mixer.value_dim == mixer.head_dim else f" (values {mixer.value_dim})"
    return f"{kind}: {mixer.heads} heads of size {mixer.head_dim}{values}{keys}"


def _is_usual(scale: float, head_dim: int) -> bool:
    return math.isclose(scale, head_dim**-0.5, rel_tol=1e-6)


def _mask(mask: Mask) -> str:
    if mask.after == 0:
        return "causal" if mask.before is None else f"causal window {mask.before + 1}"
    if mask.before is None and mask.after is None:
        return "sees all"
    before, after = ("all" if reach is None else reach for reach in (mask.before, mask.after))
    return f"sees {before} before and {after} after"


def _rope(rope: Rope) -> str:
    pairs = "" if rope.pairing == "half" else f" {rope.pairing}"
    return f"rope over {rope.dim}, base {rope.base:.10g}{pairs}" + (f" {scaling(rope.scaling)}" if rope.scaling else "")


def scaling(rule: Scaling) -> str:
    """A rule for rotary positions beyond the original context, in short."""
    match rule:
        case LinearScaling(factor=factor):
            return f"linear x{factor:g}"
        case DynamicScaling(factor=factor, original=original):
            return f"dynamic x{factor:g} past {original}"
        case Llama3Scaling(factor=factor, original=original):
            return f"llama3 x{factor:g} past {original}"
        case YarnScaling(factor=factor, original=original):
            return f"yarn x{factor:g} past {original}"
        case LongRopeScaling(original=original):
            return f"longrope past {original}"
        case GivenScaling():
            return "divisors from the file"


def _norm(norm: Norm) -> str:
    name = "LayerNorm" if norm.kind == "layer" else "RMSNorm"
    parts = [f"{name} eps {norm.eps:g}"]
    parts += [f"weight + {norm.offset:g}"] if norm.offset else []
    parts += ["no weight"] if not norm.weight else []
    parts += ["bias"] if norm.bias else []
    return ", ".join(parts)


def _stem(stem: Stem, width: int) -> str:
    said = [f"{stem.vocab} tokens" + (f" of width {stem.width}, projected" if stem.width != width else "")]
    match stem.positions:
        case LearnedPositions(length=length):
            said.append(f"{length} learned positions")
        case SinusoidalPositions():
            said.append("sinusoidal positions")
    if stem.types:
        said.append(f"{stem.types} types")
    if stem.scale != 1:
        said.append(f"scaled by {stem.scale:.6g}" + (", rounded to the weights' type" if stem.round_scale else ""))
    if stem.norm:
        said.append(_norm(stem.norm))
    return ", ".join(said)


def _bias(bias: Bias) -> str:
    match bias:
        case Alibi(name=name, heads=heads):
            return f"{name}: ALiBi, {heads} slopes"
        case BucketBias(name=name, heads=heads, buckets=buckets, max_distance=distance, bidirectional=both):
            reach = "both ways" if both else "past only"
            return f"{name}: {buckets} buckets to distance {distance} for {heads} heads, {reach}"


def _head(head: Head, sizes: dict[str, int], ties: dict[str, str]) -> Node:
    path = f"heads.{head.name}"
    owner = ties.get(f"{path}.weight")
    said = [f"{head.vocab} logits from {head.stack}"]
    said += [f"tied to {owner}"] if owner else []
    said += ["bias"] if head.bias else []
    said += [f"scale {head.scale:g}"] if head.scale != 1 else []
    said += [f"capped at {head.softcap:g}"] if head.softcap else []
    return Node(f"head {head.name}", ", ".join(said), _sum(sizes, path))


def _sum(sizes: dict[str, int], root: str) -> int:
    return sum(size for path, size in sizes.items() if path == root or path.startswith(f"{root}."))
