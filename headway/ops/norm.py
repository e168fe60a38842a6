"""LayerNorm and RMSNorm over the last dimensions, computed in float32 whatever the input."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def layer_norm(
    x: Float[Tensor, "*any"],
    shape: tuple[int, ...],
    weight: Float[Tensor, "*shape"] | None,
    bias: Float[Tensor, "*shape"] | None,
    eps: float,
) -> Float[Tensor, "*any"]:
    """(x - mean) / sqrt(var + eps) * weight + bias over the dimensions `shape` (arXiv 1607.06450)."""
    if weight is not None and weight.dtype != x.dtype:
        bias = None if bias is None else bias.float()
        return F.layer_norm(x.float(), shape, weight.float(), bias, eps).to(x.dtype)
    return F.layer_norm(x, shape, weight, bias, eps)


# Where RMSNorm is no single kernel it is a dozen small ones: up to so many rows their overhead is the whole cost.
FEW_ROWS = 8
FUSED = ("cuda", "mps")


def rms_norm(
    x: Float[Tensor, "*any"], shape: tuple[int, ...], weight: Float[Tensor, "*shape"] | None, eps: float
) -> Float[Tensor, "*any"]:
    """x / sqrt(mean(x^2) + eps) * weight over the dimensions `shape` (arXiv 1910.07467, equation 4).

    A weight of another dtype than x multiplies in float32, before the result is rounded to x's dtype.
    """
    if len(shape) == 1 and x.device.type not in FUSED and x.numel() <= FEW_ROWS * shape[0]:
        return _of_few_rows(x, weight, eps)
    if x.dtype == torch.float32 or (weight is not None and weight.dtype == x.dtype):
        return F.rms_norm(x, shape, None if weight is None else weight.to(x.dtype), eps)
    return F.rms_norm(x.float(), shape, None if weight is None else weight.float(), eps).to(x.dtype)


def _of_few_rows(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """[x, -x] has mean 0 and variance mean(x^2), so that LayerNorm's one fused kernel answers for RMSNorm."""
    wide = x.float() if weight is not None and weight.dtype != x.dtype else x
    both = torch.cat([wide, -wide], dim=-1)
    normed = F.layer_norm(both, both.shape[-1:], None, None, eps)[..., : x.shape[-1]]
    return normed if weight is None else (normed * weight).to(x.dtype)
