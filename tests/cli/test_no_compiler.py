"""A machine without a compiler: the same answers on modules, and one line that says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

NO_COMPILER = "no C compiler on PATH (cc, gcc, clang)"
BARE = {"PATH": "", "CC": "", "HEADWAY_NATIVE": "", "HEADWAY_NATIVE_FLAGS": ""}


def bare(folder: Path, **changes: str) -> dict[str, str]:
    """The environment of a machine that has nothing, not even a folder of headway's own."""
    return {**BARE, "HEADWAY_HOME": str(folder / "home"), **changes}


def test_an_answer_and_one_line_why(tiny: Path, shell: Run, tmp_path: Path) -> None:
    options = ("--prompt", "hello", "--max-tokens", 4)
    done = shell("chat", tiny, "--engine", "auto", *options, **bare(tmp_path))
    assert (done.returncode, bool(done.stdout.strip())) == (0, True)
    lines = [line for line in done.stderr.splitlines() if NO_COMPILER in line]
    assert len(lines) == 1
    assert f"| modules ({NO_COMPILER}) |" in lines[0]
    assert "Traceback" not in done.stderr
    assert done.stdout == shell("chat", tiny, "--engine", "modules", *options).stdout


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"CC": "no-such-compiler"}, "CC=no-such-compiler is not a program on PATH"),
        ({"CC": "/bin/false"}, "/bin/false cannot compile the native library"),
        ({"CC": "/bin/true"}, "/bin/true says that all went well, but made no library"),
    ],
)
def test_whatever_is_wrong_with_the_compiler_is_said(
    changes: dict[str, str], reason: str, tiny: Path, shell: Run, tmp_path: Path
) -> None:
    done = shell("generate", tiny, "x", "--engine", "auto", "--max-tokens", 2, **bare(tmp_path, **changes))
    assert done.returncode == 0
    assert len([line for line in done.stderr.splitlines() if reason in line]) == 1


def test_a_folder_that_cannot_be_made_is_said(tiny: Path, shell: Run, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    done = shell("generate", tiny, "x", "--engine", "auto", "--max-tokens", 2, **bare(tmp_path, CC="/bin/true"))
    assert done.returncode == 0
    why = f"modules (the native library cannot be kept in {tmp_path / 'home' / 'native'}: Not a directory)"
    assert len([line for line in done.stderr.splitlines() if why in line]) == 1


def test_a_tape_that_was_asked_for_by_name_is_refused(tiny: Path, shell: Run, tmp_path: Path) -> None:
    done = shell("generate", tiny, "x", "--engine", "tape", **bare(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert NO_COMPILER in done.stderr


def test_the_doctor_says_why_and_that_it_is_no_illness(shell: Run, tmp_path: Path) -> None:
    done = shell("doctor", **bare(tmp_path))
    assert done.returncode == 0, done.stdout
    lines = [line for line in done.stdout.splitlines() if NO_COMPILER in line]
    assert len(lines) == 1
    assert "models run as modules" in lines[0]
    report = json.loads(shell("doctor", "--json", **bare(tmp_path)).stdout)
    assert report["headway"]["native"] == {"path": None, "reason": NO_COMPILER}


def test_the_doctor_names_a_folder_that_cannot_be_used(shell: Run, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    done = shell("doctor", **bare(tmp_path))
    assert done.returncode == 1
    told = " ".join(done.stdout.split())  # the doctor breaks its lines
    assert f"{tmp_path / 'home'} is not a folder that files can be kept in; set HEADWAY_HOME" in told
    assert "Everything works" not in done.stdout


@pytest.mark.parity
def test_the_published_model_answers(smollm2_gguf: Path, shell: Run, tmp_path: Path) -> None:
    question = ("--engine", "auto", "--prompt", "What is the capital of France?")
    done = shell("chat", smollm2_gguf, *question, **bare(tmp_path))
    assert done.returncode == 0
    assert "Paris" in done.stdout
    assert len([line for line in done.stderr.splitlines() if f"modules ({NO_COMPILER})" in line]) == 1
