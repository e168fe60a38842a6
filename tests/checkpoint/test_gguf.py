"""The GGUF format: the same as the gguf package reads, and nothing believed unchecked."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headway.checkpoint.gguf import read_gguf
from headway.checkpoint.store import open_store
from headway.errors import CheckpointError
from tests.checkpoint import forge
from tests.checkpoint.forge import info, pair, put, string, text, whole

SMALL = forge.small_gguf()


def written(path: Path, tensors: dict[str, np.ndarray[Any, Any]], **kinds: str) -> Path:
    """A file by the gguf package, some tensors quantised by it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "▁hello", "世界", "😀"])
    writer.add_array("tokenizer.ggml.scores", [0.0, -1.5, -2.0, -3.0])
    for name, array in tensors.items():
        if name in kinds:
            kind = gguf.GGMLQuantizationType[kinds[name]]
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_of_the_gguf_package_reads_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "norm": rng.standard_normal(5).astype(np.float32),
        "half": rng.standard_normal((3, 7)).astype(np.float16),
        "whole": np.arange(4, dtype=np.int32),
        "q": rng.standard_normal((3, 64)).astype(np.float32),
        "e": rng.standard_normal((2, 3, 32)).astype(np.float32),
    }
    path = written(tmp_path / "m.gguf", tensors, q="Q4_1", e="Q8_0")
    with open_store(path) as store:
        assert store.format == "gguf"
        assert {name: (entry.dtype, entry.shape) for name, entry in store.items()} == {
            "norm": ("F32", (5,)),
            "half": ("F16", (3, 7)),
            "whole": ("I32", (4,)),
            "q": ("Q4_1", (3, 64)),
            "e": ("Q8_0", (2, 3, 32)),
        }
        for theirs in gguf.GGUFReader(path).tensors:
            entry = store.entry(theirs.name)
            assert entry.offset == theirs.data_offset
            assert entry.nbytes == theirs.n_bytes
            raw = store.read(theirs.name)
            assert raw.shape == theirs.data.shape
            assert raw.tobytes() == theirs.data.tobytes()
            expected = theirs.data if theirs.name == "whole" else gguf.dequantize(theirs.data, theirs.tensor_type)
            np.testing.assert_array_equal(store.floats(theirs.name), expected)
        assert store.metadata["general.architecture"] == "llama"
        assert store.metadata["llama.block_count"] == 2
        assert store.metadata["tokenizer.ggml.tokens"] == ["<s>", "▁hello", "世界", "😀"]
        np.testing.assert_array_equal(store.metadata["tokenizer.ggml.scores"], np.float32([0, -1.5, -2, -3]))


def test_every_kind_of_metadata_is_read(tmp_path: Path) -> None:
    found = dict(read_gguf(put(tmp_path, "m.gguf", SMALL)).metadata)
    assert list(found.pop("a.numbers")) == [1, -2, 3]
    flags = found.pop("a.flags")
    assert flags.dtype == np.bool_
    assert flags.tolist() == [False, True]
    assert found.pop("a.none").shape == (0,)
    first, second = found.pop("a.nested")
    assert (first.tolist(), second) == ([1, 2], [])
    assert found == {
        "general.architecture": "llama",
        "a.u8": 7,
        "a.i8": -1,
        "a.u16": 65535,
        "a.i16": -2,
        "a.u32": 1 << 31,
        "a.i32": -3,
        "a.f32": 0.5,
        "a.bool": True,
        "a.u64": 1 << 63,
        "a.i64": -4,
        "a.f64": 0.25,
        "a.words": ["a", "", "Zürich 世界"],
    }


@pytest.mark.parametrize("version", [2, 3])
def test_versions_two_and_three_are_read(tmp_path: Path, version: int) -> None:
    path = put(tmp_path, "m.gguf", forge.gguf([], [info("a", (2,), 0, 0)], struct.pack("<2f", 1, 2), version=version))
    with read_gguf(path) as store:
        assert store.version == version
        assert store.floats("a").tolist() == [1, 2]


def test_a_vocabulary_alone_and_its_own_alignment_are_fine(tmp_path: Path) -> None:
    only = read_gguf(put(tmp_path, "vocab.gguf", forge.gguf([text("tokenizer.ggml.model", "gpt2")])[:-3]))
    assert only.metadata == {"tokenizer.ggml.model": "gpt2"}
    assert len(only) == 0
    content = forge.gguf(
        [whole("general.alignment", 64)],
        [info("a", (1,), 0, 0), info("b", (1,), 0, 64)],
        struct.pack("<f60xf", 1, 2),
        alignment=64,
    )
    with read_gguf(put(tmp_path, "wide.gguf", content)) as store:
        assert (store.floats("a")[0], store.floats("b")[0]) == (1, 2)


