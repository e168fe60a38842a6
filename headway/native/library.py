"""The C library, loaded once: `load()` gives it or None, `reason()` says why there is none."""

from __future__ import annotations

import ctypes
import os
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from headway.native import build, cores
from headway.native.structs import ARGS, AttentionArgs, LinearArgs, MatrixStruct, Op, StepStruct

ABI = 2


class Library:
    """The loaded functions. `file` is where they came from."""

    def __init__(self, file: Path) -> None:
        """Raises OSError when `file` cannot be loaded, build.BuildError when it is not this version's."""
        self.file = file
        self.c = ctypes.CDLL(str(file))
        _declare(self.c)
        if self.c.hw_abi() != ABI:
            raise build.BuildError(f"{file} has ABI {self.c.hw_abi()}, not {ABI}")

    @property
    def path(self) -> str:
        """The instruction set in use."""
        return self.c.hw_path().decode()

    @property
    def paths(self) -> tuple[str, ...]:
        """Instruction sets that this build has and this processor runs, best first; "scalar" is always last."""
        return tuple(self.c.hw_paths().decode().split())

    def set_path(self, name: str) -> None:
        """Use instruction set `name` from now on, in the whole process. Raises ValueError when it is not in `paths`."""
        if self.c.hw_set_path(name.encode()):
            raise ValueError(f"no native path {name!r} here: one of {', '.join(self.paths)}")

    def call(self, op: Op, args: ctypes.Structure, pool: Pool) -> None:
        """Runs one operation."""
        getattr(self.c, f"hw_{op.name.lower()}")(ctypes.byref(args), pool.handle)


class Pool:
    """A few threads that share the work of one caller; `threads` counts the caller."""

    def __init__(self, library: Library, threads: int | None = None) -> None:
        """`threads` None: one for each usable physical core."""
        self._library = library
        self.handle = library.c.hw_pool_new(threads or cores.usable())
        if not self.handle:
            raise MemoryError("no memory for a pool of threads")

    @property
    def threads(self) -> int:
        return self._library.c.hw_pool_threads(self.handle)

    def close(self) -> None:
        """Ends the threads; the pool cannot be used afterwards."""
        if self.handle:
            self._library.c.hw_pool_free(self.handle)
            self.handle = None

    def __del__(self) -> None:
        self.close()


def load() -> Library | None:
    """The library: a wheel's own, else built once by the system's compiler; None if neither is there."""
    return _loaded()[0]


def reason() -> str:
    """One line why `load()` gives None; empty when it gives a library."""
    return _loaded()[1]


def slow() -> str:
    """One line why modules are faster than the library here; empty where it is faster, and where there is none."""
    library = load()
    if library is None or library.paths != ("scalar",):
        return ""
    return "this processor has none of the instruction sets that the native library is fast with"


@cache
def _loaded() -> tuple[Library | None, str]:
    if os.environ.get("HEADWAY_NATIVE", "").strip().lower() in ("0", "off", "no", "false"):
        return None, "HEADWAY_NATIVE is off"
    try:
        flags, shipped = build.extra_flags(), build.shipped_path()
        return Library(shipped if shipped.is_file() and not flags else build.build(flags)), ""
    except (build.BuildError, OSError) as error:
        return None, " ".join(str(error).split())


def _declare(c: ctypes.CDLL) -> None:
    """The signatures of `source/headway.h`."""
    _function(c.hw_abi, c_int32)
    _function(c.hw_args_size, c_int64, c_int32)
    _function(c.hw_paths, c_char_p)
    _function(c.hw_path, c_char_p)
    _function(c.hw_set_path, c_int32, c_char_p)
    _function(c.hw_pool_new, c_void_p, c_int32)
    _function(c.hw_pool_free, None, c_void_p)
    _function(c.hw_pool_threads, c_int32, c_void_p)
    matrix = ctypes.POINTER(MatrixStruct)
    _function(c.hw_row_bytes, c_int64, matrix)
    _function(c.hw_packed_bytes, c_int64, matrix)
    _function(c.hw_pack, None, matrix, c_void_p, c_void_p)
    _function(c.hw_linear_work, c_int64, ctypes.POINTER(LinearArgs), c_int64, c_void_p)
    _function(c.hw_attention_work, c_int64, ctypes.POINTER(AttentionArgs), c_int64, c_void_p)
    for op, args in ARGS.items():
        _function(getattr(c, f"hw_{op.name.lower()}"), None, ctypes.POINTER(args), c_void_p)
    _function(c.hw_run, None, ctypes.POINTER(StepStruct), c_int64, c_void_p, c_void_p)


def _function(function: Any, result: object, *arguments: object) -> None:
    function.restype = result
    function.argtypes = arguments
