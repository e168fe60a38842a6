"""Memory that a tape's calls share: activations by name, and what changes from step to step at fixed places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

ALIGNMENT = 64


@dataclass(frozen=True)
class Place:
    """One activation of every token: float32 [tokens, size]."""

    array: Floats

    @property
    def address(self) -> int:
        """Of the first token's numbers."""
        return self.array.ctypes.data

    @property
    def size(self) -> int:
        """Numbers of one token, and floats from one token to the next."""
        return self.array.shape[1]


class Places:
    """Activations by name and size; the memory of tokens that never come is never touched."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._made: dict[tuple[str, int], Place] = {}

    def __call__(self, name: str, size: int) -> Place:
        """The place of that name and size, made when it is first asked for."""
        if (name, size) not in self._made:
            self._made[name, size] = Place(aligned((self.tokens, size), np.float32))
        return self._made[name, size]


class Inputs:
    """What a step is told: its tokens, where each stands, and whose logits are wanted."""

    def __init__(self, tokens: int) -> None:
        self.n, self.kept = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self.ids, self.types, self.positions, self.rows, self.first, self.index = np.zeros((6, tokens), np.int32)
        self.lengths = np.zeros(tokens, np.int32)  # of each cache row, the step's tokens included
        self.order = np.arange(tokens, dtype=np.int32)


def aligned(shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    """An array without values that starts at a multiple of ALIGNMENT bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)
