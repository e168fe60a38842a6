"""The GGUF format, versions 2 and 3: its header read fast, and never believed before it is checked."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from headway.checkpoint.dtypes import addressable
from headway.checkpoint.files import Entry, File, Stamp, Store, shown
from headway.checkpoint.gguf_blocks import BLOCKS, OTHERS
from headway.errors import CheckpointError

MAGIC: Final = b"GGUF"

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_BY_CODE = {block.code: block for block in BLOCKS.values()}
_NAME_LIMIT = 64
_DIMENSIONS = 4
_NESTING = 4
# The shortest key with value, and the shortest tensor description: counts are held against the bytes that are left.
_LEAST_PAIR = 8 + 4 + 1
_LEAST_TENSOR = 8 + 4 + 4 + 8

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: ("<B", "u1"),
    1: ("<b", "i1"),
    2: ("<H", "<u2"),
    3: ("<h", "<i2"),
    4: ("<I", "<u4"),
    5: ("<i", "<i4"),
    6: ("<f", "<f4"),
    7: ("<?", "?"),
    10: ("<Q", "<u8"),
    11: ("<q", "<i8"),
    12: ("<d", "<f8"),
}
_UNPACK = {code: struct.Struct(form) for code, (form, _) in _SCALARS.items()}
_DTYPES = {code: np.dtype(dtype) for code, (_, dtype) in _SCALARS.items()}
_LENGTH = struct.Struct("<Q")


class GGUFFile(Store):
    """Tensors and metadata of a GGUF file, or of all parts of a split one.

    In `metadata` arrays of numbers are numpy arrays, arrays of strings are lists.
    """

    def __init__(
        self,
        path: Path,
        version: int,
        entries: Iterable[Entry],
        metadata: Mapping[str, Any],
        stamps: Mapping[Path, Stamp],
        spans: Mapping[str, tuple[int, int]],
    ) -> None:
        """`spans` says from which byte to which of the file at `path` each value of the metadata lies."""
        super().__init__(path, entries, metadata, stamps)
        self.version = version
        self._spans = spans

    @property
    def format(self) -> str:
        """'gguf'."""
        return "gguf"

    def raw_metadata(self) -> dict[str, bytes]:
        """Every value of the metadata as its type and bytes in the file, to be written to another one unchanged."""
        file = File(self.path)
        try:
            if file.stamp != self._stamps[self.path]:
                raise CheckpointError(f"{shown(self.path)}: was written anew since its header was read; open it again")
            return {key: file.read(start, stop - start) for key, (start, stop) in self._spans.items()}
        finally:
            file.close()


def part_number(path: Path) -> int | None:
    """Which part of a split model the file's name says it is; None when it is not one."""
    part = _PART.fullmatch(path.name)
    return int(part["number"]) if part else None


def read_gguf(path: Path | str) -> GGUFFile:
    """The header of a GGUF file, and of the other parts when it is split; tensors stay on disk.

    A file without tensors (a vocabulary alone) is fine. CheckpointError names what is wrong with the file.
    """
    path = Path(path)
    first = _Header(path)
    count, number = _whole(first, "split.count", 1), _whole(first, "split.no", 0)
    if count <= 1:
        return GGUFFile(path, first.version, first.entries, first.metadata, {path: first.stamp}, first.spans)
    headers = [first if at == number else _Header(part) for at, part in enumerate(_parts(path, number, count))]
    entries: dict[str, Entry] = {}
    for header in headers:
        for entry in header.entries:
            if entry.name in entries:
                raise CheckpointError(
                    f"{shown(header.path)}: tensor {shown(entry.name)} is in {shown(entries[entry.name].file.name)} too"
                )
            entries[entry.name] = entry
    main = headers[0]
    total = _whole(main, "split.tensors.count", len(entries))
    if total != len(entries):
        raise CheckpointError(f"{shown(main.path)}: {total} tensors announced, its {count} parts hold {len(entries)}")
    stamps = {header.path: header.stamp for header in headers}
    return GGUFFile(main.path, main.version, entries.values(), main.metadata, stamps, main.spans)


