"""What is handed out: wheels carry the native library, sources carry the C files, editable installs neither."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headway.native import build
from tests import needs

ROOT = Path(__file__).resolve().parents[2]

DECODE = """
import sys
from pathlib import Path
import headway
from headway.native import library
from tests import zoo
assert library.load() is not None, library.reason()
headway.build(zoo.ZOO["rotary"], seed=1).save("model")
model = headway.load("model", engine="tape")
print(len(model.generate([3, 1, 88], max_tokens=5).tokens), model.report.engine)
print(library.load().file)
print(headway.__file__)
"""


def pack(kind: str, into: Path, **environment: str) -> tuple[Path, str]:
    """A wheel, an sdist or an editable wheel as installers ask for it, and what was said meanwhile."""
    code = f"import hatchling.build; print('made', hatchling.build.build_{kind}({str(into)!r}))"
    into.mkdir()
    told = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=told, check=True, capture_output=True, text=True)
    made = re.search(r"^made (.+)$", done.stdout, re.MULTILINE)
    assert made is not None
    return into / made[1], done.stdout + done.stderr


def libraries(names: list[str]) -> list[str]:
    return [name for name in names if name.endswith((".so", ".dylib"))]


def test_without_a_compiler_the_wheel_is_for_any_platform_and_says_so(tmp_path: Path) -> None:
    wheel, said = pack("wheel", tmp_path / "dist", PATH=str(tmp_path), CC="")
    assert wheel.name.endswith("-py3-none-any.whl")
    warned = [line for line in said.splitlines() if "native library" in line]
    assert len(warned) == 1
    assert warned[0].endswith("no C compiler on PATH (cc, gcc, clang)")
    names = zipfile.ZipFile(wheel).namelist()
    assert "headway/native/source/headway.h" in names
    assert not libraries(names)


def test_an_editable_install_compiles_nothing(tmp_path: Path) -> None:
    wheel, said = pack("editable", tmp_path / "dist", PATH=str(tmp_path), CC="")
    assert "native library" not in said
    assert not libraries(zipfile.ZipFile(wheel).namelist())


def test_an_sdist_holds_the_sources_and_the_hook(tmp_path: Path) -> None:
    packed, _ = pack("sdist", tmp_path / "dist")
    shutil.unpack_archive(packed, tmp_path)
    top = tmp_path / packed.name.removesuffix(".tar.gz")
    theirs = {path.name: path.read_bytes() for path in (top / "headway/native/source").iterdir()}
    assert theirs == {path.name: path.read_bytes() for path in build.SOURCES.iterdir()}
    assert (top / "tools/hatch_build.py").is_file()
    assert not libraries([path.name for path in top.rglob("*")])


@pytest.mark.parity
def test_a_wheel_runs_where_there_is_no_compiler(tmp_path: Path) -> None:
    needs.native()
    wheel, _ = pack("wheel", tmp_path / "dist")
    assert re.search(r"-py3-none-(linux|macosx)_\w+\.whl$", wheel.name)
    assert len(libraries(zipfile.ZipFile(wheel).namelist())) == 1
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", site, wheel]
    subprocess.run(install, check=True)
    shutil.copytree(ROOT / "tests", tmp_path / "run" / "tests")
    environment = {
        **os.environ, "PYTHONPATH": str(site), "PATH": str(tmp_path), "CC": "", "HEADWAY_HOME": str(tmp_path / "home")
    }  # fmt: skip
    command = [sys.executable, "-c", DECODE]
    done = subprocess.run(command, cwd=tmp_path / "run", env=environment, check=True, capture_output=True, text=True)
    answer, library, package = done.stdout.splitlines()
    assert answer.startswith("5 tape, ")
    assert Path(library) == site / "headway/native" / build.shipped_path().name
    assert Path(package).is_relative_to(site)
    assert not (tmp_path / "home").exists()


@pytest.mark.parity
@pytest.mark.skipif(build._machine() != "x86_64" or not shutil.which("objdump"), reason="reads x86-64 by objdump")
def test_only_the_kernels_of_a_set_use_its_instructions(tmp_path: Path) -> None:
    """A library made here runs on every processor of this architecture: the rest is chosen when it is loaded."""
    wide = re.compile(r"%[yz]mm\d")
    build.compile_library(build.compiler(), tmp_path, ("avx2",))
    for file in tmp_path.glob("*.o"):
        listing = subprocess.run(["objdump", "-d", file], check=True, capture_output=True, text=True).stdout
        assert bool(wide.search(listing)) == (file.stem == "avx2"), file.name
