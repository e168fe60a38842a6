"""From vectors to answers."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.nn.parts import Linear
from headway.spec.stems import LMHead as LMHeadSpec


class LMHead(Linear):
    """Logits over the vocabulary, float32: softcap(scale * (W x + b))."""

    def __init__(self, spec: LMHeadSpec, width: int) -> None:
        super().__init__(width, spec.vocab, spec.bias)
        self.spec = spec

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x).float()
        if self.spec.scale != 1.0:
            logits = logits * self.spec.scale
        return logits


class CappedLMHead(LMHead):
    """Logits kept within the cap: cap * tanh(logits / cap) (Gemma 2)."""

    def forward(self, x: Tensor) -> Tensor:
        return self.spec.softcap * torch.tanh(super().forward(x) / self.spec.softcap)


def make_head(spec: LMHeadSpec, width: int) -> LMHead:
    """The plain or the capped kind."""
    return (CappedLMHead if spec.softcap else LMHead)(spec, width)
