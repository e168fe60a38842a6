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
    """A spec with weights as a tape of native calls. It may be shared by threads, which take turns."""

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
        cache: TapeCache | None = None,
        *,
        keep: Keep = "last",
        horizons: Sequence[int] | None = None,
        types: Sequence[Tokens] | None = None,
    ) -> Answer:
        """Compute the next tokens of every row of `cache`, or whole rows without one; a row may have none.

        `horizons` gives the length that each row will have once its announced tokens are computed (see
        `Rope.regime`), `types` a token type for every token. RequestError when the cache has no room.
        """
        counts = [len(row) for row in rows]
        cache = self.cache(len(rows), max(1, *counts)) if cache is None else cache
        starts = cache.lengths
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        cache.check_room(ends)
        horizons = ends if horizons is None else horizons
        with self._lock:
            if sum(counts) > self._tape.tokens and not self._tape.causal:
                self._tape = self._lower(sum(counts))
            self._use(cache)
            if counts == [1] * len(counts) and len(counts) <= len(self._tape.logits.array) and types is None:
                answer = self._one_each(rows, cache, ends, horizons, keep)
            else:
                answer = self._any(_Flat.of(rows, starts, counts, horizons, types), cache, ends, keep)
            cache.commit(ends)
        return answer

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

    def _one_each(
        self, rows: Sequence[Tokens], cache: TapeCache, ends: Sequence[int], horizons: Sequence[int], keep: Keep
    ) -> Answer:
        """One token of every row, in one run: what decoding does, with nothing that it does not need."""
        tape, inputs, n = self._tape, self._tape.inputs, len(rows)
        inputs.ids[:n] = [row[0] for row in rows]
        inputs.positions[:n] = cache.lengths
        inputs.types[:n] = 0
        inputs.rows[:n] = inputs.first[:n] = inputs.index[:n] = inputs.order[:n]
        inputs.n[0] = inputs.kept[0] = n
        self._prepare(Moment(n=n, longest=max(ends), capacity=cache.capacity, horizons=horizons), ends, 1)
        self._call(0, tape.body if keep == "none" else len(tape.steps))
        return Answer(tape.hidden.array[:n].copy(), None if keep == "none" else tape.logits.array[:n].copy())

    def _any(self, flat: _Flat, cache: TapeCache, ends: Sequence[int], keep: Keep) -> Answer:
        """Any tokens of every row, in as many runs as it takes."""
        tape, n = self._tape, len(flat.ids)
        wanted = {"all": np.arange(n), "last": flat.last, "none": flat.last[:0]}[keep]
        logits = np.empty((len(wanted), tape.logits.size), np.float32)
        hidden = np.empty((n, tape.hidden.size), np.float32)
        for start in range(0, n, tape.tokens):
            stop = min(start + tape.tokens, n)
            self._load(flat, slice(start, stop), cache, ends)
            self._call(0, tape.body)
            hidden[start:stop] = tape.hidden.array[: stop - start]
            among = np.flatnonzero((wanted >= start) & (wanted < stop))
            self._logits(wanted[among] - start, among, logits)
        return Answer(hidden, None if keep == "none" else logits)

    def _load(self, flat: _Flat, piece: slice, cache: TapeCache, ends: Sequence[int]) -> None:
        """Make ready for a run of the tokens in `piece`."""
        inputs, n = self._tape.inputs, piece.stop - piece.start
        inputs.n[0] = n
        inputs.ids[:n], inputs.types[:n] = flat.ids[piece], flat.types[piece]
        inputs.positions[:n], inputs.rows[:n] = flat.positions[piece], flat.rows[piece]
        inputs.first[:n] = np.maximum(flat.first[piece] - piece.start, 0)
        longest = int(inputs.positions[:n].max()) + 1 if self._tape.causal else max(ends)
        moment = Moment(n=n, longest=longest, capacity=cache.capacity, horizons=flat.horizons[piece].tolist())
        self._prepare(moment, ends, int(np.bincount(inputs.rows[:n]).max()))

    def _prepare(self, moment: Moment, ends: Sequence[int], most: int) -> None:
        """Tables and rings for a run in which a row has up to `most` tokens."""
        tape = self._tape
        if not tape.causal:
            tape.inputs.lengths[: len(ends)] = ends
        for table in tape.tables:
            table.prepare(moment)
        for ring in tape.rings:
            ring.turn(tape.steps, beside=moment.longest > ring.cache.room and most > 1 + ring.cache.room - ring.window)

    def _logits(self, kept: NDArray[np.intp], among: NDArray[np.intp], into: Floats) -> None:
        """The head for the tokens `kept` of the last run, to the rows `among` of `into`."""
        tape, inputs, room = self._tape, self._tape.inputs, len(self._tape.logits.array)
        for start in range(0, len(kept), room):
            part = kept[start : start + room]
            inputs.kept[0] = len(part)
            inputs.index[: len(part)] = part
            self._call(tape.body, len(tape.steps))
            into[among[start : start + room]] = tape.logits.array[: len(part)]

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
