"""y = x W^T + b, in the arithmetic that the machine is fast at."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# From so many rows on, widening the weights to float32 costs less than a matrix product in half precision.
WIDEN_ROWS = 8


@lru_cache
def has_half_matmul() -> bool:
    """Whether this CPU multiplies bfloat16 matrices in hardware (AMX or AVX-512 BF16)."""
    capability = torch.backends.cpu.get_cpu_capability()
    flags = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return bool(flags) and "AVX512" in capability


def linear(
    x: Float[Tensor, "*any in"], weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None = None
) -> Float[Tensor, "*any out"]:
    """x W^T + b in x's dtype.

    On a CPU without half-precision matrix hardware many rows of float16 or bfloat16 are multiplied in
    float32, which is faster there and no less exact; a few rows are bound by reading the weights.
    """
    if x.numel() == weight.shape[1] and weight.dtype == x.dtype:
        # One row: the product of a matrix and a vector goes straight to its kernel.
        row = x.view(-1)
        return (torch.mv(weight, row) if bias is None else torch.addmv(bias, weight, row)).view(*x.shape[:-1], -1)
    if weight.dtype != x.dtype:
        return F.linear(x.to(weight.dtype), weight, None if bias is None else bias.to(weight.dtype)).to(x.dtype)
    if (
        x.dtype != torch.float32
        and x.device.type == "cpu"
        and x[..., 0].numel() >= WIDEN_ROWS
        and not has_half_matmul()
    ):
        return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)
    return F.linear(x, weight, bias)
