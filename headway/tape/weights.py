"""Parameters as the tape reads them: matrices in the file's own format, vectors as float32."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.checkpoint.dtypes import PLAIN
from headway.checkpoint.files import KINDS
from headway.checkpoint.integers import Integers
from headway.checkpoint.packed import PackedStore
from headway.checkpoint.rules import Pairs, Rule, Split
from headway.checkpoint.store import Store
from headway.errors import CheckpointError
from headway.native.library import Library, Pool
from headway.native.matrix import Matrix
from headway.native.memory import Arena
from headway.native.structs import Format
from headway.source import Match, Source
from headway.spec.count import is_under, shapes
from headway.spec.model import ModelSpec

Floats = NDArray[np.float32]
Progress = Callable[[int, int], None]  # bytes done, bytes in all

BY_ROWS = (Pairs, Split)  # forms that move whole rows, so that packed blocks stay whole


@dataclass(frozen=True)
class Raw:
    """One parameter as it is stored: numbers, bits of half precision, rows of blocks as bytes, or integers."""

    dtype: str  # as files spell it; I8 and I4 for integers with scales
    shape: tuple[int, ...]
    array: NDArray[Any]
    integers: Integers | None = None  # of which `array` are the codes

    @classmethod
    def of(cls, integers: Integers) -> Raw:
        """A matrix of integers with scales."""
        return cls(f"I{integers.bits}", (integers.rows, integers.cols), integers.codes, integers)

    def floats(self) -> Floats:
        """The values as float32, in `shape`."""
        if self.integers is not None:
            return self.integers.floats()
        if self.dtype == "F32" and self.array.dtype == np.float32 and self.array.flags.aligned:
            return np.ascontiguousarray(self.array)
        kind = KINDS[self.dtype]
        if kind.decode is None:
            raise CheckpointError(f"{self.dtype} has no float32 form here")
        out = np.empty(self.shape, np.float32)
        stored = np.ascontiguousarray(self.array).view(np.uint8).reshape(-1, kind.bytes)
        with np.errstate(all="ignore"):  # a file may hold infinities
            kind.decode(stored, out.reshape(-1, kind.elements))
        return out

    def to(self, dtype: str) -> Raw:
        """The same values rounded to F32, F16 or BF16."""
        if dtype == self.dtype:
            return self
        values = self.floats()
        if dtype == "F16":
            with np.errstate(over="ignore"):
                return Raw(dtype, self.shape, values.astype(np.float16).view(np.uint16))
        return Raw(dtype, self.shape, _bfloat16(values) if dtype == "BF16" else values)


class Weights:
    """Every parameter of a spec. A matrix is packed when it is first asked for, and tied ones are one."""

    def __init__(
        self,
        spec: ModelSpec,
        raws: Iterable[tuple[str, Raw]],
        library: Library,
        pool: Pool,
        *,
        dtype: str = "auto",
        copy: bool = True,
    ) -> None:
        """`raws` gives what each path of `shapes(spec)` holds, one after the other; `dtype` F32, F16 or BF16 rounds
        all matrices to it, "auto" leaves each as it is. Without `copy`, matrices of floats are read where they lie.

        CheckpointError for a parameter of another shape.
        """
        self.library, self.pool, self.dtype, self.copy = library, pool, dtype, copy
        self._arena = Arena()
        self._ties = spec.ties
        self._read_only_by_row = _row_tables(spec)
        self._matrices: dict[str, Matrix] = {}
        self._vectors: dict[str, Floats] = {}
        self.dtypes: Counter[str] = Counter()  # format in memory -> parameters held in it
        self.nbytes = 0
        self.widened: set[str] = set()  # formats of the file that native calls do not read
        self._tables: dict[str, str] = {}
        owned = shapes(spec)
        for path, raw in raws:
            if raw.shape != owned[path]:
                raise CheckpointError(f"{path} has shape {list(raw.shape)}, but the spec makes it {list(owned[path])}")
            self._put(path, raw)
        if absent := sorted(owned.keys() - self._matrices.keys() - self._vectors.keys()):
            raise CheckpointError(f"{len(absent)} parameters have no values: {', '.join(absent[:5])}")

    def matrix(self, path: str) -> Matrix:
        """The matrix [out, in] at `path`."""
        return self._matrices[self._owner(path)]

    def vector(self, path: str) -> Floats:
        """The numbers at `path` as float32."""
        return self._vectors[self._owner(path)]

    def stored(self, path: str) -> str:
        """How the file, or whoever gave it, spells the format of the matrix at `path`."""
        return self._tables[self._owner(path)]

    def _put(self, path: str, raw: Raw) -> None:
        if len(raw.shape) != 2 or ".biases." in path:
            values = raw.floats()
            self._vectors[path] = values if raw.array is not values else values.copy()
            self.dtypes["F32"] += values.size
            self.nbytes += values.nbytes
            return
        raw = raw if self.dtype == "auto" else raw.to(self.dtype)
        self._tables[path] = raw.dtype
        if raw.integers is None and not is_native(raw.dtype):
            self.widened.add(raw.dtype)
        matrix = matrix_of(self.library, raw)
        if path not in self._read_only_by_row:
            matrix = self._placed(matrix)
        self._matrices[path] = matrix
        self.dtypes[matrix.format.name] += math.prod(raw.shape)
        self.nbytes += matrix.nbytes

    def _placed(self, matrix: Matrix) -> Matrix:
        """The matrix where it is read fastest."""
        packed = matrix.pack(self.pool, self._arena)
        return matrix.copy(self._arena) if self.copy and packed is matrix else packed

    def _owner(self, path: str) -> str:
        for tie in self._ties:
            if is_under(path, (tie.alias,)):
                return self._owner(tie.owner + path.removeprefix(tie.alias))
        return path


def matrix_of(library: Library, raw: Raw) -> Matrix:
    """A matrix as native calls read it: of a format that they lack, its values as float32."""
    if raw.integers is not None:
        made, codes = raw.integers, np.ascontiguousarray(raw.integers.codes)
        more: dict[str, Any] = {"scales": made.scales, "zeros": made.zeros, "group": made.group}
        return Matrix(library, Format[raw.dtype], made.rows, made.cols, codes, **more)
    if not is_native(raw.dtype):
        raw = raw.to("F32")
    array = raw.array if raw.array.flags.c_contiguous and raw.array.flags.aligned else raw.array.copy()
    rows, cols = raw.shape
    return Matrix(library, Format[raw.dtype], rows, cols, np.ascontiguousarray(array))


def is_native(dtype: str) -> bool:
    """Whether native calls read matrices that a file keeps as `dtype`; whole numbers alone are no weights."""
    return dtype in Format.__members__ and dtype != "I8"


def of_source(source: Source, plan: Iterable[Match], progress: Progress | None = None) -> Iterator[tuple[str, Raw]]:
    """What every parameter of an opened checkpoint holds; pages that have been copied are given back as they pass."""
    store, plan, owned = source.store, list(plan), shapes(source.spec)
    total = sum(store.entry(key).nbytes for found in plan for key in found.keys)
    done = 0
    for found in plan:
        yield from zip(found.rule.paths, _raws(store, found, owned), strict=True)
        done += sum(store.entry(key).nbytes for key in found.keys)
        for key in found.keys:
            store.release(key)  # those in use as they are come back when they are read
        if progress is not None:
            progress(done, total)


def of_arrays(arrays: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, Raw]]:
    """Parameters from arrays by path: float32, float16, or bfloat16 as uint16."""
    names = {"float32": "F32", "float16": "F16", "uint16": "BF16"}
    for path, array in arrays.items():
        yield path, Raw(names[array.dtype.name], array.shape, array.view(np.uint16) if array.itemsize == 2 else array)


def _raws(store: Store, found: Match, owned: Mapping[str, tuple[int, ...]]) -> list[Raw]:
    rule = found.rule
    entry = store.entry(found.keys[0])
    integers = store.packed(found.keys[0]) if isinstance(store, PackedStore) else None
    if integers is not None and all(isinstance(form, Split) for form in rule.forms):
        return _cut(rule, integers, owned)
    if entry.dtype in PLAIN and PLAIN[entry.dtype].decode is not None and not rule.computes:
        arrays = rule.apply([store.read(key) for key in found.keys])
        return _fit(rule, entry.dtype, arrays, [array.shape for array in arrays], owned)
    if _moves_rows(rule) and len(entry.shape) == 2:
        arrays = rule.apply([store.read(key) for key in found.keys])
        return _fit(rule, entry.dtype, arrays, [(len(array), entry.shape[1]) for array in arrays], owned)
    floats = rule.apply([store.floats(key) for key in found.keys])
    return _fit(rule, "F32", floats, [array.shape for array in floats], owned)


def _cut(rule: Rule, integers: Integers, owned: Mapping[str, tuple[int, ...]]) -> list[Raw]:
    """The parts, one below the other, of one matrix of integers."""
    counts = [owned[path][0] for path in rule.paths]
    starts = [sum(counts[:place]) for place in range(len(counts))]
    raws = [Raw.of(integers.slice(start, start + count)) for start, count in zip(starts, counts, strict=True)]
    if len(raws) == 1:
        raws = [Raw.of(integers)]
    _check(rule, [raw.shape for raw in raws], owned)
    return raws


def _check(rule: Rule, sizes: list[tuple[int, ...]], owned: Mapping[str, tuple[int, ...]]) -> None:
    wanted = [owned[path] for path in rule.paths]
    if sizes != wanted:
        raise CheckpointError(
            f"{rule.keys[0]} has shape {list(sizes[0])}, but the config makes it {list(wanted[0])}; "
            f"correct the config, or fetch the right weights"
        )


def _fit(
    rule: Rule,
    dtype: str,
    arrays: list[NDArray[Any]],
    sizes: list[tuple[int, ...]],
    owned: Mapping[str, tuple[int, ...]],
) -> list[Raw]:
    _check(rule, sizes, owned)
    return [Raw(dtype, size, array) for size, array in zip(sizes, arrays, strict=True)]


def _moves_rows(rule: Rule) -> bool:
    return all(isinstance(form, BY_ROWS) for form in rule.forms)


def _row_tables(spec: ModelSpec) -> set[str]:
    """Matrices of which single rows are read and that no product uses: they stay as the file has them."""
    products = {tie.owner for tie in spec.ties}
    tables = {
        f"stacks.{stack.name}.stem.{name}.weight" for stack in spec.stacks for name in ("tokens", "positions", "types")
    }
    return {path for path in tables if not is_under(path, tuple(products))}


def _bfloat16(values: Floats) -> NDArray[np.uint16]:
    """To nearest, ties to even; NaN stays one."""
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
