"""A model as pure data: stacks of layers, a layer as steps, a step as branches that share one residual."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headway.spec.mixers import Mixer
from headway.spec.parts import Init, LayerScale, Norm
from headway.spec.position import Bias
from headway.spec.stems import Head, Stem


@dataclass(frozen=True, kw_only=True)
class Branch:
    """scale * norm_out(mixer(norm(x))); `name` is its place in the layer and in the parameters' paths."""

    name: str
    mixer: Mixer
    norm: Norm | None = None
    norm_out: Norm | None = None
    scale: float | LayerScale = 1.0
    drop: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """x <- outer(residual * x + sum over branches of scale * norm_out(mixer(norm(inner(x))))).

    Pre-norm sets `norm`, post-norm `outer`, a sandwich `norm` and `norm_out`, a parallel layer two branches.
    """

    branches: tuple[Branch, ...]
    inner: Norm | None = None
    outer: Norm | None = None
    residual: float = 1.0


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """The steps of one layer, in order."""

    steps: tuple[Step, ...]

    @property
    def branches(self) -> Iterator[Branch]:
        return (branch for step in self.steps for branch in step.branches)


@dataclass(frozen=True, kw_only=True)
class StackSpec:
    """A stem, layers listed one by one, and a last norm; `biases` are tables that its layers share by name.

    `context` is the longest sequence, in tokens, that the model was made for. `memory` names the stack
    whose output cross-attention reads.
    """

    name: str
    width: int
    context: int
    stem: Stem
    layers: tuple[LayerSpec, ...]
    final_norm: Norm | None = None
    biases: tuple[Bias, ...] = ()
    memory: str = ""


@dataclass(frozen=True, kw_only=True)
class Tie:
    """The parameter (or module) at `alias` is the one at `owner`; the file keeps it once."""

    alias: str
    owner: str


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A whole model. `family` names the file of headway.families that reads and writes its checkpoints."""

    name: str
    family: str
    stacks: tuple[StackSpec, ...]
    heads: tuple[Head, ...]
    ties: tuple[Tie, ...] = ()
    init: Init = field(default_factory=Init)

    def stack(self, name: str) -> StackSpec:
        """The stack of that name."""
        return next(stack for stack in self.stacks if stack.name == name)

    @property
    def decoder(self) -> StackSpec:
        """The stack that the first language-model head reads."""
        return self.stack(self.heads[0].stack)
