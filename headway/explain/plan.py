"""What a run will cost before anything is read: weights, cache, activations and operations, and the same measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headway.cache.cache import Cache
from headway.checkpoint.rules import Rule
from headway.checkpoint.store import Store, open_store
from headway.errors import CheckpointError, RequestError
from headway.explain.ledger import Peak, outline, peak
from headway.loader import DTYPES, Source, open_source, parse_dtype
from headway.nn.transformer import Transformer
from headway.spec.count import flops_per_token, shapes
from headway.spec.mixers import Attention
from headway.spec.model import ModelSpec
from headway.spec.state import State, states

CHUNK = 512  # prompt tokens that generation computes at a time


MOST_ROWS = 1_000_000  # sequences at once that a plan counts; each is a place of the clock


@dataclass(frozen=True, kw_only=True)
class Held:
    """Parameters of one type."""

    dtype: str
    parameters: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class CacheKind:
    """Layers whose caches are alike. `window` is None where every token is kept."""

    layers: tuple[str, ...]  # paths of their attentions
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None
    kept_tokens: int  # of each sequence
    bytes_per_token: int  # of all these layers, one sequence
    bytes: int  # of all these layers and sequences


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The same sizes, counted on real tensors."""

    weight_bytes: int
    cache_bytes: int
    prefill: Peak
    decode: Peak


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes in bytes and operations of `batch` sequences of `tokens` tokens. Beams count as sequences."""

    name: str
    family: str
    context: int
    tokens: int
    batch: int
    chunk: int  # tokens of a sequence that the prefill computes at a time
    weights: tuple[Held, ...]
    weight_bytes: int
    file_bytes: int  # 0 where no file was looked at
    cache_dtype: str
    cache: tuple[CacheKind, ...]
    cache_bytes: int
    prefill: Peak  # activations of the last chunk of the prompts
    decode: Peak  # activations of one more token of each sequence, the last that has room
    prefill_flops: int  # of all prompts
    decode_flops: int  # of one more token of each sequence, the last that has room

    @property
    def parameters(self) -> int:
        """Numbers that the model owns, tied ones once."""
        return sum(held.parameters for held in self.weights)

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes that one more token of one sequence takes while every window has room."""
        return sum(kind.bytes_per_token for kind in self.cache)

    @property
    def activation_bytes(self) -> int:
        """The larger of the two peaks."""
        return max(self.prefill.bytes, self.decode.bytes)

    @property
    def total_bytes(self) -> int:
        """Weights, cache and activations together; the interpreter and its libraries come on top."""
        return self.weight_bytes + self.cache_bytes + self.activation_bytes


@dataclass(frozen=True, kw_only=True)
class Outline:
    """What a checkpoint will be in memory, from its headers alone."""

    spec: ModelSpec
    dtypes: Mapping[str, torch.dtype]  # parameter -> type
    file_bytes: int


def plan(
    spec: ModelSpec,
    *,
    dtype: str | torch.dtype | Mapping[str, torch.dtype] = torch.float32,
    tokens: int = 0,
    batch: int = 1,
    cache_dtype: str | torch.dtype = "auto",
    chunk: int = CHUNK,
    file_bytes: int = 0,
) -> Plan:
    """The cost of running `spec` with `batch` sequences of `tokens` tokens; 0 tokens is all that its context holds.

    `dtype` is one type for all parameters, or a type for each by its path. The cache has the type of the activations;
    `cache_dtype` counts it in another one. Nothing is computed and no storage is made. RequestError for a count that
    cannot be.
    """
    context = spec.decoder.context
    tokens = tokens or context
    _require("tokens", tokens, context, "the model's context")
    _require("batch", batch, MOST_ROWS, "the largest batch")
    _require("chunk", chunk)
    owned = shapes(spec)
    dtypes = dtype if isinstance(dtype, Mapping) else dict.fromkeys(owned, parse_dtype(dtype))
    network, last = outline(spec, dtypes), min(tokens, chunk)
    kept = network.dtype if cache_dtype == "auto" else parse_dtype(cache_dtype)
    weights = _weights(owned, dtypes)
    cache = cache_kinds(states(spec), tokens, batch, kept.itemsize)
    return Plan(
        name=spec.name,
        family=spec.family,
        context=context,
        tokens=tokens,
        batch=batch,
        chunk=chunk,
        weights=weights,
        weight_bytes=sum(held.bytes for held in weights),
        file_bytes=file_bytes,
        cache_dtype=_name(kept),
        cache=cache,
        cache_bytes=sum(kind.bytes for kind in cache),
        prefill=peak(network, batch, tokens - last, last),
        decode=peak(network, batch, tokens - 1, 1),
        prefill_flops=batch * prefill_flops(spec, tokens),
        decode_flops=batch * flops_per_token(spec, tokens),
    )


def measure(network: Transformer, planned: Plan) -> Measured:
    """The bytes of the real parameters and of a real cache, and the peaks of two real forwards over it."""
    last = min(planned.tokens, planned.chunk)
    return Measured(
        weight_bytes=sum(parameter.nbytes for parameter in network.parameters()),
        cache_bytes=_real_cache(network, planned).nbytes,
        prefill=peak(network, planned.batch, planned.tokens - last, last),
        decode=peak(network, planned.batch, planned.tokens - 1, 1),
    )


