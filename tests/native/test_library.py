"""Loading and building: what is there, what is said when nothing can be built, and that structs agree."""

from __future__ import annotations

import ctypes
import math
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

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


def compiler(folder: Path, links: str, compiles: str = 'touch "$out"') -> str:
    """A compiler that notes in `calls` when it links, and does what these lines of shell say; $out is what -o names."""
    script = folder / "fake-cc"
    script.write_text(
        f"""#!/bin/sh
for word in "$@"; do [ "$before" = -o ] && out=$word; before=$word; done
case "$*" in
*-shared*) echo link >> {folder}/calls; {links};;
*) {compiles};;
esac
"""
    )
    script.chmod(0o755)
    return str(script)


def kept(home: Path) -> list[str]:
    """What lies in the cache, by the ends of the names."""
    return sorted(path.suffix for path in (home / "native").glob("*"))


WHOLE = sorted([".lock", ".seal", build._suffix()])


@pytest.mark.parametrize(
    ("links", "compiles", "reason"),
    [
        ("exit 1", "echo 'kernels.c:1: error: no such luck' >&2; exit 1", "error: no such luck"),
        ("exit 1", "kill -9 $$", "it ended with -9"),
        ("echo half > $out; echo 'ld: error: disk full' >&2; exit 1", "exit 0", "cannot link .* disk full"),
        ("exit 0", "exit 0", "made no library"),
        ("echo no library > $out", "exit 0", "the native library does not load: .*"),
    ],
)
def test_a_compiler_that_fails_is_quoted_and_nothing_is_kept(
    tmp_path: Path, links: str, compiles: str, reason: str
) -> None:
    told = ask(HEADWAY_HOME=str(tmp_path / "home"), CC=compiler(tmp_path, links, compiles), PATH="/usr/bin:/bin")
    assert re.fullmatch(rf"False \| .*{reason}.*\n", told)
    assert kept(tmp_path / "home") == [".lock"]


@pytest.mark.parametrize("command", ["no-such-compiler", "'unclosed", "/"])
def test_a_compiler_that_is_none_is_named(tmp_path: Path, command: str) -> None:
    told = ask(HEADWAY_HOME=str(tmp_path), CC=command, PATH="/usr/bin:/bin")
    assert re.fullmatch(rf"False \| .*CC={re.escape(command)}.*\n", told)


def test_a_compiler_that_is_no_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "cc").write_bytes(b"\x7fELF of another machine")
    (tmp_path / "cc").chmod(0o755)
    told = ask(HEADWAY_HOME=str(tmp_path / "home"), PATH=str(tmp_path))
    assert told == f"False | {tmp_path / 'cc'} cannot be run: Exec format error\n"


def test_what_a_build_that_was_cut_short_left_is_built_anew(library: Library, tmp_path: Path) -> None:
    told = {"HEADWAY_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    slow = compiler(tmp_path, f"cp {library.file} $out; sleep 5")
    process = subprocess.Popen([sys.executable, "-c", ASK], env={"PYTHONPATH": str(ROOT), "CC": slow, **told})
    while not (tmp_path / "calls").exists():
        assert process.poll() is None, "the build ended before its compiler was called"
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert len(kept(tmp_path / "home")) == 2  # the lock and the folder of the build
    good = compiler(tmp_path, f"cp {library.file} $out")
    assert ask(CC=good, **told) == "True | \n"
    assert kept(tmp_path / "home") == WHOLE
    assert ask(CC="no-such-compiler", **told) == "True | \n"


@pytest.mark.parametrize("damage", ["half", "zeros", "no seal"])
def test_a_damaged_library_is_never_loaded(library: Library, tmp_path: Path, damage: str) -> None:
    told = {"HEADWAY_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    good = compiler(tmp_path, f"cp {library.file} $out")
    ask(CC=good, **told)
    file = next((tmp_path / "home" / "native").glob(f"*{build._suffix()}"))
    whole = file.read_bytes()
    if damage == "no seal":
        file.with_suffix(".seal").unlink()
    else:
        file.write_bytes(whole[: len(whole) // 2] if damage == "half" else bytes(len(whole)))
    assert ask(CC="no-such-compiler", **told) == "False | CC=no-such-compiler is not a program on PATH\n"
    assert ask(CC=good, **told) == "True | \n"
    assert file.read_bytes() == whole


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


def test_several_who_build_at_once_get_one_library(library: Library, tmp_path: Path) -> None:
    slow = compiler(tmp_path, f"sleep 0.5; cp {library.file} $out")
    told = {"HEADWAY_HOME": str(tmp_path / "home"), "CC": slow, "PATH": "/usr/bin:/bin"}
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(lambda _: ask(**told), range(3))) == ["True | \n"] * 3
    assert (tmp_path / "calls").read_text() == "link\n"
    assert kept(tmp_path / "home") == WHOLE


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
    monkeypatch.setattr(cores, "_wished", lambda: math.inf)
    monkeypatch.setattr(cores, "_allowed", lambda: {0, 1, 2, 3})
    assert cores.usable() == 2
    monkeypatch.setattr(cores, "_allowed", lambda: {1, 3})
    assert cores.usable() == 1
    monkeypatch.setattr(cores, "_allowed", lambda: {0, 1})
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert cores.usable() == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores.usable() == 2


def test_threads_are_no_more_than_the_user_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_physical", lambda _: 8)
    monkeypatch.setattr(cores, "_quota", lambda: math.inf)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cores.usable() == 8
    for said, threads in (("3", 3), ("5,2", 5), ("many", 8), ("", 8), ("0", 1)):
        monkeypatch.setenv("OMP_NUM_THREADS", said)
        assert cores.usable() == threads
    monkeypatch.delenv("OMP_NUM_THREADS")
    before = torch.get_num_threads()
    monkeypatch.setitem(sys.modules, "torch", torch)
    torch.set_num_threads(2)
    assert cores.usable() == 2
    torch.set_num_threads(before)
