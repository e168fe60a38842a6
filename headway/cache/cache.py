"""The past of a batch: one clock, a slot for every mixer that has a state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.batch import Batch
from headway.cache.slots import Slot, make_slot
from headway.cache.step import Step
from headway.errors import RequestError
from headway.spec.model import ModelSpec
from headway.spec.state import states


@dataclass(frozen=True)
class Snapshot:
    """A copy of a cache at one moment."""

    lengths: tuple[int, ...]
    tensors: dict[str, tuple[Tensor, ...]]


class Cache:
    """Keys and values of `rows` sequences. `lengths` is the one clock: tokens kept of each row, in every layer.

    The engine asks what a cache can do (`can_truncate`) and never what its slots are.
    """

    def __init__(self, slots: dict[str, Slot], rows: int, capacity: int) -> None:
        self.slots = slots
        self.lengths: tuple[int, ...] = (0,) * rows
        self.capacity = capacity

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        rows: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Cache:
        """An empty cache for `rows` sequences of up to `capacity` tokens."""
        where = torch.device(device)
        slots = {path: make_slot(state, rows, capacity, dtype, where) for path, state in states(spec).items()}
        return cls(slots, rows, capacity)

    @property
    def rows(self) -> int:
        """B, the number of sequences."""
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes of all kept tensors, room not yet used included."""
        return sum(slot.nbytes for slot in self.slots.values())

    def begin(self, batch: Batch) -> Step:
        """The step that appends `batch`; RequestError when a row would outgrow the capacity."""
        assert batch.starts == self.lengths, f"batch starts at {batch.starts}, the cache stands at {self.lengths}"
        step = Step(batch)
        longest = max(step.ends)
        if longest > self.capacity:
            raise RequestError(f"the cache has room for {self.capacity} tokens a row, but a row would have {longest}")
        return step

    def commit(self, step: Step) -> None:
        """Advance the clock; called once, when every layer has kept the step's tokens."""
        self.lengths = step.ends

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` tokens a row; what is kept stays."""
        if capacity > self.capacity:
            for slot in self.slots.values():
                slot.reserve(capacity)
            self.capacity = capacity

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows in this order; a row named twice is forked."""
        if list(rows) == list(range(self.rows)):
            return
        for slot in self.slots.values():
            index = torch.tensor(list(rows), dtype=torch.long, device=slot.tensors()[0].device)
            slot.replace([tensor.index_select(0, index) for tensor in slot.tensors()])
        self.lengths = tuple(self.lengths[row] for row in rows)

    def fork(self, row: int, copies: int) -> None:
        """Follow `row` with copies of it, so that it stands `copies` times."""
        rows = list(range(self.rows))
        self.select(rows[:row] + [row] * copies + rows[row + 1 :])

    def extend(self, *others: Cache) -> None:
        """Take over the rows of `others`, behind these; they are of no use afterwards."""
        every = (self, *others)
        capacity = max(cache.capacity for cache in every)
        for cache in every:
            cache.reserve(capacity)
        for path, slot in self.slots.items():
            alike = zip(*(cache.slots[path].tensors() for cache in every), strict=True)
            slot.replace([torch.cat(tensors) for tensors in alike])
        self.lengths = tuple(length for cache in every for length in cache.lengths)

    def can_truncate(self, lengths: Sequence[int]) -> bool:
        """Whether every row can go back to its first `lengths` tokens."""
        pairs = list(zip(self.lengths, lengths, strict=True))
        return all(slot.can_truncate(length, to) for slot in self.slots.values() for length, to in pairs)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget what follows the first `lengths` tokens of each row; AssertionError unless `can_truncate`."""
        assert self.can_truncate(lengths), f"cannot go back from {self.lengths} to {tuple(lengths)}"
        self.lengths = tuple(lengths)

    def snapshot(self) -> Snapshot:
        """A copy to come back to."""
        kept = {path: tuple(t.clone() for t in slot.tensors()) for path, slot in self.slots.items()}
        return Snapshot(self.lengths, kept)

    def restore(self, snapshot: Snapshot) -> None:
        """Be again what `snapshot` copied; the snapshot stays good for another time."""
        for path, slot in self.slots.items():
            slot.replace([tensor.clone() for tensor in snapshot.tensors[path]])
        self.lengths = snapshot.lengths
