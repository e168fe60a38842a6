"""Rows of numbers as sampling takes them: numpy's or torch's on any device, through the array API standard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import array_api_compat
import numpy as np

Array: TypeAlias = Any  # an array of numpy, or a tensor of torch, which this part never imports

__all__ = [
    "Array",
    "array_namespace",
    "copied",
    "ids_like",
    "largest",
    "like",
    "log_softmax",
    "places_of_largest",
    "precise",
]


def array_namespace(x: Array) -> Any:
    """The functions for arrays of this kind: numpy's own follow the standard, torch's through array-api-compat."""
    return np if isinstance(x, np.ndarray) else array_api_compat.array_namespace(x)


def precise(x: Array) -> Array:
    """`x` in float64 (on the CPU where the device has none), so that draws agree between devices."""
    xp = array_namespace(x)
    return xp.astype(array_api_compat.to_device(x, "cpu") if str(x.device).startswith("mps") else x, xp.float64)


def ids_like(values: Sequence[int], x: Array) -> Array:
    """Whole numbers as an array where `x` is."""
    xp = array_namespace(x)
    return xp.asarray(values, dtype=xp.int64, device=x.device)


def like(values: Sequence[float], x: Array) -> Array:
    """Numbers as an array of the type of `x`, where `x` is."""
    return array_namespace(x).asarray(values, dtype=x.dtype, device=x.device)


def copied(x: Array) -> Array:
    """A copy that may be written to."""
    return array_namespace(x).asarray(x, copy=True)


def log_softmax(x: Array) -> Array:
    """Log-probabilities of logits [.., V]."""
    return x - logsumexp(x)


def logsumexp(x: Array) -> Array:
    """[.., 1], the logarithm of the sum of the exponentials of [.., V]."""
    xp = array_namespace(x)
    most = xp.max(x, axis=-1, keepdims=True)
    return most + xp.log(xp.sum(xp.exp(x - most), axis=-1, keepdims=True))


# The standard has no choice of the largest: a partition in numpy, torch's own in torch.


def largest(x: Array, count: int) -> Array:
    """[N, count], the largest of each row of [N, V], best first."""
    if not isinstance(x, np.ndarray):
        return x.topk(count).values
    kept = np.partition(x, x.shape[-1] - count, axis=-1)[..., x.shape[-1] - count :]
    return np.sort(kept, axis=-1)[..., ::-1]


def places_of_largest(x: Array, count: int) -> Array:
    """[N, count], where the largest of each row of [N, V] stand, in no order."""
    if not isinstance(x, np.ndarray):
        return x.topk(count).indices
    return np.argpartition(x, x.shape[-1] - count, axis=-1)[..., x.shape[-1] - count :]
