"""GGUF files written, whole or not at all: the metadata of another file, tensors as they come."""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headway.checkpoint.files import naming, octets, shown
from headway.checkpoint.gguf import MAGIC
from headway.checkpoint.gguf_blocks import BLOCKS
from headway.errors import CheckpointError

VERSION: Final = 3
ALIGNMENT: Final = 32
_WHOLE, _STRING = 4, 8


@dataclass(frozen=True)
class Planned:
    """A tensor that a file will hold: `shape` with rows first, `dtype` as GGUF spells it."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        size = BLOCKS[self.dtype].nbytes(self.shape)
        assert size is not None, f"{self.name}: {self.shape} is no whole blocks of {self.dtype}"
        return size


def write_gguf(
    target: Path, pairs: Mapping[str, bytes], tensors: Sequence[Planned], data: Iterable[NDArray[Any]]
) -> None:
    """Write a GGUF file of `pairs` (keys to their value's type and bytes, as `value` makes them) and `tensors`.

    `data` gives the bytes of the tensors in their order, asked for one by one. The file appears when it is whole and on
    the disk; on an error nothing is left and what was there is still there.
    """
    mark = f"{os.getpid()}-{secrets.token_hex(4)}.part"
    partial = target.with_name(f".{target.name}.{mark}")
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(partial, "xb") as file:
                head = _header(pairs, tensors)
                file.write(head + bytes(-len(head) % ALIGNMENT))
                for tensor, array in zip(tensors, data, strict=True):
                    if array.nbytes != tensor.nbytes:
                        raise CheckpointError(
                            f"{shown(target)}: cannot write tensor {shown(tensor.name)}: {array.nbytes} bytes given, "
                            f"{list(tensor.shape)} of {tensor.dtype} takes {tensor.nbytes}"
                        )
                    file.write(octets(np.ascontiguousarray(array)))
                    file.write(bytes(-array.nbytes % ALIGNMENT))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def value(of: int | str) -> bytes:
    """A whole number (as 32 bits) or a text as the type and bytes of a metadata value."""
    if isinstance(of, str):
        return struct.pack("<I", _STRING) + _text(of)
    return struct.pack("<II", _WHOLE, of)


def _text(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _header(pairs: Mapping[str, bytes], tensors: Sequence[Planned]) -> bytes:
    out = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(pairs))]
    out += [_text(key) + raw for key, raw in pairs.items()]
    at = 0
    for tensor in tensors:
        sizes = tensor.shape[::-1]  # the fastest-running first
        form = f"<I{len(sizes)}QIQ"
        out.append(_text(tensor.name) + struct.pack(form, len(sizes), *sizes, BLOCKS[tensor.dtype].code, at))
        at += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return b"".join(out)
