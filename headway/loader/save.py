"""From modules to a folder that the standard tools open, whole or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from headway import families
from headway.checkpoint.folder import stranger, whole_folder, write_json
from headway.checkpoint.rules import Rule, expand
from headway.checkpoint.safetensors import write_safetensors
from headway.errors import CheckpointError
from headway.families.kit import token_ids
from headway.loader.dtypes import SAFETENSORS_NAMES, bits
from headway.nn.transformer import Transformer
from headway.source import OWN
from headway.spec import codec
from headway.spec.count import shapes
from headway.spec.model import ModelSpec


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
    with whole_folder(folder) as partial:
        write_json(partial / "config.json", config_of(network, config))
        if generation_config:
            write_json(partial / "generation_config.json", generation_config)
        write_safetensors(partial, _arrays(network, _rules(network.spec)), max_shard_bytes=max_shard_bytes)
        if extras is not None:
            extras(partial)


def _refuse_target(folder: Path, overwrite: bool) -> None:
    """CheckpointError unless a folder can be written at `folder` without losing what is no saved model."""
    if folder.name in ("", ".."):
        raise CheckpointError(f"{str(folder)!r} names no folder of its own; give one that may be made or replaced")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: is a file; choose a folder")
    if any(folder.iterdir()) and not overwrite:
        raise CheckpointError(
            f"{folder}: is there already and not empty; choose another folder, or pass overwrite=True"
        )
    if other := stranger(folder):
        raise CheckpointError(f"{folder}: holds {other}, which is no part of a saved model; choose another folder")


def config_of(network: Transformer, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The config.json of a model: what its spec says, with the special token ids that `config` names."""
    spec = network.spec
    kinds = Counter(SAFETENSORS_NAMES[p.dtype] for p in network.parameters() for _ in range(1))
    name = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[kinds.most_common(1)[0][0]]
    dtype = {"dtype": name, "torch_dtype": name}
    if spec.family == OWN:
        return {"model_type": OWN, "spec": codec.to_json(spec), **dtype}
    return {**token_ids(config or {}), **families.by_name(spec.family).write(spec), **dtype}


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
    return np.ascontiguousarray(rule.undo([bits(tensor.cpu().contiguous()) for tensor in tensors])[place])
