"""Every encoder against its decoder, and against the gguf package's."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from headway.checkpoint.gguf_blocks import BLOCKS
from headway.errors import CheckpointError
from headway.quant import FORMATS, Format, plain
from headway.quant.formats import GROUPS
from headway.quant.rounding import ENCODERS, examined
from headway.tape.weights import Raw

Floats = NDArray[np.float32]
BLOCKED = [format for format in FORMATS.values() if format.code in ENCODERS]
SMALL = [format for format in BLOCKED if format.span == 32]
SUPER = [format for format in BLOCKED if format.span == 256]
INTEGERS = [(group, symmetric) for group in GROUPS for symmetric in (True, False)]
NUMBERS = st.floats(-60000, 60000, width=32) | st.sampled_from([0.0, -0.0, 1e-30, -1e-30, 1e-7, 0.7, 1e4, -1e4])


def named(format: Format) -> str:
    return format.name


def numbers(rows: int, cols: int) -> st.SearchStrategy[Floats]:
    scaled = st.sampled_from([1.0, 1e-3, 1e-6])
    return st.builds(lambda w, s: w * np.float32(s), arrays(np.float32, (rows, cols), elements=NUMBERS), scaled)


def halves(raw: Raw, at: int) -> Floats:
    """The 16-bit number at byte `at` of each block, [N, 1]."""
    blocks = raw.array.reshape(-1, BLOCKS[raw.dtype].bytes)
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def within(before: Floats, after: Floats, step: Floats, limit: float = 0.5) -> bool:
    """Whether no number has moved by more than `limit` steps, and what 32-bit arithmetic adds."""
    room = limit * np.abs(step.astype(np.float64)) * (1 + 1e-5) + 4e-7 * np.abs(before)
    return bool((np.abs(after.astype(np.float64) - before) <= room).all())


@pytest.mark.parametrize("format", SMALL, ids=named)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_blocks_of_32_keep_every_number_within_half_a_step(format: Format, data: st.DataObject) -> None:
    weights = data.draw(numbers(3, 32))
    raw = plain("w", weights, format)
    step = halves(raw, 0)
    assert np.isfinite(step).all()
    assert within(weights, raw.floats(), step)
    assert not raw.floats()[~weights.any(1)].any()


@pytest.mark.parametrize("format", SUPER, ids=named)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_blocks_of_256_are_finite_and_no_worse_than_one_scale_for_all(format: Format, data: st.DataObject) -> None:
    weights = data.draw(numbers(2, 256))
    raw = plain("w", weights, format)
    got = raw.floats()
    assert np.isfinite(got).all()
    assert not got[~weights.any(1)].any()
    levels = 63 if format.name == "q6_k" else 2**format.bits - 1
    span = np.maximum(weights.max(1), 0) - np.minimum(weights.min(1), 0)
    coarse = np.maximum(2 * np.abs(weights).max(1) if format.symmetric else span, 1e-4) / levels
    assert within(weights, got, coarse[:, None], 1.0)


@pytest.mark.parametrize("format", BLOCKED, ids=named)
def test_blocks_read_the_same_in_the_gguf_package(format: Format) -> None:
    weights = np.random.default_rng(3).standard_normal((7, 512)).astype(np.float32)
    raw = plain("w", weights, format)
    assert np.array_equal(gguf.dequantize(raw.array, gguf.GGMLQuantizationType[format.code]), raw.floats())


@pytest.mark.parametrize("format", SMALL, ids=named)
def test_blocks_of_32_lose_no_more_than_those_of_the_gguf_package(format: Format) -> None:
    weights = np.random.default_rng(4).standard_normal((64, 512)).astype(np.float32)
    kind = gguf.GGMLQuantizationType[format.code]
    theirs = np.linalg.norm(gguf.dequantize(gguf.quantize(weights, kind), kind) - weights)
    assert np.linalg.norm(plain("w", weights, format).floats() - weights) < 1.01 * theirs


@pytest.mark.parametrize(("name", "other"), [("q4_k", "q4_1"), ("q5_k", "q5_1")])
def test_searched_scales_lose_less_than_rounding_between_the_ends(name: str, other: str) -> None:
    weights = np.random.default_rng(5).standard_normal((64, 512)).astype(np.float32)
    searched, simple = (np.linalg.norm(plain("w", weights, FORMATS[each]).floats() - weights) for each in (name, other))
    assert searched < 0.95 * simple


@pytest.mark.parametrize("format", [*BLOCKED, FORMATS["int8"], FORMATS["float16"]], ids=named)
def test_what_a_format_holds_exactly_stays(format: Format) -> None:
    weights = np.random.default_rng(6).standard_normal((4, 256)).astype(np.float32)
    once = plain("w", weights, format).floats()
    again = plain("w", once, format).floats()
    assert np.linalg.norm(again - once) <= 0.2 * np.linalg.norm(once - weights)


@pytest.mark.parametrize(("group", "symmetric"), INTEGERS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_int4_keeps_every_number_within_half_a_step(group: int, symmetric: bool, data: st.DataObject) -> None:
    weights = data.draw(numbers(2, data.draw(st.sampled_from([1, 31, 33, 96, 130]))))
    raw = plain("w", weights, FORMATS["int4"], group=group, symmetric=symmetric)
    made = raw.integers
    assert made is not None
    assert np.isfinite(made.scales).all()
    assert (made.scales > 0).all()
    assert within(weights, raw.floats(), made.scales.astype(np.float32).repeat(made.group, 1)[:, : weights.shape[1]])
    assert not raw.floats()[weights == 0].any()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_int8_keeps_every_number_within_half_a_step(data: st.DataObject) -> None:
    weights = data.draw(numbers(2, data.draw(st.sampled_from([1, 3, 40]))))
    raw = plain("w", weights, FORMATS["int8"])
    assert raw.integers is not None
    assert (raw.integers.scales > 0).all()
    assert within(weights, raw.floats(), raw.integers.scales[:, None])
    assert not raw.floats()[weights == 0].any()


@pytest.mark.parametrize("format", FORMATS.values(), ids=named)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_the_matrix_name(format: Format, bad: float) -> None:
    weights = np.ones((2, 256), np.float32)
    weights[1, 7] = bad
    with pytest.raises(CheckpointError, match=r"^a\.b\.weight holds 1 numbers that are not finite"):
        plain("a.b.weight", weights, format)


@pytest.mark.parametrize("format", [each for each in FORMATS.values() if each.name not in ("int8", "bfloat16")])
def test_what_scales_cannot_reach_is_refused(format: Format) -> None:
    with pytest.raises(CheckpointError, match=r"w holds 1e\+05, and .* reaches to 65504; choose int8"):
        plain("w", np.full((1, 256), 1e5, np.float32), format)


def test_empty_and_lost_groups_are_counted() -> None:
    weights = np.ones((1, 128), np.float32)
    weights[0, :32], weights[0, 32:64] = 0, 1e-30
    found = examined("w", weights, plain("w", weights, FORMATS["q4_0"]), 32)
    assert (found.empty_groups, found.lost_groups) == (1, 1)
