"""The past of a batch in numpy: the clock of headway.cache, over memory that native calls write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.errors import RequestError
from headway.native.memory import Arena
from headway.native.structs import CacheStruct, Format
from headway.spec.state import KeyValueState

STORAGE = {Format.F32: np.float32, Format.F16: np.float16, Format.BF16: np.uint16, Format.I8: np.int8}

Slot = tuple[NDArray[Any], ...]  # keys and values [rows, kv_heads, room, dim]; as bytes, their scales too, dim 1


@dataclass(frozen=True)
class Snapshot:
    """A copy of a cache at one moment."""

    lengths: tuple[int, ...]
    capacity: int
    arrays: tuple[Slot, ...]


class TapeCache:
    """Keys and values of `rows` sequences. `lengths` is the one clock: tokens kept of each row, in every layer.

    A state with a window is a ring: the token at position p lies at p mod room. `structs` describes the memory
    to native calls, one entry a state; `version` grows whenever it changes.
    """

    def __init__(self, states: Sequence[KeyValueState], rows: int, capacity: int, format: Format = Format.F32) -> None:
        """An empty cache for `rows` sequences of up to `capacity` tokens, in float32, float16, bfloat16 or int8."""
        self.states, self.format, self.capacity = tuple(states), format, capacity
        self.lengths: tuple[int, ...] = (0,) * rows
        self.version = 0
        self.slots: list[Slot] = []
        self._take([])

    @property
    def rows(self) -> int:
        """B, the number of sequences."""
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes of all kept arrays, room not yet used included."""
        return sum(array.nbytes for slot in self.slots for array in slot)

    def room(self, state: KeyValueState) -> int:
        """Tokens that a slot of `state` holds now."""
        return self.capacity if state.window is None else min(state.window, self.capacity)

    def check_room(self, ends: Sequence[int]) -> None:
        """RequestError when a row of `ends` tokens would outgrow the capacity."""
        if (longest := max(ends)) > self.capacity:
            raise RequestError(f"the cache has room for {self.capacity} tokens a row, but a row would have {longest}")

    def commit(self, ends: Sequence[int]) -> None:
        """Advance the clock; called once, when every layer has kept the step's tokens."""
        self.lengths = tuple(ends)

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` tokens a row; what is kept stays."""
        if capacity <= self.capacity:
            return
        self.capacity = capacity
        # A ring shorter than its window has not turned yet, so places stay where they are.
        self._take([(self.slots, slice(None))])

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows in this order; a row named twice is forked."""
        rows = list(rows)
        if rows == list(range(self.rows)):
            return
        self.lengths = tuple(self.lengths[row] for row in rows)
        self._take([(self.slots, rows)])

    def fork(self, row: int, copies: int) -> None:
        """Follow `row` with copies of it, so that it stands `copies` times."""
        rows = list(range(self.rows))
        self.select(rows[:row] + [row] * copies + rows[row + 1 :])

    def extend(self, *others: TapeCache) -> None:
        """Take over the rows of `others`, behind these; they are of no use afterwards."""
        every = (self, *others)
        self.capacity = max(cache.capacity for cache in every)
        self.lengths = tuple(length for cache in every for length in cache.lengths)
        self._take([(cache.slots, slice(None)) for cache in every])

    def can_truncate(self, lengths: Sequence[int]) -> bool:
        """Whether every row can go back to its first `lengths` tokens."""
        pairs = list(zip(self.lengths, lengths, strict=True))
        rings = {self.room(state) for state in self.states if state.window is not None}
        return all(to <= length for length, to in pairs) and all(
            length <= room or to in (0, length) for room in rings for length, to in pairs
        )

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget what follows the first `lengths` tokens of each row; AssertionError unless `can_truncate`."""
        assert self.can_truncate(lengths), f"cannot go back from {self.lengths} to {tuple(lengths)}"
        self.lengths = tuple(lengths)

    def snapshot(self) -> Snapshot:
        """A copy to come back to."""
        return Snapshot(
            self.lengths, self.capacity, tuple(tuple(array.copy() for array in slot) for slot in self.slots)
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Be again what `snapshot` copied; the snapshot stays good for another time."""
        self.lengths, self.capacity = snapshot.lengths, snapshot.capacity
        self._take([(list(snapshot.arrays), slice(None))])

    def _take(self, sources: Sequence[tuple[list[Slot], slice | list[int]]]) -> None:
        """Fresh memory of the size that is needed now, filled with these rows of these slots, one after the other."""
        arena = Arena()
        made = [self._empty(state, arena) for state in self.states]
        for place, slot in enumerate(made):
            for number, array in enumerate(slot):
                first = 0
                for slots, rows in sources:
                    kept = slots[place][number][rows]
                    array[first : first + len(kept), :, : kept.shape[2]] = kept
                    first += len(kept)
        self.slots = made
        self._describe()

    def _empty(self, state: KeyValueState, arena: Arena) -> Slot:
        storage, shape = STORAGE[self.format], (self.rows, state.kv_heads, self.room(state))
        kept = tuple(arena.array((*shape, dim), storage) for dim in (state.head_dim, state.value_dim))
        scales = tuple(arena.array((*shape, 1), np.float32) for _ in kept) if self.format is Format.I8 else ()
        return kept + scales

    def _describe(self) -> None:
        self.structs = (CacheStruct * len(self.slots))(
            *(describe(state, slot, self.format) for state, slot in zip(self.states, self.slots, strict=True))
        )
        self.version += 1


def describe(state: KeyValueState, slot: Slot, format: Format) -> CacheStruct:
    """The memory of a slot as native calls take it."""
    k, v, *scales = slot
    rows, heads, room, _ = k.shape
    return CacheStruct(
        k=k.ctypes.data,
        v=v.ctypes.data,
        format=int(format),
        kv_heads=heads,
        head_dim=state.head_dim,
        value_dim=state.value_dim,
        room=room,
        k_row=heads * room * state.head_dim,
        k_head=room * state.head_dim,
        v_row=heads * room * state.value_dim,
        v_head=room * state.value_dim,
        rows=rows,
        **{name: scale.ctypes.data for name, scale in zip(("k_scale", "v_scale"), scales, strict=False)},
    )
