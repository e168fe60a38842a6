"""headway and its peers: which are here, the files that they open, and each as a process that answers when asked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from _common import HERE

PEERS = HERE.parent / ".venv-peers"
PYTHON = PEERS / "bin" / "python"
PACKAGES = {
    "llama.cpp": "llama_cpp",
    "ONNX Runtime": "onnxruntime_genai",
    "CTranslate2": "ctranslate2",
    "transformers": "transformers",
}
CPUS = Path("/sys/devices/system/cpu")


class LeftOutError(Exception):
    """Why an engine or one of its forms takes no part, in one line."""


@dataclass(frozen=True)
class Contender:
    """An engine on one form of the weights."""

    engine: str
    form: str

    def __str__(self) -> str:
        return f"{self.engine} {self.form}"


# Which engines are here


@cache
def absence(engine: str) -> str:
    """Why an engine cannot take part; empty when it can."""
    if engine == "headway":
        return ""
    if not PYTHON.exists():
        return "not installed: make bench-peers"
    done = subprocess.run([PYTHON, "-c", f"import {PACKAGES[engine]}"], capture_output=True, text=True, check=False)
    return last_line(done.stderr) if done.returncode else ""


def versions() -> dict[str, str]:
    """The version of every peer that is installed."""
    if not PYTHON.exists():
        return {}
    names = ["llama-cpp-python", "onnxruntime-genai", "onnxruntime", "ctranslate2", "transformers", "torch"]
    code = f"""
import json
from importlib.metadata import PackageNotFoundError, version
found = {{}}
for name in {names!r}:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def last_line(text: str) -> str:
    """What an error comes down to."""
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else "no message"


# The files


@dataclass
class Files:
    """One model in the form of every engine, made from a GGUF file when first asked for, and kept for the next time."""

    source: Path
    room: Path = field(init=False)

    def __post_init__(self) -> None:
        self.room = PEERS / "models" / f"{self.source.stem}-{self.source.stat().st_size}"

    def path(self, contender: Contender) -> Path:
        """What the contender opens; LeftOutError when that cannot be made."""
        if reason := absence(contender.engine):
            raise LeftOutError(reason)
        if contender.engine in ("headway", "llama.cpp"):
            return self.gguf(contender.form)
        if contender.engine == "ONNX Runtime":
            return self._onnx(contender.form)
        return self._converted(contender.form) if contender.engine == "CTranslate2" else self.folder()

    def gguf(self, form: str) -> Path:
        """The weights as GGUF in one form; the source's own where that is its form."""
        if self.source.stem.endswith(f".{form}"):
            return self.source
        if reason := absence("llama.cpp"):
            raise LeftOutError(f"its file is made by llama.cpp, which is {reason}")
        # Every form is rounded from the same float32, which holds exactly what the source does.
        start = self.source if form == "F32" else self.gguf("F32")
        return self._made(f"{form}.gguf", lambda to: [PYTHON, HERE / "_convert.py", "gguf", start, to, form])

    def folder(self) -> Path:
        """The weights in float32 as the folder that the other converters read."""
        code = "import sys, headway; headway.load(sys.argv[1], dtype='float32', engine='modules').save(sys.argv[2])"
        return self._made("hf-float32", lambda to: [sys.executable, "-c", code, self.source, to])

    def _onnx(self, form: str) -> Path:
        build = [PYTHON, "-m", "onnxruntime_genai.models.builder", "-e", "cpu", "-c", self.room / "cache"]
        # Level 4 rounds activations to 8 bits, as the others do; it is the fastest that there is.
        more = ["--extra_options", "int4_accuracy_level=4"] if form == "int4" else []
        return self._made(f"onnx-{form}", lambda to: [*build, "-i", self.folder(), "-o", to, "-p", form, *more])

    def _converted(self, form: str) -> Path:
        return self._made(
            f"ctranslate2-{form}",
            lambda to: [PYTHON, HERE / "_convert.py", "ctranslate2", self.folder(), to, form],
        )

    def _made(self, name: str, command: Callable[[Path], Sequence[str | Path]]) -> Path:
        """The file or folder of that name; it appears whole or not at all."""
        whole, part = self.room / name, self.room / f"part-{name}"
        if whole.exists():
            return whole
        self.room.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(part, ignore_errors=True)
        part.unlink(missing_ok=True)
        print(f"making {name} ...", file=sys.stderr)
        done = subprocess.run(command(part), capture_output=True, text=True, errors="replace", check=False)
        if done.returncode or not part.exists():
            raise LeftOutError(f"{name} cannot be made: {last_line(done.stderr)}")
        part.rename(whole)
        return whole


# The processes


def cores() -> list[int]:
    """One logical processor of each core that this process may use; empty where processes cannot be bound to some."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    found: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        place = CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        found.setdefault(place.read_text().strip() if place.exists() else str(cpu), cpu)
    return list(found.values())


def cpus(threads: int) -> list[int]:
    """Where so many threads run, each on a core of its own."""
    found = cores()
    if found and threads > len(found):
        raise SystemExit(f"--threads {threads}: this process may use {len(found)} cores")
    return found[:threads]


class Worker:
    """A contender in a process of its own, bound to as many cores as it has threads."""

    def __init__(self, contender: Contender, path: Path, threads: int, context: int = 640) -> None:
        """`context` is the most tokens of one sequence. LeftOutError when the engine does not start."""
        self.contender = contender
        settings = {"path": str(path), "threads": threads, "context": context, "cpus": cpus(threads)}
        python = sys.executable if contender.engine == "headway" else str(PYTHON)
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - a pipe that nobody reads would fill up
        self._process = subprocess.Popen(
            [python, str(HERE / "_worker.py"), contender.engine, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=surroundings(threads),
            text=True,
        )
        self.ready = self._answer()["ready"]

    def ask(self, **question: Any) -> dict[str, Any]:
        """What it says to a line of JSON."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise LeftOutError(f"{self.contender} failed: {self._complaint}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End the process."""
        self._process.communicate()  # the end of its input is its end
        self._said.seek(0)
        self._complaint = last_line(self._said.read())
        self._said.close()


def surroundings(threads: int) -> Mapping[str, str]:
    """The environment of a process with so many threads."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads)}
