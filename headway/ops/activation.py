"""The activations of feed-forward layers, by their name in the spec."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation (arXiv 1606.08415, section 2)."""
    return F.gelu(x, approximate="tanh")


def gelu_quick(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 x), CLIP's and GPT-1's shortcut."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_quick": gelu_quick,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
