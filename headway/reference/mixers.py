"""What happens inside a branch: one function per kind of mixer, [T][D] in and [T][D] out."""

from __future__ import annotations

from functools import singledispatch
from operator import mul

from headway.reference.arithmetic import ACTIVATIONS, Matrix
from headway.reference.attention import Surroundings, attention
from headway.reference.parameters import Weights, linear
from headway.spec import Attention, FeedForward, Mixer


@singledispatch
def mix(mixer: Mixer, weights: Weights, x: Matrix, around: Surroundings) -> Matrix:
    """The output of `mixer` for x [T][D]; every kind of mixer registers its own."""
    raise AssertionError(f"no reference for {type(mixer).__name__}")


@mix.register
def _attention(mixer: Attention, weights: Weights, x: Matrix, around: Surroundings) -> Matrix:
    return attention(mixer, weights, x, around)


@mix.register
def _feed_forward(mixer: FeedForward, weights: Weights, x: Matrix, around: Surroundings) -> Matrix:
    return feed_forward(mixer, weights, x)


def feed_forward(mixer: FeedForward, weights: Weights, x: Matrix) -> Matrix:
    """down(act(up x)) (arXiv 1706.03762, equation 2), or down(act(gate x) * up x) when gated (arXiv 2002.05202)."""
    act = ACTIVATIONS[mixer.activation]
    up = linear(weights, "up", x, mixer.bias)
    if mixer.gated:
        gate = linear(weights, "gate", x, mixer.bias)
        hidden = [list(map(mul, map(act, opening), row)) for opening, row in zip(gate, up, strict=True)]
    else:
        hidden = [list(map(act, row)) for row in up]
    return linear(weights, "down", hidden, mixer.bias)
