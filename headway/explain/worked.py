"""The worked example: one attention head by hand, in plain Python, beside the numbers of the real network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headway import reference
from headway.batch import Batch
from headway.errors import RequestError
from headway.explain.tokens import Token, label
from headway.nn.taps import Record
from headway.nn.transformer import Transformer
from headway.ops.attention import Scoring, backend
from headway.reference.arithmetic import Matrix, affine
from headway.reference.attention import join
from headway.reference.model import surroundings
from headway.reference.parameters import Below, linear, normalize
from headway.spec.mixers import Attention
from headway.spec.model import Branch, StackSpec, Step
from headway.spec.position import Bias
from headway.text.tokenizer import Tokenizer

TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 4e-3}


@dataclass(frozen=True, kw_only=True)
class WorkedStep:
    """One step of the calculation: a row for each token.

    `fast` are the network's own numbers, None where it never forms them: a kernel does several steps in one.
    """

    key: str  # what `headway.explain.words` explains
    exact: Matrix  # plain Python, double precision
    fast: Matrix | None

    @property
    def difference(self) -> float | None:
        """The largest absolute difference of the two; None where there is only one."""
        return None if self.fast is None else largest_difference(self.exact, self.fast)

    @property
    def size(self) -> float:
        """The largest absolute value, infinities left out."""
        return max((abs(value) for row in self.exact for value in row if math.isfinite(value)), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Worked:
    """The worked example of one head. Every step follows from those above it and the weights of the model."""

    tokens: tuple[Token, ...]
    stack: str
    layer: int
    branch: str
    head: int
    kv_head: int  # the key head that this query head reads
    mixer: Attention
    step: Step
    bias: Bias | None
    dtype: str  # the network's
    backend: str  # what computes attention there
    angles: tuple[float, ...]  # radians that one token turns each pair by; empty without rotation
    steps: tuple[WorkedStep, ...]

    def __getitem__(self, key: str) -> WorkedStep:
        """The step of that key; KeyError where this attention has no such step."""
        for step in self.steps:
            if step.key == key:
                return step
        raise KeyError(key)

    @property
    def difference(self) -> float:
        """The largest absolute difference between plain Python and the network over all steps."""
        return max(step.difference for step in self.steps if step.difference is not None)

    @property
    def tolerance(self) -> float:
        """The largest difference that rounding explains, for values up to 1; larger values have more."""
        return TOLERANCES[self.dtype]

    @property
    def agrees(self) -> bool:
        """Whether rounding explains every difference."""
        return all(
            step.difference <= self.tolerance * max(1.0, step.size)
            for step in self.steps
            if step.difference is not None
        )


def worked_example(
    network: Transformer,
    ids: Sequence[int],
    *,
    layer: int = 0,
    head: int = 0,
    branch: str = "",
    tokenizer: Tokenizer | None = None,
) -> Worked:
    """Work through one head of one layer's attention for the token ids of a text.

    What enters the layer is the network's; from there on plain Python (`headway.reference`) computes every step in
    double precision from the same weights. `branch` is needed only where a layer has several attentions.
    RequestError for a layer, head or branch that is not there, or no tokens.
    """
    stack = network.spec.decoder
    step, part = _find(stack, layer, branch)
    mixer = part.mixer
    assert isinstance(mixer, Attention)
    if not 0 <= head < mixer.heads:
        raise RequestError(f"head = {head} is not there; layer {layer} has heads 0 to {mixer.heads - 1}")
    if not ids:
        raise RequestError("the text has no tokens; give at least one word")
    place = _Place(stack=stack, layer=layer, step=step, branch=part, mixer=mixer, head=head)
    fast = _observe(network, place, ids)
    exact = dict(_by_hand(network, place, fast.entering.double().tolist()))
    rope = mixer.rope
    return Worked(
        tokens=label(tokenizer, ids),
        stack=stack.name,
        layer=layer,
        branch=part.name,
        head=head,
        kv_head=place.kv_head,
        mixer=mixer,
        step=step,
        bias=next((bias for bias in stack.biases if bias.name == mixer.bias), None),
        dtype=str(network.dtype).removeprefix("torch."),
        backend=backend(Scoring(mixer.scale, mixer.softcap), mixer.sinks, watched=False),
        angles=tuple(reference.rope_frequencies(rope, len(ids))) if rope else (),
        steps=tuple(
            WorkedStep(key=key, exact=values, fast=_rows(fast.values.get(key))) for key, values in exact.items()
        ),
    )


def largest_difference(one: Matrix, other: Matrix) -> float:
    """The largest |a - b|; equal infinities do not differ, and NaN differs from everything."""
    pairs = [(a, b) for row, line in zip(one, other, strict=True) for a, b in zip(row, line, strict=True)]
    gaps = [0.0 if a == b else abs(a - b) for a, b in pairs]
    return max((math.inf if math.isnan(gap) else gap for gap in gaps), default=0.0)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Which head of which attention."""

    stack: StackSpec
    layer: int
    step: Step
    branch: Branch
    mixer: Attention
    head: int

    @property
    def kv_head(self) -> int:
        return self.head // (self.mixer.heads // self.mixer.kv_heads)

    @property
    def layer_path(self) -> str:
        return f"stacks.{self.stack.name}.layers.{self.layer}"

    @property
    def path(self) -> str:
        return f"{self.layer_path}.{self.branch.name}"

    @property
    def inner(self) -> str:
        """The name of the norm that all branches of the step share."""
        return f"{self.step.branches[0].name}_inner"


