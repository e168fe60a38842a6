"""What all layers of one forward share: the batch, the cache's step, and every table, worked out once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from torch import Tensor

from headway.batch import Batch
from headway.cache.cache import Cache
from headway.cache.slots import Keys
from headway.nn.taps import Taps
from headway.ops.attention import Seen
from headway.ops.mask import visible
from headway.ops.rope import rotation, unturned
from headway.spec.position import Mask, Rope

Made = TypeVar("Made")


class Frame:
    """Made once per forward. Tables are memoised by the hashable value that describes them."""

    def __init__(self, batch: Batch, cache: Cache | None, tap: Taps) -> None:
        self.batch = batch
        self.cache = cache
        self.step = None if cache is None else cache.begin(batch)
        self.tap = tap
        self._made: dict[Hashable, object] = {}

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` returned the first time this forward asked for `key`."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[return-value]

    def rotation(self, rope: Rope | None) -> Callable[[Tensor], Tensor]:
        """What turns queries and keys at this batch's positions; a layer without rope leaves them."""
        if rope is None:
            return unturned
        batch = self.batch
        return self.once(rope, lambda: rotation(rope, batch.positions, batch.segments, batch.horizons))

    def remember(self, path: str, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keep new keys and values in the mixer's slot; return all that may be read (the same two without a cache)."""
        if self.cache is None or self.step is None:
            return k, v
        return self.cache.slots[path].update(k, v, self.step)

    def keys(self, path: str) -> Keys:
        """Where the keys that `remember` returns stand."""
        if self.cache is None or self.step is None:
            return self.once("keys", self._own_keys)
        slot, step = self.cache.slots[path], self.step
        return self.once(("keys", slot.key()), lambda: slot.keys(step))

    def seen(self, mask: Mask, path: str) -> Seen:
        """Who sees whom under `mask`, as cheaply as it can be said."""
        return self.once(("seen", mask, self.layout(path)), lambda: self._seen(mask, self.keys(path)))

    def layout(self, path: str) -> Hashable:
        """Equal for mixers whose keys stand in the same places."""
        return None if self.cache is None else self.cache.slots[path].key()

    def _own_keys(self) -> Keys:
        even = self.batch.even
        order = "positions" if not even else "all" if self.batch.width == 1 else "square"
        return Keys(order, self.batch.positions)

    def _seen(self, mask: Mask, keys: Keys) -> Seen:
        batch = self.batch
        if keys.order == "all":
            return Seen("all")
        if keys.order == "square":
            reach = batch.width - 1
            back = mask.before is None or mask.before >= reach
            if back and mask.after == 0:
                return Seen("causal")
            if back and (mask.after is None or mask.after >= reach):
                return Seen("all")
        if self.cache is None:
            key_segments = batch.segments
        else:
            key_segments = (keys.positions >= 0).long() * 2 - 1
        return Seen("some", visible(mask, batch.positions, batch.segments, keys.positions, key_segments))
