"""Mistral 7B and its kin: Llama's layers, behind a sliding window where the file states one."""

from __future__ import annotations

from typing import Any

from headway.checkpoint.rules import Names
from headway.families import kit
from headway.families.kit import Config, Family
from headway.spec.mixers import Attention, FeedForward
from headway.spec.model import ModelSpec
from headway.spec.parts import Norm
from headway.spec.position import Mask
from headway.spec.stems import TokenStem


def read(config: Config) -> ModelSpec:
    """The spec of a `model_type: mistral` config. A file without `sliding_window` means 4096, null means none."""
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    head_dim = config.whole("head_dim", width // heads)
    rope = kit.read_rope(config, head_dim)
    norm = Norm(kind="rms", eps=config.number("rms_norm_eps", 1e-6, least=0.0))
    attention = Attention(
        heads=heads,
        kv_heads=config.whole("num_key_value_heads", 8, null=heads),
        head_dim=head_dim,
        value_dim=head_dim,
        scale=head_dim**-0.5,
        mask=Mask.causal(config.window("sliding_window", 4096)),
        rope=rope,
        drop=config.fraction("attention_dropout", 0.0),
    )
    feed_forward = FeedForward(
        hidden=config.whole("intermediate_size"), activation=config.activation("hidden_act", "silu"), gated=True
    )
    return kit.language_model(
        config,
        "mistral",
        stem=TokenStem(vocab=config.whole("vocab_size"), width=width),
        context=kit.context_length(config, rope, 131072),
        layers=(kit.pre_norm(attention, feed_forward, norm),) * kit.num_layers(config),
        final_norm=norm,
        tied=config.flag("tie_word_embeddings", False),
    )


def describe(spec: ModelSpec) -> dict[str, Any]:
    """The config.json of `spec`."""
    model = kit.plain(spec)
    return {
        **model.fields("MistralForCausalLM", "mistral"),
        "sliding_window": model.attention.mask.window,
    }


def names(spec: ModelSpec) -> Names:
    """Names in a safetensors file."""
    return kit.HF_NAMES


_SIZES: dict[str, Any] = {
    "model_type": "mistral",
    "vocab_size": 103,
    "hidden_size": 40,
    "intermediate_size": 57,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 14,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

TINY: dict[str, dict[str, Any]] = {
    "window": _SIZES | {"sliding_window": 7, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
    "open": _SIZES | {"sliding_window": None, "head_dim": None, "num_key_value_heads": 1, "rope_theta": 1e6},
}

# GGUF knows these models as architecture `llama`.
FAMILY = Family(
    name="mistral",
    read=read,
    describe=describe,
    names=names,
    gguf_names=kit.gguf_turned,
    tiny=TINY,
    ignore=("*.rotary_emb.inv_freq",),
)
