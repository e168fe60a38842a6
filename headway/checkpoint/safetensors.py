"""The safetensors format: headers checked before anything is believed, tensors written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headway.checkpoint.dtypes import PLAIN, addressable
from headway.checkpoint.files import Entry, File, Readable, Stamp, Store, naming, nbytes, octets, shown
from headway.checkpoint.pickles import holds_pickle, refusal
from headway.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_HEADER_LIMIT = 100_000_000
_DIMENSIONS = 64  # numpy's limit
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")

# (name, dtype as the format spells it, shape, bytes or a function that gives them when their turn comes)
Tensor = tuple[str, str, Sequence[int], Readable | Callable[[], Readable]]


class SafetensorsFile(Store):
    """Tensors of one safetensors file, or of a folder's shards."""

    @property
    def format(self) -> str:
        """'safetensors'."""
        return "safetensors"


def read_safetensors(path: Path) -> SafetensorsFile:
    """One file as a store; CheckpointError names the file and the tensor that cannot be as its header says."""
    header = _read_header(path)
    return SafetensorsFile(path, header.entries, header.metadata, {path: header.stamp})


def read_sharded(index: Path) -> SafetensorsFile:
    """The shards that a `*.safetensors.index.json` lists, as one store; every shard that is missing is named."""
    with naming(index):
        places = _parse(index, index.read_bytes()).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise CheckpointError(f"{shown(index)}: weight_map must give a file name for every tensor")
    names = sorted(set(places.values()))
    for name in names:
        if name != Path(name).name or name in ("", ".", ".."):
            raise CheckpointError(f"{shown(index)}: {shown(name)} is not the name of a file beside it")
    folder = index.parent
    if missing := [name for name in names if not (folder / name).exists()]:
        raise CheckpointError(
            f"{shown(folder)}: {len(missing)} of {len(names)} shards are missing: {shown(', '.join(missing))}; "
            f"fetch them again or copy them here"
        )
    entries: dict[str, Entry] = {}
    metadata: dict[str, str] = {}
    stamps: dict[Path, Stamp] = {}
    for name in names:
        header = _read_header(folder / name)
        stamps[folder / name] = header.stamp
        metadata = header.metadata | metadata
        # A tensor may lie in two shards: the index says which one counts.
        entries |= {entry.name: entry for entry in header.entries if places.get(entry.name, name) == name}
    if lost := sorted(set(places) - set(entries)):
        raise CheckpointError(
            f"{shown(folder / places[lost[0]])}: holds no tensor {shown(lost[0])}, though {index.name} says so"
            + (f" (and {len(lost) - 1} more)" if lost[1:] else "")
        )
    return SafetensorsFile(folder, entries.values(), metadata, stamps)


