"""Norms, rotation, activations and the small operations, against numpy in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.native.library import Library, Pool
from headway.native.structs import Activation, Op
from tests.native.material import FLOATS, QUANTISED, run, weights

WIDTHS = [1, 7, 8, 9, 64, 577]
erf = np.vectorize(math.erf, otypes=[np.float64])


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


EXPECTED: dict[Activation, Any] = {
    Activation.RELU: lambda x: np.maximum(x, 0),
    Activation.GELU: lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2))),
    Activation.GELU_TANH: lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    Activation.GELU_QUICK: lambda x: x * sigmoid(1.702 * x),
    Activation.SILU: lambda x: x * sigmoid(x),
    Activation.SIGMOID: sigmoid,
    Activation.TANH: np.tanh,
}


@pytest.mark.parametrize("kind", list(Activation))
def test_activations_are_accurate_everywhere(library: Library, pool: Pool, path: str, kind: Activation) -> None:
    x = np.concatenate([np.linspace(-100, 100, 20001), np.linspace(-1, 1, 4001), [0.0, -0.0, 1e-30, -1e-30]])
    x = x.astype(np.float32)[None]
    y = np.empty_like(x)
    run(library, pool, Op.ACTIVATION, 1, x=x, y=y, width=x.size, kind=int(kind))
    exact = EXPECTED[kind](x.astype(np.float64))
    np.testing.assert_allclose(y, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", list(Activation))
def test_activations_at_the_ends(library: Library, pool: Pool, path: str, kind: Activation) -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 3e38, -3e38]], np.float32)
    y = np.empty_like(x)
    run(library, pool, Op.ACTIVATION, 1, x=x, y=y, width=5, kind=int(kind))
    assert np.isnan(y[0, 0])
    high = {Activation.SIGMOID: 1, Activation.TANH: 1}.get(kind, np.inf)
    low = -1 if kind is Activation.TANH else 0
    assert y[0, 1] == high
    assert y[0, 2] == y[0, 4] == low
    assert y[0, 3] == (high if high == 1 else np.float32(3e38))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("n", [1, 3, 90])
def test_gated_products(library: Library, pool: Pool, path: str, width: int, n: int) -> None:
    both = values(n, 2 * width)
    out = np.empty((n, width), np.float32)
    fields = {"x_stride": 2 * width, "gate_stride": 2 * width, "y_stride": width, "width": width}
    run(library, pool, Op.ACTIVATION, n, x=both, gate=both[:, width:], y=out, kind=int(Activation.SILU), **fields)
    gate, up = both[:, :width].astype(np.float64), both[:, width:]
    np.testing.assert_allclose(out, gate * sigmoid(gate) * up, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("n", "per"), [(1, 1), (3, 2), (70, 3)])
@pytest.mark.parametrize("op", [Op.RMS_NORM, Op.LAYER_NORM])
@pytest.mark.parametrize("plain", [False, True])
def test_norms(library: Library, pool: Pool, path: str, op: Op, width: int, n: int, per: int, plain: bool) -> None:
    x = values(n, per * width + 5) * 3 + 1
    weight, bias = values(width, seed=1), values(width, seed=2)
    y = np.zeros((n, per * width), np.float32)
    extra = {} if plain else {"weight": weight, "bias": bias, "offset": 1.0}
    run(
        library,
        pool,
        op,
        n,
        x=x,
        y=y,
        x_stride=x.shape[1],
        y_stride=y.shape[1],
        width=width,
        per=per,
        eps=1e-5,
        **extra,
    )
    rows = x[:, : per * width].reshape(n, per, width).astype(np.float64)
    if op is Op.LAYER_NORM:
        rows = rows - rows.mean(-1, keepdims=True)
    expected = rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-5)
    if not plain:
        expected = expected * (weight + 1.0) + bias
    np.testing.assert_allclose(y, expected.reshape(n, -1), rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "dim"), [(64, 64), (6, 6), (20, 10), (80, 32)])
def test_rotation_turns_pairs(
    library: Library, pool: Pool, path: str, interleaved: bool, head_dim: int, dim: int
) -> None:
    n, heads = 5, 3
    x = values(n, heads * head_dim + 2)
    angles = values(11, dim // 2, seed=4)
    positions = np.array([3, 0, 10, 7, -1], np.int32)
    cos, sin = np.cos(angles), np.sin(angles)
    turned = x.copy()
    fields = {"x_stride": x.shape[1], "heads": heads, "head_dim": head_dim, "dim": dim, "table_rows": 11}
    run(
        library,
        pool,
        Op.ROTARY,
        n,
        x=turned,
        cos=cos,
        sin=sin,
        positions=positions,
        interleaved=int(interleaved),
        **fields,
    )
    expected = x.copy()
    for row in range(4):
        for head in range(heads):
            part = x[row, head * head_dim : head * head_dim + dim]
            first, second = (part[::2], part[1::2]) if interleaved else (part[: dim // 2], part[dim // 2 :])
            wave = (first + 1j * second) * np.exp(1j * angles[positions[row]].astype(np.float64))
            pair = np.stack([wave.real, wave.imag], -1 if interleaved else 0).reshape(-1)
            expected[row, head * head_dim : head * head_dim + dim] = pair
    np.testing.assert_allclose(turned, expected, atol=1e-5)


@pytest.mark.parametrize("kind", [*QUANTISED, *FLOATS])
def test_embedding_rows_are_the_decoded_weights(library: Library, pool: Pool, path: str, kind: str) -> None:
    given_weights = weights(library, kind, 29, 300)
    ids = np.array([28, 0, 7, 8, 28, 16], np.int32)
    for matrix in (given_weights.matrix, given_weights.matrix.pack(pool)):
        y = np.ones((6, matrix.cols), np.float32)
        run(library, pool, Op.EMBED, 6, matrix=matrix, ids=ids, y=y, y_stride=matrix.cols, scale=1.0)
        np.testing.assert_array_equal(y, given_weights.floats[ids])
        run(library, pool, Op.EMBED, 6, matrix=matrix, ids=ids, y=y, y_stride=matrix.cols, scale=3.0, accumulate=1)
        np.testing.assert_allclose(y, 4 * given_weights.floats[ids], rtol=1e-6)


def test_an_unknown_id_reads_nothing(library: Library, pool: Pool, path: str) -> None:
    matrix = weights(library, "Q4_0", 3, 64).matrix
    y = np.zeros((3, 64), np.float32)
    run(library, pool, Op.EMBED, 3, matrix=matrix, ids=np.array([3, 1, -1], np.int32), y=y, y_stride=64, scale=1.0)
    assert np.isnan(y[[0, 2]]).all()
    assert np.isfinite(y[1]).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_sums_caps_and_copies(library: Library, pool: Pool, path: str, width: int) -> None:
    a, b, vector = values(4, width), values(4, width, seed=1), values(width, seed=2)
    y = np.empty_like(a)
    strides = {"a_stride": width, "b_stride": width, "y_stride": width, "width": width}
    run(library, pool, Op.COMBINE, 4, a=a, b=b, y=y, vector=vector, a_scale=2.0, b_scale=0.5, **strides)
    np.testing.assert_allclose(y, 2 * a * vector + 0.5 * b, rtol=1e-5, atol=1e-6)
    run(library, pool, Op.COMBINE, 4, a=a, y=a, a_scale=-1.0, **strides)
    np.testing.assert_array_equal(a, -values(4, width))
    run(library, pool, Op.SOFTCAP, 4, x=b * 60, y=y, x_stride=width, y_stride=width, width=width, cap=30.0)
    np.testing.assert_allclose(y, 30 * np.tanh(b.astype(np.float64) * 2), rtol=1e-6, atol=1e-5)
    index = np.array([3, 3, 0], np.int32)
    run(library, pool, Op.GATHER, 3, x=b, index=index, y=y, x_stride=width, y_stride=width, width=width)
    np.testing.assert_array_equal(y[:3], b[index])


@settings(max_examples=60, deadline=None)
@given(width=st.integers(1, 70), k=st.integers(1, 70), levels=st.integers(1, 30), seed=st.integers(0, 2**31))
def test_the_largest_come_first_and_ties_go_to_the_lowest_id(
    library: Library, pool: Pool, width: int, k: int, levels: int, seed: int
) -> None:
    k = min(k, width)
    random = np.random.default_rng(seed)
    x = random.integers(-levels, levels, (3, width)).astype(np.float32)
    x[random.random(x.shape) < 0.05] = np.nan
    x[random.random(x.shape) < 0.05] = -np.inf
    x[random.random(x.shape) < 0.02] = np.inf
    rank = np.where(np.isnan(x), -np.inf, -x)
    order = np.lexsort((np.broadcast_to(np.arange(width), x.shape), rank, ~np.isnan(x)), axis=-1)
    for name in library.paths:
        library.set_path(name)
        ids, most = np.zeros((3, k), np.int32), np.zeros((3, k), np.float32)
        run(library, pool, Op.TOP, 3, x=x, x_stride=width, width=width, k=k, ids=ids, values=most)
        np.testing.assert_array_equal(ids, order[:, :k])
        np.testing.assert_array_equal(most, np.take_along_axis(x, ids, 1))
    library.set_path(library.paths[0])
