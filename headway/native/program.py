"""A flat list of native calls over buffers that exist already, run in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.native.library import Library, Pool
from headway.native.matrix import Matrix
from headway.native.memory import Arena
from headway.native.structs import ARGS, AttentionArgs, LinearArgs, Op, StepStruct, Target


@dataclass(frozen=True)
class Output:
    """One matrix of a linear: y [n, rows] (+)= scale * (x W^T + bias)."""

    matrix: Matrix
    y: NDArray[np.float32]
    bias: NDArray[np.float32] | None = None


class Program:
    """Operations in order; arrays that they name stay alive as long as this object.

    Array arguments are numpy arrays (their memory is used in place, at the address they have now), plain numbers
    are numbers, and every `*_stride` counts floats. `n` is an int64 array of one element that the caller may
    change between runs: so are positions, ids and whatever else is passed as an array.
    """

    def __init__(self, library: Library, pool: Pool) -> None:
        self.library = library
        self.pool = pool
        self._kept: list[Any] = []
        self._steps: list[tuple[Op, ctypes.Structure]] = []
        self._table: ctypes.Array[StepStruct] | None = None
        self._work = np.empty(0, np.uint8)
        self._wanted: list[ctypes.Structure] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, op: Op, **fields: Any) -> ctypes.Structure:
        """Appends one operation with the fields of its struct in `structs`; gives the struct, for later changes."""
        args = ARGS[op]()
        for name, value in fields.items():
            setattr(args, name, self.pointer(value) if isinstance(value, np.ndarray) else self._plain(value))
        self._steps.append((op, args))
        self._table = None
        return args

    def linear(
        self,
        n: NDArray[np.int64],
        x: NDArray[np.float32],
        outputs: Sequence[Output],
        *,
        most: int,
        accumulate: bool = False,
        scale: float = 1.0,
    ) -> LinearArgs:
        """Up to four matrices that read the same x [n, cols], for at most `most` rows."""
        args = self.add(Op.LINEAR, n=n, x=x, x_stride=_stride(x), targets=len(outputs), scale=scale)
        assert isinstance(args, LinearArgs)
        args.accumulate = int(accumulate)
        for target, output in zip(args.target, outputs, strict=False):
            self._fill(target, output)
        self._reserve(args, int(self.library.c.hw_linear_work(ctypes.byref(args), most, self.pool.handle)))
        return args

    def attention(self, *, most: int, **fields: Any) -> AttentionArgs:
        """Attention of at most `most` tokens; `fields` as in AttentionArgs, without `work`."""
        args = self.add(Op.ATTENTION, **fields)
        assert isinstance(args, AttentionArgs)
        self._reserve(args, int(self.library.c.hw_attention_work(ctypes.byref(args), most, self.pool.handle)))
        return args

    def run(self, nanoseconds: NDArray[np.int64] | None = None) -> None:
        """Runs all steps; `nanoseconds` [steps] gathers the time of each."""
        if self._table is None:
            self._table = (StepStruct * len(self._steps))(
                *(StepStruct(int(op), 0, ctypes.addressof(args)) for op, args in self._steps)
            )
        where = None if nanoseconds is None else nanoseconds.ctypes.data
        self.library.c.hw_run(self._table, len(self._steps), self.pool.handle, where)

    def pointer(self, array: NDArray[Any]) -> int:
        """The address of `array`, which this object keeps."""
        self._kept.append(array)
        return array.ctypes.data

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Matrix):
            self._kept.append(value)
            return ctypes.pointer(value.struct)
        if isinstance(value, ctypes.Structure):
            self._kept.append(value)
            return ctypes.pointer(value)
        return value

    def _fill(self, target: Target, output: Output) -> None:
        target.matrix = ctypes.pointer(output.matrix.struct)
        target.y, target.y_stride = self.pointer(output.y), _stride(output.y)
        target.bias = None if output.bias is None else self.pointer(output.bias)
        self._kept.append(output.matrix)

    def _reserve(self, args: Any, size: int) -> None:
        """One workspace serves all steps: they run one after the other."""
        self._wanted.append(args)
        if size > self._work.nbytes:
            self._work = Arena().array((size,), np.uint8)
            for wanting in self._wanted:
                wanting.work = self._work.ctypes.data
        args.work = self._work.ctypes.data


def _stride(array: NDArray[Any]) -> int:
    """Elements from one row to the next."""
    return array.strides[0] // array.itemsize if array.ndim > 1 else array.size