F32 = info("a", (2,), 0, 0)
BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cut short .0 bytes"),
    "only the magic": (b"GGUF", "cut short"),
    "wrong magic": (forge.gguf(magic=b"GGML"), "not a GGUF file"),
    "version 1": (forge.gguf(version=1), "GGUF version 1"),
    "version 4": (forge.gguf(version=4), "GGUF version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "huge tensor count": (forge.gguf(num_infos=1 << 60), "tensors: 1152921504606846976 items"),
    "huge metadata count": (forge.gguf(num_pairs=1 << 60), "metadata: 1152921504606846976 items"),
    "tensors missing": (forge.gguf(infos=[F32], num_infos=2)[:70], "do not fit"),
    "key without end": (forge.gguf([struct.pack("<Q", 1 << 50) + b"key" * 9]), "metadata key: 1125899906842624 items"),
    "value missing": (forge.gguf([string("a.b") + struct.pack("<I", 10)], alignment=1), "a.b: 1 items"),
    "unknown value type": (forge.gguf([pair("a.b", 13, bytes(8))]), "a.b: unknown value type 13"),
    "unknown array type": (forge.gguf([pair("a.b", 9, struct.pack("<IQ", 99, 1) + bytes(16))]), "value type 99"),
    "key twice": (forge.gguf([whole("a.b", 1), whole("a.b", 2)]), "a.b is there twice"),
    "key not UTF-8": (forge.gguf([string(b"\xff") + struct.pack("<II", 4, 1)]), "not UTF-8"),
    "huge array of numbers": (forge.gguf([pair("a.b", 9, struct.pack("<IQ", 4, 1 << 59))]), "a.b: 5764607523034234"),
    "huge array of strings": (forge.gguf([pair("a.b", 9, struct.pack("<IQ", 8, 1 << 59))]), "a.b: 5764607523034234"),
    "huge array of arrays": (forge.gguf([pair("a.b", 9, struct.pack("<IQ", 9, 1 << 59))]), "a.b: 5764607523034234"),
    "string past the end": (
        forge.gguf([pair("a.b", 9, struct.pack("<IQ", 8, 2) + string("x") + struct.pack("<Q", 1 << 40))]),
        r"a.b\[1\]: runs past the end",
    ),
    "token not UTF-8": (
        forge.gguf([pair("a.b", 9, struct.pack("<IQ", 8, 2) + string("x") + string(b"\xe4\xb8"))]),
        r"a.b\[1\]: not UTF-8",
    ),
    "arrays in arrays in arrays": (
        forge.gguf([pair("a.b", 9, struct.pack("<IQ", 9, 1) * 50 + bytes(900))]),
        "unknown value type 9",
    ),
    "name too long": (forge.gguf([], [info("n" * 65, (2,), 0, 0)], bytes(8)), "more than 64 bytes"),
    "name twice": (forge.gguf([], [F32, info("a", (2,), 0, 32)], bytes(64)), "tensor a is there twice"),
    "five dimensions": (forge.gguf([], [info("a", (1,) * 5, 0, 0)], bytes(8)), "tensor a: 5 dimensions"),
    "huge dimensions count": (forge.gguf([], [string("a") + struct.pack("<I", 1 << 31) + bytes(90)]), "2147483648 dim"),
    "unknown type": (forge.gguf([], [info("a", (2,), 77, 0)], bytes(8)), "tensor a: type number 77, unknown"),
    "removed type": (forge.gguf([], [info("a", (32,), 4, 0)], bytes(32)), "tensor a: type number 4, unknown"),
    "type not decoded": (forge.gguf([], [info("a", (32,), 20, 0)], bytes(18)), "IQ4_NL, which headway does not decode"),
    "rows not whole blocks": (forge.gguf([], [info("a", (31,), 2, 0)], bytes(64)), "Q4_0 comes in blocks of 32"),
    "rows that only fit together": (forge.gguf([], [info("a", (16, 2), 2, 0)], bytes(64)), "in blocks of 32"),
    "scalar of a block type": (forge.gguf([], [info("a", (), 2, 0)], bytes(64)), "in blocks of 32"),
    "offset past the end": (forge.gguf([], [info("a", (2,), 0, 1 << 40)], bytes(8)), "tensor a: ends at byte 10995116"),
    "offset not aligned": (forge.gguf([], [info("a", (2,), 0, 8)], bytes(64)), "offset 8 is not a multiple"),
    "shape past the end": (forge.gguf([], [info("a", (1 << 40, 1 << 10), 0, 0)], bytes(8)), "ends at byte 4503599627"),
    "shape beyond counting": (forge.gguf([], [info("a", (1 << 40, 1 << 20), 0, 0)], bytes(8)), "is impossible"),
    "the same but for a zero": (forge.gguf([], [info("a", (1 << 62, 0), 0, 0)], bytes(8)), "is impossible"),
    "cut data": (forge.gguf([], [F32], bytes(7)), "tensor a: ends at byte"),
    "overlap": (forge.gguf([], [info("a", (16,), 0, 0), info("b", (2,), 0, 32)], bytes(64)), "tensor b overlaps a"),
    "alignment zero": (forge.gguf([whole("general.alignment", 0)], [F32], bytes(8)), "not a power of two"),
    "alignment three": (forge.gguf([whole("general.alignment", 3)], [F32], bytes(8)), "general.alignment is 3"),
    "alignment a string": (forge.gguf([text("general.alignment", "32")], [F32], bytes(8)), "not a power of two"),
    "split count a string": (forge.gguf([text("split.count", "2")]), "split.count is 2, not a whole number"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_header_that_lies_is_refused_before_anything_is_allocated(tmp_path: Path, kind: str) -> None:
    content, message = BAD_FILES[kind]
    path = put(tmp_path, "m.gguf", content)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=message) as caught:
        open_store(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).isprintable()


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for end in range(len(SMALL)):
        path.write_bytes(SMALL[:end])
        with pytest.raises(CheckpointError) as caught:
            read_gguf(path)
        assert str(caught.value).isprintable()


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), min_size=1, max_size=5))
@example([(4, 2)])
def test_a_damaged_file_is_an_error_or_reads(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    content = bytearray(SMALL)
    for at, value in changes:
        content[at] = value
    path = put(tmp_path, "m.gguf", bytes(content))
    with suppress(CheckpointError), read_gguf(path) as store:
        for name in store:
            store.read(name)
            store.floats(name)


def split(folder: Path, stem: str = "big", count: int = 3, total: int | None = None) -> list[Path]:
    """A split model: part i holds tensor ti."""
    paths = []
    for number in range(count):
        pairs = [pair("split.no", 2, struct.pack("<H", number)), pair("split.count", 2, struct.pack("<H", count))]
        pairs += [pair("split.tensors.count", 5, struct.pack("<i", count if total is None else total))]
        pairs += [text("general.architecture", "llama")] if number == 0 else []
        content = forge.gguf(pairs, [info(f"t{number}", (1,), 0, 0)], struct.pack("<f", number))
        paths.append(put(folder, f"{stem}-{number + 1:05d}-of-{count:05d}.gguf", content))
    return paths


def test_parts_of_a_split_model_are_one_store_from_whichever_part(tmp_path: Path) -> None:
    paths = split(tmp_path)
    for path in (*paths, tmp_path):
        with open_store(path) as store:
            assert store.metadata["general.architecture"] == "llama"
            assert [store.floats(f"t{i}").item() for i in range(3)] == [0, 1, 2]
            assert store.entry("t2").file == paths[2]


def test_parts_that_are_missing_are_all_named(tmp_path: Path) -> None:
    paths = split(tmp_path, count=4)
    paths[1].unlink()
    paths[3].unlink()
    with pytest.raises(CheckpointError, match="2 of 4 parts are missing") as caught:
        open_store(paths[0])
    assert paths[1].name in str(caught.value)
    assert paths[3].name in str(caught.value)


def test_parts_under_other_names_or_of_other_models_are_refused(tmp_path: Path) -> None:
    paths = split(tmp_path)
    renamed = paths[1].rename(tmp_path / "renamed.gguf")
    with pytest.raises(CheckpointError, match=r"is part 2 of 3, so its name must end in -00002-of-00003.gguf"):
        open_store(renamed)
    paths[1].write_bytes(paths[0].read_bytes())
    with pytest.raises(CheckpointError, match=r"tensor t0 is in big-00001-of-00003.gguf too"):
        open_store(paths[0])
    with pytest.raises(CheckpointError, match="7 tensors announced, its 3 parts hold 3"):
        open_store(split(tmp_path, "other", total=7)[0])


def test_the_real_model_has_what_its_makers_say(smollm2_gguf: Path) -> None:
    with open_store(smollm2_gguf) as store:
        assert len(store) == 272
        assert sum(int(np.prod(entry.shape)) for entry in store.values()) == 134_515_008
        assert len(store.metadata["tokenizer.ggml.tokens"]) == 49_152
        assert len(store.metadata["tokenizer.ggml.merges"]) == 48_900


@pytest.mark.parity
def test_the_real_model_reads_as_the_gguf_package_reads_it(smollm2_gguf: Path) -> None:
    reader = gguf.GGUFReader(smollm2_gguf)
    with open_store(smollm2_gguf) as store:
        assert store.metadata["tokenizer.ggml.tokens"] == reader.fields["tokenizer.ggml.tokens"].contents()
        assert store.metadata["tokenizer.ggml.merges"] == reader.fields["tokenizer.ggml.merges"].contents()
        assert set(store) == {tensor.name for tensor in reader.tensors}
        for theirs in reader.tensors:
            np.testing.assert_array_equal(store.floats(theirs.name), gguf.dequantize(theirs.data, theirs.tensor_type))
