"""Rotary positions in every dialect: today's `rope_parameters`, yesterday's `rope_theta` and `rope_scaling`, GGUF."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headway.errors import CheckpointError
from headway.families.config import Config
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

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


class Tensors(Protocol):
    """What a GGUF reader shows of its tensors."""

    def __contains__(self, name: object) -> bool: ...

    def floats(self, name: str) -> NDArray[np.float32]:
        """The tensor's values, dequantised."""


# Reading config.json


def read_rope(config: Config, head_dim: int, theta: float = 10000.0, layers: str = "full_attention") -> Rope:
    """The rope that a config states for the layers of one kind.

    `theta` is the family's own base, for a config that names none. When both dialects are there the older
    one counts, as in transformers: files written today mirror it, and people edit it by hand.
    """
    parameters = config.section("rope_parameters")
    if isinstance(parameters.data.get(layers), dict):
        parameters = parameters.section(layers)
    scaling = config.section("rope_scaling") if config.has("rope_scaling") else parameters
    base = next((place for place in (scaling, config, parameters) if place.has("rope_theta")), config)
    part = next((p for p in (scaling, config, parameters) if p.has("partial_rotary_factor")), config)
    share = part.number("partial_rotary_factor", 1.0, above=0.0)
    if share > 1:
        raise part.refuse("partial_rotary_factor", share, "must be above 0 and at most 1")
    dim = int(head_dim * share)
    dim += dim % 2  # an odd share of a head is rounded up to whole pairs
    return Rope(dim=dim, base=base.number("rope_theta", theta, above=1.0), scaling=read_scaling(scaling, config))


def read_scaling(section: Config, config: Config) -> Scaling | None:
    """The scaling rule that `section` states under `rope_type` or the older `type`; an unknown kind is an error."""
    name = "rope_type" if section.has("rope_type") else "type"
    match section.get(name, "default"):
        case "default":
            return None
        case "linear":
            return LinearScaling(factor=_factor(section))
        case "dynamic":
            # The rule counts from the config's own length, whatever else the section says.
            return DynamicScaling(factor=_factor(section), original=config.whole("max_position_embeddings"))
        case "llama3":
            return _read_llama3(section, config)
        case "longrope" | "su":
            return _read_longrope(section, config)
        case "yarn" if section.has("short_factor"):  # what early Phi-3 files called it
            return _read_longrope(section, config)
        case "yarn":
            return _read_yarn(section, config)
        case kind:
            raise section.refuse(name, kind, f"is not a known kind of rope: {', '.join(KINDS)}")


def context_length(config: Config, rope: Rope, default: int) -> int:
    """The longest sequence that a config is made for: a scaling rule that counts from an original reaches further."""
    stated = config.whole("max_position_embeddings", default)
    match rope.scaling:
        case DynamicScaling(factor=factor, original=original):
            return max(stated, int(original * factor))
        case YarnScaling(factor=factor, original=original):
            return max(stated, int(original * factor))
        case _:
            return stated


def _factor(section: Config, default: Any = None) -> float:
    if default is not None and not section.has("factor"):
        return float(default)
    return section.number("factor", least=1.0)


def _original(section: Config, config: Config) -> int:
    """The length before scaling; a field beside the section (Phi-3) counts before one inside it."""
    name = "original_max_position_embeddings"
    place = config if config.has(name) else section
    return place.whole(name, config.get("max_position_embeddings", None))


def _read_llama3(section: Config, config: Config) -> Llama3Scaling:
    low, high = section.number("low_freq_factor", above=0.0), section.number("high_freq_factor", above=0.0)
    if high <= low:
        raise section.refuse("high_freq_factor", high, f"must be above low_freq_factor={low:g}")
    return Llama3Scaling(factor=_factor(section), low=low, high=high, original=_original(section, config))


def _read_yarn(section: Config, config: Config) -> YarnScaling:
    original = _original(section, config)
    stretch = config.whole("max_position_embeddings", original) / original
    factor = _factor(section, stretch if stretch > 1 else None)  # an unscaled yarn is a factor that was forgotten
    attention = yarn_attention(factor)
    if section.has("attention_factor"):
        attention = section.number("attention_factor", above=0.0)
    elif section.has("mscale") and section.has("mscale_all_dim"):
        below = yarn_attention(factor, section.number("mscale_all_dim", least=0.0))
        attention = yarn_attention(factor, section.number("mscale", least=0.0)) / below
    return YarnScaling(
        factor=factor,
        original=original,
        beta_fast=section.number("beta_fast", 32.0, above=0.0),
        beta_slow=section.number("beta_slow", 1.0, above=0.0),
        attention=attention,
        truncate=section.flag("truncate", True),
    )


