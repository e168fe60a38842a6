"""Attention over caches and fresh keys, against the formula written out in numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.native.library import Library, Pool
from headway.native.program import Program
from headway.native.structs import CacheStruct, Format, Op

STORAGE = {Format.F32: np.float32, Format.F16: np.float16, Format.BF16: np.uint16, Format.I8: np.int8}


def values(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def stored(x: np.ndarray, kind: Format) -> np.ndarray:
    """The numbers that a cache of this kind gives back."""
    if kind is Format.F16:
        return x.astype(np.float16).astype(np.float32)
    if kind is Format.BF16:
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).view(np.float32)
    if kind is Format.I8:
        most = np.abs(x).max(-1, keepdims=True)
        return np.rint(x * (np.float32(127) / most)) * (most * np.float32(1 / 127))
    return x


@dataclass
class Case:
    """Rows of tokens, of which the last `new[row]` are this step's and the others lie in the cache."""

    lengths: list[int]
    new: list[int]
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    value_dim: int = 16
    kind: Format = Format.F32
    room: int = 0
    fresh: bool = False
    fields: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        rows, longest = len(self.lengths), max(self.lengths)
        self.room = self.room or longest
        self.k = values(rows, longest, self.kv_heads * self.dim, seed=self.seed)
        self.v = values(rows, longest, self.kv_heads * self.value_dim, seed=self.seed + 1)
        self.q = values(sum(self.new), self.heads * self.dim, seed=self.seed + 2)
        self.tokens = [(r, p) for r, n in enumerate(self.new) for p in range(self.lengths[r] - n, self.lengths[r])]

    def native(self, library: Library, pool: Pool) -> np.ndarray:
        """Keeps the past token by token, then the step's tokens, and attends."""
        rows = len(self.lengths)
        caches = [
            np.zeros((rows, self.kv_heads, self.room, dim), STORAGE[self.kind]) for dim in (self.dim, self.value_dim)
        ]
        scales = [np.zeros((rows, self.kv_heads, self.room), np.float32) for _ in caches]
        struct = CacheStruct(
            k_scale=scales[0].ctypes.data,
            v_scale=scales[1].ctypes.data,
            k=caches[0].ctypes.data,
            v=caches[1].ctypes.data,
            format=int(self.kind),
            kv_heads=self.kv_heads,
            head_dim=self.dim,
            value_dim=self.value_dim,
            room=self.room,
            k_row=self.kv_heads * self.room * self.dim,
            k_head=self.room * self.dim,
            v_row=self.kv_heads * self.room * self.value_dim,
            v_head=self.room * self.value_dim,
            rows=rows,
        )
        past = [(r, p) for r, n in enumerate(self.new) for p in range(self.lengths[r] - n)]
        self._keep(library, pool, struct, past)
        n = len(self.tokens)
        y = np.full((n, self.heads * self.value_dim), 7, np.float32)
        k, v = (np.stack([x[r, p] for r, p in self.tokens]) for x in (self.k, self.v))
        fields: dict[str, Any] = {"scale": 0.3, "causal": 1, "before": -1, "after": -1} | self.fields
        if self.fresh:
            starts = np.cumsum([0, *self.new])
            fields |= {"fresh_k": k, "fresh_v": v, "fresh_k_stride": k.shape[1], "fresh_v_stride": v.shape[1]}
            fields["first"] = np.array([starts[r] for r, _ in self.tokens], np.int32)
        else:
            self._keep(library, pool, struct, self.tokens)
        program = Program(library, pool)
        program.attention(
            most=n,
            n=np.array([n]),
            q=self.q,
            y=y,
            q_stride=self.q.shape[1],
            y_stride=y.shape[1],
            cache=struct,
            rows=np.array([r for r, _ in self.tokens], np.int32),
            positions=np.array([p for _, p in self.tokens], np.int32),
            lengths=np.array(self.lengths, np.int32),
            heads=self.heads,
            **fields,
        )
        program.run()
        return y

    def _keep(self, library: Library, pool: Pool, cache: CacheStruct, tokens: list[tuple[int, int]]) -> None:
        if not tokens:
            return
        k, v = (np.stack([x[r, p] for r, p in tokens]) for x in (self.k, self.v))
        program = Program(library, pool)
        program.add(
            Op.KEEP,
            n=np.array([len(tokens)]),
            cache=cache,
            k=k,
            v=v,
            k_stride=k.shape[1],
            v_stride=v.shape[1],
            rows=np.array([r for r, _ in tokens], np.int32),
            positions=np.array([p for _, p in tokens], np.int32),
        )
        program.run()

    def expected(self) -> np.ndarray:
        """softmax(scale q k + bias) v, one token and head after the other, in float64."""
        options: dict[str, Any] = {"scale": 0.3, "causal": 1, "before": -1, "after": -1} | self.fields
        out = np.zeros((len(self.tokens), self.heads, self.value_dim))
        for t, (row, position) in enumerate(self.tokens):
            for head in range(self.heads):
                out[t, head] = self._one(t, row, position, head, options)
        return out.reshape(len(self.tokens), -1)

    def _one(self, t: int, row: int, position: int, head: int, options: dict[str, Any]) -> np.ndarray:
        at = np.arange(self.lengths[row])
        seen = at <= position if options["causal"] else at >= 0
        if options["before"] >= 0:
            seen &= at >= position - options["before"]
        if options["after"] >= 0:
            seen &= at <= position + options["after"]
        kv = head // (self.heads // self.kv_heads)
        kept = at < (self.lengths[row] - self.new[row] if self.fresh else self.lengths[row])
        k = self.k[row, at, kv * self.dim : (kv + 1) * self.dim]
        v = self.v[row, at, kv * self.value_dim : (kv + 1) * self.value_dim]
        k, v = (np.where(kept[:, None], stored(np.ascontiguousarray(x), self.kind), x) for x in (k, v))
        q = self.q[t, head * self.dim : (head + 1) * self.dim].astype(np.float64)
        scores = k @ q * options["scale"]
        if options.get("softcap"):
            scores = options["softcap"] * np.tanh(scores / options["softcap"])
        if "bias" in options:
            scores = scores + options["bias"][head, t, : len(at)]
        if "slopes" in options:
            scores = scores - options["slopes"][head] * np.abs(position - at)
        scores = np.where(seen, scores, -np.inf)
        sink = options["sinks"][head] if "sinks" in options else -np.inf
        weights = np.exp(scores - max(scores.max(), sink))
        return weights @ v / (weights.sum() + np.exp(sink - max(scores.max(), sink)))

    def check(self, library: Library, pool: Pool, tolerance: float = 2e-5) -> None:
        expected = self.expected()
        for name in library.paths:
            library.set_path(name)
            np.testing.assert_allclose(self.native(library, pool), expected, atol=tolerance, rtol=tolerance)
        library.set_path(library.paths[0])


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=3),
    grouping=st.sampled_from([(1, 1), (3, 3), (6, 2), (40, 1), (9, 3)]),
    dim=st.sampled_from([4, 8, 20, 64]),
    value_dim=st.sampled_from([4, 12, 16, 40]),
    kind=st.sampled_from(list(STORAGE)),
    seed=st.integers(0, 2**31),
)
def test_any_rows_any_heads_any_cache(
    library: Library,
    pool: Pool,
    lengths: list[tuple[int, int]],
    grouping: tuple[int, int],
    dim: int,
    value_dim: int,
    kind: Format,
    seed: int,
) -> None:
    new = [min(pair) for pair in lengths]
    case = Case([max(pair) for pair in lengths], new, *grouping, dim, value_dim, kind, seed=seed)
    case.check(library, pool)


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(2, 200), new=st.integers(1, 40), window=st.integers(1, 50), kind=st.sampled_from(list(STORAGE))
)
def test_a_ring_of_the_window_alone_with_fresh_keys(
    library: Library, pool: Pool, length: int, new: int, window: int, kind: Format
) -> None:
    """The ring keeps the last `window` tokens; the step's own come from beside it."""
    fields = {"before": window - 1}
    Case([length], [min(new, length)], room=window, kind=kind, fresh=True, fields=fields).check(library, pool)


def test_a_ring_with_room_for_window_and_step(library: Library, pool: Pool) -> None:
    for length in (7, 20, 33, 100):
        Case([length], [5], room=20, fields={"before": 15}).check(library, pool)


def test_one_token_over_a_long_cache_is_split_and_joined(library: Library, pool: Pool) -> None:
    for kind in STORAGE:
        Case([1500], [1], heads=6, kv_heads=2, kind=kind, dim=24).check(library, pool)
    Case([1500, 700], [1, 1], heads=3, kv_heads=1, fields={"sinks": values(3, seed=9)}).check(library, pool)
    for _ in range(20):  # the join is the same whichever thread took which part
        case = Case([900], [1], heads=2, kv_heads=1)
        np.testing.assert_array_equal(case.native(library, pool), case.native(library, pool))


@pytest.mark.parametrize("new", [1, 6, 40])
@pytest.mark.parametrize("extra", ["softcap", "sinks", "slopes", "bias", "window", "all"])
def test_what_else_enters_the_scores(library: Library, pool: Pool, new: int, extra: str) -> None:
    bias = values(4, new, 70, seed=11)
    every: dict[str, dict[str, Any]] = {
        "softcap": {"softcap": 0.8},
        "sinks": {"sinks": values(4, seed=7) * 3},
        "slopes": {"slopes": np.array([0.5, 0.25, 0.125, 0.0625], np.float32)},
        "bias": {"bias": bias, "bias_head": bias.strides[0] // 4, "bias_token": bias.strides[1] // 4},
        "window": {"before": 9},
    }
    fields = {k: v for one in every.values() for k, v in one.items()} if extra == "all" else every[extra]
    Case([70], [new], fields=fields).check(library, pool)


@pytest.mark.parametrize("fields", [{}, {"before": 5, "after": 3}, {"after": 0}])
def test_both_directions(library: Library, pool: Pool, fields: dict[str, Any]) -> None:
    Case([33, 70], [33, 70], fields={"causal": 0} | fields).check(library, pool)


def test_scores_beyond_what_exp_can_hold(library: Library, pool: Pool) -> None:
    Case([80], [20], fields={"scale": 60.0}).check(library, pool, tolerance=2e-4)


def test_a_query_that_is_no_number_gives_none(library: Library, pool: Pool, path: str) -> None:
    case = Case([30], [3])
    case.q[1, 2] = np.nan
    y = case.native(library, pool).reshape(3, case.heads, -1)
    assert np.isnan(y[1, 0]).all()
    assert np.isfinite(y[[0, 2]]).all()
    assert np.isfinite(y[1, 1:]).all()


def test_positions_and_rows_out_of_bounds_read_nothing(library: Library, pool: Pool, path: str) -> None:
    case = Case([30], [4])
    case.tokens = [(0, 26), (0, 27), (0, 28), (0, 29)]
    good = case.native(library, pool)
    program_rows = np.array([0, 5, -3, 0], np.int32)
    positions = np.array([-1, 27, 28, 29], np.int32)
    cache = np.zeros((1, 2, 30, 16), np.float32)
    struct = CacheStruct(
        k=cache.ctypes.data, v=cache.ctypes.data, format=0, kv_heads=2, head_dim=16, value_dim=16, room=30,
        k_row=960, k_head=480, v_row=960, v_head=480, rows=1,
    )  # fmt: skip
    y = np.full_like(good, 7)
    program = Program(library, pool)
    program.attention(
        most=4, n=np.array([4]), q=case.q, y=y, q_stride=64, y_stride=64, cache=struct, rows=program_rows,
        positions=positions, heads=4, causal=1, before=-1, after=-1, scale=1.0,
    )  # fmt: skip
    program.run()
    assert (y == 0).all()
