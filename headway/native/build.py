"""Builds the C library with the system's compiler, once for each version of the sources, into headway's cache."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from headway.checkpoint import place

SOURCES = Path(__file__).parent / "source"
COMMON = ("-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra")

# Instruction sets beyond the plain path, best last; each is left out when the compiler does not know its flags.
PATHS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "avx2": ("-mavx2", "-mfma", "-mf16c"),
        "avxvnni": ("-mavx2", "-mfma", "-mf16c", "-mavxvnni"),
        "avx512": (
            *("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"),
            "-mprefer-vector-width=256",
        ),
    },
    "aarch64": {"neon": ("-march=armv8.2-a+dotprod",)},
}
ONCE = ("pool.c", "formats.c", "dispatch.c")  # compiled once; kernels.c once for each path


class BuildError(Exception):
    """Why there is no library, in one line."""


def library_path(extra: Sequence[str] = ()) -> Path:
    """Where the library built from these sources, flags and machine lies, whether or not it exists."""
    return place.home() / "native" / f"headway-{_key(extra)}{_suffix()}"


def shipped_path() -> Path:
    """Where a wheel carries it."""
    return Path(__file__).parent / f"headway-{_key(())}{_suffix()}"


def build(extra: Sequence[str] = ()) -> Path:
    """The library, built now unless it is there; several processes may ask at once.

    Raises BuildError when there is no compiler, it fails, or the cache cannot be written.
    """
    target = library_path(extra)
    if target.is_file():
        return target
    compiler = _compiler()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not target.is_file():
                with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                    made = compile_library(compiler, Path(folder), extra)
                    os.replace(made, target)
    except OSError as error:
        raise BuildError(f"the native library cannot be kept in {target.parent}: {error.strerror or error}") from None
    return target


def compile_library(compiler: Sequence[str], folder: Path, extra: Sequence[str] = ()) -> Path:
    """The shared library, made in `folder` by `compiler` with `extra` flags."""
    jobs = {"plain": _start(compiler, folder, "kernels.c", "plain", ("-DHW_PATH=plain", *extra))}
    for name, flags in PATHS.get(_machine(), {}).items():
        jobs[name] = _start(compiler, folder, "kernels.c", name, (*flags, f"-DHW_PATH={name}", *extra))
    failed = {name: error for name, job in jobs.items() if (error := _finish(job))}
    if "plain" in failed:
        raise BuildError(f"{compiler[0]} cannot compile the native library: {failed['plain']}")
    built = [name for name in jobs if name not in failed]
    have = [f"-DHW_HAVE_{name.upper()}" for name in built]
    rest = {source: _start(compiler, folder, source, source, (*have, *extra)) for source in ONCE}
    for job in rest.values():
        if error := _finish(job):
            raise BuildError(f"{compiler[0]} cannot compile the native library: {error}")
    objects = [str(folder / f"{name}.o") for name in (*built, *rest)]
    made = folder / f"headway{_suffix()}"
    command = [*compiler, "-shared", "-o", str(made), *objects, "-lm", "-pthread", *extra]
    if error := _finish(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)):
        raise BuildError(f"{compiler[0]} cannot link the native library: {error}")
    return made


def _start(
    compiler: Sequence[str], folder: Path, source: str, name: str, flags: Sequence[str]
) -> subprocess.Popen[str]:
    command = [*compiler, *COMMON, *flags, "-c", str(SOURCES / source), "-o", str(folder / f"{name}.o")]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _finish(job: subprocess.Popen[str]) -> str:
    """The first line that says error, or nothing when it went well."""
    _, told = job.communicate()
    if job.returncode == 0:
        return ""
    lines = told.strip().splitlines() or [f"it ended with {job.returncode}"]
    return next((line for line in lines if "error" in line), lines[-1])


def _compiler() -> list[str]:
    if sys.platform == "win32":
        raise BuildError("the native library is not built on Windows")
    if chosen := shlex.split(os.environ.get("CC", "")):
        if shutil.which(chosen[0]):
            return chosen
        raise BuildError(f"CC={chosen[0]} is not a program on PATH")
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    raise BuildError("no C compiler on PATH (cc, gcc, clang)")


def _machine() -> str:
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def _suffix() -> str:
    return ".dylib" if sys.platform == "darwin" else ".so"


def _key(extra: Sequence[str]) -> str:
    """Sixteen hex digits that change with the sources, the flags and the machine."""
    digest = hashlib.sha256(repr((sys.platform, _machine(), COMMON, PATHS.get(_machine()), tuple(extra))).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]
