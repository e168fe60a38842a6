"""A file that holds code is never opened, whatever it is called and wherever it lies."""

from __future__ import annotations

import ast
import io
import pickle
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import headway
from headway.checkpoint.pickles import holds_pickle, refuse_pickle
from headway.checkpoint.resolve import resolve
from headway.checkpoint.safetensors import write_safetensors
from headway.checkpoint.store import open_store
from headway.errors import CheckpointError
from tests.checkpoint.forge import put

NAMES = [
    "pytorch_model.bin",
    "optimizer.pt",
    "rng_state.pth",
    "scheduler.pt",
    "training_args.bin",
    "adapter_model.bin",
    "vocab.pkl",
    "model.ckpt",
    "model.safetensors",
    "tokenizer.model",
    "weights",
]
FORMS = ["protocol 0", "protocol 1", "protocol 2", "protocol 5", "zip", "legacy", "tar"]


class Trap:
    """Unpickled, it leaves a file behind."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.marker,)


def trap(form: str, marker: Path) -> bytes:
    """A pickle that creates `marker`, in one of the containers that frameworks write."""
    kind, _, protocol = form.partition(" ")
    raw = pickle.dumps({"state": Trap(marker)}, int(protocol or 2))
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("archive/data.pkl", raw)
            archive.writestr("archive/version", "3\n")
    elif kind == "legacy":  # a magic number, a version and system facts, each a pickle, come first
        buffer.write(b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {})) + raw)
    elif kind == "tar":
        with tarfile.open(fileobj=buffer, mode="w") as old:
            member = tarfile.TarInfo("pickle")
            member.size = len(raw)
            old.addfile(member, io.BytesIO(raw))
    else:
        buffer.write(raw)
    return buffer.getvalue()


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "marker"
    yield path
    assert not path.exists(), "the code in the file has run"


def test_the_trap_works(tmp_path: Path) -> None:
    pickle.loads(trap("protocol 2", tmp_path / "sprung"))  # noqa: S301 - the one place that does it, to know the bait is good
    assert (tmp_path / "sprung").exists()


@pytest.mark.case("C35")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_a_pickle_is_refused_by_its_content(tmp_path: Path, marker: Path, name: str, form: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = put(folder, name, trap(form, marker))
    assert holds_pickle(path)
    for attempt in (lambda: open_store(path), lambda: refuse_pickle(path)):
        with pytest.raises(CheckpointError, match=r"holds code that runs when it is opened.*convert it to safetensors"):
            attempt()
    with pytest.raises(CheckpointError) as caught:
        open_store(resolve(folder))
    assert str(caught.value).isprintable()


@pytest.mark.case("C35")
@pytest.mark.parametrize("form", FORMS)
def test_a_folder_with_only_a_pickle_says_so(tmp_path: Path, marker: Path, form: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    put(folder, "config.json", b"{}")
    put(folder, "pytorch_model.bin", trap(form, marker))
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin: is a pickle, which holds code"):
        open_store(folder)


@pytest.mark.case("C35")
def test_the_safe_format_is_chosen_when_both_are_there(tmp_path: Path, marker: Path) -> None:
    folder = tmp_path / "model"
    write_safetensors(folder, [("a", "U8", (1,), b"s")])
    for name in ("pytorch_model.bin", "optimizer.pt", "a.ckpt"):
        put(folder, name, trap("zip", marker))
    with open_store(folder) as store:
        assert store.format == "safetensors"
        assert store.read("a").tobytes() == b"s"


@pytest.mark.case("C35")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"a": 1}',
        b"(c) 2026 somebody.",
        b"caf\xc3\xa9\n",
        b"PK\x03\x04 not a zip",
        b"# words\n.",
        b"\x80\x81",
    ],
)
def test_plain_files_are_not_taken_for_pickles(tmp_path: Path, content: bytes) -> None:
    assert not holds_pickle(put(tmp_path, "file", content))
    with zipfile.ZipFile(tmp_path / "plain.zip", "w") as archive:
        archive.writestr("words.txt", "words")
    assert not holds_pickle(tmp_path / "plain.zip")


# Modules that unpickle, and functions of harmless modules that do.
FORBIDDEN_MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "pandas"}
FORBIDDEN_CALLS = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("torch", "hub")}


def offences(source: str) -> Iterator[str]:
    """Everything in a module that could unpickle or run what a file holds."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.split(".")[0] in FORBIDDEN_MODULES:
                yield module
            yield from (f"{module}.{alias.name}" for alias in node.names if (module, alias.name) in FORBIDDEN_CALLS)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in FORBIDDEN_CALLS:
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "trust_remote_code"):
            yield str(node.arg)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
            yield node.func.id


@pytest.mark.case("C35")
def test_nothing_in_the_package_can_unpickle() -> None:
    root = Path(headway.__path__[0])
    found = {
        f"{path.relative_to(root)}: {offence}"
        for path in root.rglob("*.py")
        for offence in offences(path.read_text(encoding="utf-8"))
    }
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, dill",
        "from pickle import loads",
        "import torch\ntorch.load('x', weights_only=True)",
        "from torch import load",
        "import numpy as np\nnp.load('x')",
        "f(x, allow_pickle=True)",
        "def f():\n    import joblib.numpy_pickle",
        "eval('1')",
    ],
)
def test_the_scan_finds_each_way(source: str) -> None:
    assert list(offences(source))
