"""The feed-forward inside one token: plain, or gated."""

from __future__ import annotations

from torch import Tensor, nn

from headway.nn.frame import Frame
from headway.nn.parts import Linear
from headway.ops.activation import ACTIVATIONS
from headway.spec.mixers import FeedForward as FeedForwardSpec


class FeedForward(nn.Module):
    """down(act(up x)), B T D -> B T D."""

    def __init__(self, spec: FeedForwardSpec, width: int, path: str) -> None:
        super().__init__()
        self.spec, self.path = spec, path
        self.activation = ACTIVATIONS[spec.activation]
        self.up = Linear(width, spec.hidden, spec.bias)
        self.down = Linear(spec.hidden, width, spec.bias)

    def forward(self, x: Tensor, frame: Frame) -> Tensor:
        inner = frame.tap(f"{self.path}.activations", self.inner(x))
        return frame.tap(f"{self.path}.output", self.down(inner))

    def inner(self, x: Tensor) -> Tensor:
        """The hidden activations, B T F."""
        return self.activation(self.up(x))


class GatedFeedForward(FeedForward):
    """down(act(gate x) * up x) (arXiv 2002.05202)."""

    def __init__(self, spec: FeedForwardSpec, width: int, path: str) -> None:
        super().__init__(spec, width, path)
        self.gate = Linear(width, spec.hidden, spec.bias)

    def inner(self, x: Tensor) -> Tensor:
        return self.activation(self.gate(x)) * self.up(x)


def make_feed_forward(spec: FeedForwardSpec, width: int, path: str) -> FeedForward:
    """The plain or the gated kind."""
    return (GatedFeedForward if spec.gated else FeedForward)(spec, width, path)
