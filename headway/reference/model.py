"""A whole model in plain lists: stem, layers, last norm, head, as the spec says and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch

from headway.reference.arithmetic import Matrix, Vector, add, affine, softcap, times
from headway.reference.attention import Attended, Surroundings, attention_steps
from headway.reference.mixers import mix
from headway.reference.parameters import Below, Tied, Weights, linear, normalize
from headway.reference.position import head_bias, sinusoid
from headway.spec import (
    Attention,
    Branch,
    Head,
    LayerScale,
    LayerSpec,
    LearnedPositions,
    LMHead,
    ModelSpec,
    SinusoidalPositions,
    StackSpec,
    Stem,
    Step,
    TokenStem,
)

Watch = Callable[[str, Matrix], None]  # sees every mixer's path and normed input


def forward(
    spec: ModelSpec,
    weights: Weights,
    tokens: Sequence[int],
    *,
    memory_tokens: Sequence[int] = (),
    types: Sequence[int] = (),
    length: int = 0,
) -> Matrix:
    """Logits [T][V] of the spec's first head for token ids [T].

    `weights` maps the paths of `headway.spec.count.shapes` to nested lists. `memory_tokens` go through the stack
    that cross-attention reads, `types` are segment types (all 0 unless given), and `length` is the length of the
    whole sequence when `tokens` are only its beginning. Dropout does nothing and a stem's scale is not rounded:
    doubles have nothing to round it to.
    """
    head = spec.heads[0]
    states = hidden(spec, weights, tokens, memory_tokens=memory_tokens, types=types, length=length)
    return [logits(head, Below(Tied(weights, spec.ties), f"heads.{head.name}"), state) for state in states]


def hidden(
    spec: ModelSpec,
    weights: Weights,
    tokens: Sequence[int],
    *,
    stack: str = "",
    memory_tokens: Sequence[int] = (),
    types: Sequence[int] = (),
    length: int = 0,
    watch: Watch | None = None,
) -> Matrix:
    """Last hidden states [T][D] of a stack (the first head's unless named), after its final norm."""
    this = spec.stack(stack) if stack else spec.decoder
    path = f"stacks.{this.name}"
    inside = Below(Tied(weights, spec.ties), path)
    memory = hidden(spec, weights, memory_tokens, stack=this.memory) if this.memory and memory_tokens else None
    around = surroundings(this, inside, length or len(tokens), memory)
    x = embed(this.stem, Below(inside, "stem"), tokens, types, this.width)
    for index, layer in enumerate(this.layers):
        here = f"layers.{index}"
        x = run_layer(layer, Below(inside, here), x, around, f"{path}.{here}", watch)
    return normalize(this.final_norm, inside, "final_norm", x)


def surroundings(stack: StackSpec, weights: Weights, length: int, memory: Matrix | None = None) -> Surroundings:
    """What all layers of a stack share; `weights` are those below the stack."""
    biases = {bias.name: head_bias(bias, Below(weights, f"biases.{bias.name}")) for bias in stack.biases}
    return Surroundings(length=length, biases=biases, memory=memory)


@singledispatch
def embed(stem: Stem, weights: Weights, tokens: Sequence[int], types: Sequence[int], width: int) -> Matrix:
    """The vectors [T][D] that enter the first layer, D = `width`; every kind of stem registers its own."""
    raise AssertionError(f"no reference for {type(stem).__name__}")


@embed.register
def _tokens(stem: TokenStem, weights: Weights, tokens: Sequence[int], types: Sequence[int], width: int) -> Matrix:
    """norm(scale * tokens[id] + positions[p] + types[t]), projected when the stem is narrower than the stack."""
    table = weights["tokens.weight"]
    x = [times(stem.scale, table[token]) for token in tokens]
    if stem.positions is not None:
        x = [add(row, position_vector(stem, weights, position)) for position, row in enumerate(x)]
    if stem.types:
        kinds = types or [0] * len(tokens)
        x = [add(row, weights["types.weight"][kind]) for row, kind in zip(x, kinds, strict=True)]
    x = normalize(stem.norm, weights, "norm", x)
    return linear(weights, "project", x, bias=True) if stem.width != width else x


def position_vector(stem: TokenStem, weights: Weights, position: int) -> Vector:
    """The learned or computed vector of one position."""
    match stem.positions:
        case LearnedPositions(offset=offset):
            row: Vector = weights["positions.weight"][position + offset]
            return row
        case SinusoidalPositions() as sinusoidal:
            return sinusoid(sinusoidal, stem.width, position)
        case _:
            return [0.0] * stem.width


def run_layer(
    layer: LayerSpec, weights: Weights, x: Matrix, around: Surroundings, path: str = "", watch: Watch | None = None
) -> Matrix:
    """x [T][D] through the steps of one layer, in order."""
    for step in layer.steps:
        x = run_step(step, weights, x, around, path, watch)
    return x


def run_step(
    step: Step, weights: Weights, x: Matrix, around: Surroundings, path: str = "", watch: Watch | None = None
) -> Matrix:
    """outer(residual * x + sum over branches of scale * norm_out(mixer(norm(inner(x)))))."""
    first = step.branches[0].name
    entering = normalize(step.inner, weights, f"{first}_inner", x)
    total = [times(step.residual, row) for row in x]
    for branch in step.branches:
        said = run_branch(branch, weights, entering, around, path, watch)
        total = [add(row, words) for row, words in zip(total, said, strict=True)]
    return normalize(step.outer, weights, f"{first}_outer", total)


def run_branch(
    branch: Branch, weights: Weights, x: Matrix, around: Surroundings, path: str = "", watch: Watch | None = None
) -> Matrix:
    """scale * norm_out(mixer(norm(x)))."""
    normed = normalize(branch.norm, weights, f"{branch.name}_norm", x)
    if watch is not None:
        watch(f"{path}.{branch.name}", normed)
    mixed = mix(branch.mixer, Below(weights, branch.name), normed, around)
    mixed = normalize(branch.norm_out, weights, f"{branch.name}_norm_out", mixed)
    if isinstance(branch.scale, LayerScale):
        scale: Vector = weights[f"{branch.name}_scale.weight"]
        return [[factor * value for factor, value in zip(scale, row, strict=True)] for row in mixed]
    return [times(branch.scale, row) for row in mixed]


@singledispatch
def logits(head: Head, weights: Weights, x: Vector) -> Vector:
    """The answers [V] that a head reads from one hidden state; every kind of head registers its own."""
    raise AssertionError(f"no reference for {type(head).__name__}")


@logits.register
def _lm_logits(head: LMHead, weights: Weights, x: Vector) -> Vector:
    """cap * tanh(scale * (W x + b) / cap); no cap leaves scale * (W x + b)."""
    plain = affine(weights["weight"], x, weights["bias"] if head.bias else None)
    return [softcap(head.scale * value, head.softcap) for value in plain]


def worked(
    spec: ModelSpec,
    weights: Weights,
    tokens: Sequence[int],
    layer: int,
    head: int,
    *,
    branch: str = "attention",
    memory_tokens: Sequence[int] = (),
) -> Attended:
    """The worked example of one head in one layer of the decoder, its input computed by the whole model before it."""
    attention_at(spec, layer, branch)
    inputs: dict[str, Matrix] = {}
    hidden(spec, weights, tokens, memory_tokens=memory_tokens, watch=inputs.__setitem__)
    x = inputs[f"stacks.{spec.decoder.name}.layers.{layer}.{branch}"]
    memory = hidden(spec, weights, memory_tokens, stack=spec.decoder.memory) if memory_tokens else None
    return worked_from(spec, weights, x, layer, branch=branch, memory=memory)[head]


def worked_from(
    spec: ModelSpec,
    weights: Weights,
    x: Matrix,
    layer: int,
    *,
    branch: str = "attention",
    length: int = 0,
    memory: Matrix | None = None,
) -> list[Attended]:
    """The worked example of every head of an attention whose normed input is x [T][D], wherever x was computed.

    Only the parameters of that attention (and of the stack's biases) are looked up in `weights`.
    """
    stack, mixer = spec.decoder, attention_at(spec, layer, branch)
    inside = Below(Tied(weights, spec.ties), f"stacks.{stack.name}")
    around = surroundings(stack, inside, length or len(x), memory)
    return attention_steps(mixer, Below(inside, f"layers.{layer}.{branch}"), x, around)


def attention_at(spec: ModelSpec, layer: int, branch: str) -> Attention:
    """The attention in that branch of the decoder's layer, or ValueError with the branches that there are."""
    found = {each.name: each.mixer for each in spec.decoder.layers[layer].branches}
    mixer = found.get(branch)
    if not isinstance(mixer, Attention):
        raise ValueError(f"layer {layer} has no attention called {branch!r}; its branches are {', '.join(found)}")
    return mixer
