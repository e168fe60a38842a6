"""Additive biases on attention scores: ALiBi's slopes, T5's distance buckets."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.ops.tables import alibi_slopes
from headway.spec.position import Alibi, BucketBias


def alibi(spec: Alibi, positions: Int[Tensor, "B T"], key_positions: Int[Tensor, "#B S"]) -> Float[Tensor, "B H T S"]:
    """-slope * |distance|, float32."""
    distance = (key_positions[:, None, :] - positions[:, :, None]).abs().float()
    slopes = torch.tensor(alibi_slopes(spec), device=positions.device)
    return -slopes[None, :, None, None] * distance[:, None]


def buckets(spec: BucketBias, distance: Int[Tensor, "*any"]) -> Int[Tensor, "*any"]:
    """Bucket of each `key_position - query_position`: exact for the near half, logarithmic up to max_distance."""
    count, start = spec.buckets, torch.zeros_like(distance)
    if spec.bidirectional:
        count //= 2
        start = (distance > 0).long() * count
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = count // 2
    far = torch.log(distance.clamp(min=1).float() / exact) / math.log(spec.max_distance / exact) * (count - exact)
    far = (exact + far.long()).clamp(max=count - 1)
    return start + torch.where(distance < exact, distance, far)


def bucketed(
    spec: BucketBias,
    table: Float[Tensor, "buckets H"],
    positions: Int[Tensor, "B T"],
    key_positions: Int[Tensor, "#B S"],
) -> Float[Tensor, "B H T S"]:
    """The table's number for the bucket of every distance, float32."""
    distance = key_positions[:, None, :] - positions[:, :, None]
    return table.float()[buckets(spec, distance)].permute(0, 3, 1, 2)
