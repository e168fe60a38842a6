"""Tokens to vectors: embedding, positions, types, norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.batch import Batch
from headway.nn.parts import Embedding, Linear, RoundedScale, Scale, make_norm
from headway.spec.position import LearnedPositions, SinusoidalPositions
from headway.spec.stems import TokenStem as TokenStemSpec


class TokenStem(nn.Module):
    """x = norm(scale * tokens[id] + positions[p] + types[t]), projected to the stack's width if it differs."""

    def __init__(self, spec: TokenStemSpec, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.tokens = Embedding(spec.vocab, spec.width)
        self._scale: tuple[nn.Module, ...] = ()
        if spec.scale != 1.0:
            self._scale = (RoundedScale(spec.scale) if spec.round_scale else Scale(spec.scale),)
        self._added: list[nn.Module] = []
        if isinstance(spec.positions, LearnedPositions):
            self.positions = LearnedTable(spec.positions, spec.width)
            self._added.append(self.positions)
        elif isinstance(spec.positions, SinusoidalPositions):
            self._added.append(SinusoidalTable(spec.positions, spec.width))
        if spec.types:
            self.types = TypeTable(spec.types, spec.width)
            self._added.append(self.types)
        self._after: list[nn.Module] = []
        if spec.norm is not None:
            self.norm = make_norm(spec.norm, spec.width)
            self._after.append(self.norm)
        if spec.drop:
            self.drop = nn.Dropout(spec.drop)
            self._after.append(self.drop)
        if spec.width != width:
            self.project = Linear(spec.width, width, bias=True)
            self._after.append(self.project)

    def forward(self, batch: Batch) -> Tensor:
        x = self.tokens(batch.tokens)
        for scale in self._scale:
            x = scale(x)
        for table in self._added:
            x = x + table(batch).to(x.dtype)
        for module in self._after:
            x = module(x)
        return x


class LearnedTable(nn.Module):
    """Row p + offset of a learned table."""

    def __init__(self, spec: LearnedPositions, width: int) -> None:
        super().__init__()
        self.offset = spec.offset
        self.weight = nn.Parameter(torch.empty(spec.length + spec.offset, width))

    def forward(self, batch: Batch) -> Tensor:
        return nn.functional.embedding(batch.positions + self.offset, self.weight)


class SinusoidalTable(nn.Module):
    """Sines and cosines of the position ("Attention Is All You Need", section 3.5), float32."""

    def __init__(self, spec: SinusoidalPositions, width: int) -> None:
        super().__init__()
        self.spec, self.width = spec, width

    def forward(self, batch: Batch) -> Tensor:
        exponent = torch.arange(0, self.width, 2, dtype=torch.float64, device=batch.positions.device) / self.width
        angles = (batch.positions + self.spec.offset)[..., None] * self.spec.base**-exponent
        waves = angles.sin(), angles.cos()
        order = torch.cat(waves, dim=-1) if self.spec.layout == "half" else torch.stack(waves, dim=-1).flatten(-2)
        return order[..., : self.width].float()  # an odd width has one cosine less


class TypeTable(nn.Module):
    """The row of a token's type; type 0 where the batch names none."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, batch: Batch) -> Tensor:
        types = torch.zeros_like(batch.tokens) if batch.types is None else batch.types
        return nn.functional.embedding(types, self.weight)