def _find(stack: StackSpec, layer: int, branch: str) -> tuple[Step, Branch]:
    if not 0 <= layer < len(stack.layers):
        raise RequestError(f"layer = {layer} is not there; the model has layers 0 to {len(stack.layers) - 1}")
    found = [
        (step, part)
        for step in stack.layers[layer].steps
        for part in step.branches
        if isinstance(part.mixer, Attention) and branch in ("", part.name)
    ]
    if not found:
        names = ", ".join(part.name for part in stack.layers[layer].branches)
        what = f"called {branch}" if branch else "at all"
        raise RequestError(f"layer {layer} has no attention {what}; its branches are {names}")
    return found[0]


# The network's side


@dataclass(frozen=True)
class _Fast:
    """What the network computed: what enters the step [T, D], and steps by key [T, n]."""

    entering: Tensor
    values: dict[str, Tensor]


@torch.inference_mode()
def _observe(network: Transformer, place: _Place, ids: Sequence[int]) -> _Fast:
    """Two forwards: one on the fast path as it always runs, one that shows its scores and weights."""
    batch = Batch.of([ids], device=network.device)
    plain = Record(*(f"{place.path}.{site}" for site in ("queries", "keys", "mixed", "output")))
    watched = Record(f"{place.path}.scores", f"{place.path}.weights")
    with _Hooks(network) as hooks:
        entering = hooks.entering(place)
        inputs = hooks.into(place.path)
        q, k, v = (hooks.out_of(f"{place.path}.{name}") for name in "qkv")
        q_norm, k_norm = (hooks.out_of(f"{place.path}.{name}") for name in ("q_norm", "k_norm"))
        network(batch, keep="none", tap=plain)
    network(batch, keep="none", tap=watched)
    mixer, head, kv_head = place.mixer, place.head, place.kv_head
    seen = {path.removeprefix(f"{place.path}."): x[0] for path, x in {**plain.seen, **watched.seen}.items()}
    values = {
        "normed": inputs[0][0],
        "q": _slice(q[0], head, mixer.head_dim),
        "k": _slice(k[0], kv_head, mixer.head_dim),
        "v": _slice(v[0], kv_head, mixer.value_dim),
        "q_normed": q_norm[0][0, :, head],
        "k_normed": k_norm[0][0, :, kv_head],
        "q_turned": seen["queries"][head],
        "k_turned": seen["keys"][kv_head],
        "masked": seen["scores"][head],
        "weights": seen["weights"][head],
        "mixed": seen["mixed"][head],
        "output": seen["output"],
    }
    return _Fast(entering[0][0], values)


