"""A model that runs natively: tokens in, logits out, one native call a step."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headway.native.library import Pool
from headway.native.structs import CacheStruct, Format, Op
from headway.spec.model import ModelSpec
from headway.spec.state import KeyValueState, states
from headway.tape.cache import TapeCache
from headway.tape.lower import Tape, lower
from headway.tape.tables import Moment
from headway.tape.weights import Floats, Weights

Keep = Literal["all", "last", "none"]
Tokens = Sequence[int] | NDArray[np.integer]

TOKENS = 512  # tokens of one run; longer steps take several


@dataclass(frozen=True)
class Answer:
    """What one step came to, tokens row after row without padding."""

    hidden: Floats  # N D after the last norm
    logits: Floats | None  # of every token ("all"), or of each row's last ("last", rows without tokens left out)


@dataclass(frozen=True)
class Cost:
    """Time spent in one call of the tape."""

    label: str
    op: Op
    nanoseconds: int


class Program:
    """A spec with weights as a tape of native calls. The next step may overwrite its logits: copy what stays."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        pool: Pool,
        *,
        tokens: int = TOKENS,
        cache_format: Format | None = None,
    ) -> None:
        """`spec` is one of which `missing` is empty. The cache holds float32 beside float32 weights, else float16."""
        self.spec, self.weights, self.pool, self.library = spec, weights, pool, weights.library
        exact = not any(name != "F32" for name in weights.dtypes)
        self.cache_format = cache_format or (Format.F32 if exact else Format.F16)
        self._states: tuple[KeyValueState, ...] = tuple(states(spec).values())
        self._lock = threading.Lock()
        self._tape = self._lower(min(tokens, max(spec.decoder.context, 1)))
        self._costs: NDArray[np.int64] | None = None

    def cache(self, rows: int, capacity: int) -> TapeCache:
        """An empty cache for `rows` sequences of up to `capacity` tokens."""
        return TapeCache(self._states, rows, capacity, self.cache_format)

    def step(
        self,
        rows: Sequence[Tokens],
        cache: TapeCache,
        *,
        keep: Keep = "last",
        horizons: Sequence[int] | None = None,
        types: Sequence[Tokens] | None = None,
    ) -> Answer:
        """Compute the next tokens of every row of `cache`; a row may have none.

        `horizons` gives the length that each row will have once its announced tokens are computed (see
        `Rope.regime`), `types` a token type for every token. RequestError when the cache has no room.
        """
        counts = [len(row) for row in rows]
        starts = cache.lengths
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        cache.check_room(ends)
        n = sum(counts)
        with self._lock:
            if n > self._tape.tokens and not self._tape.causal:
                self._tape = self._lower(n)
            self._use(cache)
            tape = self._tape
            flat = _Flat.of(rows, starts, counts, ends if horizons is None else horizons, types)
            wanted = {"all": np.arange(n), "last": flat.last, "none": flat.last[:0]}[keep]
            vocab = tape.logits.size
            view = len(wanted) <= len(tape.logits.array) and n <= tape.tokens
            logits = tape.logits.array[: len(wanted)] if view else np.empty((len(wanted), vocab), np.float32)
            hidden = np.empty((n, tape.hidden.size), np.float32)
            for start in range(0, n, tape.tokens):
                piece = slice(start, min(start + tape.tokens, n))
                among = np.flatnonzero((wanted >= piece.start) & (wanted < piece.stop))
                self._run(flat, piece, ends, cache, wanted[among] - piece.start, among, None if view else logits)
                hidden[piece] = tape.hidden.array[: piece.stop - piece.start]
            cache.commit(ends)
        return Answer(hidden, None if keep == "none" else logits)

    def profile(self, on: bool = True) -> list[Cost]:
        """What each call has cost since the last time; counting begins, or ends when `on` is false."""
        tape, found = self._tape, self._costs
        self._costs = np.zeros(len(tape.steps), np.int64) if on else None
        if found is None:
            return []
        return [
            Cost(label, Op(step.op), int(cost))
            for label, step, cost in zip(tape.labels, tape.steps, found, strict=True)
        ]

    @property
    def calls(self) -> list[str]:
        """The tape, a call a line: what it does, to what."""
        return [
            f"{Op(step.op).name.lower()} {label}"
            for label, step in zip(self._tape.labels, self._tape.steps, strict=True)
        ]

    def _lower(self, tokens: int) -> Tape:
        self._current: tuple[int, int] = (0, 0)
        self._costs = None
        return lower(self.spec, self.weights, self.pool, tokens=tokens, cache_format=self.cache_format)

    def _use(self, cache: TapeCache) -> None:
        """Point the calls to the memory of `cache`."""
        current = (id(cache.structs), cache.version)
        if current != self._current:
            ctypes.memmove(self._tape.caches, cache.structs, len(cache.structs) * ctypes.sizeof(CacheStruct))
            self._current, self._structs = current, cache.structs

    def _run(
        self,
        flat: _Flat,
        piece: slice,
        ends: Sequence[int],
        cache: TapeCache,
        kept: NDArray[np.intp],
        among: NDArray[np.intp],
        into: Floats | None,
    ) -> None:
        """One native run of the tokens in `piece`; logits stay where they are made, or go to their rows of `into`."""
        tape, inputs = self._tape, self._tape.inputs
        n = piece.stop - piece.start
        inputs.n[0] = n
        inputs.ids[:n], inputs.types[:n] = flat.ids[piece], flat.types[piece]
        inputs.positions[:n], inputs.rows[:n] = flat.positions[piece], flat.rows[piece]
        inputs.first[:n] = np.maximum(flat.first[piece] - piece.start, 0)
        if not tape.causal:
            inputs.lengths[: len(ends)] = ends
        longest = max(ends) if not tape.causal else int(inputs.positions[:n].max()) + 1
        moment = Moment(n=n, longest=longest, capacity=cache.capacity, horizons=flat.horizons[piece].tolist())
        for table in tape.tables:
            table.prepare(moment)
        if tape.rings:
            most = int(np.bincount(inputs.rows[:n]).max())
            for ring in tape.rings:
                room = ring.cache.room
                ring.turn(tape.steps, beside=longest > room and most > 1 + room - ring.window)
        body, count = tape.body, len(tape.steps)
        first = kept[: len(tape.logits.array)]
        inputs.kept[0] = len(first)
        inputs.index[: len(first)] = first
        self._call(0, count if len(first) else body)
        for start in range(0, len(kept), len(tape.logits.array)):
            if start:
                part = kept[start : start + len(tape.logits.array)]
                inputs.kept[0] = len(part)
                inputs.index[: len(part)] = part
                self._call(body, count)
            if into is not None:
                places = among[start : start + len(tape.logits.array)]
                into[places] = tape.logits.array[: len(places)]

    def _call(self, start: int, stop: int) -> None:
        costs = None if self._costs is None else self._costs[start:].ctypes.data
        self.library.c.hw_run(ctypes.byref(self._tape.steps[start]), stop - start, self.pool.handle, costs)


@dataclass(frozen=True)
class _Flat:
    """The tokens of all rows, one after the other."""

    ids: NDArray[np.int32]
    types: NDArray[np.int32]
    positions: NDArray[np.int64]
    rows: NDArray[np.int64]
    first: NDArray[np.int64]  # index of the first token of each token's row
    horizons: NDArray[np.int64]
    last: NDArray[np.intp]  # index of the last token of each row that has one

    @classmethod
    def of(
        cls,
        rows: Sequence[Tokens],
        starts: Sequence[int],
        counts: Sequence[int],
        horizons: Sequence[int],
        types: Sequence[Tokens] | None,
    ) -> _Flat:
        sizes = np.asarray(counts)
        before = np.cumsum(sizes) - sizes
        each = np.repeat(np.arange(len(sizes)), sizes)
        first = before[each]
        ids = np.concatenate([np.asarray(row, np.int32) for row in rows])
        return cls(
            ids=ids,
            types=np.zeros_like(ids) if types is None else np.concatenate([np.asarray(row, np.int32) for row in types]),
            positions=np.asarray(starts)[each] + np.arange(len(each)) - first,
            rows=each,
            first=first,
            horizons=np.asarray(horizons)[each],
            last=(before + sizes - 1)[sizes > 0],
        )
