"""Loading and building: what is there, what is said when nothing can be built, and that structs agree."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headway.native import build, cores
from headway.native.library import Library
from headway.native.structs import ARGS, MatrixStruct

ROOT = Path(__file__).resolve().parents[2]
ASK = "from headway.native import library; print(library.load() is not None, '|', library.reason())"


def ask(code: str = ASK, **environment: str) -> str:
    """What a fresh interpreter prints, told only `environment` beside what it needs."""
    told = {"PYTHONPATH": str(ROOT), "HOME": os.environ.get("HOME", "/"), **environment}
    return subprocess.run([sys.executable, "-c", code], env=told, check=True, capture_output=True, text=True).stdout


def test_structs_have_the_sizes_of_c(library: Library) -> None:
    assert library.c.hw_args_size(-1) == ctypes.sizeof(MatrixStruct)
    for op, args in ARGS.items():
        assert library.c.hw_args_size(int(op)) == ctypes.sizeof(args), op.name
    assert library.c.hw_args_size(len(ARGS)) == 0


def test_paths_are_named_and_chosen(library: Library) -> None:
    assert library.paths[-1] == "scalar"
    assert library.path in library.paths
    with pytest.raises(ValueError, match="no native path 'mmx' here: one of .*scalar"):
        library.set_path("mmx")


def test_without_a_compiler_there_is_none_and_a_reason(tmp_path: Path) -> None:
    told = ask(HEADWAY_HOME=str(tmp_path), PATH=str(tmp_path))
    assert told.strip() == "False | no C compiler on PATH (cc, gcc, clang)"


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'kernels.c:1: error: no such luck' >&2\nexit 1\n")
    broken.chmod(0o755)
    told = ask(HEADWAY_HOME=str(tmp_path / "home"), CC=str(broken), PATH="/usr/bin:/bin")
    assert told.startswith("False | ")
    assert "error: no such luck" in told
    assert not list((tmp_path / "home" / "native").glob("*.so"))


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "native").write_text("a file where the folder should be")
    told = ask(HEADWAY_HOME=str(tmp_path), PATH=os.environ["PATH"])
    assert told.startswith("False | ")
    assert str(tmp_path) in told


def test_it_can_be_switched_off() -> None:
    assert ask(HEADWAY_NATIVE="off", PATH=os.environ["PATH"]).strip() == "False | HEADWAY_NATIVE is off"


def test_loading_needs_no_torch(library: Library) -> None:
    code = ASK + "\nimport sys; print('torch' in sys.modules)"
    told = ask(code, HEADWAY_HOME=str(library.file.parents[1]), PATH="")
    assert told.split() == ["True", "|", "False"]


def test_several_who_build_at_once_get_one_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def compile_slowly(compiler: object, folder: Path, *rest: object) -> Path:
        started.append(folder)
        made = folder / "made"
        made.write_bytes(b"library")
        return made

    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    monkeypatch.setattr(build, "compile_library", compile_slowly)
    with ThreadPoolExecutor(4) as threads:
        paths = set(threads.map(lambda _: build.build(), range(8)))
    assert len(paths) == len(started) == 1
    assert [path.read_bytes() for path in paths] == [b"library"]


def test_another_version_of_the_sources_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.library_path()
    assert build.library_path(("-g",)) != before
    (tmp_path / "kernels.c").write_text("other")
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    assert build.library_path() != before


def test_threads_are_physical_cores_within_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    monkeypatch.setattr(cores, "CPUS", tmp_path)
    monkeypatch.setattr(cores, "GROUPS", tmp_path)
    monkeypatch.setattr(cores, "_allowed", lambda: {0, 1, 2, 3})
    assert cores.usable() == 2
    monkeypatch.setattr(cores, "_allowed", lambda: {1, 3})
    assert cores.usable() == 1
    monkeypatch.setattr(cores, "_allowed", lambda: {0, 1})
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert cores.usable() == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores.usable() == 2
