"""Linear kernels: every format, shape and instruction set against whole-array numpy on the decoded weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import CheckpointError
from headway.native.library import Library, Pool
from headway.native.matrix import Matrix
from headway.native.program import Output, Program
from headway.native.structs import Format
from tests.native.material import FLOATS, GGUF, OWN, QUANTISED, linear, rounded, weights

QUICK = settings(max_examples=12, deadline=None)
SHAPES = {"rows": st.integers(1, 40), "cols": st.integers(1, 300), "n": st.sampled_from([1, 2, 3, 5, 17, 33, 70])}


def activations(n: int, cols: int, seed: int = 1) -> np.ndarray:
    """Random numbers [n, cols], of which some outweigh all others near them, as in language models."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((n, cols), np.float32)
    return np.where(random.random(x.shape) < 0.02, 30 * x, x)


def assert_close(y: np.ndarray, x: np.ndarray, floats: np.ndarray, part: float = 2e-6) -> None:
    """Within `part` of the sum of the terms' sizes: what float32 sums may lose."""
    expected = x.astype(np.float64) @ floats.T.astype(np.float64)
    allowed = part * (np.abs(x).astype(np.float64) @ np.abs(floats).T.astype(np.float64)) + 1e-30
    assert (np.abs(y - expected) <= allowed).all(), float((np.abs(y - expected) / allowed).max())


@pytest.mark.case("C36")
@pytest.mark.parametrize("kind", QUANTISED)
@given(seed=st.integers(0, 2**31), packed=st.booleans(), **SHAPES)
@QUICK
def test_quantised_equals_decoded_weights_times_rounded_activations(
    library: Library, pool: Pool, kind: str, rows: int, cols: int, n: int, seed: int, packed: bool
) -> None:
    given_weights = weights(library, kind, rows, cols, seed)
    matrix = given_weights.matrix.pack(pool) if packed else given_weights.matrix
    x = activations(n, matrix.cols, seed)
    for name in library.paths:
        library.set_path(name)
        assert_close(linear(library, pool, matrix, x), rounded(x), given_weights.floats)
    library.set_path(library.paths[0])


@pytest.mark.parametrize("kind", FLOATS)
@given(seed=st.integers(0, 2**31), **SHAPES)
@QUICK
def test_floats_equal_the_matrix_product(
    library: Library, pool: Pool, kind: str, rows: int, cols: int, n: int, seed: int
) -> None:
    given_weights = weights(library, kind, rows, cols, seed)
    x = activations(n, cols, seed)
    for name in library.paths:
        library.set_path(name)
        assert_close(linear(library, pool, given_weights.matrix, x), x, given_weights.floats)
    library.set_path(library.paths[0])


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "I8", "I4:64:zeros", "F32", "F16", "BF16"])
def test_wide_matrices_keep_their_sums(library: Library, pool: Pool, path: str, kind: str) -> None:
    given_weights = weights(library, kind, 24, 2816)
    for n in (1, 40):
        x = activations(n, 2816)
        seen = x if kind in FLOATS else rounded(x)
        assert_close(linear(library, pool, given_weights.matrix.pack(pool), x), seen, given_weights.floats, 1e-5)


@pytest.mark.parametrize("kind", QUANTISED)
def test_a_row_is_the_same_beside_any_others_packed_or_not_on_any_threads(
    library: Library, pool: Pool, path: str, kind: str
) -> None:
    matrix = weights(library, kind, 37, 256).matrix
    x = activations(66, matrix.cols)
    together = linear(library, pool, matrix.pack(pool), x)
    alone = Pool(library, 1)
    for row in (0, 1, 63, 64, 65):
        np.testing.assert_array_equal(linear(library, alone, matrix.pack(pool), x[row : row + 1])[0], together[row])
    np.testing.assert_array_equal(linear(library, alone, matrix, x), together)


@pytest.mark.parametrize("kind", ["Q4_0", "I8", "F32", "BF16"])
@pytest.mark.parametrize("n", [1, 5, 70])
def test_bias_scale_and_residual(library: Library, pool: Pool, path: str, kind: str, n: int) -> None:
    given_weights = weights(library, kind, 19, 64)
    x, bias, y = activations(n, 64), activations(1, 19, 5)[0], activations(n, 19, 6)
    plain = linear(library, pool, given_weights.matrix, x)
    full = linear(library, pool, given_weights.matrix, x, bias=bias, scale=0.5, y=y)
    np.testing.assert_allclose(full, 0.5 * (plain + bias) + y, rtol=1e-6, atol=1e-6)


