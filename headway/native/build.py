"""Builds the C library with the system's compiler, once for each version of the sources, into headway's cache."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headway.checkpoint import place

SOURCES = Path(__file__).parent / "source"
COMMON = ("-std=c11", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra")


# Instruction sets beyond the scalar path, best last: flags of the compiler, names in /proc/cpuinfo.
AVX2 = ("avx2", "fma", "f16c")
AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni")
SETS: dict[str, dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "x86_64": {
        "avx2": (tuple(f"-m{name}" for name in AVX2), AVX2),
        "avxvnni": (tuple(f"-m{name}" for name in (*AVX2, "avxvnni")), (*AVX2, "avx_vnni")),
        "avx512": (
            (*(f"-m{name}" for name in (*AVX2, *AVX512)), "-mprefer-vector-width=256"),
            (*AVX2, *(name.replace("avx512vnni", "avx512_vnni") for name in AVX512)),
        ),
    },
    "aarch64": {"neon": (("-march=armv8.2-a+dotprod",), ("asimddp",))},
}
ONCE = ("pool.c", "formats.c", "dispatch.c")  # compiled once; kernels.c once for each path


class BuildError(Exception):
    """Why there is no library, in one line."""


def library_path(extra: Sequence[str] = ()) -> Path:
    """Where the library built from these sources and flags for this processor lies, whether or not it exists."""
    return place.home() / "native" / f"headway-{_key(usable_sets(), extra)}{_suffix()}"


def shipped_path() -> Path:
    """Where a wheel carries it, with every instruction set of its architecture."""
    return Path(__file__).parent / f"headway-{_key(all_sets(), ())}{_suffix()}"


def all_sets() -> tuple[str, ...]:
    """Instruction sets of this architecture beyond the scalar path."""
    return tuple(SETS.get(_machine(), {}))


def usable_sets() -> tuple[str, ...]:
    """Those that this processor has; all where the system does not say."""
    known = _processor_flags()
    return tuple(name for name, (_, needs) in SETS.get(_machine(), {}).items() if not known or known.issuperset(needs))


def extra_flags() -> tuple[str, ...]:
    """Flags of the compiler that HEADWAY_NATIVE_FLAGS adds: a sanitizer's, say."""
    return tuple(_words("HEADWAY_NATIVE_FLAGS", os.environ.get("HEADWAY_NATIVE_FLAGS", "")))


def build(extra: Sequence[str] = ()) -> Path:
    """The library, built now unless it is there whole; several processes may ask at once.

    Raises BuildError when there is no compiler, it fails, or the cache cannot be written.
    """
    target = library_path(extra)
    if _is_whole(target):
        return target
    chosen = compiler()
    from filelock import FileLock  # here, since wheels are built where it need not be installed

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not _is_whole(target):
                _clear(target)
                place.note("headway: compiling its native library, once ...")
                with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.stem}-") as folder:
                    _keep(compile_library(chosen, Path(folder), usable_sets(), extra), target)
    except (OSError, NotImplementedError) as error:
        raise BuildError(f"the native library cannot be kept in {target.parent}: {_said(error)}") from None
    return target


def _keep(made: Path, target: Path) -> None:
    """Moves a library that loads to its place, and then seals it: without a seal it counts as half written."""
    try:
        ctypes.CDLL(str(made))
    except OSError as error:
        raise BuildError(f"the native library does not load: {_said(error)}") from None
    seal = made.with_suffix(".seal")
    seal.write_text(_digest(made), encoding="ascii")
    os.replace(made, target)
    os.replace(seal, target.with_suffix(".seal"))


def _is_whole(target: Path) -> bool:
    try:
        return target.with_suffix(".seal").read_text(encoding="ascii", errors="replace") == _digest(target)
    except OSError:
        return False


def _clear(target: Path) -> None:
    """Removes what a build that was cut short left behind; whoever calls this holds the lock."""
    for left in target.parent.glob(f"{target.stem}-*"):
        shutil.rmtree(left, ignore_errors=True)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _said(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def compile_library(compiler: Sequence[str], folder: Path, sets: Sequence[str], extra: Sequence[str] = ()) -> Path:
    """The shared library, made in `folder` by `compiler`; a set that the compiler does not know is left out."""
    jobs = {"scalar": _start(compiler, folder, "kernels.c", "scalar", ("-O2", "-DHW_PATH=scalar", *extra))}
    for name in sets:
        flags = ("-O3", *SETS[_machine()][name][0], f"-DHW_PATH={name}", *extra)
        jobs[name] = _start(compiler, folder, "kernels.c", name, flags)
    failed = {name: error for name, job in jobs.items() if (error := _finish(job))}
    if "scalar" in failed:
        raise BuildError(f"{compiler[0]} cannot compile the native library: {failed['scalar']}")
    built = [name for name in jobs if name not in failed]
    have = [f"-DHW_HAVE_{name.upper()}" for name in built]
    rest = {source: _start(compiler, folder, source, source, ("-O2", *have, *extra)) for source in ONCE}
    for error in [_finish(job) for job in rest.values()]:
        if error:
            raise BuildError(f"{compiler[0]} cannot compile the native library: {error}")
    objects = [str(folder / f"{name}.o") for name in (*built, *rest)]
    made = folder / f"headway{_suffix()}"
    command = [*compiler, "-shared", "-o", str(made), *objects, "-lm", "-pthread", *extra]
    if error := _finish(_run(command)):
        raise BuildError(f"{compiler[0]} cannot link the native library: {error}")
    if not made.is_file():
        raise BuildError(f"{compiler[0]} says that all went well, but made no library")
    return made


def _start(
    compiler: Sequence[str], folder: Path, source: str, name: str, flags: Sequence[str]
) -> subprocess.Popen[str]:
    command = [*compiler, *COMMON, *flags, "-c", str(SOURCES / source), "-o", str(folder / f"{name}.o")]
    return _run(command)


def _run(command: Sequence[str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {_said(error)}") from None


def _finish(job: subprocess.Popen[str]) -> str:
    """The first line that says error, or nothing when it went well."""
    _, told = job.communicate()
    if job.returncode == 0:
        return ""
    lines = told.strip().splitlines() or [f"it ended with {job.returncode}"]
    return next((line for line in lines if "error" in line), lines[-1])


def compiler() -> list[str]:
    """The command of the C compiler: CC, else the first on PATH. BuildError when there is none."""
    if sys.platform == "win32":
        raise BuildError("the native library is not built on Windows")
    if named := os.environ.get("CC", "").strip():
        chosen = _words("CC", named)
        if shutil.which(chosen[0]):
            return chosen
        raise BuildError(f"CC={chosen[0]} is not a program on PATH")
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    raise BuildError("no C compiler on PATH (cc, gcc, clang)")


def _words(name: str, value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError as error:
        raise BuildError(f"{name}={value} is no command line: {error}") from None


def _machine() -> str:
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def _suffix() -> str:
    return ".dylib" if sys.platform == "darwin" else ".so"


def _processor_flags() -> frozenset[str]:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return frozenset(value.split())
    return frozenset()


def _key(sets: Sequence[str], extra: Sequence[str]) -> str:
    """Sixteen hex digits that change with the sources, the flags, the instruction sets and the machine."""
    digest = hashlib.sha256(repr((sys.platform, _machine(), COMMON, SETS, tuple(sets), tuple(extra))).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]
