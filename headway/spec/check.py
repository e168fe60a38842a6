"""Refuses a model that cannot be, naming the path of the field, its value and what would do."""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any

from headway.errors import SpecError
from headway.spec.mixers import Attention, FeedForward, Mixer
from headway.spec.model import Branch, ModelSpec, StackSpec, Step
from headway.spec.parts import ACTIVATIONS, Norm
from headway.spec.position import DynamicScaling, GivenScaling, LearnedPositions, LongRopeScaling, Mask, Rope


def check(spec: ModelSpec) -> ModelSpec:
    """Return `spec`, or raise SpecError at the first field with an impossible value."""
    _unique("stacks", [stack.name for stack in spec.stacks])
    _unique("heads", [head.name for head in spec.heads])
    _require(bool(spec.stacks), "stacks", "()", "a model has at least one stack")
    for stack in spec.stacks:
        _check_stack(f"stacks.{stack.name}", stack, spec)
    names = [stack.name for stack in spec.stacks]
    for head in spec.heads:
        path = f"heads.{head.name}"
        _require(head.stack in names, f"{path}.stack", head.stack, f"must name a stack: {', '.join(names)}")
        _positive(f"{path}.vocab", head.vocab)
        _number(f"{path}.scale", head.scale)
        _not_negative(f"{path}.softcap", head.softcap)
    for tie in spec.ties:
        _require(tie.alias != tie.owner, "ties", tie.alias, "cannot be tied to itself")
    return spec


def _check_stack(path: str, stack: StackSpec, spec: ModelSpec) -> None:
    _positive(f"{path}.width", stack.width)
    _positive(f"{path}.context", stack.context)
    _positive(f"{path}.stem.vocab", stack.stem.vocab)
    _positive(f"{path}.stem.width", stack.stem.width)
    _number(f"{path}.stem.scale", stack.stem.scale)
    if isinstance(stack.stem.positions, LearnedPositions):
        _positive(f"{path}.stem.positions.length", stack.stem.positions.length)
        _not_negative(f"{path}.stem.positions.offset", stack.stem.positions.offset)
    _norm(f"{path}.stem.norm", stack.stem.norm)
    _norm(f"{path}.final_norm", stack.final_norm)
    _unique(f"{path}.biases", [bias.name for bias in stack.biases])
    if stack.memory:
        names = [other.name for other in spec.stacks if other.name != stack.name]
        _require(stack.memory in names, f"{path}.memory", stack.memory, f"must name another stack: {names}")
    for index, layer in enumerate(stack.layers):
        here = f"{path}.layers[{index}]"
        _require(bool(layer.steps), f"{here}.steps", "()", "a layer has at least one step")
        _unique(here, [branch.name for branch in layer.branches])
        for step in layer.steps:
            _check_step(here, step, stack)


def _check_step(path: str, step: Step, stack: StackSpec) -> None:
    _require(bool(step.branches), f"{path}.steps", "()", "a step has at least one branch")
    _number(f"{path}.residual", step.residual)
    _norm(f"{path}.inner", step.inner)
    _norm(f"{path}.outer", step.outer)
    for branch in step.branches:
        _check_branch(f"{path}.{branch.name}", branch, stack)


def _check_branch(path: str, branch: Branch, stack: StackSpec) -> None:
    _require(branch.name.isidentifier(), f"{path}.name", branch.name, "must be an identifier")
    _norm(f"{path}.norm", branch.norm)
    _norm(f"{path}.norm_out", branch.norm_out)
    if isinstance(branch.scale, float | int):
        _number(f"{path}.scale", branch.scale)
    _fraction(f"{path}.drop", branch.drop)
    check_mixer(branch.mixer, path, stack)


@singledispatch
def check_mixer(mixer: Mixer, path: str, stack: StackSpec) -> None:
    """Check one mixer's fields; every kind of mixer registers its own."""
    raise AssertionError(f"no check for {type(mixer).__name__}")


