"""Groups that do not divide a width give right numbers, and formats that cannot hold it are replaced by name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import RequestError
from headway.native.library import Library, Pool
from headway.quant import FORMATS, Format, Recipe, plain, plan
from headway.quant.formats import GROUPS
from headway.spec import TokenStem
from headway.spec.count import shapes
from headway.tape.weights import Raw, matrix_of
from tests import needs, zoo
from tests.native.material import linear, rounded

KINDS = [("int8", 64, True), *(("int4", group, how) for group in GROUPS for how in (True, False))]
BLOCKED = [format for format in FORMATS.values() if format.span > 1]


@pytest.fixture(scope="module")
def native() -> Library:
    return needs.native()


def weights(rows: int, cols: int) -> np.ndarray:
    return np.random.default_rng(cols).standard_normal((rows, cols)).astype(np.float32) * 0.05


def steps(raw: Raw) -> np.ndarray:
    """The scale of every number."""
    made = raw.integers
    assert made is not None
    each = made.scales.astype(np.float32)
    return each[:, None] if made.bits == 8 else each.repeat(made.group, 1)[:, : made.cols]


@pytest.mark.case("C36")
@pytest.mark.parametrize(("to", "group", "symmetric"), KINDS)
@settings(max_examples=25, deadline=None)
@given(cols=st.integers(1, 300), rows=st.integers(1, 20), n=st.sampled_from([1, 3, 40]))
def test_any_width_in_any_group(
    native: Library, to: str, group: int, symmetric: bool, cols: int, rows: int, n: int
) -> None:
    before = weights(rows, cols)
    raw = plain("w", before, FORMATS[to], group=group, symmetric=symmetric)
    after = raw.floats()
    assert (np.abs(after - before) <= 0.5001 * steps(raw)).all()
    pool, x = Pool(native, 1), np.random.default_rng(1).standard_normal((n, cols)).astype(np.float32)
    for matrix in (matrix_of(native, raw), matrix_of(native, raw).pack(pool)):
        got = linear(native, pool, matrix, x)
        assert np.isfinite(got).all()
        assert np.abs(got - rounded(x) @ after.T.astype(np.float64)).max() < 1e-3


@pytest.mark.case("C36")
@pytest.mark.parametrize("format", BLOCKED, ids=lambda format: format.name)
def test_packed_blocks_answer_as_their_numbers_do(native: Library, format: Format) -> None:
    raw = plain("w", weights(19, 512), format)
    pool, x = Pool(native, 1), np.random.default_rng(1).standard_normal((3, 512)).astype(np.float32)
    got = linear(native, pool, matrix_of(native, raw).pack(pool), x)
    assert np.abs(got - rounded(x) @ raw.floats().T.astype(np.float64)).max() < 1e-3


@pytest.mark.case("C36")
@pytest.mark.parametrize("format", BLOCKED, ids=lambda format: format.name)
@pytest.mark.parametrize("width", [36, 96, 256])
def test_widths_that_blocks_do_not_fill_are_listed_with_what_takes_their_place(format: Format, width: int) -> None:
    spec = zoo.decoder(
        zoo.layer(zoo.attention(), zoo.feed_forward()), width=width, stem=TokenStem(vocab=97, width=width)
    )
    made = plan(spec, Recipe(to=format.name))
    for path, shape in shapes(spec).items():
        if len(shape) == 2:
            found = made.formats[path]
            assert shape[1] % found.span == 0
            assert found is format or path in made.exceptions
    odd = [line for line in made.exceptions.values() if f"rows of {width} are no whole blocks" in line]
    assert bool(odd) is (width % format.span != 0)


@pytest.mark.case("C36")
@pytest.mark.parametrize("group", [0, 1, 16, 48, 256, -2])
def test_a_group_that_no_kernel_knows_is_refused_before_any_work(group: int) -> None:
    with pytest.raises(RequestError, match=f"group = {group} is not one of 32, 64, 128, -1"):
        Recipe(to="int4", group=group)