def write_safetensors(
    target: Path | str,
    tensors: Iterable[Tensor],
    max_shard_bytes: float = 5e9,
    metadata: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write `tensors` and give the paths written, weights first.

    `target` ending in .safetensors is one file, never split; anything else is a folder, which gets model.safetensors,
    or shards of at most `max_shard_bytes` with an index, in the order given. Bytes are asked for one tensor at a time,
    so a model is never held twice. Everything is written beside and renamed at the end: on an error nothing is left
    behind, and what was there before is still there. `metadata` None stands for {"format": "pt"}.
    """
    target = Path(target)
    single = target.suffix == ".safetensors" and not target.is_dir()
    folder = target.parent if single else target
    items = _checked(tensors, folder)
    about = {"format": "pt"} if metadata is None else dict(metadata)
    groups = [items] if single else _grouped(items, max_shard_bytes)
    if single:
        names = [target.name]
    elif len(groups) == 1:
        names = [SINGLE]
    else:
        names = [f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
    with naming(folder), _Renames(folder) as renames:
        folder.mkdir(parents=True, exist_ok=True)
        for name, group in zip(names, groups, strict=True):
            _write_file(renames.path(name), group, about)
        if len(groups) > 1:
            renames.path(INDEX).write_text(_index(names, groups), encoding="utf-8")
        renames.finish([] if single else _stale(folder, keep={*names, INDEX} if len(groups) > 1 else set(names)))
    return [folder / name for name in renames.done]


@dataclass(frozen=True)
class _Item:
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    data: Readable | Callable[[], Readable]


class _Renames:
    """Files written under other names in one folder, to be renamed together; removed when that does not come about."""

    def __init__(self, folder: Path) -> None:
        self.done: list[str] = []
        self._folder = folder
        self._mark = f"{os.getpid()}-{secrets.token_hex(4)}.part"
        self._pending: dict[str, Path] = {}

    def path(self, name: str) -> Path:
        """Where to write what will be called `name`."""
        self._pending[name] = self._folder / f".{name}.{self._mark}"
        return self._pending[name]

    def finish(self, stale: Sequence[Path]) -> None:
        """Put every file in its place, then take away the `stale` ones of an earlier save.

        An old index goes before new shards come under the names that it lists, and the new one comes last: whoever
        looks in between finds a whole checkpoint or none, never a mixture.
        """
        if INDEX in self._pending:
            (self._folder / INDEX).unlink(missing_ok=True)
        for name, path in self._pending.items():
            path.replace(self._folder / name)
            self.done.append(name)
        self._pending.clear()
        for path in stale:
            path.unlink(missing_ok=True)

    def __enter__(self) -> _Renames:
        return self

    def __exit__(self, *_: object) -> None:
        for path in self._pending.values():
            with suppress(OSError):
                path.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Header:
    entries: list[Entry]
    metadata: dict[str, str]
    stamp: Stamp


def _read_header(path: Path) -> _Header:
    file = File(path)
    try:
        if file.size < 8:
            raise CheckpointError(f"{shown(path)}: {file.size} bytes are no safetensors file; fetch it again")
        length = int.from_bytes(file.read(0, 8), "little")
        if length > min(_HEADER_LIMIT, file.size - 8):
            if holds_pickle(path):
                raise refusal(path)
            raise CheckpointError(
                f"{shown(path)}: a header of {length} bytes in a file of {file.size} (the limit is {_HEADER_LIMIT}): "
                f"not a safetensors file, or cut short; fetch it again"
            )
        header = _parse(path, file.read(8, length))
    finally:
        file.close()
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{shown(path)}: __metadata__ must map names to strings")
    entries = [_entry(path, name, field, 8 + length) for name, field in header.items()]
    _check_layout(path, entries, 8 + length, file.size)
    return _Header(entries, metadata, file.stamp)


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    """A JSON object in which no name comes twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise CheckpointError(f"{shown(path)}: {shown(twice)} is listed twice in its header")
        return found

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        what = "nested too deep" if isinstance(error, RecursionError) else error
        raise CheckpointError(f"{shown(path)}: its header is not JSON ({shown(what)})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{shown(path)}: its header is not a JSON object")
    return value


def _entry(path: Path, name: str, field: Any, base: int) -> Entry:
    def wrong(what: str) -> CheckpointError:
        return CheckpointError(f"{shown(path)}: tensor {shown(name)}: {what}")

    if not isinstance(field, dict) or set(field) != {"dtype", "shape", "data_offsets"}:
        raise wrong("its header entry must have dtype, shape and data_offsets, and nothing else")
    dtype, shape, span = field["dtype"], field["shape"], field["data_offsets"]
    if not isinstance(dtype, str) or dtype not in PLAIN:
        raise wrong(f"unknown dtype {shown(dtype)} (known: {', '.join(PLAIN)})")
    if not _sizes(shape) or len(shape) > _DIMENSIONS:
        raise wrong(f"shape {shown(shape)} is not a list of at most {_DIMENSIONS} sizes")
    if not addressable(tuple(shape)):
        raise wrong(f"shape {shown(shape)} is impossible")
    if not _sizes(span) or len(span) != 2 or span[0] > span[1]:
        raise wrong(f"data_offsets {shown(span)} are not a begin and an end")
    need, have = PLAIN[dtype].nbytes(tuple(shape)), span[1] - span[0]
    if need != have:
        raise wrong(f"shape {shown(shape)} of {dtype} needs {need} bytes, data_offsets give it {have}")
    return Entry(name, tuple(shape), dtype, have, path, base + span[0])


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _check_layout(path: Path, entries: list[Entry], base: int, end: int) -> None:
    """Tensors must fill the file from the header to the end, without a gap and without sharing a byte."""
    at, before = base, "the header"
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.offset + entry.nbytes > end:
            raise CheckpointError(
                f"{shown(path)}: tensor {shown(entry.name)} ends at byte {entry.offset + entry.nbytes}, "
                f"the file at {end}: it was cut short; fetch it again"
            )
        if entry.offset != at:
            what = "overlaps" if entry.offset < at else "leaves a gap after"
            raise CheckpointError(f"{shown(path)}: tensor {shown(entry.name)} {what} {shown(before)}")
        at, before = entry.offset + entry.nbytes, entry.name
    if at != end:
        raise CheckpointError(f"{shown(path)}: {end - at} bytes at its end belong to no tensor")


def _checked(tensors: Iterable[Tensor], folder: Path) -> list[_Item]:
    items: dict[str, _Item] = {}
    for name, dtype, shape, data in tensors:
        place = f"{shown(folder)}: cannot write tensor {shown(name)}"
        if name in items or name == "__metadata__":
            raise CheckpointError(f"{place}: the name is taken")
        kind = PLAIN.get(dtype)
        if kind is None:
            raise CheckpointError(f"{place}: safetensors has no dtype {shown(dtype)} (it has {', '.join(PLAIN)})")
        sizes = tuple(int(size) for size in shape)
        nbytes = kind.nbytes(sizes)
        if nbytes is None:
            raise CheckpointError(f"{place}: {sizes} of {dtype} does not fill whole bytes")
        items[name] = _Item(name, dtype, sizes, nbytes, data)
    return list(items.values())


def _grouped(items: list[_Item], limit: float) -> list[list[_Item]]:
    """Shards of at most `limit` bytes each, in order; a tensor larger than that has one for itself."""
    groups: list[list[_Item]] = [[]]
    room = limit
    for item in items:
        if groups[-1] and item.nbytes > room:
            groups.append([])
            room = limit
        groups[-1].append(item)
        room -= item.nbytes
    return groups


def _write_file(path: Path, items: list[_Item], metadata: Mapping[str, str]) -> None:
    # Wide elements first, so that each tensor starts at a multiple of its element's size.
    items = sorted(items, key=lambda item: -PLAIN[item.dtype].storage.itemsize)
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for item in items:
        header[item.name] = {"dtype": item.dtype, "shape": item.shape, "data_offsets": [at, at + item.nbytes]}
        at += item.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for item in items:
            data = item.data() if callable(item.data) else item.data
            size = nbytes(data)
            if size != item.nbytes:
                raise CheckpointError(
                    f"{shown(path.parent)}: cannot write tensor {shown(item.name)}: "
                    f"{size} bytes given, {item.shape} of {item.dtype} takes {item.nbytes}"
                )
            if size:
                file.write(octets(np.ascontiguousarray(data) if isinstance(data, np.ndarray) else data))
        file.flush()
        os.fsync(file.fileno())  # else a power cut after the rename could leave an empty file under the good name


def _index(names: list[str], groups: list[list[_Item]]) -> str:
    places = {item.name: name for name, group in zip(names, groups, strict=True) for item in group}
    total = sum(item.nbytes for group in groups for item in group)
    return json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2, sort_keys=True) + "\n"


def _stale(folder: Path, keep: set[str]) -> list[Path]:
    """Weight files of an earlier save in this folder that are not part of this one."""
    ours = (path for path in folder.iterdir() if path.name in (SINGLE, INDEX) or SHARD.fullmatch(path.name))
    return sorted(path for path in ours if path.name not in keep)
