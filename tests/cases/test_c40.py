"""Groups that are all zeros, almost zero, all equal or outweighed by one number stay numbers in every format."""

from __future__ import annotations

import numpy as np
import pytest

from headway.native.library import Pool
from headway.quant import FORMATS, Format, plain
from headway.quant.formats import GROUPS
from headway.quant.rounding import examined
from headway.tape.weights import Raw, matrix_of
from tests import needs
from tests.native.material import linear

KINDS = [
    *((format, 64, False) for format in FORMATS.values() if format.name != "int4"),
    *((FORMATS["int4"], group, how) for group in GROUPS for how in (True, False)),
]
ROWS = ("zeros", "tiny", "equal", "outlier")


def odd() -> np.ndarray:
    """Four rows of 512, each of one odd kind; every one holds a group that is all zeros too."""
    weights = np.zeros((4, 512), np.float32)
    weights[1, :256], weights[2, :256] = 1e-30, 0.7
    weights[3, :256] = np.random.default_rng(0).standard_normal(256) * 0.02
    weights[3, 17] = 1e4
    return weights


def equal_step(format: Format, raw: Raw) -> float:
    """The step of the group that is all 0.7: of its largest number over the levels beside zero."""
    levels = {"int4": 7.5 if raw.integers is not None and raw.integers.zeros is None else 15}
    one_sided = {"float16": 2**10, "bfloat16": 2**7, "q4_1": 15, "q5_1": 31, "q4_k": 15, "q5_k": 31}
    return 0.7 / levels.get(format.name, one_sided.get(format.name, 2 ** (format.bits - 1) - 1))


@pytest.mark.case("C40")
@pytest.mark.parametrize(("format", "group", "symmetric"), KINDS)
def test_odd_groups(format: Format, group: int, symmetric: bool) -> None:
    before = odd()
    raw = plain("w", before, format, group=group, symmetric=symmetric)
    after = raw.floats()
    assert np.isfinite(after).all()
    assert not after[0].any()
    assert not after[:, 256:].any() or group == -1
    assert np.abs(after[1]).max() <= 1e-6
    assert np.abs(after[2, :256] - 0.7).max() <= 0.501 * equal_step(format, raw)
    assert abs(after[3, 17] - 1e4) <= 0.067 * 1e4
    if raw.integers is not None:
        assert np.isfinite(raw.integers.scales).all()
        assert (raw.integers.scales > 0).all()


@pytest.mark.case("C40")
@pytest.mark.parametrize(("format", "group", "symmetric"), KINDS)
def test_kernels_answer_in_numbers_and_zero_rows_with_zero(format: Format, group: int, symmetric: bool) -> None:
    native = needs.native()
    raw, pool = plain("w", odd(), format, group=group, symmetric=symmetric), Pool(native, 1)
    x = np.random.default_rng(2).standard_normal((3, 512)).astype(np.float32)
    got = linear(native, pool, matrix_of(native, raw).pack(pool), x)
    assert np.isfinite(got).all()
    assert not got[:, 0].any()


@pytest.mark.case("C40")
@pytest.mark.parametrize("format", [format for format in FORMATS.values() if not format.floating])
def test_the_report_lists_such_groups(format: Format) -> None:
    before = odd()
    found = examined("w", before, plain("w", before, format), format.block)
    assert found.empty_groups > 0
    assert (found.lost_groups > 0) is (format.name != "int8")  # whose scale of 32 bits holds 1e-30
