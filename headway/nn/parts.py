"""The small modules that layers are made of: projections, norms, scales."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.ops.linear import linear
from headway.ops.norm import layer_norm, rms_norm
from headway.spec.parts import Norm


def parameter(*shape: int) -> nn.Parameter:
    """A parameter without values yet: whoever builds the model fills it."""
    return nn.Parameter(torch.empty(*shape))


class Linear(nn.Module):
    """y = x W^T + b with weight [out, in]."""

    def __init__(self, width: int, out: int, bias: bool) -> None:
        super().__init__()
        self.weight = parameter(out, width)
        self.bias = parameter(out) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Embedding(nn.Module):
    """Row `id` of weight [rows, width]."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = parameter(rows, width)

    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, self.weight)


class LayerNorm(nn.Module):
    """LayerNorm over the last dimensions, whose sizes are `shape`."""

    def __init__(self, spec: Norm, shape: tuple[int, ...]) -> None:
        super().__init__()
        size = torch.Size(shape).numel()
        self.shape, self.eps = shape, spec.eps
        self.weight = parameter(size) if spec.weight else None
        self.bias = parameter(size) if spec.bias else None

    def forward(self, x: Tensor) -> Tensor:
        weight = None if self.weight is None else self.weight.view(self.shape)
        bias = None if self.bias is None else self.bias.view(self.shape)
        return layer_norm(x, self.shape, weight, bias, self.eps)


class RMSNorm(nn.Module):
    """RMSNorm over the last dimensions, whose sizes are `shape`."""

    def __init__(self, spec: Norm, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.eps = shape, spec.eps
        self.weight = parameter(torch.Size(shape).numel()) if spec.weight else None

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.shape, None if self.weight is None else self.weight.view(self.shape), self.eps)


class OffsetRMSNorm(nn.Module):
    """RMSNorm whose weight is kept as a distance from `offset`, added in float32 (Gemma)."""

    def __init__(self, spec: Norm, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.eps, self.offset = shape, spec.eps, spec.offset
        self.weight = parameter(torch.Size(shape).numel())

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.shape, self.weight.float().view(self.shape) + self.offset, self.eps)


def make_norm(spec: Norm, *shape: int) -> nn.Module:
    """The norm that `spec` describes, over last dimensions of these sizes."""
    if spec.kind == "layer":
        return LayerNorm(spec, shape)
    return OffsetRMSNorm(spec, shape) if spec.offset and spec.weight else RMSNorm(spec, shape)


class Scale(nn.Module):
    """x times a fixed number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class RoundedScale(Scale):
    """x times a number that is first rounded to x's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tensor(self.factor, dtype=x.dtype)


class ScaleVector(nn.Module):
    """x times a learned vector [width] (LayerScale)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = parameter(width)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight
