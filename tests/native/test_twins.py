"""Every operation on every instruction set beside its scalar twin: odd sizes, odd addresses, zeros, extremes, NaN."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.native.library import Library, Pool
from headway.native.structs import Activation, Format, Op
from tests.native.material import FLOATS, QUANTISED, linear, run, weights
from tests.native.test_attention import STORAGE, Case

QUICK = settings(max_examples=15, deadline=None)
SIZES = st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 129, 577]))
ROWS = st.sampled_from([1, 2, 5, 33])
KINDS = st.sampled_from(["plain", "zero", "huge", "small", "nan", "infinite"])
SHIFTS = st.integers(0, 3)


def values(n: int, width: int, kind: str = "plain", shift: int = 0, seed: int = 0) -> np.ndarray:
    """[n, width] that begins `shift` floats after an address which is a multiple of 16."""
    random = np.random.default_rng(seed)
    x = np.empty(n * width + 7, np.float32)
    x = x[-(x.ctypes.data // 4) % 4 + shift :][: n * width].reshape(n, width)
    x[:] = random.standard_normal((n, width))
    if kind in ("zero", "huge", "small"):
        x *= {"zero": 0, "huge": 1e15, "small": 1e-30}[kind]
    elif kind != "plain":
        x[n // 2, width // 2] = {"nan": np.nan, "infinite": np.inf}[kind]
    return x


def assert_twins(
    library: Library, compute: Callable[[], np.ndarray], *, size: np.ndarray | float = 1.0, part: float = 2e-5
) -> np.ndarray:
    """What every path computes is what the scalar one does, within `part` of `size`; gives the scalar answer."""
    library.set_path("scalar")
    scalar = compute()
    try:
        for name in library.paths[:-1]:
            library.set_path(name)
            other = compute()
            np.testing.assert_array_equal(np.isfinite(other), np.isfinite(scalar), name)
            np.testing.assert_array_equal(np.isnan(other), np.isnan(scalar), name)
            finite = np.isfinite(scalar)
            off = np.abs(np.where(finite, other, 0).astype(np.float64) - np.where(finite, scalar, 0))
            assert (off <= part * (np.abs(np.where(finite, scalar, 0)) + size)).all(), (name, off.max())
    finally:
        library.set_path(library.paths[0])
    return scalar


@pytest.mark.parametrize("kind", [*QUANTISED, *FLOATS])
@given(rows=SIZES, cols=SIZES, n=ROWS, shape=KINDS, shift=SHIFTS, packed=st.booleans())
@example(rows=1, cols=1, n=1, shape="plain", shift=1, packed=True)
@example(rows=9, cols=1, n=33, shape="plain", shift=3, packed=False)
@example(rows=1, cols=129, n=2, shape="nan", shift=2, packed=True)
@QUICK
def test_linears(
    library: Library, pool: Pool, kind: str, rows: int, cols: int, n: int, shape: str, shift: int, packed: bool
) -> None:
    given_weights = weights(library, kind, rows, cols)
    matrix = given_weights.matrix.pack(pool) if packed else given_weights.matrix
    x = values(n, matrix.cols, shape, shift)
    with np.errstate(all="ignore"):
        size = np.nan_to_num(np.abs(x), nan=0, posinf=0) @ np.abs(given_weights.floats.T)
    y = assert_twins(library, partial(linear, library, pool, matrix, x), size=size)
    if shape == "nan":
        assert np.isnan(y[n // 2]).all()


@pytest.mark.parametrize("op", [Op.RMS_NORM, Op.LAYER_NORM])
@given(width=SIZES, per=st.integers(1, 3), n=ROWS, shape=KINDS, shift=SHIFTS)
@QUICK
def test_norms(library: Library, pool: Pool, op: Op, width: int, per: int, n: int, shape: str, shift: int) -> None:
    x = values(n, per * width, shape, shift)
    weight, bias = values(1, width, "plain", shift, 1)[0], values(1, width, "plain", 3 - shift, 2)[0]

    def compute() -> np.ndarray:
        y = values(n, per * width, "plain", 3 - shift)
        strides = {"x_stride": per * width, "y_stride": per * width, "width": width, "per": per}
        run(library, pool, op, n, x=x, y=y, weight=weight, bias=bias, offset=1.0, eps=1e-5, **strides)
        return y

    # A LayerNorm of equal numbers divides what rounding left of them by the root of eps.
    size = 5 + (np.abs(np.where(np.isfinite(x), x, 0)).max() * 1e-2 if width == 1 else 0)
    y = assert_twins(library, compute, size=size).reshape(n, per, width)
    if shape == "zero":
        np.testing.assert_array_equal(y, np.broadcast_to(bias, y.shape))
    if shape == "nan":
        assert np.isnan(y[n // 2, per * width // 2 // width]).all()
        assert np.isnan(y).sum() == width


@given(heads=st.integers(1, 5), pairs=SIZES, rest=st.integers(0, 9), n=ROWS, shape=KINDS, shift=SHIFTS)
@pytest.mark.parametrize("interleaved", [0, 1])
@QUICK
def test_rotation(
    library: Library, pool: Pool, interleaved: int, heads: int, pairs: int, rest: int, n: int, shape: str, shift: int
) -> None:
    head_dim, positions = 2 * pairs + rest, np.arange(n, dtype=np.int32)[::-1].copy()
    angles = values(n, pairs, seed=5)
    cos, sin = np.cos(angles), np.sin(angles)

    def compute() -> np.ndarray:
        x = values(n, heads * head_dim, shape, shift)
        fields = {"x_stride": heads * head_dim, "heads": heads, "head_dim": head_dim, "dim": 2 * pairs}
        tables = {"cos": cos, "sin": sin, "positions": positions, "table_rows": n}
        run(library, pool, Op.ROTARY, n, x=x, interleaved=interleaved, **fields, **tables)
        return x

    size = {"huge": 1e15, "small": 1e-30}.get(shape, 1.0)
    y = assert_twins(library, compute, size=4 * size)
    if shape == "nan":
        assert 1 <= np.isnan(y).sum() <= 2


@pytest.mark.parametrize("kind", list(Activation))
@given(width=SIZES, n=ROWS, shape=KINDS, shift=SHIFTS, gated=st.booleans())
@QUICK
def test_activations(
    library: Library, pool: Pool, kind: Activation, width: int, n: int, shape: str, shift: int, gated: bool
) -> None:
    x, gate = values(n, width, shape, shift), values(n, width, "plain", 3 - shift, 1)
    strides = {"x_stride": width, "gate_stride": width, "y_stride": width, "width": width}

    def compute() -> np.ndarray:
        y = values(n, width)
        extra = {"gate": gate} if gated else {}
        run(library, pool, Op.ACTIVATION, n, x=x, y=y, kind=int(kind), **strides, **extra)
        return y

    assert np.isnan(assert_twins(library, compute)).sum() == (shape == "nan")


@given(width=SIZES, n=ROWS, shape=KINDS, shift=SHIFTS)
@QUICK
def test_sums_caps_and_copies(library: Library, pool: Pool, width: int, n: int, shape: str, shift: int) -> None:
    a, b = values(n, width, shape, shift), values(n, width, "plain", 3 - shift, 1)
    vector, index = values(1, width, "plain", shift, 2)[0], np.arange(n, dtype=np.int32)[::-1].copy()
    size = {"huge": 1e16}.get(shape, 10.0)

    def result(op: Op, **fields: object) -> Callable[[], np.ndarray]:
        def compute() -> np.ndarray:
            y = values(n, width)
            run(library, pool, op, n, y=y, y_stride=width, width=width, **fields)
            return y

        return compute

    sums = {"a": a, "b": b, "vector": vector, "a_stride": width, "b_stride": width, "a_scale": 2.0, "b_scale": 0.5}
    answers = [
        assert_twins(library, result(Op.COMBINE, **sums), size=size),
        assert_twins(library, result(Op.SOFTCAP, x=a, x_stride=width, cap=30.0), size=30),
        assert_twins(library, result(Op.GATHER, x=a, x_stride=width, index=index), part=0),
    ]
    assert [np.isnan(y).sum() for y in answers] == [shape == "nan"] * 3


@given(kind=st.sampled_from([*QUANTISED, *FLOATS]), rows=SIZES, cols=SIZES, n=ROWS, packed=st.booleans(), shift=SHIFTS)
@QUICK
def test_embedding_rows(
    library: Library, pool: Pool, kind: str, rows: int, cols: int, n: int, packed: bool, shift: int
) -> None:
    given_weights = weights(library, kind, rows, cols)
    matrix = given_weights.matrix.pack(pool) if packed else given_weights.matrix
    ids = np.random.default_rng(0).integers(-1, rows + 1, n).astype(np.int32)

    def compute() -> np.ndarray:
        y = values(n, matrix.cols, "plain", shift)
        run(library, pool, Op.EMBED, n, matrix=matrix, ids=ids, y=y, y_stride=matrix.cols, scale=1.0)
        return y

    y = assert_twins(library, compute, part=0)
    known = (ids >= 0) & (ids < rows)
    np.testing.assert_array_equal(y[known], given_weights.floats[ids[known]])
    assert np.isnan(y[~known]).all()


@given(width=SIZES, n=ROWS, k=st.integers(1, 9), shape=KINDS, shift=SHIFTS)
@QUICK
def test_the_largest(library: Library, pool: Pool, width: int, n: int, k: int, shape: str, shift: int) -> None:
    x, k = values(n, width, shape, shift), min(k, width)

    def compute() -> np.ndarray:
        ids = np.zeros((n, k), np.int32)
        run(library, pool, Op.TOP, n, x=x, x_stride=width, width=width, k=k, ids=ids)
        return ids

    ids = assert_twins(library, compute, part=0)
    if shape in ("nan", "infinite"):
        assert ids[n // 2, 0] == width // 2


@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=3),
    grouping=st.sampled_from([(1, 1), (6, 2), (9, 3), (12, 1)]),
    dim=st.sampled_from([1, 4, 7, 20, 64]),
    value_dim=st.sampled_from([1, 5, 16, 40]),
    kind=st.sampled_from(list(STORAGE)),
    fields=st.sampled_from([{}, {"before": 7}, {"softcap": 2.0}, {"causal": 0}, {"scale": 30.0}]),
    sinks=st.booleans(),
)
@QUICK
def test_attention(
    library: Library,
    pool: Pool,
    lengths: list[tuple[int, int]],
    grouping: tuple[int, int],
    dim: int,
    value_dim: int,
    kind: Format,
    fields: dict[str, float],
    sinks: bool,
) -> None:
    extra = {"sinks": values(1, grouping[0], seed=9)[0]} if sinks else {}
    case = Case(
        [max(pair) for pair in lengths],
        [min(pair) for pair in lengths],
        *grouping,
        dim,
        value_dim,
        kind,
        fields={**fields, **extra},
    )
    assert_twins(library, partial(case.native, library, pool), size=4)


@pytest.mark.parametrize("kind", list(STORAGE))
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_nan_is_seen_by_those_who_look_at_it(library: Library, pool: Pool, path: str, kind: Format, where: str) -> None:
    case = Case([40], [20], kind=kind, value_dim=12, dim=12)
    clean = case.native(library, pool)
    if where == "q":
        case.q[5, 13] = np.nan  # the sixth new token, its second head
    else:
        getattr(case, where)[0, 25, 3] = np.nan  # the same token's first key or value head
    y = case.native(library, pool).reshape(20, 4, 12)
    seen = np.zeros((20, 4), bool)
    if where == "q":
        seen[5, 1] = True
    else:
        seen[5:, :2] = True
    nan = np.isnan(y)
    if where == "v":  # a weight of nothing times NaN is NaN too, as in every matrix product
        assert nan[seen][:, 3].all()
        assert not nan[:, 2:].any()
        return
    np.testing.assert_array_equal(nan, np.broadcast_to(seen[..., None], y.shape))
    np.testing.assert_array_equal(y[~seen], clean.reshape(20, 4, 12)[~seen])


@pytest.mark.parametrize("kind", [*QUANTISED, *FLOATS])
def test_extreme_scales_of_weights(library: Library, pool: Pool, kind: str) -> None:
    for scale in (1e-7, 1.0, 1e3):
        given_weights = weights(library, kind, 11, 256, scale=scale)
        x = values(3, given_weights.matrix.cols)
        size = np.abs(x) @ np.abs(given_weights.floats.T)
        for matrix in (given_weights.matrix, given_weights.matrix.pack(pool)):
            y = assert_twins(library, partial(linear, library, pool, matrix, x), size=size)
            assert np.isfinite(y).all()
