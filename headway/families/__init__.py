"""Published architectures, one file each, found by what a config.json or a GGUF file calls them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from headway.errors import CheckpointError, SpecError
from headway.families.kit import Family

__all__ = ["all_families", "by_name", "for_config", "for_gguf"]


@dataclass(frozen=True)
class _Line:
    name: str  # the file in this folder, whose FAMILY it is
    model_types: tuple[str, ...]  # "model_type" in config.json
    architectures: tuple[str, ...] = ()  # "general.architecture" in GGUF


_TABLE = (
    _Line("gpt2", ("gpt2",), ("gpt2",)),
    _Line("llama", ("llama",), ("llama",)),
    _Line("mistral", ("mistral",)),
    _Line("qwen", ("qwen2", "qwen3"), ("qwen2", "qwen3")),
    _Line("gemma", ("gemma2", "gemma3_text", "gemma3"), ("gemma2", "gemma3")),
    _Line("phi3", ("phi3",), ("phi3",)),
)


def for_config(config: Mapping[str, Any], file: str) -> Family:
    """The family that reads `config`, the object in `file`; CheckpointError lists the known model types."""
    known = {model_type: line.name for line in _TABLE for model_type in line.model_types}
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{file}: model_type = {model_type!r} must name a kind of model: {', '.join(known)}")
    if model_type not in known:
        raise CheckpointError(f"{file}: model_type = {model_type!r} is not known here; known: {', '.join(known)}")
    return by_name(known[model_type])


def for_gguf(architecture: str, file: str) -> Family:
    """The family that reads GGUF files of `architecture`; CheckpointError lists the known ones."""
    known = {name: line.name for line in _TABLE for name in line.architectures}
    if architecture not in known:
        raise CheckpointError(
            f"{file}: general.architecture = {architecture!r} is not known here; known: {', '.join(known)}"
        )
    return by_name(known[architecture])


def by_name(name: str) -> Family:
    """The family of that name; SpecError lists the known ones."""
    names = [line.name for line in _TABLE]
    if name not in names:
        raise SpecError(f"family = {name!r} is not known; known: {', '.join(names)}")
    family: Family = import_module(f"{__name__}.{name}").FAMILY
    return family


def all_families() -> Iterator[Family]:
    """Every family, in the table's order."""
    return (by_name(line.name) for line in _TABLE)