def _real_cache(network: Transformer, planned: Plan) -> Cache:
    kept = parse_dtype(planned.cache_dtype)
    return Cache.of(network.spec, planned.batch, planned.tokens, kept, network.device)


def cache_kinds(kept: Mapping[str, State], tokens: int, batch: int, itemsize: int) -> tuple[CacheKind, ...]:
    """The caches of `batch` sequences of `tokens` tokens, equal layers together, in the order of first sight.

    A layer keeps kv_heads x (head_dim + value_dim) numbers of a token, whatever the number of query heads.
    """
    alike: dict[State, list[str]] = {}
    for path, state in kept.items():
        alike.setdefault(state, []).append(path)
    return tuple(
        CacheKind(
            layers=tuple(paths),
            kv_heads=state.kv_heads,
            head_dim=state.head_dim,
            value_dim=state.value_dim,
            window=state.window,
            kept_tokens=state.tokens(tokens),
            bytes_per_token=len(paths) * state.numbers * itemsize,
            bytes=len(paths) * state.numbers * itemsize * state.tokens(tokens) * batch,
        )
        for state, paths in alike.items()
    )


def prefill_flops(spec: ModelSpec, tokens: int) -> int:
    """Multiplications and additions to compute a prompt: 2 per weight and token, 4 per score and entry of a head.

    A token sees itself and all before it that its window still holds; logits are made for the last token only.
    """
    linear = flops_per_token(spec, 0)
    head = sum(2 * head.vocab * spec.stack(head.stack).width for head in spec.heads)
    mixers = [branch.mixer for stack in spec.stacks for layer in stack.layers for branch in layer.branches]
    attention = sum(
        2 * mixer.heads * (mixer.head_dim + mixer.value_dim) * pairs(tokens, mixer.mask.window)
        for mixer in mixers
        if isinstance(mixer, Attention)
    )
    return tokens * (linear - head) + head + attention


def pairs(tokens: int, window: int | None) -> int:
    """How many keys the queries of a causal sequence see in all: the sum of min(t, window) for t = 1 .. tokens."""
    reach = tokens if window is None else min(tokens, window)
    return reach * (reach + 1) // 2 + (tokens - reach) * reach


def outline_of(path: Path, dtype: str = "auto") -> Outline:
    """What the checkpoint at `path` is and which types its parameters will have, without reading a tensor.

    A folder may hold config.json alone: then all have the type that the config names, else float32.
    CheckpointError or SpecError when it cannot become a model.
    """
    wanted = None if dtype == "auto" else parse_dtype(dtype)
    if is_config_only(path):
        source = open_source(path, NoWeights(path, (), {}, {}))
        return Outline(
            spec=source.spec,
            dtypes=dict.fromkeys(shapes(source.spec), wanted or config_dtype(source.config)),
            file_bytes=0,
        )
    with open_store(path) as store:
        source = open_source(path, store)
        found = in_file(source)
        dtypes = {name: wanted or DTYPES.get(store.entry(keys[0]).dtype, torch.float32) for name, keys in found.items()}
        used = {key for keys in found.values() for key in keys}
        return Outline(spec=source.spec, dtypes=dtypes, file_bytes=sum(store.entry(key).nbytes for key in used))


class NoWeights(Store):
    """A checkpoint of which only the config is here."""

    @property
    def format(self) -> str:
        """As for the folder that it stands for."""
        return "safetensors"


def is_config_only(path: Path) -> bool:
    """Whether `path` is a folder with a config.json and no weights beside it."""
    return (path / "config.json").is_file() and not any(
        file.suffix in (".safetensors", ".gguf", ".bin") for file in path.iterdir()
    )


def config_dtype(config: Mapping[str, Any]) -> torch.dtype:
    """The type of the weights that a config.json names."""
    return parse_dtype(str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch."))


def in_file(source: Source) -> dict[str, tuple[str, ...]]:
    """Every parameter with the tensors of the file that it is made from; CheckpointError names one that is missing."""
    others: dict[str, list[Rule]] = {}
    for alias in source.aliases:
        others.setdefault(alias.paths[0], []).append(alias)
    found: dict[str, tuple[str, ...]] = {}
    for rule in source.rules:
        candidates = [rule, *(alias for path in rule.paths for alias in others.get(path, ()))]
        keys = next((keys for keys in (_keys(source, candidate) for candidate in candidates) if keys), None)
        if keys is None:
            raise CheckpointError(f"{source.path}: {rule.keys[0]} is missing; fetch the checkpoint again")
        found.update(dict.fromkeys(rule.paths, keys))
    return found


def _keys(source: Source, rule: Rule) -> tuple[str, ...]:
    """The file's names for a rule's keys, or nothing unless all are there."""
    keys = [key for key in map(source.key, rule.keys) if key is not None]
    return tuple(keys) if len(keys) == len(rule.keys) else ()


def _weights(owned: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, torch.dtype]) -> tuple[Held, ...]:
    counts: Counter[torch.dtype] = Counter()
    for path, shape in owned.items():
        counts[dtypes[path]] += math.prod(shape)
    return tuple(
        Held(dtype=_name(dtype), parameters=count, bytes=count * dtype.itemsize)
        for dtype, count in counts.most_common()
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _require(name: str, value: int, most: int | None = None, limit: str = "") -> None:
    if value < 1:
        raise RequestError(f"{name} = {value} is not a count; give 1 or more")
    if most is not None and value > most:
        raise RequestError(f"{name} = {value} is more than {limit} of {most}; give at most that many")
