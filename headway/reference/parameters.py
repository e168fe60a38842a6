"""Parameters by path, tied ones found at their owner, and the two layers that every part uses: linear and norm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headway.reference.arithmetic import Matrix, Vector, add, affine, rms_normalize, standardize
from headway.spec import Norm, Tie

Weights = Mapping[str, Any]  # path -> nested lists: a vector [n] or a matrix [out][in]


class Tied(Mapping[str, Any]):
    """`weights` with the paths of tied parameters and modules answered by their owners."""

    def __init__(self, weights: Weights, ties: Sequence[Tie]) -> None:
        self._weights = weights
        self._ties = ties

    def __getitem__(self, path: str) -> Any:
        for tie in self._ties:
            if path == tie.alias or path.startswith(tie.alias + "."):
                return self[tie.owner + path.removeprefix(tie.alias)]
        return self._weights[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


class Below(Mapping[str, Any]):
    """The part of `weights` below one path: `Below(weights, "layers.3")["attention.q.weight"]`."""

    def __init__(self, weights: Weights, path: str) -> None:
        self._weights = weights
        self._start = f"{path}."

    def __getitem__(self, name: str) -> Any:
        return self._weights[self._start + name]

    def __iter__(self) -> Iterator[str]:
        return (path.removeprefix(self._start) for path in self._weights if path.startswith(self._start))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def linear(weights: Weights, path: str, x: Matrix, bias: bool) -> Matrix:
    """W x + b of every row of x, with the weight and bias below `path`."""
    weight, shift = weights[f"{path}.weight"], weights[f"{path}.bias"] if bias else None
    return [affine(weight, row, shift) for row in x]


def normalize(norm: Norm | None, weights: Weights, path: str, x: Matrix) -> Matrix:
    """normed(x) * (weight + offset) + bias of every row of x; no norm leaves x as it is."""
    if norm is None:
        return x
    plain = standardize if norm.kind == "layer" else rms_normalize
    y = [plain(row, norm.eps) for row in x]
    if norm.weight:
        gain: Vector = [weight + norm.offset for weight in weights[f"{path}.weight"]]
        y = [[value * factor for value, factor in zip(row, gain, strict=True)] for row in y]
    if norm.bias:
        y = [add(row, weights[f"{path}.bias"]) for row in y]
    return y