@check_mixer.register
def _check_attention(mixer: Attention, path: str, stack: StackSpec) -> None:
    for field in ("heads", "kv_heads", "head_dim", "value_dim"):
        _positive(f"{path}.{field}", getattr(mixer, field))
    _require(
        mixer.heads % mixer.kv_heads == 0,
        f"{path}.kv_heads",
        mixer.kv_heads,
        f"must divide heads={mixer.heads}, since each key head serves equally many query heads",
    )
    _number(f"{path}.scale", mixer.scale)
    _require(mixer.scale > 0, f"{path}.scale", mixer.scale, "must be above 0")
    _not_negative(f"{path}.softcap", mixer.softcap)
    _fraction(f"{path}.drop", mixer.drop)
    _require(set(mixer.biases) <= set("qkvo"), f"{path}.biases", mixer.biases, 'may hold the letters of "qkvo"')
    _check_mask(f"{path}.mask", mixer.mask)
    if mixer.qk_norm is not None:
        _norm(f"{path}.qk_norm", mixer.qk_norm.norm)
    if mixer.rope is not None:
        _check_rope(f"{path}.rope", mixer.rope, mixer.head_dim)
    if mixer.source == "memory":
        _require(bool(stack.memory), f"{path}.source", "memory", "needs the stack's `memory` to name another stack")
    if mixer.bias:
        known = {bias.name: bias for bias in stack.biases}
        _require(mixer.bias in known, f"{path}.bias", mixer.bias, f"must name one of the stack's biases: {list(known)}")
        _require(
            known[mixer.bias].heads == mixer.heads,
            f"{path}.heads",
            mixer.heads,
            f"but bias {mixer.bias!r} has {known[mixer.bias].heads}",
        )


@check_mixer.register
def _check_feed_forward(mixer: FeedForward, path: str, stack: StackSpec) -> None:
    _positive(f"{path}.hidden", mixer.hidden)
    _require(
        mixer.activation in ACTIVATIONS,
        f"{path}.activation",
        mixer.activation,
        f"must be one of {', '.join(ACTIVATIONS)}",
    )


def _check_mask(path: str, mask: Mask) -> None:
    for field in ("before", "after"):
        value = getattr(mask, field)
        if value is not None:
            _not_negative(f"{path}.{field}", value)


def _check_rope(path: str, rope: Rope, head_dim: int) -> None:
    _positive(f"{path}.dim", rope.dim)
    _require(rope.dim % 2 == 0, f"{path}.dim", rope.dim, "must be even, since rotation turns pairs")
    _require(rope.dim <= head_dim, f"{path}.dim", rope.dim, f"must not exceed head_dim={head_dim}")
    _require(rope.base > 0 and math.isfinite(rope.base), f"{path}.base", rope.base, "must be above 0")
    scaling = rope.scaling
    if scaling is None:
        return
    if not isinstance(scaling, LongRopeScaling | GivenScaling):
        _require(
            scaling.factor >= 1 and math.isfinite(scaling.factor),
            f"{path}.scaling.factor",
            scaling.factor,
            "must be 1 or more",
        )
    if isinstance(scaling, DynamicScaling):
        _require(rope.dim > 2, f"{path}.dim", rope.dim, "must be above 2 for dynamic scaling")
    if not isinstance(scaling, GivenScaling) and hasattr(scaling, "original"):
        _positive(f"{path}.scaling.original", scaling.original)
    for field in ("short", "long", "divisors"):
        divisors = getattr(scaling, field, None)
        if divisors is not None:
            where = f"{path}.scaling.{field}"
            _require(
                len(divisors) == rope.dim // 2, where, f"{len(divisors)} numbers", f"must have dim/2 = {rope.dim // 2}"
            )
            _require(all(d > 0 and math.isfinite(d) for d in divisors), where, min(divisors), "must all be above 0")


def _norm(path: str, norm: Norm | None) -> None:
    if norm is not None:
        _require(0 <= norm.eps <= 1, f"{path}.eps", norm.eps, "must be from 0 to 1: it only keeps a division from 0")
        if norm.kind == "rms":
            _require(not norm.bias, f"{path}.bias", True, "but an RMSNorm has none")
        else:
            _require(norm.offset == 0, f"{path}.offset", norm.offset, "must be 0 for a LayerNorm")


def _unique(path: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    _require(not twice, path, ", ".join(twice), "appears more than once; give each its own name")


def _positive(path: str, value: Any) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    _require(whole and value > 0, path, value, "must be a whole number above 0")


def _not_negative(path: str, value: float) -> None:
    _require(math.isfinite(value) and value >= 0, path, value, "must be 0 or more")


def _fraction(path: str, value: float) -> None:
    _require(0 <= value < 1, path, value, "must be at least 0 and below 1")


def _number(path: str, value: float) -> None:
    _require(math.isfinite(value), path, value, "must be a finite number")


def _require(holds: bool, path: str, value: object, rule: str) -> None:
    if not holds:
        raise SpecError(f"{path} = {value} {rule}")
