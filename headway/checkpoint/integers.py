"""Integer weights with their scales: in memory, as float32, and as the tensors of a compressed-tensors folder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.checkpoint.dtypes import Floats
from headway.errors import CheckpointError

MIDDLE = 8  # the four-bit code that stands for 0 where a group has no zero of its own


@dataclass(frozen=True, kw_only=True)
class Integers:
    """A matrix [rows, cols] of 8 or 4 bits, as the native library takes it.

    8 bits: `codes` int8 [rows, cols], `scales` float32 [rows]; w = code * scale.
    4 bits: `codes` uint8 [rows, ceil(cols / 2)] (even column in the low half), `scales` float16 and, unless every zero
    is 8, `zeros` uint8, both [rows, ceil(cols / group)]; w = (code - zero) * scale.
    """

    bits: int
    cols: int
    codes: NDArray[np.int8] | NDArray[np.uint8]
    scales: NDArray[np.float32] | NDArray[np.float16]
    zeros: NDArray[np.uint8] | None = None
    group: int = 0  # columns that share a scale; 0 with 8 bits

    @property
    def rows(self) -> int:
        """Rows of the matrix."""
        return len(self.codes)

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and zeros."""
        return self.codes.nbytes + self.scales.nbytes + (0 if self.zeros is None else self.zeros.nbytes)

    def floats(self) -> Floats:
        """The values, [rows, cols]."""
        scales = self.scales.astype(np.float32)
        if self.bits == 8:
            return self.codes * scales[:, None]
        codes = np.empty((self.rows, 2 * self.codes.shape[1]), np.float32)
        np.bitwise_and(self.codes, 15, out=codes[:, ::2], casting="unsafe")
        np.right_shift(self.codes, 4, out=codes[:, 1::2], casting="unsafe")
        codes = codes[:, : self.cols]
        codes -= MIDDLE if self.zeros is None else spread(self.zeros, self.group, self.cols)
        codes *= spread(scales, self.group, self.cols)
        return np.ascontiguousarray(codes)

    def slice(self, start: int, stop: int) -> Integers:
        """Rows from `start` to `stop`."""
        return Integers(
            bits=self.bits,
            cols=self.cols,
            codes=self.codes[start:stop],
            scales=self.scales[start:stop],
            zeros=None if self.zeros is None else self.zeros[start:stop],
            group=self.group,
        )


def spread(values: NDArray[np.generic], group: int, cols: int) -> Floats:
    """A number for each group as one for each column."""
    return values.astype(np.float32).repeat(group, axis=1)[:, :cols]


def joined(parts: list[Integers]) -> Integers:
    """The rows of several matrices, one below the other."""
    first = parts[0]
    return Integers(
        bits=first.bits,
        cols=first.cols,
        codes=np.concatenate([part.codes for part in parts]),
        scales=np.concatenate([part.scales for part in parts]),
        zeros=None if first.zeros is None else np.concatenate([part.zeros for part in parts if part.zeros is not None]),
        group=first.group,
    )


# As tensors of a file


def to_tensors(matrix: Integers) -> dict[str, NDArray[np.generic]]:
    """The tensors that stand for a module's weight, by the end of their names.

    8 bits (int-quantized): `weight` int8 and `weight_scale` [rows, 1]. 4 bits (pack-quantized): `weight_packed` int32
    [rows, ceil(cols / 8)] with the first column lowest, `weight_scale` [rows, groups], `weight_shape`, and with zeros
    `weight_zero_point` int32 [ceil(rows / 8), groups], the first row lowest.
    """
    if matrix.bits == 8:
        return {"weight": matrix.codes, "weight_scale": matrix.scales[:, None]}
    found: dict[str, NDArray[np.generic]] = {
        "weight_packed": words(matrix.codes),
        "weight_scale": matrix.scales,
        "weight_shape": np.array([matrix.rows, matrix.cols], np.int64),
    }
    if matrix.zeros is not None:
        found["weight_zero_point"] = np.ascontiguousarray(words(halves(matrix.zeros.T)).T)
    return found


def halves(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Four-bit numbers [n, m] two a byte, the even one low."""
    padded = np.zeros((codes.shape[0], -(-codes.shape[1] // 2) * 2), np.uint8)
    padded[:, : codes.shape[1]] = codes
    return padded[:, ::2] | padded[:, 1::2] << 4


def words(packed: NDArray[np.generic]) -> NDArray[np.int32]:
    """Rows of bytes as little-endian words of 32 bits, filled up with zeros."""
    padded = np.zeros((packed.shape[0], -(-packed.shape[1] // 4) * 4), np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view("<i4")


def eight_bits(place: str, codes: NDArray[np.int8], scales: Floats) -> Integers:
    """From `weight` and `weight_scale`; CheckpointError, which begins with `place`, when they do not fit."""
    rows, cols = codes.shape
    if scales.size != rows:
        raise CheckpointError(f"{place}: {scales.size} scales for {rows} rows of int8; one a row can be read")
    return Integers(bits=8, cols=cols, codes=codes, scales=np.ascontiguousarray(scales, np.float32).reshape(-1))


def four_bits(
    place: str,
    shape: tuple[int, int],
    packed: NDArray[np.int32],
    scales: NDArray[np.generic],
    zeros: NDArray[np.int32] | None,
    group: int,
) -> Integers:
    """From the tensors of `to_tensors`; `group` 0 is the whole row."""
    rows, cols = shape
    group = group or whole_row(cols)
    groups = -(-cols // group)
    wanted = {"weight_packed": (rows, -(-cols // 8)), "weight_scale": (rows, groups)}
    got = {"weight_packed": packed.shape, "weight_scale": scales.shape}
    if zeros is not None:
        wanted["weight_zero_point"], got["weight_zero_point"] = (-(-rows // 8), groups), zeros.shape
    for name, size in wanted.items():
        if got[name] != size:
            raise CheckpointError(f"{place}: {name} has shape {list(got[name])}, where {list(size)} is needed")
    codes = np.ascontiguousarray(packed).view(np.uint8)[:, : -(-cols // 2)]
    of_groups = None
    if zeros is not None:
        pairs = np.ascontiguousarray(zeros.T).view(np.uint8)
        nibbles = np.stack([pairs & np.uint8(15), pairs >> 4], axis=-1).reshape(groups, -1)
        of_groups = np.ascontiguousarray(nibbles[:, :rows].T)
    return Integers(
        bits=4,
        cols=cols,
        codes=np.ascontiguousarray(codes),
        scales=np.ascontiguousarray(scales, np.float16),
        zeros=of_groups,
        group=group,
    )


def whole_row(cols: int) -> int:
    """The group that holds a whole row of `cols` columns: whole blocks of 32."""
    return -(-cols // 32) * 32
