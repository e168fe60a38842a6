"""Opening weights by what is there, and reading them without a second copy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headway.checkpoint.files import _CHUNK
from headway.checkpoint.safetensors import write_safetensors
from headway.checkpoint.store import Store, open_store
from headway.errors import CheckpointError
from tests.checkpoint import forge
from tests.checkpoint.forge import info, put


def one(target: Path, value: int = 1) -> Path:
    return write_safetensors(target, [("a", "U8", (4,), bytes([value]) * 4)])[0]


def test_the_format_is_told_by_content_and_not_by_the_name(tmp_path: Path) -> None:
    model = one(tmp_path / "model.safetensors")
    renamed = model.rename(tmp_path / "pytorch_model.bin")
    put(tmp_path, "weights", forge.small_gguf())
    assert open_store(renamed).format == "safetensors"
    assert open_store(tmp_path / "weights").format == "gguf"


def test_a_folder_opens_by_its_usual_names(tmp_path: Path) -> None:
    one(tmp_path / "a" / "model.safetensors", 7)
    put(tmp_path / "a", "tokenizer.gguf", b"ignored, for model.safetensors is there")
    assert open_store(tmp_path / "a").read("a")[0] == 7
    one(tmp_path / "b" / "adapter_model.safetensors")
    assert open_store(str(tmp_path / "b")).names == ("a",)
    (tmp_path / "c").mkdir()
    put(tmp_path / "c", "only.gguf", forge.small_gguf())
    assert open_store(tmp_path / "c").format == "gguf"


def test_a_link_is_followed_and_a_broken_one_is_named(tmp_path: Path) -> None:
    blob = one(tmp_path / "blob.safetensors")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(blob)
    assert open_store(folder).names == ("a",)
    blob.unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors: No such file"):
        open_store(folder)


@pytest.mark.parametrize("name", ["gone", "gone.gguf", "gone.safetensors"])
def test_what_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=f"{name}: no such file or folder"):
        open_store(tmp_path / name)


def test_folders_without_weights_or_with_several_are_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "folder.gguf"
    folder.mkdir()
    with pytest.raises(CheckpointError, match=r"folder.gguf: holds no weights"):
        open_store(folder)
    (folder / "model.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="holds no weights"):
        open_store(folder)
    put(folder, "a.gguf", forge.small_gguf())
    put(folder, "b.gguf", forge.small_gguf())
    with pytest.raises(CheckpointError, match=r"several weight files .a.gguf, b.gguf.; name one"):
        open_store(folder)


@pytest.mark.parametrize("name", ["x.safetensors", "x.gguf", "x"])
@pytest.mark.parametrize("content", [b"", b"\0", b"hello, I am a text file\n" * 9, b"\0" * 100])
def test_files_that_are_no_model_are_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_store(put(tmp_path, name, content))
    assert str(tmp_path / name) in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.gguf")
    with pytest.raises(CheckpointError, match="not a file"):
        open_store(tmp_path / "x.gguf")
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a file"):
        open_store(tmp_path)


def test_names_of_any_script_are_fine(tmp_path: Path) -> None:
    folder = tmp_path / "模型 éñ 😀"
    write_safetensors(folder, [("слой.世界", "U8", (1,), b"x")])
    with open_store(folder) as store:
        assert store.read("слой.世界").tobytes() == b"x"
    with pytest.raises(CheckpointError, match=r"模型 éñ 😀/model.safetensors: holds no tensor слой"):
        open_store(folder).entry("слой")


def test_a_store_is_a_mapping_of_entries(tmp_path: Path) -> None:
    with open_store(put(tmp_path, "m.gguf", forge.small_gguf())) as store:
        assert isinstance(store, Store)
        assert list(store) == ["weight", "half", "packed"]
        assert "weight" in store
        assert "nothing" not in store
        assert store["packed"].shape == (2, 32)
        assert store["packed"].nbytes == 36
        assert store.nbytes == 24 + 8 + 36
        assert store.read("packed").shape == (2, 18)
        with pytest.raises(CheckpointError, match=r"m.gguf: holds no tensor nothing"):
            store.read("nothing")


def test_views_live_on_after_the_store_is_closed(tmp_path: Path) -> None:
    with open_store(one(tmp_path / "model.safetensors", 9)) as store:
        view = store.read("a")
        store.release("a")
        assert not view.flags.writeable
    assert view.tolist() == [9, 9, 9, 9]


def test_floats_go_into_memory_that_is_given_and_agree_across_chunks(tmp_path: Path) -> None:
    rows = 2 * _CHUNK // 32 + 3
    raw = np.random.default_rng(0).integers(0, 256, (rows, 34), dtype=np.uint8)
    raw[:, 1] &= 0x3F  # keeps the scales finite
    path = put(tmp_path, "m.gguf", forge.gguf([], [info("a", (32, rows), 8, 0)], raw.tobytes()))
    with open_store(path) as store:
        room = np.empty((rows * 32,), np.float32)
        assert store.floats("a", out=room) is room
        scale = raw[:, :2].copy().view(np.float16).astype(np.float32)
        np.testing.assert_array_equal(room.reshape(rows, 32), raw[:, 2:].view(np.int8).astype(np.float32) * scale)
        np.testing.assert_array_equal(store.floats("a").ravel(), room)


def test_types_without_a_plain_meaning_are_read_raw_and_refused_as_floats(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path, [("f", "F4", (2, 3), b"abc"), ("c", "C64", (1,), np.array([1 + 2j], "<c8"))])[0]
    with open_store(path) as store:
        assert store.read("f").tobytes() == b"abc"
        assert store.read("c")[0] == 1 + 2j
        room = np.empty(1, np.complex64)
        store.read_into("c", room)
        assert room[0] == 1 + 2j
        with pytest.raises(CheckpointError, match="tensor f: F4 has no float32 form here"):
            store.floats("f")


def test_a_file_cut_while_it_is_open_is_one_line(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path, [("a", "F32", (1000,), bytes(4000))])[0]
    with open_store(path) as store:
        store.floats("a")
        os.truncate(path, 2000)
        with pytest.raises(CheckpointError, match="ends at byte 2000"):
            store.floats("a")


def test_a_file_written_anew_is_not_read_with_the_old_header(tmp_path: Path) -> None:
    path = one(tmp_path / "model.safetensors", 1)
    before, untouched = open_store(path), open_store(path)
    with before, untouched:
        assert before.floats("a")[0] == 1
        one(path, 2)
        assert before.floats("a")[0] == 1
        with pytest.raises(CheckpointError, match="was written anew since its header was read"):
            untouched.floats("a")


READER = """
import sys
import numpy as np
from headway.checkpoint.store import open_store

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024

how = sys.argv[2]
with open_store(sys.argv[1]) as store:
    before, kept = peak(), []
    for name in store:
        if how == "read_into":
            kept.append(np.empty(store[name].shape, np.float32))
            store.read_into(name, kept[-1])
        elif how == "floats":
            kept.append(store.floats(name))
        else:
            kept.append(store.read(name).copy())
            store.release(name)
    print((peak() - before) / store.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", ["read_into", "floats", "release"])
def test_loading_takes_little_more_memory_than_the_tensors(tmp_path: Path, how: str) -> None:
    block = np.zeros((1024, 2048), np.float32)
    write_safetensors(tmp_path, [(f"t{i}", "F32", block.shape, block) for i in range(16)])
    command = [sys.executable, "-c", READER, str(tmp_path), how]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0.95 < float(ran.stdout) < (1.10 if how == "release" else 1.02)
