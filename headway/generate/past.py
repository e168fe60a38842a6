"""What a network has computed of each row: it catches up with the tokens that are known, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from headway.batch import Batch, Output
from headway.spec.mixers import Attention
from headway.spec.model import ModelSpec
from headway.spec.position import Rope

Keep = Literal["all", "last", "none"]

ROOM = 256  # caches have room for whole multiples of so many tokens, so that those of like prompts join as they are


class Clock(Protocol):
    """What generation needs of a cache: see `cache.Cache`."""

    lengths: tuple[int, ...]
    capacity: int

    def reserve(self, capacity: int) -> None: ...

    def select(self, rows: Sequence[int]) -> None: ...

    def extend(self, *others: Any) -> None: ...

    def truncate(self, lengths: Sequence[int]) -> None: ...


class Network(Protocol):
    """What generation needs of a model: modules, or a tape. It takes only caches that it made itself."""

    @property
    def spec(self) -> ModelSpec: ...

    def __call__(self, batch: Batch, cache: Any = None, *, keep: Keep) -> Output: ...

    def cache(self, rows: int, capacity: int) -> Clock: ...

    @property
    def device(self) -> torch.device: ...


@dataclass(frozen=True)
class Advance:
    """What one step of the network came to."""

    logits: Tensor | None  # B T V of the tokens just computed ("all"), or B 1 V of each row's last one ("last")
    starts: tuple[int, ...]  # tokens of each row that were computed before
    counts: tuple[int, ...]  # tokens of each row that this step computed
    ready: list[int]  # rows that this step made complete; only their last logits are of use


class Past:
    """Rows of one cache. Prefill, chunks, decoding and recomputing all close the gap between computed and known."""

    def __init__(self, network: Network, *, chunk: int, cached: bool = True) -> None:
        self.network, self.chunk, self.cached = network, chunk, cached
        self.cache: Clock | None = None
        self._device, self._context = network.device, network.spec.decoder.context
        self._ropes = changing_ropes(network.spec)
        self._regimes: list[tuple[int, ...]] = []

    def arrange(self, rows: Sequence[int]) -> None:
        """Keep these rows in this order; a row named twice is forked."""
        if self.cache is not None:
            self._regimes = [self._regimes[row] for row in rows]
            self.cache.select(rows)

    def join(self, *others: Past) -> None:
        """Take over the rows of `others`, behind these; they are of no use afterwards."""
        every = (self, *others)
        caches = [past.cache for past in every if past.cache is not None]
        if len(caches) > 1:
            caches[0].extend(*caches[1:])
        self.cache = caches[0] if caches else None
        self._regimes = [regime for past in every for regime in past._regimes]

    def advance(self, known: Sequence[Sequence[int]], keep: Keep = "last") -> Advance:
        """Compute up to `chunk` more tokens of each row, of which `known` holds all tokens so far.

        Logits are left out where `keep` is "last" and no row has caught up yet.
        """
        if not self.cached:
            batch = Batch.of(known, device=self._device)
            return Advance(self.network(batch, keep=keep).logits, batch.starts, batch.lengths, list(range(len(known))))
        horizons = [len(tokens) for tokens in known]
        cache = self._prepare(horizons)
        starts = cache.lengths
        rows = [tokens[start : start + self.chunk] for tokens, start in zip(known, starts, strict=True)]
        batch = Batch.of(rows, starts=starts, horizons=horizons, device=self._device)
        ready = [row for row, length in enumerate(horizons) if rows[row] and starts[row] + len(rows[row]) == length]
        output = self.network(batch, cache, keep="none" if keep == "last" and not ready else keep)
        return Advance(output.logits, starts, batch.lengths, ready)

    def _prepare(self, horizons: list[int]) -> Clock:
        longest = max(horizons)
        if self.cache is None:
            room = -(-(longest + 1) // ROOM) * ROOM
            self.cache = self.network.cache(len(horizons), max(longest, min(room, self._context)))
            self._regimes = [()] * len(horizons)
        elif longest > self.cache.capacity:
            self.cache.reserve(max(longest, min(2 * longest, self._context)))
        if self._ropes:
            self._forget_other_regimes(self.cache, horizons)
        return self.cache

    def _forget_other_regimes(self, cache: Clock, horizons: list[int]) -> None:
        """Empty the rows whose keys were turned by another table than their length asks for now."""
        now = [tuple(rope.regime(length) for rope in self._ropes) for length in horizons]
        lengths = [
            0 if before != after else kept
            for before, after, kept in zip(self._regimes, now, cache.lengths, strict=True)
        ]
        self._regimes = now
        if lengths != list(cache.lengths):
            cache.truncate(lengths)


def changing_ropes(spec: ModelSpec) -> list[Rope]:
    """The ropes whose table depends on how long a sequence is."""
    mixers = [branch.mixer for stack in spec.stacks for layer in stack.layers for branch in layer.branches]
    ropes = {mixer.rope: None for mixer in mixers if isinstance(mixer, Attention) and mixer.rope is not None}
    return [rope for rope in ropes if rope.regime(1) != rope.regime(2**62)]
