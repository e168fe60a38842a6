"""What a tape serves imports no torch, and says what modules say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headway
from tests import needs
from tests.cli.conftest import Run

GUARD = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, NoTorch())
"""
COMMAND = GUARD + "from headway.cli import main\nsys.exit(main(sys.argv[1:]))"
FACE = (
    GUARD
    + """
import headway
model = headway.load(sys.argv[1], engine="tape", dtype="float32", device="cpu")
assert model.score(["once", "upon a time"], top=2)[1].tokens
assert "".join(event.text for event in model.stream("once", max_tokens=5)) == model.generate("once", max_tokens=5).text
assert model.chat("hello", max_tokens=3).tokens
print(model)
"""
)


@pytest.fixture(autouse=True, scope="module")
def _native() -> None:
    needs.native()


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(headway.__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "once upon a time"],
        ["generate", "once", "--temperature", "0.8", "--top-k", "40", "--top-p", "0.9", "--min-p", "0.01", "--n", "3"],
        ["generate", "once", "--num-beams", "3", "--json"],
        ["chat", "--prompt", "hello", "--system", "be brief"],
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_answers_of_a_tape(words: list[str], tiny: Path) -> None:
    verb, *rest = words
    done = python(COMMAND, verb, tiny, *rest, "--max-tokens", 6, "--engine", "tape")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "tape, " in done.stderr + done.stdout


def test_a_drawing_of_a_model(tiny: Path) -> None:
    assert python(COMMAND, "inspect", tiny).returncode == 0


def test_the_python_face(tiny: Path) -> None:
    done = python(FACE, tiny)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<headway.Model ")


def test_the_guard_finds_torch(tiny: Path) -> None:
    done = python(COMMAND, "generate", tiny, "once", "--engine", "modules")
    assert done.returncode != 0
    assert "torch is imported" in done.stderr


@pytest.mark.parametrize("more", [[], ["--temperature", 1.0, "--top-p", 0.9, "--seed", 4], ["--num-beams", 2]])
def test_both_engines_say_the_same(more: list[object], tiny: Path, shell: Run) -> None:
    words = ["generate", tiny, "once upon a time", "--max-tokens", 12, *more]
    one, other = (shell(*words, "--engine", engine) for engine in ("modules", "tape"))
    assert one.returncode == other.returncode == 0
    assert one.stdout == other.stdout