def _whole(header: _Header, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if type(value) is not int or value < 0:
        raise CheckpointError(f"{shown(header.path)}: {key} is {shown(value)}, not a whole number")
    return value


def _parts(path: Path, number: int, count: int) -> list[Path]:
    """All parts of a split model, from the name of one; CheckpointError names those that are missing."""
    part = _PART.fullmatch(path.name)
    if part is None or int(part["number"]) != number + 1 or int(part["count"]) != count:
        raise CheckpointError(
            f"{shown(path)}: is part {number + 1} of {count}, so its name must end in "
            f"-{number + 1:05d}-of-{count:05d}.gguf for the other parts to be found"
        )
    stem = part["stem"]
    parts = [path.with_name(f"{stem}-{at + 1:05d}-of-{count:05d}.gguf") for at in range(count)]
    if missing := [part.name for part in parts if not part.exists()]:
        raise CheckpointError(
            f"{shown(path.parent)}: {len(missing)} of {count} parts are missing: {shown(', '.join(missing))}; "
            f"fetch them again or copy them here"
        )
    return parts


class _Header:
    """Reads one file's header, front to back; every length is held against what the file still has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.spans: dict[str, tuple[int, int]] = {}
        self.entries: list[Entry] = []
        file = File(path)
        self.stamp = file.stamp
        try:
            self._size = file.size
            if self._size < 24 or file.read(0, 4) != MAGIC:
                raise self._wrong(f"not a GGUF file, or cut short ({self._size} bytes)")
            with memoryview(file.map()) as self._data:
                self._at = 4
                self._read()
        finally:
            file.close()

    def _read(self) -> None:
        self.version = self._scalar(4, "version")
        if self.version not in (2, 3):
            if self.version & 0xFFFF == 0:
                raise self._wrong("a big-endian file; headway reads little-endian ones: convert it")
            raise self._wrong(f"GGUF version {self.version}; headway reads 2 and 3: convert the model again")
        tensors, pairs = self._scalar(10, "tensor count"), self._scalar(10, "metadata count")
        self._room(tensors, _LEAST_TENSOR, "tensors")
        self._room(pairs, _LEAST_PAIR, "metadata")
        for _ in range(pairs):
            self._pair()
        infos = [self._info() for _ in range(tensors)]
        self._place(infos)

    def _wrong(self, what: str) -> CheckpointError:
        return CheckpointError(f"{shown(self.path)}: {what}")

    def _room(self, count: int, least: int, what: str) -> None:
        if count * least > self._size - self._at:
            left = self._size - self._at
            raise self._wrong(
                f"{shown(what)}: {count} items from byte {self._at} do not fit into the {left} bytes that are left; "
                f"the file is cut short or damaged, fetch it again"
            )

    def _scalar(self, code: int, what: str) -> Any:
        unpack = _UNPACK[code]
        self._room(1, unpack.size, what)
        (value,) = unpack.unpack_from(self._data, self._at)
        self._at += unpack.size
        return value

    def _string(self, what: str) -> str:
        length = self._scalar(10, what)
        self._room(length, 1, what)
        raw = bytes(self._data[self._at : self._at + length])
        self._at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._wrong(f"{shown(what)}: not UTF-8 text at byte {self._at - length + error.start}") from error

    def _pair(self) -> None:
        key = self._string("metadata key")
        if key in self.metadata:
            raise self._wrong(f"metadata {shown(key)} is there twice")
        start = self._at
        self.metadata[key] = self._value(self._scalar(4, key), key, 0)
        self.spans[key] = (start, self._at)

    def _value(self, code: int, key: str, depth: int) -> Any:
        if code in _SCALARS:
            return self._scalar(code, key)
        if code == _STRING:
            return self._string(key)
        if code == _ARRAY and depth < _NESTING:
            return self._array(key, depth)
        raise self._wrong(f"metadata {shown(key)}: unknown value type {code}")

    def _array(self, key: str, depth: int) -> Any:
        code, count = self._scalar(4, key), self._scalar(10, key)
        if code == _STRING:
            self._room(count, 8, key)
            return self._strings(count, key)
        if code in _DTYPES:
            dtype = _DTYPES[code]
            self._room(count, dtype.itemsize, key)
            raw = np.array(self._data[self._at : self._at + count * dtype.itemsize])
            self._at += raw.nbytes
            return raw != 0 if code == _BOOL else raw.view(dtype)
        self._room(count, 4 + 8, key)
        return [self._value(code, key, depth + 1) for _ in range(count)]

    def _strings(self, count: int, key: str) -> list[str]:
        """The vocabulary's loop: as little work for each string as Python allows."""
        data, at, size = self._data, self._at, self._size
        unpack: Callable[[Any, int], tuple[int]] = _LENGTH.unpack_from
        found: list[str] = []
        add = found.append
        try:
            for _ in range(count):
                start = at + 8
                at = start + unpack(data, at)[0]
                if at > size:
                    raise struct.error
                add(str(data[start:at], "utf-8"))
        except UnicodeDecodeError as error:
            raise self._wrong(f"metadata {shown(key)}[{len(found)}]: not UTF-8 text ({error.reason})") from error
        except struct.error as error:
            raise self._wrong(
                f"metadata {shown(key)}[{len(found)}]: runs past the end of the file; "
                f"it is cut short or damaged, fetch it again"
            ) from error
        self._at = at
        return found

    def _info(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape (rows first), type code and offset of one tensor."""
        name = self._string("tensor name")
        if len(name.encode()) > _NAME_LIMIT:
            raise self._wrong(f"tensor {shown(name)}: a name of more than {_NAME_LIMIT} bytes")
        dimensions = self._scalar(4, name)
        if dimensions > _DIMENSIONS:
            raise self._wrong(f"tensor {shown(name)}: {dimensions} dimensions, the format has at most {_DIMENSIONS}")
        shape = tuple(self._scalar(10, name) for _ in range(dimensions))[::-1]
        return name, shape, self._scalar(4, name), self._scalar(10, name)

    def _place(self, infos: list[tuple[str, tuple[int, ...], int, int]]) -> None:
        """Entries from descriptions, once every tensor is known to lie inside the file and on its own bytes."""
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self._wrong(f"general.alignment is {shown(alignment)}, not a power of two")
        base = -(-self._at // alignment) * alignment
        names: set[str] = set()
        for name, shape, code, offset in infos:
            if name in names:
                raise self._wrong(f"tensor {shown(name)} is there twice")
            names.add(name)
            self.entries.append(self._entry(name, shape, code, offset, base, alignment))
        end, before = base, ""
        for entry in sorted(self.entries, key=lambda entry: (entry.offset, entry.nbytes)):
            if entry.offset < end:
                raise self._wrong(f"tensor {shown(entry.name)} overlaps {shown(before)}")
            end, before = entry.offset + entry.nbytes, entry.name

    def _entry(self, name: str, shape: tuple[int, ...], code: int, offset: int, base: int, alignment: int) -> Entry:
        place = f"tensor {shown(name)}"
        block = _BY_CODE.get(code)
        if block is None:
            known = f"{OTHERS[code]}, which headway does not decode" if code in OTHERS else f"number {code}, unknown"
            raise self._wrong(f"{place}: type {known} (it reads {', '.join(BLOCKS)})")
        if not addressable(shape):
            raise self._wrong(f"{place}: shape {shape} is impossible")
        nbytes = block.nbytes(shape)
        if nbytes is None or (shape and shape[-1] % block.elements):
            raise self._wrong(
                f"{place}: {block.name} comes in blocks of {block.elements}, shape {shape} does not fill them"
            )
        if offset % alignment:
            raise self._wrong(f"{place}: offset {offset} is not a multiple of the alignment {alignment}")
        if base + offset + nbytes > self._size:
            raise self._wrong(
                f"{place}: ends at byte {base + offset + nbytes}, the file at {self._size}; "
                f"it is cut short or damaged, fetch it again"
            )
        return Entry(name, shape, block.name, nbytes, self.path, base + offset)
