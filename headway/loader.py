"""From files to a running model and back: finds the family, reads the spec, fills the modules, reports what it did."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from headway import families
from headway.checkpoint.rules import Rule, expand
from headway.checkpoint.safetensors import write_safetensors
from headway.checkpoint.store import open_store
from headway.errors import CheckpointError, RequestError, SpecError
from headway.families.kit import token_ids
from headway.fast import TapeNetwork, obstacle
from headway.native.library import Pool, load
from headway.nn.build import empty, fill
from headway.nn.transformer import Transformer
from headway.source import OWN, Match, Source, match, open_source
from headway.spec import codec
from headway.spec.count import shapes
from headway.spec.model import ModelSpec
from headway.tape import Program, Weights
from headway.tape.weights import of_source

__all__ = [
    "BY_NAME",
    "DTYPES",
    "Loaded",
    "Match",
    "NoTapeError",
    "Progress",
    "Report",
    "Source",
    "UnusedWeights",
    "config_of",
    "load_network",
    "load_tape",
    "match",
    "open_source",
    "parse_dtype",
    "save_network",
    "write_json",
]

Progress = Callable[[int, int], None]  # bytes done, bytes in all

DTYPES: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float32,
}
BY_NAME: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "float16": torch.float16,
    "fp16": torch.float16,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
}
SAFETENSORS_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


Kind = TypeVar("Kind", Transformer, TapeNetwork)


class UnusedWeights(UserWarning):
    """Tensors of a file that the model has no place for."""


class NoTapeError(RequestError):
    """Why a model cannot run natively here; modules can."""


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
    note: str = ""  # why modules serve where a tape was asked for


@dataclass(frozen=True, kw_only=True)
class Loaded(Generic[Kind]):
    """A model, as modules or on a tape, with what its files say beside the weights."""

    network: Kind
    config: Mapping[str, Any]  # config.json, or what GGUF metadata stand for
    generation_config: Mapping[str, Any]
    report: Report


def load_network(
    path: Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Loaded[Transformer]:
    """Load the checkpoint at `path` (HF folder, .safetensors or .gguf).

    dtype "auto" keeps every tensor's own; quantised GGUF tensors become float32, which holds them exactly.
    CheckpointError when tensors are missing or misshaped; a warning when the file holds some that nobody knows.
    """
    began = time.perf_counter()
    wanted = None if dtype == "auto" else parse_dtype(dtype)
    with open_store(path) as store:
        source = open_source(path, store)
        plan = match(source)
        network = fill(empty(source.spec), dict(_tensors(source, plan, wanted, torch.device(device), progress)))
        dtypes: Counter[str] = Counter()
        for parameter in network.parameters():
            dtypes[SAFETENSORS_NAMES[parameter.dtype]] += parameter.numel()
        held = sum(parameter.nbytes for parameter in network.parameters())
        report = _report(source, plan, dtypes, held, time.perf_counter() - began)
    _warn(report)
    return Loaded(network=network, config=source.config, generation_config=source.generation_config, report=report)


def load_tape(
    path: Path,
    *,
    dtype: str | torch.dtype = "auto",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Loaded[TapeNetwork]:
    """Load the checkpoint at `path` to run natively: quantised GGUF tensors stay as they are packed.

    A dtype other than "auto" makes all matrices that, from the file's values. `threads` None: one for each
    usable core. NoTapeError when this model or this machine needs modules; else as `load_network`.
    """
    began = time.perf_counter()
    wanted = "auto" if dtype == "auto" else SAFETENSORS_NAMES[parse_dtype(dtype)]
    library = load()
    with open_store(path) as store:
        source = open_source(path, store)
        reason = obstacle(source.spec)
        if reason or library is None:
            raise NoTapeError(reason)
        plan = match(source)
        pool = Pool(library, threads)
        weights = Weights(source.spec, of_source(source, plan, progress), library, pool, dtype=wanted)
        network = TapeNetwork(Program(source.spec, weights, pool))
        report = _report(source, plan, weights.dtypes, weights.nbytes, time.perf_counter() - began)
        report = replace(report, engine=f"tape, {library.path}, {counted(pool.threads, 'thread')}")
    _warn(report)
    return Loaded(network=network, config=source.config, generation_config=source.generation_config, report=report)


def counted(count: int, what: str) -> str:
    """1 thread, 2 threads."""
    return f"{count} {what}" + ("" if count == 1 else "s")


def _warn(report: Report) -> None:
    if report.unused:
        shown = ", ".join(report.unused[:5]) + (", ..." if len(report.unused) > 5 else "")
        warnings.warn(f"{report.path}: {len(report.unused)} tensors are not used: {shown}", UnusedWeights, stacklevel=4)


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """float32, float16 or bfloat16 from a name or a torch dtype."""
    found = BY_NAME.get(dtype) if isinstance(dtype, str) else dtype
    if found not in SAFETENSORS_NAMES:
        raise SpecError(f"dtype = {dtype} is not one of auto, {', '.join(BY_NAME)}")
    return found


def _tensors(
    source: Source, plan: Sequence[Match], wanted: torch.dtype | None, device: torch.device, progress: Progress | None
) -> Iterator[tuple[str, Tensor]]:
    store, owned = source.store, shapes(source.spec)
    total = sum(store.entry(key).nbytes for found in plan for key in found.keys)
    done = 0
    for found in plan:
        for path, tensor in zip(found.rule.paths, _read(source, found, owned, wanted), strict=True):
            yield path, tensor.to(device)
        done += sum(store.entry(key).nbytes for key in found.keys)
        for key in found.keys:
            store.release(key)
        if progress is not None:
            progress(done, total)


def _read(
    source: Source, found: Match, owned: Mapping[str, tuple[int, ...]], wanted: torch.dtype | None
) -> list[Tensor]:
    """The parameters of one rule, in the wanted dtype or the file's own."""
    store = source.store
    entry = store.entry(found.keys[0])
    quantised = entry.dtype not in DTYPES
    stored = torch.float32 if quantised else DTYPES[entry.dtype]
    dtype = wanted or stored
    if not found.rule.forms and not quantised and entry.dtype != "F64" and dtype == stored:
        _check_shape(source, found.keys, entry.shape, owned[found.rule.paths[0]])
        tensor = torch.empty(entry.shape, dtype=dtype)
        store.read_into(found.keys[0], _bits(tensor))
        return [tensor]
    widened = quantised or found.rule.computes
    raw = [store.floats(key) if widened else store.read(key) for key in found.keys]
    arrays = found.rule.apply(raw)
    if len(arrays) != len(found.rule.paths):
        whole = sum(owned[path][0] for path in found.rule.paths)
        _check_shape(source, found.keys, arrays[0].shape, (whole, *owned[found.rule.paths[0]][1:]))
    for path, array in zip(found.rule.paths, arrays, strict=True):
        _check_shape(source, found.keys, array.shape, owned[path])
    return [_copy(array, stored, dtype, fresh=widened) for array in arrays]


