"""What loading found and did, said the same whatever runs the model; no torch."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Generic, TypeVar

from headway.errors import SpecError
from headway.source import Match, Source
from headway.spec.count import shapes

Progress = Callable[[int, int], None]  # bytes done, bytes in all
Runner = TypeVar("Runner")

# Types of the weights in memory that may be asked for, as files spell them.
NAMED = {"float32": "F32", "fp32": "F32", "float16": "F16", "fp16": "F16", "bfloat16": "BF16", "bf16": "BF16"}


class UnusedWeights(UserWarning):
    """Tensors of a file that the model has no place for."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What loading found and did."""

    path: Path
    format: str  # "safetensors" or "gguf"
    family: str
    found: int  # tensors of the file that became parameters
    tied: tuple[str, ...]  # parameters that are another one's
    ignored: tuple[str, ...]  # tensors that the family knows to be of no use (buffers)
    unused: tuple[str, ...]  # tensors that nobody knows
    file_dtypes: Mapping[str, int]  # dtype in the file -> parameters held in it
    dtypes: Mapping[str, int]  # dtype in memory -> parameters held in it
    file_bytes: int
    bytes: int
    seconds: float
    engine: str = "modules"  # or "tape", with the instruction set and threads that run it
    note: str = ""  # why modules serve where a tape was asked for, or what is not held as one would think


@dataclass(frozen=True, kw_only=True)
class Loaded(Generic[Runner]):
    """A model, as modules or on a tape, with what its files say beside the weights."""

    network: Runner
    config: Mapping[str, Any]  # config.json, or what GGUF metadata stand for
    generation_config: Mapping[str, Any]
    report: Report
    beside: Any = None  # what was made of the opened files while weights were read, where somebody asked


def dtype_name(dtype: object) -> str:
    """F32, F16 or BF16 for the name of a type or a torch dtype; SpecError for another."""
    found = NAMED.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise SpecError(f"dtype = {dtype} is not one of auto, {', '.join(NAMED)}")
    return found


def loaded(network: Runner, source: Source, report: Report) -> Loaded[Runner]:
    """What was made of `source`, with what its files say."""
    return Loaded(
        network=network,
        config=source.config,
        generation_config=source.generation_config,
        report=report,
    )


def report_of(
    source: Source, plan: Sequence[Match], dtypes: Mapping[str, int], held_bytes: int, seconds: float
) -> Report:
    """The report of a source whose `plan` was loaded into parameters of these `dtypes`."""
    used = {key for found in plan for key in found.keys}
    spare = {key for alias in source.aliases for key in map(source.key, alias.keys) if key is not None}
    rest = sorted(source.names - used - spare)
    ignored = tuple(name for name in rest if any(fnmatchcase(name, pattern) for pattern in source.ignore))
    owned = shapes(source.spec)
    file_dtypes: Counter[str] = Counter()
    for found in plan:
        size = sum(math.prod(owned[path]) for path in found.rule.paths)
        file_dtypes[source.store.entry(found.keys[0]).dtype] += size
    return Report(
        path=source.path,
        format=source.store.format,
        family=source.spec.family,
        found=len(used),
        tied=tuple(tie.alias for tie in source.spec.ties),
        ignored=ignored,
        unused=tuple(name for name in rest if name not in ignored),
        file_dtypes=dict(file_dtypes),
        dtypes=dict(dtypes),
        file_bytes=sum(source.store.entry(name).nbytes for name in used),
        bytes=held_bytes,
        seconds=seconds,
    )


def warn_of_unused(report: Report) -> None:
    """An UnusedWeights warning where the file holds tensors that nobody knows."""
    if report.unused:
        shown = ", ".join(report.unused[:5]) + (", ..." if len(report.unused) > 5 else "")
        warnings.warn(f"{report.path}: {len(report.unused)} tensors are not used: {shown}", UnusedWeights, stacklevel=4)
