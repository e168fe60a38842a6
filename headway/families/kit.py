"""What family files are written with: typed reading of configs, ropes of every dialect, the usual names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from headway.checkpoint.rules import Names
from headway.errors import CheckpointError, SpecError
from headway.spec.model import ModelSpec
from headway.spec.parts import Activation
from headway.spec.position import (
    DynamicScaling,
    GivenScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    Scaling,
    YarnScaling,
    longrope_attention,
    yarn_attention,
)

_REQUIRED: Any = object()

ACTIVATION_NAMES: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "gelu_quick",
    "silu": "silu",
    "swish": "silu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
}


@dataclass(frozen=True)
class Config:
    """A config.json (or GGUF metadata) read field by field; every refusal names file, field, value and way out."""

    data: Mapping[str, Any]
    file: str = "config.json"

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.data.get(name) is not None

    def get(self, name: str, default: Any = _REQUIRED) -> Any:
        """The field's value; null counts as absent."""
        value = self.data.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise CheckpointError(f"{self.file}: {name} is missing, and this kind of model needs it")
        return default

    def int(self, name: str, default: Any = _REQUIRED, least: int = 1) -> int:
        """A whole number, `least` or more."""
        value = self.get(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise self.refuse(name, value, f"must be a whole number, {least} or more")
        return int(value)

    def float(self, name: str, default: Any = _REQUIRED, above: float = -math.inf) -> float:
        """A finite number above `above`."""
        value = self.get(name, default)
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not value > above:
            raise self.refuse(name, value, "must be a finite number" + (f" above {above}" if above > -math.inf else ""))
        return float(value)

    def bool(self, name: str, default: Any = _REQUIRED) -> bool:
        """True or false."""
        value = self.get(name, default)
        if not isinstance(value, bool | np.bool_):
            raise self.refuse(name, value, "must be true or false")
        return bool(value)

    def choice(self, name: str, values: Mapping[str, Any], default: Any = _REQUIRED) -> Any:
        """What `values` maps the field's text to."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in values:
            raise self.refuse(name, value, f"must be one of {', '.join(values)}")
        return values[value]

    def activation(self, name: str, default: Any = _REQUIRED) -> Activation:
        """An activation under any of its published names."""
        value: Activation = self.choice(name, ACTIVATION_NAMES, default)
        return value

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers."""
        value = self.get(name)
        if not isinstance(value, list | tuple) or not all(isinstance(item, int | float) for item in value):
            raise self.refuse(name, value, "must be a list of numbers")
        return tuple(float(item) for item in value)

    def section(self, name: str) -> Config:
        """A nested object as a Config of its own."""
        value = self.get(name)
        if not isinstance(value, Mapping):
            raise self.refuse(name, value, "must be an object")
        return Config(value, f"{self.file}: {name}")

    def refuse(self, name: str, value: Any, rule: str) -> CheckpointError:
        """The error for a field with an impossible value."""
        shown = repr(value)
        return CheckpointError(f"{self.file}: {name} = {shown if len(shown) <= 60 else shown[:57] + '...'} {rule}")


class Tensors(Protocol):
    """What a GGUF reader shows of its tensors."""

    def __contains__(self, name: object) -> bool: ...

    def floats(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The tensor's values, dequantised."""


@dataclass(frozen=True)
class Family:
    """A published architecture: how its files are read, named and written."""

    name: str
    model_types: tuple[str, ...]  # "model_type" in config.json
    architectures: tuple[str, ...]  # "general.architecture" in GGUF
    read: Callable[[Config], ModelSpec]
    write: Callable[[ModelSpec], dict[str, Any]]  # the config.json that `read` understands
    names: Callable[[ModelSpec], Names]
    gguf_config: Callable[[Config, Tensors], dict[str, Any]]  # GGUF metadata as the config.json it stands for
    gguf_names: Callable[[ModelSpec], Names]
    tiny: Mapping[str, dict[str, Any]]  # small config.json's with awkward sizes, for tests and lessons
    prefix: str = "model."  # what a file of the bare stack, without head, leaves out
    ignore: tuple[str, ...] = ()  # names a file may hold and the model has no use for, `*` a wildcard
    extra: Mapping[str, Any] = field(default_factory=dict)


def read_rope(config: Config, dim: int, base: float, kind: str = "", pairing: Any = "half") -> Rope:
    """The rope of a config in either dialect: `rope_parameters` (nested per layer kind or not), or `rope_theta` and `rope_scaling`.

    `dim` is the number of rotated entries, `base` the family's own default, `kind` the layer kind to look up.
    """
    flat = dict(config.data)
    section = config.data.get("rope_parameters") or {}
    if kind and isinstance(section.get(kind), Mapping):
        section = section[kind]
    elif any(isinstance(value, Mapping) for value in section.values()):
        section = next(iter(section.values()))
    scaling_keys = section or flat.get("rope_scaling") or {}
    if not isinstance(scaling_keys, Mapping):
        raise config.refuse("rope_scaling", scaling_keys, "must be an object")
    where = "rope_parameters" if section else "rope_scaling"
    theta = Config({"rope_theta": section.get("rope_theta", flat.get("rope_theta", base))}, config.file)
    scaling = read_scaling(Config(scaling_keys, f"{config.file}: {where}"), config, dim)
    return Rope(dim=dim, base=theta.float("rope_theta", above=0.0), pairing=pairing, scaling=scaling)


def read_scaling(scaling: Config, config: Config, dim: int) -> Scaling | None:
    """The scaling rule that `scaling` states under `rope_type` or the older `type`; an unknown kind is an error."""
    name = "rope_type" if scaling.has("rope_type") else "type"
    kind = scaling.get(name, "default")
    context = config.data.get("max_position_embeddings")

    def original() -> int:
        if scaling.has("original_max_position_embeddings"):
            return scaling.int("original_max_position_embeddings")
        return config.int("original_max_position_embeddings", context)

    def factor(default: Any = _REQUIRED) -> float:
        return scaling.float("factor", default, above=0.0)

    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(factor=factor())
        case "dynamic":
            return DynamicScaling(factor=factor(), original=original())
        case "llama3":
            return Llama3Scaling(
                factor=factor(),
                low=scaling.float("low_freq_factor"),
                high=scaling.float("high_freq_factor"),
                original=scaling.int("original_max_position_embeddings"),
            )
        case "yarn":
            return _read_yarn(scaling, factor(), original())
        case "longrope" | "su":
            return _read_longrope(scaling, config, original(), dim)
        case _:
            raise scaling.refuse(name, kind, "is not a known kind: default, linear, dynamic, llama3, yarn, longrope")


def _read_yarn(scaling: Config, factor: float, original: int) -> YarnScaling:
    if scaling.has("attention_factor"):
        attention = scaling.float("attention_factor", above=0.0)
    elif scaling.has("mscale") and scaling.has("mscale_all_dim"):
        top = yarn_attention(factor, scaling.float("mscale"))
        attention = top / yarn_attention(factor, scaling.float("mscale_all_dim"))
    else:
        attention = yarn_attention(factor)
    return YarnScaling(
        factor=factor,
        original=original,
        beta_fast=scaling.float("beta_fast", 32.0),
        beta_slow=scaling.float("beta_slow", 1.0),
        attention=attention,
        truncate=scaling.bool("truncate", True),
    )


def _read_longrope(scaling: Config, config: Config, original: int, dim: int) -> LongRopeScaling:
    factor = config.int("max_position_embeddings", original) / original
    if scaling.has("factor"):
        factor = scaling.float("factor", above=0.0)
    attention = scaling.float("attention_factor", longrope_attention(factor, original), above=0.0)
    return LongRopeScaling(
        short=scaling.numbers("short_factor"), long=scaling.numbers("long_factor"), original=original, attention=attention
    )


def write_rope(rope: Rope) -> dict[str, Any]:
    """`rope_parameters` of config.json for one rope."""
    plain: dict[str, Any] = {"rope_theta": rope.base}
    match rope.scaling:
        case None:
            return {**plain, "rope_type": "default"}
        case LinearScaling(factor=factor):
            return {**plain, "rope_type": "linear", "factor": factor}
        case DynamicScaling(factor=factor, original=original):
            return {**plain, "rope_type": "dynamic", "factor": factor, "original_max_position_embeddings": original}
        case Llama3Scaling() as s:
            bands = {"low_freq_factor": s.low, "high_freq_factor": s.high}
            return {
                **plain, "rope_type": "llama3", "factor": s.factor, **bands, "original_max_position_embeddings": s.original,
            }  # fmt: skip
        case YarnScaling() as s:
            return {
                **plain,
                "rope_type": "yarn",
                "factor": s.factor,
                "original_max_position_embeddings": s.original,
                "beta_fast": s.beta_fast,
                "beta_slow": s.beta_slow,
                "attention_factor": s.attention,
                "truncate": s.truncate,
            }
        case LongRopeScaling() as s:
            return {
                **plain,
                "rope_type": "longrope",
                "short_factor": list(s.short),
                "long_factor": list(s.long),
                "original_max_position_embeddings": s.original,
                "attention_factor": s.attention,
            }
        case GivenScaling(divisors=divisors):
            both = {"short_factor": list(divisors), "long_factor": list(divisors)}
            return {**plain, "rope_type": "longrope", **both, "original_max_position_embeddings": 1, "attention_factor": 1.0}
    raise SpecError(f"rope scaling {rope.scaling!r} has no form in config.json")


def common(values: Sequence[Any], what: str, family: str) -> Any:
    """The one value that all layers share; SpecError when they differ and the family's config has room for one."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) != 1:
        raise SpecError(f"{what} = {', '.join(map(str, distinct))} differs between layers; a {family} config.json holds one value")
    return distinct[0]


DECODER = "stacks.decoder"
LAYER = "stacks.decoder.layers.*"

# The names that Llama gave and most decoders kept.
HF_NAMES: dict[str | tuple[str, ...], Any] = {
    f"{DECODER}.stem.tokens": "model.embed_tokens",
    f"{LAYER}.attention_norm": "model.layers.*.input_layernorm",
    f"{LAYER}.attention.q": "model.layers.*.self_attn.q_proj",
    f"{LAYER}.attention.k": "model.layers.*.self_attn.k_proj",
    f"{LAYER}.attention.v": "model.layers.*.self_attn.v_proj",
    f"{LAYER}.attention.o": "model.layers.*.self_attn.o_proj",
    f"{LAYER}.feed_forward_norm": "model.layers.*.post_attention_layernorm",
    f"{LAYER}.feed_forward.gate": "model.layers.*.mlp.gate_proj",
    f"{LAYER}.feed_forward.up": "model.layers.*.mlp.up_proj",
    f"{LAYER}.feed_forward.down": "model.layers.*.mlp.down_proj",
    f"{DECODER}.final_norm": "model.norm",
    "heads.lm": "lm_head",
}

GGUF_NAMES: dict[str | tuple[str, ...], Any] = {
    f"{DECODER}.stem.tokens": "token_embd",
    f"{LAYER}.attention_norm": "blk.*.attn_norm",
    f"{LAYER}.attention.q": "blk.*.attn_q",
    f"{LAYER}.attention.k": "blk.*.attn_k",
    f"{LAYER}.attention.v": "blk.*.attn_v",
    f"{LAYER}.attention.o": "blk.*.attn_output",
    f"{LAYER}.feed_forward_norm": "blk.*.ffn_norm",
    f"{LAYER}.feed_forward.gate": "blk.*.ffn_gate",
    f"{LAYER}.feed_forward.up": "blk.*.ffn_up",
    f"{LAYER}.feed_forward.down": "blk.*.ffn_down",
    f"{DECODER}.final_norm": "output_norm",
    "heads.lm": "output",
}