def _read_longrope(section: Config, config: Config) -> LongRopeScaling | GivenScaling:
    short, long = section.numbers("short_factor"), section.numbers("long_factor")
    original = _original(section, config)
    factor = _factor(section, config.whole("max_position_embeddings", original) / original)
    if section.has("attention_factor"):
        attention = section.number("attention_factor", above=0.0)
    elif original > 1:
        attention = longrope_attention(factor, original)
    else:
        raise section.refuse("original_max_position_embeddings", original, "needs attention_factor beside it")
    if short == long and attention == 1.0:
        return GivenScaling(divisors=short)
    return LongRopeScaling(short=short, long=long, original=original, attention=attention)


# Writing config.json


def write_rope(rope: Rope, head_dim: int, context: int) -> dict[str, Any]:
    """The fields of both dialects, and `max_position_embeddings`, whose meaning depends on the scaling rule.

    What a reader derives by itself is left out, so that older tools, which allow few fields, take it too.
    """
    kind, scaling = _write_scaling(rope.scaling, context)
    positions = rope.scaling.original if isinstance(rope.scaling, DynamicScaling) else context
    part = {} if rope.dim == head_dim else {"partial_rotary_factor": _share(rope.dim, head_dim)}
    return {
        "max_position_embeddings": positions,
        **part,
        "rope_theta": rope.base,
        "rope_scaling": None if rope.scaling is None else {"type": kind, "rope_type": kind, **scaling},
        "rope_parameters": {"rope_type": kind, "rope_theta": rope.base, **part, **scaling},
    }


def _write_scaling(scaling: Scaling | None, context: int) -> tuple[str, dict[str, Any]]:
    match scaling:
        case None:
            return "default", {}
        case LinearScaling(factor=factor):
            return "linear", {"factor": factor}
        case DynamicScaling(factor=factor):
            return "dynamic", {"factor": factor}
        case Llama3Scaling() as s:
            bands = {"low_freq_factor": s.low, "high_freq_factor": s.high}
            return "llama3", {"factor": s.factor, **bands, "original_max_position_embeddings": s.original}
        case YarnScaling() as s:
            betas = {"beta_fast": s.beta_fast, "beta_slow": s.beta_slow}
            attention = {} if s.attention == yarn_attention(s.factor) else {"attention_factor": s.attention}
            truncate = {} if s.truncate else {"truncate": False}
            sizes = {"factor": s.factor, "original_max_position_embeddings": s.original}
            return "yarn", {**sizes, **betas, **attention, **truncate}
        case LongRopeScaling() as s:
            derived = s.original > 1 and s.attention == longrope_attention(context / s.original, s.original)
            attention = {} if derived else {"attention_factor": s.attention}
            sets = {"short_factor": list(s.short), "long_factor": list(s.long)}
            return "longrope", {**sets, "original_max_position_embeddings": s.original, **attention}
        case GivenScaling(divisors=divisors):
            sets = {"short_factor": list(divisors), "long_factor": list(divisors)}
            return "longrope", {**sets, "original_max_position_embeddings": 1, "attention_factor": 1.0}


def _share(dim: int, head_dim: int) -> float:
    """The number that times `head_dim` is cut to `dim`."""
    share = dim / head_dim
    return share if int(head_dim * share) == dim else math.nextafter(share, 1.0)


# Reading GGUF


def gguf_rope(meta: Config, tensors: Tensors, head_dim: int) -> dict[str, Any]:
    """The rope of GGUF metadata (read under its architecture) as fields of config.json."""
    theta = gguf_number(meta, "rope.freq_base", 10000.0)
    dim = meta.whole("rope.dimension_count", head_dim)
    part = {} if dim == head_dim else {"partial_rotary_factor": _share(dim, head_dim)}
    scaling = _gguf_scaling(meta, tensors, theta, dim)
    return {**part, "rope_theta": theta, "rope_scaling": scaling}


def gguf_number(meta: Config, name: str, default: float | None = None, above: float = 0.0) -> float:
    """A float as it was before it was stored in 32 bits: 1e-05, not 9.999999747378752e-06."""
    value = meta.number(name, above=above) if default is None else meta.number(name, default, above=above)
    with np.errstate(over="ignore"):
        stored = float(str(np.float32(value)))
    if not math.isfinite(stored):
        raise meta.refuse(name, value, "is beyond what 32 bits hold")
    return stored


