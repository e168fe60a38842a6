"""A stem, its layers one by one, and a last norm."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor, nn

from headway.nn.attention import AdditiveBias, Attention
from headway.nn.block import Block
from headway.nn.feed_forward import make_feed_forward
from headway.nn.frame import Frame
from headway.nn.parts import make_norm
from headway.nn.stem import TokenStem
from headway.spec.mixers import Attention as AttentionSpec
from headway.spec.mixers import FeedForward as FeedForwardSpec
from headway.spec.mixers import Mixer
from headway.spec.model import StackSpec


class Stack(nn.Module):
    """B T token ids -> B T D hidden states."""

    def __init__(self, spec: StackSpec) -> None:
        super().__init__()
        self.spec, self.path = spec, f"stacks.{spec.name}"
        self.stem = TokenStem(spec.stem, spec.width)
        biases = {bias.name: AdditiveBias(bias) for bias in spec.biases}
        self.biases = nn.ModuleDict(biases)
        self.layers = nn.ModuleList(
            Block(layer, spec.width, f"{self.path}.layers.{index}", partial(make_mixer, biases))
            for index, layer in enumerate(spec.layers)
        )
        self.final_norm = nn.Identity() if spec.final_norm is None else make_norm(spec.final_norm, spec.width)

    def forward(self, frame: Frame) -> Tensor:
        x = frame.tap(f"{self.path}.stem.output", self.stem(frame.batch))
        for layer in self.layers:
            x = layer(x, frame)
        return frame.tap(f"{self.path}.output", self.final_norm(x))


def make_mixer(biases: Mapping[str, AdditiveBias], spec: Mixer, width: int, path: str) -> nn.Module:
    """The module of a mixer's spec: one line for every kind."""
    match spec:
        case AttentionSpec():
            return Attention(spec, width, path, biases.get(spec.bias))
        case FeedForwardSpec():
            return make_feed_forward(spec, width, path)
