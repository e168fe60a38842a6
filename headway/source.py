"""A checkpoint opened but not read: which family it is, its spec, and which tensor is which parameter."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headway import families
from headway.checkpoint.packed import PackedStore
from headway.checkpoint.rules import Rule, aliases, expand
from headway.checkpoint.store import Store
from headway.errors import CheckpointError, SpecError
from headway.families.kit import Config, Family
from headway.spec import codec
from headway.spec.check import check
from headway.spec.count import shapes
from headway.spec.model import ModelSpec

OWN = "headway"  # model_type of a spec that no published family describes


@dataclass(frozen=True, kw_only=True)
class Source:
    """A checkpoint opened but not read: what it is, and how its names are the model's."""

    path: Path
    store: Store
    family: Family | None
    spec: ModelSpec
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    rules: Sequence[Rule]
    aliases: Sequence[Rule]
    ignore: tuple[str, ...] = ()
    names: frozenset[str] = field(default_factory=frozenset)

    def key(self, name: str) -> str | None:
        """The file's spelling of a rule's key; None when it is not there."""
        spellings = (name,) if self.family is None else self.family.spellings(name)
        return next((spelling for spelling in spellings if spelling in self.names), None)


def open_source(path: Path, store: Store) -> Source:
    """What the checkpoint at `path` is, from its config or metadata alone."""
    if store.format == "gguf":
        return _gguf_source(path, store)
    folder = path if path.is_dir() else path.parent
    config = read_json(folder / "config.json")
    file = str(folder / "config.json")
    if isinstance(config.get("quantization_config"), dict):
        store = PackedStore(store, config["quantization_config"], file)
    generation = folder / "generation_config.json"
    generation_config = read_json(generation) if generation.exists() else {}
    common: dict[str, Any] = {
        "path": path, "store": store, "config": config, "generation_config": generation_config,
        "names": frozenset(store.names),
    }  # fmt: skip
    if config.get("model_type") == OWN:
        spec = check(codec.from_json(config.get("spec"), f"{file}: spec"))
        rules = [Rule((name,), (name,)) for name in shapes(spec)]
        ties = [Rule((tie.alias,), (tie.owner,)) for tie in spec.ties]
        return Source(family=None, spec=spec, rules=rules, aliases=ties, **common)
    family = families.for_config(config, file)
    spec = _located(file, family.read, Config(config, file))
    names = family.names(spec)
    return Source(
        family=family,
        spec=spec,
        rules=expand(names, spec),
        aliases=aliases(names, spec),
        ignore=family.ignore,
        **common,
    )


def _gguf_source(path: Path, store: Store) -> Source:
    file = str(path)
    architecture = str(Config(store.metadata, file).get("general.architecture"))
    family = families.for_gguf(architecture, file)
    config = family.gguf_config(Config(store.metadata, file), store)
    spec = _located(file, family.read, Config(config, file))
    names = family.gguf_names(spec)
    return Source(
        path=path,
        store=store,
        family=family,
        spec=spec,
        config=config,
        generation_config={},
        rules=expand(names, spec),
        aliases=aliases(names, spec),
        ignore=family.ignore,
        names=frozenset(store.names),
    )


def _located(file: str, read: Callable[[Config], ModelSpec], config: Config) -> ModelSpec:
    try:
        return read(config)
    except SpecError as error:
        raise SpecError(f"{file}: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; a model folder holds config.json beside its weights") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}); fetch the file again") from None
    except RecursionError:
        raise CheckpointError(f"{path}: nested too deeply to be a config; fetch the file again") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: holds {type(data).__name__}, not an object")
    return data


@dataclass(frozen=True)
class Match:
    """A rule with the names that the file really uses."""

    rule: Rule
    keys: tuple[str, ...]


def match(source: Source) -> list[Match]:
    """Every parameter's tensors; CheckpointError names what is missing, and ties that the file contradicts."""
    matches, missing = [], []
    spare: dict[str, list[Rule]] = {}
    for alias in source.aliases:
        spare.setdefault(alias.paths[0], []).append(alias)
    for rule in source.rules:
        candidates = [rule, *(alias for path in rule.paths for alias in spare.get(path, ()))]
        there = [found for found in (_found(source, candidate) for candidate in candidates) if found is not None]
        if not there:
            missing.append(rule.keys[0])
            continue
        for other in there[1:]:
            _refuse_other_matrix(source, there[0], other)
        matches.append(there[0])
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise CheckpointError(
            f"{source.path}: {len(missing)} of {len(source.rules)} tensors are missing: {shown}; "
            f"fetch the checkpoint again, or correct its config"
        )
    return matches


def _found(source: Source, rule: Rule) -> Match | None:
    keys = tuple(source.key(key) for key in rule.keys)
    return None if None in keys else Match(rule, tuple(key for key in keys if key is not None))


def _refuse_other_matrix(source: Source, first: Match, second: Match) -> None:
    one, two = source.store.read(first.keys[0]), source.store.read(second.keys[0])
    if one.shape != two.shape or not np.array_equal(one, two):
        raise CheckpointError(
            f"{source.path}: the config ties {second.keys[0]} to {first.keys[0]}, but the file holds two different "
            f"matrices; set tie_word_embeddings to false to keep both"
        )