def _gguf_scaling(meta: Config, tensors: Tensors, theta: float, dim: int) -> dict[str, Any] | None:
    context = meta.whole("context_length")
    original = meta.whole("rope.scaling.original_context_length", context)
    if "rope_factors_long.weight" in tensors:
        return {
            "rope_type": "longrope",
            "short_factor": tensors.floats("rope_factors_short.weight").tolist(),
            "long_factor": tensors.floats("rope_factors_long.weight").tolist(),
            "original_max_position_embeddings": original,
            "attention_factor": gguf_number(meta, "rope.scaling.attn_factor", 1.0),
        }
    scaling = _gguf_rule(meta, original)
    if "rope_freqs.weight" in tensors:
        if scaling is not None:
            kind = meta.get("rope.scaling.type")
            raise meta.refuse(
                "rope.scaling.type", kind, "beside the tensor rope_freqs.weight: only one may scale the rope"
            )
        given = given_scaling(tensors.floats("rope_freqs.weight"), theta, dim)
        kind, fields = _write_scaling(given, context)
        return {"rope_type": kind, **fields}
    return scaling


def _gguf_rule(meta: Config, original: int) -> dict[str, Any] | None:
    """The rule that metadata names; a factor without a kind is linear, as llama.cpp reads it."""
    factor = gguf_number(meta, "rope.scaling.factor", 0.0, above=-1.0)
    factor = factor or gguf_number(meta, "rope.scale_linear", 1.0) or 1.0
    kind = meta.text("rope.scaling.type", "linear")
    if kind == "yarn":
        factor = gguf_number(meta, "rope.scaling.factor")
    match kind:
        case "none":
            return None
        case "linear":
            return None if factor == 1 else {"rope_type": "linear", "factor": factor}
        case "yarn":
            share = gguf_number(meta, "rope.scaling.attn_factor", 1.0)
            return {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original,
                "beta_fast": gguf_number(meta, "rope.scaling.yarn_beta_fast", 32.0),
                "beta_slow": gguf_number(meta, "rope.scaling.yarn_beta_slow", 1.0),
                "attention_factor": share * yarn_attention(factor),
            }
        case "longrope":
            raise CheckpointError(
                f"{meta.file}: {meta.at}rope.scaling.type = 'longrope' needs the tensors rope_factors_long.weight and "
                "rope_factors_short.weight, which the file lacks; convert the model again"
            )
        case _:
            raise meta.refuse("rope.scaling.type", kind, "is not a known kind of rope: none, linear, yarn, longrope")


def given_scaling(divisors: NDArray[np.float32], theta: float, dim: int) -> Llama3Scaling | GivenScaling:
    """The rule behind a table of divisors: Llama 3's where recomputing it gives the same table, else the table."""
    table = divisors.astype(np.float64)
    if 2 * len(table) == dim and np.all(table >= 1) and table.max() > 1:
        rule = _guess_llama3(table, theta, dim)
        if np.allclose(llama3_divisors(rule, theta, dim), table, rtol=1e-5, atol=0):
            return rule
    return GivenScaling(divisors=tuple(table.tolist()))


def llama3_divisors(rule: Llama3Scaling, theta: float, dim: int) -> NDArray[np.float64]:
    """By what Llama 3 divides each frequency: 1 for short waves, `factor` for long ones, a blend between."""
    share = (rule.original / _wavelengths(theta, dim) - rule.low) / (rule.high - rule.low)
    share = np.clip(share, 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - share) / rule.factor + share))


def _guess_llama3(table: NDArray[np.float64], theta: float, dim: int) -> Llama3Scaling:
    """The rule with Llama 3's published bands, its original length solved from one blended entry."""
    factor, low, high = float(str(np.float32(table.max()))), 1.0, 4.0
    original = 8192
    blended = np.flatnonzero((table > 1.0001) & (table < factor * 0.9999))
    if len(blended):
        share = (1 / table[blended[0]] - 1 / factor) / (1 - 1 / factor)
        original = max(1, round(float(_wavelengths(theta, dim)[blended[0]] * (low + share * (high - low)))))
    return Llama3Scaling(factor=factor, low=low, high=high, original=original)


def _wavelengths(theta: float, dim: int) -> NDArray[np.float64]:
    """Tokens per full turn of each frequency."""
    return np.asarray(2 * np.pi * theta ** (np.arange(0, dim, 2) / dim))
