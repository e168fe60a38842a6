"""Where one mixer keeps its past: every token in a row, or a ring of the last ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.cache.step import Step
from headway.spec.state import KeyValueState, State


@dataclass(frozen=True)
class Keys:
    """The keys that one forward reads from a slot: S of them, and where each stands.

    `order` says what even rows need no mask for: "all" keys are past or present of a single query,
    "square" the keys are the queries themselves. Else `positions` ([1|B, S], -1 is no key) decides.
    """

    order: str  # "all", "square" or "positions"
    positions: Tensor


class Slot(ABC):
    """The past of one mixer. Its cache gives it the clock; it never counts by itself."""

    @abstractmethod
    def update(self, k: Tensor, v: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Keep k [B, K, T, E] and v [B, K, T, Ev]; return all keys and values that the new tokens may read."""

    @abstractmethod
    def keys(self, step: Step) -> Keys:
        """Where the keys that `update` returns for this step stand."""

    @abstractmethod
    def key(self) -> Hashable:
        """Equal for slots whose `keys` are equal, so that one forward works them out once."""

    @abstractmethod
    def can_truncate(self, length: int, to: int) -> bool:
        """Whether a row of `length` tokens can go back to its first `to`."""

    @abstractmethod
    def reserve(self, capacity: int) -> None:
        """Make room for rows of `capacity` tokens."""

    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """Everything kept, rows first."""

    @abstractmethod
    def replace(self, tensors: Sequence[Tensor]) -> None:
        """Put these in place of `tensors()`."""

    @property
    def nbytes(self) -> int:
        """Bytes of the kept tensors."""
        return sum(tensor.nbytes for tensor in self.tensors())


class KeyValueSlot(Slot):
    """Keys [B, K, room, E] and values [B, K, room, Ev] in two tensors."""

    def __init__(self, state: KeyValueState, rows: int, room: int, dtype: torch.dtype, device: torch.device) -> None:
        self.state = state
        # Zeros, since a masked key still meets its weight 0, and 0 * NaN is NaN.
        self.k = torch.zeros(rows, state.kv_heads, room, state.head_dim, dtype=dtype, device=device)
        self.v = torch.zeros(rows, state.kv_heads, room, state.value_dim, dtype=dtype, device=device)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.k, self.v

    def replace(self, tensors: Sequence[Tensor]) -> None:
        self.k, self.v = tensors

    def _grow(self, room: int) -> None:
        if room > self.k.shape[2]:
            missing = room - self.k.shape[2]
            self.k = torch.nn.functional.pad(self.k, (0, 0, 0, missing))
            self.v = torch.nn.functional.pad(self.v, (0, 0, 0, missing))

    def _scatter(self, k: Tensor, v: Tensor, sources: tuple[Tensor, Tensor], places: Tensor) -> None:
        rows, columns = sources
        self.k[rows, :, places] = k[rows, :, columns]
        self.v[rows, :, places] = v[rows, :, columns]


class ContiguousSlot(KeyValueSlot):
    """Every token at its own place; a row's padding never enters."""

    def update(self, k: Tensor, v: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        longest = max(step.ends)
        if step.even:
            start = step.starts[0]
            self.k[:, :, start:longest] = k
            self.v[:, :, start:longest] = v
        else:
            self._scatter(k, v, step.sources, step.places)
        return self.k[:, :, :longest], self.v[:, :, :longest]

    def keys(self, step: Step) -> Keys:
        places = torch.arange(max(step.ends), device=self.k.device)[None]
        if not step.even:
            return Keys("positions", torch.where(places < step.end_column(), places, -1))
        if step.batch.width == 1:
            return Keys("all", places)
        return Keys("positions" if step.starts[0] else "square", places)

    def key(self) -> Hashable:
        return "contiguous"

    def can_truncate(self, length: int, to: int) -> bool:
        return to <= length

    def reserve(self, capacity: int) -> None:
        self._grow(capacity)


class WindowSlot(KeyValueSlot):
    """A ring of the last `window` tokens: the token at place p lies at p mod window."""

    def __init__(
        self, state: KeyValueState, window: int, rows: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(state, rows, min(window, capacity), dtype, device)
        self.window = window

    @property
    def room(self) -> int:
        """Tokens that the ring holds now; below the window while the capacity is."""
        return self.k.shape[2]

    def update(self, k: Tensor, v: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        if step.batch.width == 1:
            self._keep(k, v, step)
            return self._filled(step)
        old = max(step.starts)
        past_k, past_v = self.k[:, :, : min(old, self.room)], self.v[:, :, : min(old, self.room)]
        seen = torch.cat([past_k, k], dim=2), torch.cat([past_v, v], dim=2)
        self._keep(k, v, step)
        return seen

    def keys(self, step: Step) -> Keys:
        device = self.k.device
        if step.batch.width == 1:
            places = self._ring(step.end_column(), min(max(step.ends), self.room), device)
            return Keys("all" if step.even else "positions", places)
        places = self._ring(step.start_column(), min(max(step.starts), self.room), device)
        order = "square" if step.even and not max(step.starts) else "positions"
        return Keys(order, torch.cat([places, step.new_positions], dim=1))

    def key(self) -> Hashable:
        return "window", self.window

    def can_truncate(self, length: int, to: int) -> bool:
        return to <= length and (length <= self.room or to in (0, length))

    def reserve(self, capacity: int) -> None:
        # A ring shorter than the window has not turned yet, so places stay where they are.
        self._grow(min(self.window, capacity))

    def _ring(self, ends: Tensor, count: int, device: torch.device) -> Tensor:
        """Which place each of the first `count` cells holds when rows have `ends` [B, 1] tokens; -1 for none."""
        cells = torch.arange(count, device=device)[None]
        places = ends - 1 - (ends - 1 - cells) % self.room
        return torch.where(places >= 0, places, -1)

    def _filled(self, step: Step) -> tuple[Tensor, Tensor]:
        count = min(max(step.ends), self.room)
        return self.k[:, :, :count], self.v[:, :, :count]

    def _keep(self, k: Tensor, v: Tensor, step: Step) -> None:
        if step.even and step.batch.width == 1:
            place = step.starts[0] % self.room
            self.k[:, :, place : place + 1] = k
            self.v[:, :, place : place + 1] = v
            return
        rows, columns = step.sources
        newest = step.places >= step.end_column()[rows, 0] - self.room
        rows, columns = rows[newest], columns[newest]
        self._scatter(k, v, (rows, columns), step.places[newest] % self.room)


def make_slot(state: State, rows: int, capacity: int, dtype: torch.dtype, device: torch.device) -> Slot:
    """The slot that a mixer's declared state asks for."""
    if state.window is None:
        return ContiguousSlot(state, rows, capacity, dtype, device)
    return WindowSlot(state, state.window, rows, capacity, dtype, device)
