"""The torch types that weights may have, beside the names that files give them."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.loader.report import dtype_name

DTYPES: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float32,
}
SAFETENSORS_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """float32, float16 or bfloat16 from a name or a torch dtype; SpecError for another."""
    return DTYPES[dtype_name(dtype)]


def bits(tensor: Tensor) -> NDArray[Any]:
    """The tensor's memory as a numpy array of its storage type (half precision as uint16)."""
    return (tensor.view(torch.uint16) if tensor.itemsize == 2 else tensor).numpy()
