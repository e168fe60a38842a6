"""What a network has computed of each row: it catches up with the tokens that are known, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from headway.generate.arrays import Array
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


class Answer(Protocol):
    """What a step came to. The logits are the caller's own: nobody else writes to them."""

    @property
    def logits(self) -> Array | None: ...


class Network(Protocol):
    """What generation needs of a model: `nn.Transformer`, or `tape.Program`.

    A step computes the next tokens of every row of a cache that the network made itself (of whole rows without one);
    a row may have none. Logits are [N, V] of all tokens, row after row ("all"), or of the last one of each row that has
    any ("last"). `horizons` gives the length of each row once its announced tokens are computed.
    """

    @property
    def spec(self) -> ModelSpec: ...

    def cache(self, rows: int, capacity: int) -> Clock: ...

    def step(
        self, rows: Sequence[Sequence[int]], cache: Any = None, *, keep: Keep, horizons: Sequence[int] | None = None
    ) -> Answer: ...


@dataclass(frozen=True)
class Advance:
    """What one step of the network came to."""

    logits: Array | None  # [N, V] of the tokens just computed, row after row ("all"), or of each ready row ("last")
    starts: tuple[int, ...]  # tokens of each row that were computed before
    counts: tuple[int, ...]  # tokens of each row that this step computed
    ready: list[int]  # rows that this step made complete; only their last logits are of use


class Past:
    """Rows of one cache. Prefill, chunks, decoding and recomputing all close the gap between computed and known."""

    def __init__(self, network: Network, *, chunk: int, cached: bool = True) -> None:
        self.network, self.chunk, self.cached = network, chunk, cached
        self.cache: Clock | None = None
        self._context = network.spec.decoder.context
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
            logits: Array = self.network.step(known, keep=keep).logits
            return Advance(logits, (0,) * len(known), tuple(map(len, known)), list(range(len(known))))
        horizons = [len(tokens) for tokens in known]
        cache = self._prepare(horizons)
        starts = cache.lengths
        rows = [tokens[start : start + self.chunk] for tokens, start in zip(known, starts, strict=True)]
        counts = tuple(map(len, rows))
        ready = [row for row, count in enumerate(counts) if count and starts[row] + count == horizons[row]]
        wanted: Keep = "none" if keep == "last" and not ready else keep
        logits = self.network.step(rows, cache, keep=wanted, horizons=horizons).logits
        if wanted == "last" and len(ready) < len(rows) - counts.count(0):
            fed = [row for row, count in enumerate(counts) if count]
            logits = logits[[place for place, row in enumerate(fed) if row in ready]]
        return Advance(logits, starts, counts, ready)

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