def test_several_matrices_read_one_input(library: Library, pool: Pool, path: str) -> None:
    kinds = {"Q4_1": 40, "Q8_0": 8, "F32": 24, "I4:96:zeros": 3}
    matrices = [weights(library, kind, rows, 128).matrix for kind, rows in kinds.items()]
    for n in (1, 40):
        x = activations(n, 128)
        outputs = [Output(matrix.pack(pool), np.zeros((n, matrix.rows), np.float32)) for matrix in matrices]
        program = Program(library, pool)
        program.linear(np.array([n]), x, outputs, most=n)
        program.run()
        for output, matrix in zip(outputs, matrices, strict=True):
            np.testing.assert_array_equal(output.y, linear(library, pool, matrix, x))


@pytest.mark.parametrize("kind", [*GGUF, *FLOATS])
def test_weights_may_lie_at_any_address(library: Library, pool: Pool, path: str, kind: str) -> None:
    matrix = weights(library, kind, 9, 256).matrix
    x = np.concatenate([[0], activations(3, 256).ravel()]).astype(np.float32)[1:].reshape(3, 256)
    size = matrix.nbytes
    moved = np.empty(size + 1, np.uint8)[1:]
    moved[:] = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * size).from_address(matrix.struct.data))
    elsewhere = Matrix(library, matrix.format, 9, 256, moved)
    np.testing.assert_array_equal(
        linear(library, pool, elsewhere.pack(pool), x), linear(library, pool, matrix.pack(pool), x)
    )
    np.testing.assert_array_equal(linear(library, pool, elsewhere, x), linear(library, pool, matrix, x))


@pytest.mark.parametrize("kind", [*QUANTISED, *FLOATS])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_shows_in_its_row_alone(
    library: Library, pool: Pool, path: str, kind: str, wrong: float
) -> None:
    given_weights = weights(library, kind, 10, 96)
    for n in (3, 40):
        x = activations(n, given_weights.matrix.cols)
        clean = linear(library, pool, given_weights.matrix, x)
        x[1, 70] = wrong
        y = linear(library, pool, given_weights.matrix, x)
        kept = np.arange(n) != 1
        np.testing.assert_array_equal(y[kept], clean[kept])
        if kind in FLOATS and not np.isnan(wrong):
            assert not np.isfinite(y[1]).any()
        else:
            assert np.isnan(y[1]).all()


@pytest.mark.case("C40")
@pytest.mark.parametrize("kind", QUANTISED)
def test_zero_scales_and_extreme_activations_stay_finite(library: Library, pool: Pool, path: str, kind: str) -> None:
    zero = weights(library, kind, 11, 64, scale=0.0)
    x = activations(4, zero.matrix.cols)
    assert (linear(library, pool, zero.matrix.pack(pool), x) == 0).all()
    given_weights = weights(library, kind, 11, 64)
    x[0], x[1, :40], x[2], x[3] = 0, 1e-38, x[2] * 1e30, x[3] * 1e-25
    y = linear(library, pool, given_weights.matrix.pack(pool), x)
    assert (y[0] == 0).all()
    assert np.isfinite(y).all()
    assert_close(y, rounded(x), given_weights.floats)


def test_sizes_that_do_not_fit_are_refused_before_a_pointer_is_made(library: Library) -> None:
    raw = np.zeros(18 * 4, np.uint8)
    with pytest.raises(CheckpointError, match="40 columns"):
        Matrix(library, Format.Q4_0, 4, 40, raw)
    with pytest.raises(CheckpointError, match="data has 72 bytes, not 90"):
        Matrix(library, Format.Q4_0, 5, 32, raw)
    with pytest.raises(CheckpointError, match="group"):
        Matrix(library, Format.I4, 4, 36, raw, group=48)
    with pytest.raises(CheckpointError, match="scales must be float32"):
        Matrix(library, Format.I8, 2, 36, raw)
    with pytest.raises(CheckpointError, match="holds nothing"):
        Matrix(library, Format.F32, 0, 18, raw[:0])


def test_own_formats_take_any_number_of_columns(library: Library, pool: Pool, path: str) -> None:
    for kind in OWN:
        for cols in (1, 31, 33, 95, 97, 129):
            given_weights = weights(library, kind, 9, cols)
            x = activations(2, cols)
            assert_close(linear(library, pool, given_weights.matrix.pack(pool), x), rounded(x), given_weights.floats)
