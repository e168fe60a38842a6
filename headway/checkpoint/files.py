"""Named tensors in files: lazy, memory-mapped, read without a second copy."""

from __future__ import annotations

import mmap
import os
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headway.checkpoint.dtypes import PLAIN, Block, Floats
from headway.checkpoint.gguf_blocks import BLOCKS
from headway.errors import CheckpointError

KINDS: Mapping[str, Block] = {**PLAIN, **BLOCKS}
# Device, inode, size and time of change: the file is still the one whose header was read.
Stamp = tuple[int, int, int, int]
Writable = memoryview | bytearray | NDArray[Any]
Readable = bytes | Writable

# Numbers decoded at a time: large enough to forget numpy's cost per call, small enough for the processor's cache.
_CHUNK = 1 << 19


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies: `shape` with rows first, `dtype` as the file spells it, `offset` from the file's start."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    file: Path
    offset: int


def shown(name: object) -> str:
    """A name from outside, short and on one line, fit for a message."""
    text = str(name)
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= 200 else f"{text[:100]}...{text[-60:]}"


def nbytes(buffer: Readable) -> int:
    """Bytes that a buffer holds."""
    return buffer.nbytes if isinstance(buffer, (np.ndarray, memoryview)) else len(buffer)


def octets(buffer: Readable) -> memoryview:
    """The bytes of a contiguous buffer that is not empty, whatever its element type, without a copy."""
    return np.frombuffer(buffer, np.uint8).data


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """What the system refuses becomes a CheckpointError that names the file."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{shown(path)}: {error.strerror or error}") from error


class File:
    """One regular file, open for reading; the map is made when the first view is asked for."""

    def __init__(self, path: Path) -> None:
        """CheckpointError when `path` cannot be opened or is not a regular file."""
        self.path = path
        with naming(path):
            if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would block for ever
                raise CheckpointError(f"{shown(path)}: not a file")
            self._raw = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close()
            facts = os.fstat(self._raw.fileno())
        self.size = facts.st_size
        self.stamp: Stamp = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
        self._map: mmap.mmap | None = None

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`."""
        buffer = bytearray(size)
        self.read_into(offset, buffer)
        return bytes(buffer)

    def read_into(self, offset: int, buffer: Writable) -> None:
        """Fill `buffer` from `offset` by the system's read: no page of the map becomes resident."""
        if not nbytes(buffer):
            return
        view = octets(buffer)
        if sys.platform == "win32":
            view[:] = memoryview(self.map())[offset : offset + view.nbytes]
            return
        done = 0
        with naming(self.path):
            while done < view.nbytes:
                # The system takes at most 2 GiB at a time.
                got = os.preadv(self._raw.fileno(), [view[done : done + (1 << 30)]], offset + done)
                if not got:
                    raise CheckpointError(f"{shown(self.path)}: ends at byte {offset + done}, was it cut while open?")
                done += got

    def map(self) -> mmap.mmap:
        """The whole file, mapped and read-only."""
        if self._map is None:
            with naming(self.path):
                self._map = mmap.mmap(self._raw.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map

    def release(self, offset: int, size: int) -> None:
        """Give the resident pages of a range back; they are read again if they are touched again."""
        if self._map is not None and size and sys.platform != "win32":
            start = offset - offset % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, start, offset + size - start)

    def close(self) -> None:
        """Close the file; arrays that `Store.read` gave out keep their own hold of the map."""
        if self._map is not None:
            with suppress(BufferError):
                self._map.close()
            self._map = None
        self._raw.close()


