"""Llama 2 and 3, SmolLM2, TinyLlama: pre-norm RMSNorm, rotary positions, grouped queries, SwiGLU."""

from __future__ import annotations

from typing import Any

from headway.checkpoint.rules import Names
from headway.families import kit
from headway.families.kit import Config, Family, Tensors
from headway.spec.mixers import Attention, FeedForward
from headway.spec.model import ModelSpec
from headway.spec.parts import Norm
from headway.spec.position import Mask
from headway.spec.stems import TokenStem


def read(config: Config) -> ModelSpec:
    """The spec of a `model_type: llama` config."""
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    head_dim = config.whole("head_dim", width // heads)
    rope = kit.read_rope(config, head_dim)
    norm = Norm(kind="rms", eps=config.number("rms_norm_eps", 1e-6, least=0.0))
    attention = Attention(
        heads=heads,
        kv_heads=config.whole("num_key_value_heads", heads),
        head_dim=head_dim,
        value_dim=head_dim,
        scale=head_dim**-0.5,
        mask=Mask.causal(),
        rope=rope,
        biases="qkvo" if config.flag("attention_bias", False) else "",
        drop=config.fraction("attention_dropout", 0.0),
    )
    feed_forward = FeedForward(
        hidden=config.whole("intermediate_size"),
        activation=config.activation("hidden_act", "silu"),
        gated=True,
        bias=config.flag("mlp_bias", False),
    )
    return kit.language_model(
        config,
        "llama",
        stem=TokenStem(vocab=config.whole("vocab_size"), width=width),
        context=kit.context_length(config, rope, 2048),
        layers=(kit.pre_norm(attention, feed_forward, norm),) * kit.num_layers(config),
        final_norm=norm,
        tied=config.flag("tie_word_embeddings", False),
    )


def describe(spec: ModelSpec) -> dict[str, Any]:
    """The config.json of `spec`."""
    model = kit.plain(spec)
    return {
        **model.fields("LlamaForCausalLM", "llama"),
        "attention_bias": bool(model.attention.biases),
        "mlp_bias": model.feed_forward.bias,
    }


def names(spec: ModelSpec) -> Names:
    """Names in a safetensors file."""
    return kit.HF_NAMES


def gguf_config(meta: Config, tensors: Tensors) -> dict[str, Any]:
    """GGUF metadata of architecture `llama`, which Mistral's files use too, as a config.json."""
    return {
        "model_type": "llama",
        **kit.gguf_fields(meta, tensors),
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
    }


_SIZES: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 101,
    "hidden_size": 36,
    "intermediate_size": 53,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _roped(kind: str, **fields: Any) -> dict[str, Any]:
    return {**_SIZES, "rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **fields}}


TINY: dict[str, dict[str, Any]] = {
    "default": _SIZES | {"rope_theta": 500.0},
    "tied": _SIZES | {"tie_word_embeddings": True, "num_attention_heads": 3, "num_key_value_heads": 1},
    "bias": _SIZES | {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu", "num_key_value_heads": 6},
    "linear": _roped("linear", factor=3.0),
    "dynamic": _roped("dynamic", factor=4.0) | {"max_position_embeddings": 24},
    "llama3": _roped(
        "llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=24
    ),
    "yarn": _roped("yarn", factor=4.0, original_max_position_embeddings=24, beta_fast=4.0, beta_slow=1.0),
    "longrope": _roped(
        "longrope",
        short_factor=[1.0, 1.5, 2.0, 2.5, 3.0],
        long_factor=[1.0, 2.5, 5.0, 7.5, 9.0],
        original_max_position_embeddings=24,
    ),
}

FAMILY = Family(
    name="llama",
    read=read,
    describe=describe,
    names=names,
    gguf_config=gguf_config,
    gguf_names=kit.gguf_turned,
    tiny=TINY,
    ignore=("*.rotary_emb.inv_freq", "rope_freqs.weight"),
)