def _check_shape(source: Source, keys: tuple[str, ...], got: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if tuple(got) != tuple(expected):
        raise CheckpointError(
            f"{source.path}: {keys[0]} has shape {list(got)}, but the config makes it {list(expected)}; "
            f"correct the config, or fetch the right weights"
        )


def _bits(tensor: Tensor) -> np.ndarray:
    """The tensor's memory as a numpy array of its storage type (half precision as uint16)."""
    return (tensor.view(torch.uint16) if tensor.itemsize == 2 else tensor).numpy()


def _copy(array: np.ndarray, stored: torch.dtype, dtype: torch.dtype, fresh: bool) -> Tensor:
    """A tensor of its own from a view of the file; an array that nobody else holds is taken as it is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(array)
    if tensor.dtype == torch.uint16:
        tensor = tensor.view(stored)
    if fresh and tensor.dtype == dtype and tensor.is_contiguous():
        return tensor
    return torch.empty(tensor.shape, dtype=dtype).copy_(tensor)


def _report(
    source: Source, plan: Sequence[Match], dtypes: Mapping[str, int], held_bytes: int, seconds: float
) -> Report:
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


def save_network(
    network: Transformer,
    folder: Path,
    *,
    config: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
    extras: Callable[[Path], None] | None = None,
    max_shard_bytes: int = 5_000_000_000,
    overwrite: bool = False,
) -> None:
    """Write a folder that the family's usual tools open: config.json, safetensors, and what `extras` adds.

    Every tensor keeps its dtype; a tied one is written once. The folder appears whole or not at all.
    """
    _refuse_target(folder, overwrite)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be made ({error.strerror}); choose another folder") from None
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        spec = network.spec
        write_json(partial / "config.json", config_of(network, config))
        if generation_config:
            write_json(partial / "generation_config.json", generation_config)
        write_safetensors(partial, _arrays(network, _rules(spec)), max_shard_bytes=max_shard_bytes)
        if extras is not None:
            extras(partial)
        partial.chmod(0o777 & ~_umask())
        _swap(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


# What a saved model's folder may hold: anything else is somebody's own, and is never replaced.
SAVED = (
    "config.json", "generation_config.json", "*.safetensors", "model.safetensors.index.json", "tokenizer*.json",
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "vocab.json", "merges.txt",
    "tokenizer.model",
)  # fmt: skip


def _refuse_target(folder: Path, overwrite: bool) -> None:
    """CheckpointError unless a folder can be written at `folder` without losing what is no saved model."""
    if folder.name in ("", ".."):
        raise CheckpointError(f"{str(folder)!r} names no folder of its own; give one that may be made or replaced")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: is a file; choose a folder")
    held = sorted(path.name for path in folder.iterdir())
    if held and not overwrite:
        raise CheckpointError(
            f"{folder}: is there already and not empty; choose another folder, or pass overwrite=True"
        )
    other = [name for name in held if not any(fnmatchcase(name, pattern) for pattern in SAVED)]
    if other:
        raise CheckpointError(f"{folder}: holds {other[0]}, which is no part of a saved model; choose another folder")


def config_of(network: Transformer, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The config.json of a model: what its spec says, with the special token ids that `config` names."""
    spec = network.spec
    kinds = Counter(SAFETENSORS_NAMES[p.dtype] for p in network.parameters() for _ in range(1))
    name = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[kinds.most_common(1)[0][0]]
    dtype = {"dtype": name, "torch_dtype": name}
    if spec.family == OWN:
        return {"model_type": OWN, "spec": codec.to_json(spec), **dtype}
    return {**token_ids(config or {}), **families.by_name(spec.family).write(spec), **dtype}


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """A JSON object as the HF tools write it."""
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _rules(spec: ModelSpec) -> list[Rule]:
    if spec.family == OWN:
        return [Rule((name,), (name,)) for name in shapes(spec)]
    return expand(families.by_name(spec.family).names(spec), spec)


def _arrays(
    network: Transformer, rules: Sequence[Rule]
) -> Iterator[tuple[str, str, Sequence[int], Callable[[], np.ndarray]]]:
    """Name, dtype, shape and a way to the values of every tensor of the file; one is laid out at a time."""
    for rule in rules:
        tensors = [network.get_parameter(path).detach() for path in rule.paths]
        outlines = rule.undo([np.broadcast_to(np.uint8(0), tensor.shape) for tensor in tensors])
        for place, (key, outline) in enumerate(zip(rule.keys, outlines, strict=True)):
            yield key, SAFETENSORS_NAMES[tensors[0].dtype], outline.shape, partial(_undone, rule, tensors, place)


def _undone(rule: Rule, tensors: Sequence[Tensor], place: int) -> np.ndarray:
    return np.ascontiguousarray(rule.undo([_bits(tensor.cpu().contiguous()) for tensor in tensors])[place])


def _swap(partial: Path, folder: Path) -> None:
    """Put the finished folder in place; an old one steps aside first and goes when the new one stands."""
    if not folder.exists():
        os.replace(partial, folder)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    os.replace(folder, aside / "old")
    try:
        os.replace(partial, folder)
    except OSError:
        os.replace(aside / "old", folder)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
