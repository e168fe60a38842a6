"""From files onto a tape: packed weights stay packed, and no torch is imported."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.checkpoint.store import open_store
from headway.errors import RequestError
from headway.loader.beside import beside
from headway.loader.report import Loaded, Progress, dtype_name, loaded, report_of, warn_of_unused
from headway.native.library import Pool, load
from headway.native.structs import Format
from headway.source import Source, match, open_source
from headway.tape import Program, Weights, obstacle
from headway.tape.weights import of_source

if TYPE_CHECKING:
    from headway.quant import Recipe


CACHES = {"auto": None, "float32": Format.F32, "float16": Format.F16, "bfloat16": Format.BF16, "int8": Format.I8}


class NoTapeError(RequestError):
    """Why a model cannot run natively here; modules can."""


def load_tape(
    path: Path,
    *,
    dtype: object = "auto",
    threads: int | None = None,
    quantize: Recipe | None = None,
    cache: str = "auto",
    meanwhile: Callable[[Source], Any] | None = None,
    progress: Progress | None = None,
) -> Loaded[Program]:
    """Load the checkpoint at `path` to run natively: quantised tensors stay as they are packed.

    A `dtype` (a name or a torch dtype) other than "auto" makes all matrices that, from the file's values; `quantize`
    rounds them to its formats, in which they run. `cache` is what keys and values are kept in. `threads` None: one for
    each usable core. What `meanwhile` makes of the opened source stands in `Loaded.beside`. NoTapeError when this model
    or this machine needs modules; else as `load_network`.
    """
    began = time.perf_counter()
    wanted = "auto" if dtype == "auto" else dtype_name(dtype)
    if cache not in CACHES:
        raise RequestError(f"cache = {cache} is not one of {', '.join(CACHES)}")
    library = load()
    with open_store(path) as store:
        source = open_source(path, store)
        reason = obstacle(source.spec)
        if reason or library is None:
            raise NoTapeError(reason)
        plan = match(source)
        pool = Pool(library, threads)
        raws = of_source(source, plan, progress)
        if quantize is not None:
            from headway.quant import plan as plan_of
            from headway.quant.write import of_plan

            raws = of_plan(raws, plan_of(source.spec, quantize))
        elif wanted == "auto" and any(entry.dtype == "Q3_K" for entry in source.store.values()):
            from headway.quant.exact import in_native_blocks

            raws = in_native_blocks(raws)
        with beside(lambda: meanwhile(source) if meanwhile else None) as found:
            weights = Weights(source.spec, raws, library, pool, dtype=wanted)
            program = Program(source.spec, weights, pool, cache_format=CACHES[cache])
        report = report_of(source, plan, weights.dtypes, weights.nbytes, time.perf_counter() - began)
        engine = f"tape, {library.path}, {counted(pool.threads, 'thread')}"
        engine += "" if cache == "auto" else f", {cache} cache"
        report = replace(report, engine=engine, note=_widened(weights))
    warn_of_unused(report)
    return replace(loaded(program, source, report), beside=found.result())


def _widened(weights: Weights) -> str:
    """One line on formats that native calls do not read; empty when there are none."""
    names = sorted(weights.widened)
    return f"no native form for {', '.join(names)}: held as float32" if names else ""


def counted(count: int, what: str) -> str:
    """1 thread, 2 threads."""
    return f"{count} {what}" + ("" if count == 1 else "s")
