"""Block formats of GGUF: bit for bit the numbers of the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.checkpoint.gguf_blocks import BLOCKS, OTHERS

DECODED = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


@pytest.mark.parametrize("name", DECODED)
@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 70), seed=st.integers(0, 2**32 - 1))
def test_random_blocks_decode_bit_for_bit(name: str, rows: int, seed: int) -> None:
    kind = BLOCKS[name]
    assert kind.decode is not None
    raw = np.random.default_rng(seed).integers(0, 256, (rows, kind.bytes), dtype=np.uint8)
    out = np.full((rows, kind.elements), 7, np.float32)
    with np.errstate(all="ignore"):
        kind.decode(raw, out)
        expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[name]).reshape(out.shape)
    np.testing.assert_array_equal(out, expected)  # treats NaN as equal, and nothing else
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(out[numbers].view(np.uint32), expected[numbers].view(np.uint32))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_numbers_come_back_within_half_a_step(name: str) -> None:
    kind = BLOCKS[name]
    assert kind.decode is not None
    values = np.random.default_rng(3).standard_normal((64, kind.elements)).astype(np.float32)
    out = np.empty_like(values)
    kind.decode(gguf.quantize(values, gguf.GGMLQuantizationType[name]), out)
    steps = {"Q8_0": 254, "Q5_0": 31, "Q5_1": 31, "Q4_0": 15, "Q4_1": 15}[name]
    # Twice the largest number is the widest range a block can have; the 16-bit scale rounds as well.
    bound = 2 * np.abs(values).max(axis=1, keepdims=True) / steps * 1.01
    assert (np.abs(out - values) <= bound).all()


def test_codes_and_sizes_are_those_of_the_format() -> None:
    for name, kind in BLOCKS.items():
        code = gguf.GGMLQuantizationType[name]
        assert (kind.code, kind.elements, kind.bytes) == (code.value, *gguf.GGML_QUANT_SIZES[code])
    for code, name in OTHERS.items():
        assert gguf.GGMLQuantizationType(code).name == name
    assert {code.value for code in gguf.GGMLQuantizationType} <= {kind.code for kind in BLOCKS.values()} | OTHERS.keys()
