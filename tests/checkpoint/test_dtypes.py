"""Plain element types: every bit pattern becomes the number that other implementations read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.checkpoint.dtypes import PLAIN

TORCH = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
}


@pytest.mark.parametrize("name", TORCH)
def test_every_pattern_of_a_short_float_reads_as_in_torch(name: str) -> None:
    kind = PLAIN[name]
    assert kind.decode is not None
    patterns = np.arange(1 << (8 * kind.bytes), dtype=np.uint32).astype(kind.storage)
    out = np.empty((len(patterns), 1), np.float32)
    kind.decode(patterns.view(np.uint8).reshape(-1, kind.bytes), out)
    expected = torch.from_numpy(patterns).view(TORCH[name]).float().numpy()
    np.testing.assert_array_equal(out[:, 0], expected)
    finite = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(out[finite, 0]), np.signbit(expected[finite]))


@pytest.mark.parametrize("name", ["F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL"])
def test_numbers_of_other_widths_are_cast(name: str) -> None:
    kind = PLAIN[name]
    assert kind.decode is not None
    values = (
        np.array([0, 1, 1, 0]).astype(kind.storage) if name == "BOOL" else np.array([0, 1, 77]).astype(kind.storage)
    )
    out = np.empty((len(values), 1), np.float32)
    kind.decode(values.view(np.uint8).reshape(-1, kind.bytes), out)
    np.testing.assert_array_equal(out[:, 0], values.astype(np.float32))


def test_sizes_of_types_narrower_than_a_byte() -> None:
    assert PLAIN["F4"].nbytes((3, 2)) == 3
    assert PLAIN["F4"].nbytes((3,)) is None
    assert PLAIN["F6_E2M3"].nbytes((4, 4)) == 12
    assert PLAIN["F32"].nbytes(()) == 4
    assert PLAIN["F32"].nbytes((0, 5)) == 0
