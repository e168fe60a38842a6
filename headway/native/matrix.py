"""Weight matrices for the native library: checked once, so that no malformed file becomes a bad pointer."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.errors import CheckpointError
from headway.native.library import Library, Pool
from headway.native.memory import Arena
from headway.native.structs import Format, LinearArgs, MatrixStruct

PLAIN = (Format.F32, Format.F16, Format.BF16)


class Matrix:
    """W of `rows` outputs by `cols` inputs (y = x W^T) over memory that this object keeps alive."""

    def __init__(
        self,
        library: Library,
        format: Format,
        rows: int,
        cols: int,
        data: NDArray[Any],
        *,
        scales: NDArray[Any] | None = None,
        zeros: NDArray[np.uint8] | None = None,
        group: int = 0,
    ) -> None:
        """`data` holds the rows one after the other (any dtype, C order): a GGUF tensor's bytes, float values,
        int8 [rows, cols] with float32 `scales` [rows], or I4's uint8 [rows, ceil(cols / 2)] (even column in the
        low half) with float16 `scales` and, unless the zero is 8, uint8 `zeros`, both [rows, ceil(cols / group)].

        Raises CheckpointError when sizes or dtypes do not fit.
        """
        self.library = library
        self.format, self.rows, self.cols, self.group = Format(format), int(rows), int(cols), int(group)
        self.struct = MatrixStruct(
            format=int(format), rows=rows, cols=cols, group=group, has_zeros=int(zeros is not None)
        )
        self._kept: list[NDArray[Any]] = []
        if rows < 1 or cols < 1:
            raise CheckpointError(f"a matrix of {rows} x {cols} holds nothing")
        self.struct.stride = library.c.hw_row_bytes(ctypes.byref(self.struct))
        if not self.struct.stride:
            raise CheckpointError(f"{self._name()}: {cols} columns in groups of {group} do not fill whole blocks")
        self.struct.data = self._keep(data, rows * self.struct.stride, "data")
        groups = -(-cols // group) if group else 1
        if self.format is Format.I8:
            self.struct.scales = self._keep(_typed(scales, np.float32, "scales"), rows * 4, "scales")
        elif self.format is Format.I4:
            self.struct.scales = self._keep(_typed(scales, np.float16, "scales"), rows * groups * 2, "scales")
            if zeros is not None:
                self.struct.zeros = self._keep(_typed(zeros, np.uint8, "zeros"), rows * groups, "zeros")

    @property
    def packed(self) -> bool:
        return bool(self.struct.packed)

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that this matrix reads."""
        return sum(array.nbytes for array in self._kept)

    def copy(self, arena: Arena) -> Matrix:
        """The same matrix in other memory."""
        made = object.__new__(Matrix)
        made.library, made.format = self.library, self.format
        made.rows, made.cols, made.group = self.rows, self.cols, self.group
        made.struct = MatrixStruct.from_buffer_copy(self.struct)
        made._kept = []
        addresses = {array.ctypes.data: array for array in self._kept}
        for name in ("data", "scales", "zeros"):
            if (array := addresses.get(getattr(self.struct, name))) is not None:
                made._kept.append(arena.array(array.shape, array.dtype))
                made._kept[-1][...] = array
                setattr(made.struct, name, made._kept[-1].ctypes.data)
        return made

    def pack(self, pool: Pool, arena: Arena | None = None) -> Matrix:
        """The same matrix with its rows interleaved by eight, which runs fastest; itself for float formats.

        The copy no longer needs the original's memory.
        """
        size = self.library.c.hw_packed_bytes(ctypes.byref(self.struct))
        if self.packed or not size:
            return self
        out = (arena or Arena()).array((size,), np.uint8)
        self.library.c.hw_pack(ctypes.byref(self.struct), out.ctypes.data, pool.handle)
        made = object.__new__(Matrix)
        made.library, made.format = self.library, self.format
        made.rows, made.cols, made.group = self.rows, self.cols, self.group
        made._kept = [out]
        made.struct = MatrixStruct(
            format=int(self.format),
            packed=1,
            rows=self.rows,
            cols=self.cols,
            group=self.group,
            has_zeros=self.struct.has_zeros,
            data=out.ctypes.data,
        )
        return made

    def work_bytes(self, n: int, pool: Pool) -> int:
        """Bytes of workspace for a linear over at most `n` rows; the largest answer serves matrices together."""
        args = LinearArgs(targets=1)
        args.target[0].matrix = ctypes.pointer(self.struct)
        return int(self.library.c.hw_linear_work(ctypes.byref(args), n, pool.handle))

    def _keep(self, array: NDArray[Any], size: int, what: str) -> int:
        if not array.flags.c_contiguous:
            raise CheckpointError(f"{self._name()}: {what} must be contiguous")
        if array.nbytes != size:
            raise CheckpointError(f"{self._name()}: {what} has {array.nbytes} bytes, not {size}")
        self._kept.append(array)
        return array.ctypes.data

    def _name(self) -> str:
        return f"{self.format.name} matrix of {self.rows} x {self.cols}"


def _typed(array: NDArray[Any] | None, dtype: type[np.generic], what: str) -> NDArray[Any]:
    if array is None or array.dtype != dtype:
        found = "missing" if array is None else str(array.dtype)
        raise CheckpointError(f"{what} must be {np.dtype(dtype).name}, not {found}")
    return array
