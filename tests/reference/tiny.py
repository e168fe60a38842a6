"""A tiny decoder for tests of the reference: unequal sizes, two windows, seeded weights."""

from __future__ import annotations

import random
from typing import Any

from headway.spec import (
    Attention,
    Branch,
    FeedForward,
    LayerSpec,
    LMHead,
    Mask,
    ModelSpec,
    Norm,
    Rope,
    StackSpec,
    Step,
    TokenStem,
    check,
)
from headway.spec.count import shapes

VOCAB, WIDTH = 31, 12
NORM = Norm(kind="rms", eps=1e-6)


def attention(**fields: Any) -> Attention:
    """Grouped queries whose values are narrower than their keys, unless `fields` say otherwise."""
    plain = {"heads": 4, "kv_heads": 2, "head_dim": 6, "value_dim": 5, "scale": 0.5, "mask": Mask.causal()}
    return Attention(**{**plain, **fields})


def layer(mixer: Attention) -> LayerSpec:
    """A pre-norm layer of attention and SwiGLU."""
    feed_forward = FeedForward(hidden=17, activation="silu", gated=True)
    return LayerSpec(
        steps=(
            Step(branches=(Branch(name="attention", mixer=mixer, norm=NORM),)),
            Step(branches=(Branch(name="feed_forward", mixer=feed_forward, norm=NORM),)),
        )
    )


def decoder(*layers: LayerSpec, stem: TokenStem | None = None, **fields: Any) -> ModelSpec:
    """A language model of these layers, or of a windowed and a global one."""
    rope = Rope(dim=4, base=100.0)
    usual = (layer(attention(mask=Mask.causal(3), rope=rope)), layer(attention(rope=rope)))
    stack = StackSpec(
        name="decoder",
        width=WIDTH,
        context=64,
        stem=stem or TokenStem(vocab=VOCAB, width=WIDTH),
        layers=layers or usual,
        final_norm=NORM,
        **fields,
    )
    head = LMHead(name="lm", stack="decoder", vocab=VOCAB)
    return check(ModelSpec(name="tiny", family="tiny", stacks=(stack,), heads=(head,)))


def weights_for(spec: ModelSpec, seed: int = 1) -> dict[str, Any]:
    """Random nested lists for every parameter of `spec`."""
    dice = random.Random(seed)

    def filled(shape: tuple[int, ...]) -> Any:
        if not shape:
            return dice.gauss(0.0, 0.4)
        return [filled(shape[1:]) for _ in range(shape[0])]

    return {path: filled(shape) for path, shape in shapes(spec).items()}