class Store(Mapping[str, Entry], ABC):
    """Tensors of one checkpoint by name (a mapping from names to entries), in one file or several.

    Nothing but headers is read until a tensor is asked for. Use it as a context manager, or call `close`.
    """

    def __init__(
        self, path: Path, entries: Iterable[Entry], metadata: Mapping[str, Any], stamps: Mapping[Path, Stamp]
    ) -> None:
        """`stamps` are those that the files had when their headers were read."""
        self.path = path
        self.metadata = metadata
        self._entries = {entry.name: entry for entry in entries}
        self._stamps = stamps
        self._files: dict[Path, File] = {}

    @property
    @abstractmethod
    def format(self) -> str:
        """'safetensors' or 'gguf'."""

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {len(self)} tensors, {self.nbytes} bytes)"

    @property
    def names(self) -> tuple[str, ...]:
        """Names in the order of the file."""
        return tuple(self._entries)

    @property
    def tensors(self) -> Mapping[str, Entry]:
        """Entries by name."""
        return self._entries

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as they are stored."""
        return sum(entry.nbytes for entry in self._entries.values())

    def entry(self, name: str) -> Entry:
        """The entry of one tensor; CheckpointError when the checkpoint has none of that name."""
        if name not in self._entries:
            raise CheckpointError(f"{shown(self.path)}: holds no tensor {shown(name)}")
        return self._entries[name]

    def read(self, name: str) -> NDArray[Any]:
        """The tensor as it is stored: a read-only view of the map, without a copy.

        BF16 comes as uint16, eight-bit floats as uint8; block formats as uint8 with the last axis in bytes.
        """
        entry = self.entry(name)
        kind = KINDS[entry.dtype]
        shape = entry.shape
        if kind.elements > 1:
            whole = bool(shape) and shape[-1] % kind.elements == 0
            shape = (*shape[:-1], shape[-1] // kind.elements * kind.bytes) if whole else (entry.nbytes,)
        if not entry.nbytes:
            return np.empty(shape, kind.storage)
        count = entry.nbytes // kind.storage.itemsize
        return np.frombuffer(self._file(entry).map(), kind.storage, count, entry.offset).reshape(shape)

    def read_into(self, name: str, buffer: Writable) -> None:
        """Read the stored bytes straight into `buffer`, which is contiguous, writable and exactly as long."""
        entry = self.entry(name)
        length = nbytes(buffer)
        assert length == entry.nbytes, f"{name}: {length} bytes of room for {entry.nbytes}"
        self._file(entry).read_into(entry.offset, buffer)

    def floats(self, name: str, out: Floats | None = None) -> Floats:
        """The tensor as float32 in its own shape, widened or dequantised; into `out` (contiguous) when given.

        CheckpointError for the few types that have no plain meaning as numbers (C64, F4, F6).
        """
        entry = self.entry(name)
        kind = KINDS[entry.dtype]
        if kind.decode is None:
            raise CheckpointError(f"{shown(entry.file)}: tensor {shown(name)}: {entry.dtype} has no float32 form here")
        result = np.empty(entry.shape, np.float32) if out is None else out
        assert result.dtype == np.float32, f"{name}: `out` must be float32"
        assert result.flags.c_contiguous, f"{name}: `out` must be contiguous"
        assert result.nbytes * kind.bytes == entry.nbytes * kind.elements * 4, f"{name}: `out` has another size"
        if entry.dtype == "F32":
            self._file(entry).read_into(entry.offset, result)
        else:
            self._decode(entry, kind, result.reshape(-1, kind.elements))
        return result

    def release(self, name: str) -> None:
        """Let go of the memory pages that views of this tensor have made resident."""
        entry = self.entry(name)
        self._file(entry).release(entry.offset, entry.nbytes)

    def close(self) -> None:
        """Close the files; the store is of no use afterwards."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _file(self, entry: Entry) -> File:
        if entry.file not in self._files:
            file = File(entry.file)
            if file.stamp != self._stamps[entry.file]:
                file.close()
                raise CheckpointError(f"{shown(entry.file)}: was written anew since its header was read; open it again")
            self._files[entry.file] = file
        return self._files[entry.file]

    def _decode(self, entry: Entry, kind: Block, rows: Floats) -> None:
        """Decode in chunks, each read into one small buffer; the steps are bound by memory, threads gained nothing."""
        file, decode = self._file(entry), kind.decode
        assert decode is not None
        step = max(1, _CHUNK // kind.elements)
        room = np.empty((min(step, len(rows)), kind.bytes), np.uint8)
        with np.errstate(all="ignore"):  # a file may hold infinities
            for start in range(0, len(rows), step):
                part = rows[start : start + step]
                raw = room[: len(part)]
                file.read_into(entry.offset + start * kind.bytes, raw)
                decode(raw, part)
