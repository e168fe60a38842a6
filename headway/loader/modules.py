"""From files to modules: tensors are read straight into the memory of the parameters."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headway.checkpoint.packed import PackedStore
from headway.checkpoint.store import open_store
from headway.errors import CheckpointError
from headway.loader.dtypes import DTYPES, SAFETENSORS_NAMES, bits, parse_dtype
from headway.loader.report import Loaded, Progress, loaded, report_of, warn_of_unused
from headway.nn.build import empty, fill
from headway.nn.transformer import Transformer
from headway.quant import Plan, Recipe
from headway.quant import plan as plan_of
from headway.quant.write import of_plan
from headway.source import Match, Source, match, open_source
from headway.spec.count import shapes
from headway.tape.weights import Raw


def load_network(
    path: Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    quantize: Recipe | None = None,
    progress: Progress | None = None,
) -> Loaded[Transformer]:
    """Load the checkpoint at `path` (HF folder, .safetensors or .gguf).

    dtype "auto" keeps every tensor's own; quantised tensors become float32, which holds them exactly, and beside
    integers all others do. `quantize` rounds matrices to its formats, and what came of it is held as floats.
    CheckpointError when tensors are missing or misshaped; a warning when the file holds some that nobody knows.
    """
    began = time.perf_counter()
    wanted = None if dtype == "auto" else parse_dtype(dtype)
    with open_store(path) as store:
        source = open_source(path, store)
        plan = match(source)
        if wanted is None and (quantize is not None or isinstance(source.store, PackedStore)):
            wanted = torch.float32
        tensors = _tensors(source, plan, wanted, torch.device(device), progress)
        if quantize is not None:
            tensors = _rounded(tensors, plan_of(source.spec, quantize))
        network = fill(empty(source.spec), dict(tensors))
        dtypes: Counter[str] = Counter()
        for parameter in network.parameters():
            dtypes[SAFETENSORS_NAMES[parameter.dtype]] += parameter.numel()
        held = sum(parameter.nbytes for parameter in network.parameters())
        report = report_of(source, plan, dtypes, held, time.perf_counter() - began)
        if quantize is not None:
            report = replace(report, note=f"rounded to {quantize.describe()}, and held as {network.dtype}")
    warn_of_unused(report)
    return loaded(network, source, report)


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


def _rounded(tensors: Iterator[tuple[str, Tensor]], plan: Plan) -> Iterator[tuple[str, Tensor]]:
    """The same parameters with the values that rounding leaves."""
    for path, tensor in tensors:
        if path in plan.formats:
            raw = Raw("F32", tuple(tensor.shape), np.ascontiguousarray(tensor.float().cpu().numpy()))
            ((_, made),) = of_plan([(path, raw)], plan)
            tensor = torch.from_numpy(made.floats()).to(tensor.device, tensor.dtype)
        yield path, tensor


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
        store.read_into(found.keys[0], bits(tensor))
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
