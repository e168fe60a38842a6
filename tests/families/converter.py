"""GGUF files as llama.cpp's converter makes them, by the gguf package's own writer and table of names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

ARCHITECTURES = {
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}


def held(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a config a GGUF file can hold: it never names the activation."""
    return {name: value for name, value in config.items() if name not in ("hidden_act", "activation_function")}


def convert(path: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    """Write `tensors`, named as in a safetensors file, and what `config` says, to a GGUF file of 32-bit floats."""
    kind = config["model_type"]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[ARCHITECTURES[kind]])
    _gpt2(writer, config) if kind == "gpt2" else _sizes(writer, config, kind)
    extra = _ropes(writer, config, kind)
    table = gguf.get_tensor_name_map(ARCHITECTURES[kind], config.get("num_hidden_layers", config.get("n_layer", 0)))
    for key, array in tensors.items():
        name = table.get_name(key, try_suffixes=(".weight", ".bias"))
        assert name is not None, key
        writer.add_tensor(name, np.ascontiguousarray(_values(config, kind, key, array)))
    for name, array in extra.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gpt2(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_block_count(config["n_layer"])
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(config.get("n_inner") or 4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_token_list([f"<{number}>" for number in range(config["vocab_size"])])


def _sizes(writer: gguf.GGUFWriter, config: Mapping[str, Any], kind: str) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_token_list([f"<{number}>" for number in range(config["vocab_size"])])
    writer.add_eos_token_id(config["eos_token_id"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if kind in ("llama", "phi3"):
        writer.add_vocab_size(config["vocab_size"])
        writer.add_rope_dimension_count(int(head_dim(config) * config.get("partial_rotary_factor", 1.0)))
    if kind in ("gemma2", "gemma3_text", "phi3"):
        writer.add_sliding_window(config.get("sliding_window") or 0)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if "query_pre_attn_scalar" in config:
        writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)


def head_dim(config: Mapping[str, Any]) -> int:
    """The size of a head."""
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def _ropes(writer: gguf.GGUFWriter, config: Mapping[str, Any], kind: str) -> dict[str, np.ndarray]:
    """Rope metadata; the tensors that some rules are kept in."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if kind == "gpt2":
        return {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    writer.add_rope_freq_base(theta)
    if kind == "gemma3_text":
        writer.add_rope_freq_base_swa(config["rope_local_base_freq"])
    original = rope.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
    match rope.get("rope_type", rope.get("type")):
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(original)
            if "beta_fast" in rope:
                writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        case "llama3":
            return {"rope_freqs.weight": llama3_factors(rope, theta, head_dim(config))}
        case "longrope":
            stretch = config["max_position_embeddings"] / original
            writer.add_rope_scaling_orig_ctx_len(original)
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))
            sets = {name: np.array(rope[f"{name}_factor"], np.float32) for name in ("long", "short")}
            return {f"rope_factors_{name}.weight": values for name, values in sets.items()}
    return {}


def llama3_factors(rope: Mapping[str, Any], theta: float, dim: int) -> np.ndarray:
    """What each frequency is divided by, entry by entry."""
    low, high, original = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    found = []
    for index in range(0, dim, 2):
        wavelength = 2 * math.pi * theta ** (index / dim)
        if wavelength < original / high:
            found.append(1.0)
        elif wavelength > original / low:
            found.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            found.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(found, np.float32)


def _values(config: Mapping[str, Any], kind: str, key: str, array: np.ndarray) -> np.ndarray:
    if kind == "gpt2" and array.ndim == 2 and ".h." in key:
        return array.T
    if kind.startswith("gemma") and key.endswith("norm.weight"):
        return array + 1
    if kind in ("llama", "mistral") and ("q_proj" in key or "k_proj" in key):
        heads = config["num_attention_heads" if "q_proj" in key else "num_key_value_heads"]
        split = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
        return split.swapaxes(1, 2).reshape(array.shape)
    return array
