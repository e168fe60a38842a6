"""Qwen2 (a bias on q, k, v) and Qwen3 (a norm of each query and key head): a window on the upper layers, if any."""

from __future__ import annotations

from typing import Any

from headway.checkpoint.rules import Names
from headway.families import kit
from headway.families.kit import Config, Family, Tensors
from headway.spec.mixers import Attention, FeedForward
from headway.spec.model import ModelSpec
from headway.spec.parts import HeadNorm, Norm
from headway.spec.position import Mask
from headway.spec.stems import TokenStem


def read(config: Config) -> ModelSpec:
    """The spec of a `model_type: qwen2` or `qwen3` config."""
    third = config.text("model_type") == "qwen3"
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    head_dim = config.whole("head_dim", 128 if third else width // heads)
    rope = kit.read_rope(config, head_dim)
    norm = Norm(kind="rms", eps=config.number("rms_norm_eps", 1e-6, least=0.0))
    feed_forward = FeedForward(
        hidden=config.whole("intermediate_size"), activation=config.activation("hidden_act", "silu"), gated=True
    )
    if third:
        qk_norm, biases = HeadNorm(norm=norm), "qkvo" if config.flag("attention_bias", False) else ""
    else:
        qk_norm, biases = None, "qkv"

    def attention(window: int | None) -> Attention:
        return Attention(
            heads=heads,
            kv_heads=config.whole("num_key_value_heads", 32, null=heads),
            head_dim=head_dim,
            value_dim=head_dim,
            scale=head_dim**-0.5,
            mask=Mask.causal(window),
            rope=rope,
            qk_norm=qk_norm,
            biases=biases,
            drop=config.fraction("attention_dropout", 0.0),
        )

    window = config.window("sliding_window", 4096) if config.flag("use_sliding_window", False) else None
    lowest = config.whole("max_window_layers", 28, least=0)
    sliding = kit.sliding_layers(config, lambda index: index >= lowest)
    return kit.language_model(
        config,
        "qwen",
        stem=TokenStem(vocab=config.whole("vocab_size"), width=width),
        context=kit.context_length(config, rope, 32768),
        layers=tuple(kit.pre_norm(attention(window if local else None), feed_forward, norm) for local in sliding),
        final_norm=norm,
        tied=config.flag("tie_word_embeddings", False),
    )


def describe(spec: ModelSpec) -> dict[str, Any]:
    """The config.json of `spec`; a norm of queries and keys tells Qwen3 from Qwen2."""
    model = kit.plain(spec)
    window = kit.window_of(model.attentions)
    kinds = kit.layer_types(model.attentions)
    if model.attention.qk_norm is None:
        fields = model.fields("Qwen2ForCausalLM", "qwen2")
    else:
        fields = {**model.fields("Qwen3ForCausalLM", "qwen3"), "attention_bias": bool(model.attention.biases)}
    return {
        **fields,
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": [*kinds, "sliding_attention"].index("sliding_attention"),
        "layer_types": kinds,
    }


def names(spec: ModelSpec) -> Names:
    """Names in a safetensors file."""
    return {
        **kit.HF_NAMES,
        f"{kit.LAYER}.attention.q_norm": "model.layers.*.self_attn.q_norm",
        f"{kit.LAYER}.attention.k_norm": "model.layers.*.self_attn.k_norm",
    }


def gguf_config(meta: Config, tensors: Tensors) -> dict[str, Any]:
    """GGUF metadata of architecture `qwen2` or `qwen3` as a config.json."""
    return {
        "model_type": meta.text("general.architecture"),
        **kit.gguf_fields(meta, tensors),
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "use_sliding_window": False,
    }


def gguf_names(spec: ModelSpec) -> Names:
    """Names in a GGUF file, with rows in the same order."""
    return {
        **kit.GGUF_NAMES,
        f"{kit.LAYER}.attention.q_norm": "blk.*.attn_q_norm",
        f"{kit.LAYER}.attention.k_norm": "blk.*.attn_k_norm",
    }


_SIZES: dict[str, Any] = {
    "vocab_size": 107,
    "hidden_size": 48,
    "intermediate_size": 61,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-6,
    "bos_token_id": None,
    "eos_token_id": 2,
}
_YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 2.5, "original_max_position_embeddings": 20}
_WINDOW = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}

TINY: dict[str, dict[str, Any]] = {
    "qwen2": _SIZES | {"model_type": "qwen2", "tie_word_embeddings": True, "rope_theta": 1000.0},
    "qwen2-window": _SIZES | _WINDOW | {"model_type": "qwen2", "head_dim": 10, "num_key_value_heads": 3},
    "qwen3": _SIZES | {"model_type": "qwen3", "head_dim": 14, "tie_word_embeddings": True, "rope_parameters": _YARN},
    "qwen3-window": _SIZES
    | _WINDOW
    | {"model_type": "qwen3", "head_dim": 6, "attention_bias": True, "num_key_value_heads": 1},
}

FAMILY = Family(
    name="qwen",
    read=read,
    describe=describe,
    names=names,
    gguf_config=gguf_config,
    gguf_names=gguf_names,
    tiny=TINY,
    ignore=("*.rotary_emb.inv_freq", "rope_freqs.weight"),
)