def _slice(x: Tensor, head: int, size: int) -> Tensor:
    """One head's [T, size] of a projection [1, T, heads * size]."""
    return x[0, :, head * size : (head + 1) * size]


class _Hooks(ExitStack):
    """Reads what goes into and comes out of modules, until it is closed."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self._network = network

    def out_of(self, path: str) -> list[Tensor]:
        """What the module at `path` will have returned."""
        seen: list[Tensor] = []
        module = self._network.get_submodule(path)
        self.callback(module.register_forward_hook(lambda _module, _args, out: seen.append(out)).remove)
        return seen

    def into(self, path: str) -> list[Tensor]:
        """What the module at `path` will have been given first."""
        seen: list[Tensor] = []
        module = self._network.get_submodule(path)
        self.callback(module.register_forward_pre_hook(lambda _module, args: seen.append(args[0])).remove)
        return seen

    def entering(self, place: _Place) -> list[Tensor]:
        """What will have entered the first norm before the mixer, or the mixer itself."""
        norms = ((place.step.inner, place.inner), (place.branch.norm, f"{place.branch.name}_norm"))
        first = next((name for norm, name in norms if norm is not None), place.branch.name)
        return self.into(f"{place.layer_path}.{first}")


def _rows(x: Tensor | None) -> Matrix | None:
    return None if x is None else x.double().tolist()


# Plain Python's side


class _Weights(Mapping[str, Any]):
    """The network's parameters as nested lists, each made when it is first asked for."""

    def __init__(self, network: Transformer) -> None:
        self._parameters = dict(network.named_parameters(remove_duplicate=False))
        self._lists: dict[str, Any] = {}

    def __getitem__(self, path: str) -> Any:
        if path not in self._lists:
            self._lists[path] = self._parameters[path].detach().double().tolist()
        return self._lists[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


def _by_hand(network: Transformer, place: _Place, entering: Matrix) -> Iterator[tuple[str, Matrix]]:
    """Every step by its key, in order, from what enters the layer."""
    mixer, head, kv_head = place.mixer, place.head, place.kv_head
    weights = _Weights(network)
    layer, own = Below(weights, place.layer_path), Below(weights, place.path)
    yield "input", entering
    x = normalize(place.step.inner, layer, place.inner, entering)
    x = normalize(place.branch.norm, layer, f"{place.branch.name}_norm", x)
    if place.step.inner or place.branch.norm:
        yield "normed", x
    raw = reference.project(mixer, own, x)
    yield "q", raw.q[head]
    yield "k", raw.k[kv_head]
    yield "v", raw.v[kv_head]
    around = surroundings(place.stack, Below(weights, f"stacks.{place.stack.name}"), len(x))
    if mixer.qk_norm is not None:
        normed = reference.place(replace(mixer, rope=None), own, raw, around)
        yield "q_normed", normed.q[head]
        yield "k_normed", normed.k[kv_head]
    heads = reference.attention_steps(mixer, own, x, around)
    yield from _head_steps(mixer, heads[head])
    o = own["o.weight"]
    start = head * mixer.value_dim
    share = [row[start : start + mixer.value_dim] for row in o]
    yield "share", [affine(share, row) for row in heads[head].output]
    yield "output", linear(own, "o", join([each.output for each in heads]), "o" in mixer.biases)


def _head_steps(mixer: Attention, steps: reference.Attended) -> Iterator[tuple[str, Matrix]]:
    """From rotation to the weighted sum; steps that this attention has not are left out."""
    if mixer.rope is not None:
        yield "q_turned", steps.q
        yield "k_turned", steps.k
    yield "scores", steps.scores
    yield "scaled", steps.scaled
    if mixer.softcap:
        yield "capped", steps.capped
    if mixer.bias:
        yield "biased", steps.biased
    yield "masked", steps.masked
    yield "weights", steps.weights
    yield "mixed", steps.output
