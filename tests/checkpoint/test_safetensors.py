"""The safetensors format: the same bytes as the safetensors package, and nothing believed unchecked."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from headway.checkpoint.dtypes import PLAIN
from headway.checkpoint.safetensors import INDEX, read_safetensors, write_safetensors
from headway.checkpoint.store import open_store
from headway.errors import CheckpointError
from tests.checkpoint.forge import put, tensor
from tests.checkpoint.forge import safetensors as forge

# Spelling in the file -> numpy type that the safetensors package reads it as.
NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip

Tensors = dict[str, tuple[str, np.ndarray[Any, Any]]]


def arrays(draw: st.DrawFn) -> Tensors:
    names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
        lambda name: name != "__metadata__"
    )
    shapes = st.lists(st.integers(0, 5), max_size=4)
    chosen = draw(st.dictionaries(names, st.tuples(st.sampled_from(sorted(NUMPY)), shapes), max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    made = {}
    for name, (dtype, shape) in chosen.items():
        raw = rng.integers(0, 2 if dtype == "BOOL" else 256, int(np.prod(shape)) * np.dtype(NUMPY[dtype]).itemsize)
        made[name] = dtype, raw.astype(np.uint8).view(NUMPY[dtype]).reshape(shape)
    return made


some_tensors = st.composite(arrays)()
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def save(target: Path, tensors: Tensors, **options: Any) -> list[Path]:
    return write_safetensors(
        target, [(name, dtype, array.shape, array) for name, (dtype, array) in tensors.items()], **options
    )


@quick
@given(tensors=some_tensors)
def test_the_safetensors_package_reads_what_is_written(tmp_path: Path, tensors: Tensors) -> None:
    (path,) = save(tmp_path / "model.safetensors", tensors)
    found = safetensors.numpy.load_file(path)
    assert found.keys() == tensors.keys()
    for name, (_, array) in tensors.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()
    with safe_open(path, "np") as file:
        assert file.metadata() == {"format": "pt"}


@quick
@given(tensors=some_tensors)
def test_what_the_safetensors_package_writes_is_read(tmp_path: Path, tensors: Tensors) -> None:
    path = tmp_path / "theirs.safetensors"
    safetensors.numpy.save_file({name: array for name, (_, array) in tensors.items()}, path, {"who": "them"})
    with open_store(path) as store:
        assert store.metadata == {"who": "them"}
        assert store.format == "safetensors"
        assert set(store.names) == set(tensors)
        for name, (dtype, array) in tensors.items():
            entry = store.entry(name)
            assert (entry.dtype, entry.shape, entry.nbytes) == (dtype, array.shape, array.nbytes)
            assert store.read(name).tobytes() == array.tobytes()
            assert store.read(name).shape == array.shape
            room = np.empty(array.shape, array.dtype)
            store.read_into(name, room)
            assert room.tobytes() == array.tobytes()
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(store.floats(name), array.astype(np.float32))


@pytest.mark.case("C15")
def test_bfloat16_and_mixed_dtypes_stay_what_they_are(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    weight, table = torch.randn(5, 3).bfloat16(), torch.randn(4)
    save_file({"weight": weight, "table": table}, tmp_path / "model.safetensors")
    with open_store(tmp_path) as store:
        assert {name: entry.dtype for name, entry in store.items()} == {"weight": "BF16", "table": "F32"}
        assert store.read("weight").dtype == np.uint16
        np.testing.assert_array_equal(store.floats("weight"), weight.float().numpy())
        again = tmp_path / "again"
        write_safetensors(again, [(n, e.dtype, e.shape, store.read(n)) for n, e in store.items()])
    with open_store(again) as store:
        assert {name: entry.dtype for name, entry in store.items()} == {"weight": "BF16", "table": "F32"}
        np.testing.assert_array_equal(store.floats("weight"), weight.float().numpy())


def test_shards_follow_the_limit_and_the_index_names_each(tmp_path: Path) -> None:
    tensors = {f"t{i}": ("F32", np.full((i + 1, 10), i, np.float32)) for i in range(6)}
    paths = save(tmp_path, tensors, max_shard_bytes=130)
    assert [path.name for path in paths[:-1]] == [f"model-{n:05d}-of-00005.safetensors" for n in range(1, 6)]
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(array.nbytes for _, array in tensors.values())
    assert set(index["weight_map"]) == set(tensors)
    for name, file in index["weight_map"].items():
        np.testing.assert_array_equal(safetensors.numpy.load_file(tmp_path / file)[name], tensors[name][1])
    with open_store(tmp_path) as store:
        assert set(store) == set(tensors)
        for name, (_, array) in tensors.items():
            np.testing.assert_array_equal(store.floats(name), array)


def test_a_save_replaces_an_earlier_one_of_another_layout(tmp_path: Path) -> None:
    def one(value: int) -> Tensors:
        return {name: ("F32", np.full(10, value, np.float32)) for name in "abc"}

    (tmp_path / "adapter_model.safetensors").write_bytes(b"not ours")
    for value, limit in ((1, 50), (2, 1e9), (3, 90), (4, 50)):
        written = save(tmp_path, one(value), max_shard_bytes=limit)
        there = {path.name for path in tmp_path.iterdir()} - {"adapter_model.safetensors"}
        assert there == {path.name for path in written}
        with open_store(tmp_path) as store:
            assert all((store.floats(name) == value).all() for name in "abc")
    assert (tmp_path / "adapter_model.safetensors").read_bytes() == b"not ours"


@pytest.mark.case("C27")
@pytest.mark.parametrize("limit", [1e9, 50])
def test_an_error_while_writing_leaves_the_earlier_save_whole(tmp_path: Path, limit: float) -> None:
    tensors = {name: ("F32", np.ones(10, np.float32)) for name in "abc"}
    save(tmp_path, tensors, max_shard_bytes=limit)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fails() -> bytes:
        raise RuntimeError("the machine caught fire")

    def items() -> Iterator[tuple[str, str, tuple[int, ...], Any]]:
        yield "a", "F32", (10,), bytes(40)
        yield "b", "F32", (10,), lambda: bytes(40)
        yield "c", "F32", (10,), fails

    with pytest.raises(RuntimeError, match="fire"):
        write_safetensors(tmp_path, items(), max_shard_bytes=limit)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_tensors_are_asked_for_one_at_a_time(tmp_path: Path) -> None:
    size, count = 1 << 20, 16
    items = [(f"t{i}", "U8", (size,), lambda i=i: bytes([i]) * size) for i in range(count)]
    tracemalloc.start()
    write_safetensors(tmp_path, items, max_shard_bytes=5 * size)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * size
    with open_store(tmp_path) as store:
        assert [int(store.read(f"t{i}")[-1]) for i in range(count)] == list(range(count))


def test_strided_arrays_and_odd_sizes_are_written_as_they_read(tmp_path: Path) -> None:
    tensors: Tensors = {
        "odd": ("U8", np.arange(3, dtype=np.uint8)),
        "turned": ("F32", np.arange(12, dtype=np.float32).reshape(3, 4).T),
        "scalar": ("F16", np.array(2.5, np.float16)),
        "empty": ("I64", np.empty((0, 3), np.int64)),
    }
    (path,) = save(tmp_path / "x.safetensors", tensors)
    found = safetensors.numpy.load_file(path)
    for name, (_, array) in tensors.items():
        np.testing.assert_array_equal(found[name], array)
    with open_store(path) as store:  # wide types first: every view is aligned
        assert all(store.read(name).flags.aligned for name in store)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (("a", "F32", (2,), bytes(7)), "a: 7 bytes given"),
        (("a", "Q4_0", (32,), bytes(18)), "no dtype Q4_0"),
        (("__metadata__", "F32", (1,), bytes(4)), "the name is taken"),
        (("a", "F4", (3,), bytes(2)), "does not fill whole bytes"),
    ],
)
def test_a_tensor_that_cannot_be_written_is_named(tmp_path: Path, item: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        write_safetensors(tmp_path / "new", [item])
    assert not list(tmp_path.rglob("*.*"))


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="tensor a: the name is taken"):
        write_safetensors(tmp_path, [("a", "U8", (1,), b"1"), ("a", "U8", (1,), b"2")])


GOOD = tensor("F32", [2], 0, 8)
BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes"),
    "seven bytes": (b"1234567", "7 bytes"),
    "huge header": (forge(b"{}", length=1 << 62), "header of 4611686018427387904 bytes"),
    "header past the end": (forge(b"{}", length=3), "header of 3 bytes in a file of 10"),
    "header over the limit": (forge(b"{}" + b" " * 16, length=100_000_001), "limit is 100000000"),
    "not JSON": (forge(b"{'a'}"), "not JSON"),
    "not UTF-8": (forge(b'{"\xff":1}'), "not JSON"),
    "a list": (forge(b"[]"), "not a JSON object"),
    "nothing": (forge(b""), "not JSON"),
    "nested": (forge(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "not JSON"),
    "a number without end": (forge(b'{"a":' + b"9" * 5000 + b"}"), "not JSON"),
    "name twice": (
        forge(b'{"a":' + json.dumps(GOOD).encode() + b',"a":' + json.dumps(GOOD).encode() + b"}", bytes(8)),
        "a is listed twice",
    ),
    "field twice": (
        forge(b'{"a":{"dtype":"U8","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8)),
        "dtype is listed twice",
    ),
    "unknown dtype": (forge({"a": tensor("F33", [2], 0, 8)}, bytes(8)), "tensor a: unknown dtype F33"),
    "dtype a number": (forge({"a": {"dtype": 3, "shape": [], "data_offsets": [0, 1]}}, b"1"), "unknown dtype 3"),
    "dtype a list": (forge({"a": {"dtype": [], "shape": [], "data_offsets": [0, 1]}}, b"1"), "unknown dtype"),
    "field missing": (forge({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)), "tensor a: its header entry must have"),
    "field too many": (forge({"a": {**GOOD, "code": "rm"}}, bytes(8)), "and nothing else"),
    "entry a string": (forge({"a": "F32"}), "tensor a: its header entry"),
    "negative size": (forge({"a": tensor("F32", [-2], 0, 8)}, bytes(8)), r"shape \[-2\]"),
    "size a float": (forge(b'{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}', bytes(8)), r"shape \[2.0\]"),
    "size true": (forge(b'{"a":{"dtype":"U8","shape":[true],"data_offsets":[0,1]}}', b"1"), r"shape \[True\]"),
    "too many sizes": (forge({"a": tensor("U8", [1] * 65, 0, 1)}, b"1"), "at most 64 sizes"),
    "offsets swapped": (forge({"a": tensor("F32", [2], 8, 0)}, bytes(8)), "data_offsets"),
    "offsets three": (forge({"a": {**GOOD, "data_offsets": [0, 8, 8]}}, bytes(8)), "data_offsets"),
    "more shape than bytes": (
        forge({"a": tensor("F32", [3], 0, 8)}, bytes(8)),
        "needs 12 bytes, .* give it 8",
    ),
    "enormous shape": (forge({"a": tensor("F32", [1 << 40, 1 << 40], 0, 8)}, bytes(8)), "is impossible"),
    "enormous but for a zero": (forge({"a": tensor("F32", [0, 1 << 62], 0, 0)}), "is impossible"),
    "large shape": (forge({"a": tensor("F32", [1 << 40], 0, 8)}, bytes(8)), "needs 4398046511104 bytes"),
    "cut data": (forge({"a": GOOD}, bytes(7)), "tensor a ends at byte .* was cut short"),
    "bytes at the end": (forge({"a": GOOD}, bytes(9)), "1 bytes at its end belong to no tensor"),
    "overlap": (forge({"a": GOOD, "b": tensor("F32", [2], 4, 12)}, bytes(12)), "tensor b overlaps a"),
    "same place": (forge({"a": GOOD, "b": GOOD}, bytes(8)), "tensor b overlaps a"),
    "gap": (forge({"a": GOOD, "b": tensor("F32", [2], 12, 20)}, bytes(20)), "tensor b leaves a gap after a"),
    "gap at the start": (forge({"a": tensor("F32", [2], 4, 12)}, bytes(12)), "tensor a leaves a gap after the header"),
    "metadata a number": (forge({"__metadata__": {"a": 1}, "a": GOOD}, bytes(8)), "__metadata__"),
    "metadata a list": (forge({"__metadata__": [], "a": GOOD}, bytes(8)), "__metadata__"),
}


@pytest.mark.case("C35")
@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_header_that_lies_is_refused_before_anything_is_allocated(tmp_path: Path, kind: str) -> None:
    content, message = BAD_FILES[kind]
    path = put(tmp_path, "model.safetensors", content)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=message) as caught:
        open_store(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_name_from_a_file_cannot_spoil_the_message(tmp_path: Path) -> None:
    path = put(tmp_path, "x.safetensors", forge({"\x1b[2J\nTraceback" + "x" * 5000: "?"}))
    with pytest.raises(CheckpointError) as caught:
        read_safetensors(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_an_error_or_reads(tmp_path: Path, data: st.DataObject) -> None:
    sound = forge(
        {"__metadata__": {"format": "pt"}, "a": tensor("F32", [2, 3], 0, 24), "b": tensor("BF16", [3], 24, 30)},
        bytes(range(30)),
    )
    content = bytearray(sound[: data.draw(st.integers(0, len(sound)))] if data.draw(st.booleans()) else sound)
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = put(tmp_path, "model.safetensors", bytes(content))
    with suppress(CheckpointError), open_store(path) as store:
        for name in store:
            store.read(name)
            if PLAIN[store[name].dtype].decode:
                store.floats(name)


def shard(folder: Path) -> list[Path]:
    return save(folder, {name: ("U8", np.arange(4, dtype=np.uint8)) for name in "abcd"}, max_shard_bytes=4)


def test_every_missing_shard_is_named(tmp_path: Path) -> None:
    paths = shard(tmp_path)
    paths[1].unlink()
    paths[3].unlink()
    with pytest.raises(CheckpointError, match="2 of 4 shards are missing") as caught:
        open_store(tmp_path)
    assert paths[1].name in str(caught.value)
    assert paths[3].name in str(caught.value)


def test_a_cut_shard_and_a_shard_without_its_tensor_are_named(tmp_path: Path) -> None:
    paths = shard(tmp_path)
    whole = paths[2].read_bytes()
    paths[2].write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match=f"{paths[2].name}: tensor c ends at byte"):
        open_store(tmp_path)
    paths[2].write_bytes(paths[0].read_bytes())
    with pytest.raises(CheckpointError, match=f"{paths[2].name}: holds no tensor c"):
        open_store(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "weight_map"),
        (b'{"weight_map": {"a": 3}}', "weight_map"),
        (b'{"weight_map": {"a": "../../etc/passwd"}}', "is not the name of a file beside it"),
        (b'{"weight_map": {"a": "/etc/passwd"}}', "is not the name of a file beside it"),
        (b'{"weight_map": {"a": ".."}}', "is not the name of a file beside it"),
        (b'{"weight_map": {"a": "x", "a": "y"}}', "a is listed twice"),
    ],
)
def test_an_index_that_cannot_be_is_refused(tmp_path: Path, index: bytes, message: str) -> None:
    put(tmp_path, INDEX, index)
    with pytest.raises(CheckpointError, match=message):
        open_store(tmp_path)


def test_shards_without_an_index_are_not_taken_for_a_model(tmp_path: Path) -> None:
    shard(tmp_path)
    (tmp_path / INDEX).unlink()
    with pytest.raises(CheckpointError, match=r"shards but no model.safetensors.index.json"):
        open_store(tmp_path)


def test_a_header_length_that_looks_like_a_pickle_is_no_pickle(tmp_path: Path) -> None:
    # 640 is 0x0280: the file begins with the two bytes of pickle protocol 2.
    header = json.dumps({"a": GOOD}).encode().ljust(640)
    path = put(tmp_path, "model.safetensors", forge(header, bytes(8)))
    assert path.read_bytes()[:2] == b"\x80\x02"
    with open_store(path) as store:
        assert store.names == ("a",)


@pytest.mark.skipif(os.geteuid() == 0 if hasattr(os, "geteuid") else True, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_one_line(tmp_path: Path) -> None:
    (path,) = save(tmp_path / "x.safetensors", {"a": ("U8", np.ones(1, np.uint8))})
    path.chmod(0)
    with pytest.raises(CheckpointError, match="Permission denied"):
        open_store(path)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    put(tmp_path, "file", b"")
    with pytest.raises(CheckpointError, match="file"):
        save(tmp_path / "file" / "model", {"a": ("U8", np.ones(1, np.uint8))})
