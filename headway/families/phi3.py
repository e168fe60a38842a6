"""Phi-3, Phi-3.5 and Phi-4 mini: fused projections, LongRoPE for long contexts, rotation of a part of the head."""

from __future__ import annotations

from typing import Any

from headway.checkpoint.rules import Names
from headway.errors import SpecError
from headway.families import kit
from headway.families.kit import Config, Family, Tensors
from headway.spec.mixers import Attention, FeedForward
from headway.spec.model import ModelSpec
from headway.spec.parts import Norm
from headway.spec.position import GivenScaling, LongRopeScaling, Mask
from headway.spec.stems import TokenStem


def read(config: Config) -> ModelSpec:
    """The spec of a `model_type: phi3` config."""
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    head_dim = config.whole("head_dim", width // heads)
    rope = kit.read_rope(config, head_dim)
    norm = Norm(kind="rms", eps=config.number("rms_norm_eps", 1e-5, least=0.0))
    attention = Attention(
        heads=heads,
        kv_heads=config.whole("num_key_value_heads", heads),
        head_dim=head_dim,
        value_dim=head_dim,
        scale=head_dim**-0.5,
        mask=Mask.causal(config.window("sliding_window")),
        rope=rope,
        drop=config.fraction("attention_dropout", 0.0),
    )
    feed_forward = FeedForward(
        hidden=config.whole("intermediate_size"), activation=config.activation("hidden_act", "silu"), gated=True
    )
    layer = kit.pre_norm(attention, feed_forward, norm, drop=config.fraction("resid_pdrop", 0.0))
    return kit.language_model(
        config,
        "phi3",
        stem=TokenStem(vocab=config.whole("vocab_size"), width=width, drop=config.fraction("embd_pdrop", 0.0)),
        context=kit.context_length(config, rope, 4096),
        layers=(layer,) * kit.num_layers(config),
        final_norm=norm,
        tied=config.flag("tie_word_embeddings", False),
    )


def describe(spec: ModelSpec) -> dict[str, Any]:
    """The config.json of `spec`, its `rope_scaling` with the three fields that older tools insist on."""
    model = kit.plain(spec)
    scaling = model.attention.rope.scaling if model.attention.rope else None
    if not isinstance(scaling, LongRopeScaling | GivenScaling | None):
        raise SpecError(f"rope.scaling is {type(scaling).__name__}; a phi3 config.json holds LongRopeScaling or none")
    fields = model.fields("Phi3ForCausalLM", "phi3")
    beside = ("rope_type", "original_max_position_embeddings")
    older = fields["rope_scaling"] and {k: v for k, v in fields["rope_scaling"].items() if k not in beside}
    return {
        **fields,
        "rope_scaling": older,
        "original_max_position_embeddings": fields["rope_parameters"].get(beside[1], model.context),
        "partial_rotary_factor": fields.get("partial_rotary_factor", 1.0),
        "sliding_window": model.attention.mask.window,
        "resid_pdrop": model.drop,
        "embd_pdrop": model.stem.drop,
    }


def names(spec: ModelSpec) -> Names:
    """Names in a safetensors file: q, k and v are one matrix, gate and up another."""
    fused: Names = {kit.QKV: "model.layers.*.self_attn.qkv_proj", kit.GATE_UP: "model.layers.*.mlp.gate_up_proj"}
    return kit.fused(kit.HF_NAMES, fused)


def gguf_config(meta: Config, tensors: Tensors) -> dict[str, Any]:
    """GGUF metadata of architecture `phi3` as a config.json."""
    return {
        "model_type": "phi3",
        **kit.gguf_fields(meta, tensors),
        "sliding_window": kit.gguf_own(meta).window("attention.sliding_window"),
    }


def gguf_names(spec: ModelSpec) -> Names:
    """Names in a GGUF file, fused in the same way."""
    return kit.fused(kit.GGUF_NAMES, {kit.QKV: "blk.*.attn_qkv", kit.GATE_UP: "blk.*.ffn_up"})


_SIZES: dict[str, Any] = {
    "model_type": "phi3",
    "vocab_size": 109,
    "hidden_size": 48,
    "intermediate_size": 59,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "original_max_position_embeddings": 24,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_SETS = {"short_factor": [1.0, 1.2, 1.5, 2.0], "long_factor": [1.0, 2.5, 5.0, 9.0]}

TINY: dict[str, dict[str, Any]] = {
    "default": _SIZES | {"head_dim": 10, "num_key_value_heads": 1},
    "longrope": _SIZES
    | {
        "rope_scaling": {"type": "longrope", **_SETS},
        "partial_rotary_factor": 0.75,
        "tie_word_embeddings": True,
        "hidden_size": 44,
    },
    "window": _SIZES
    | {
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0] * 4 + [2.0] * 2,
            "long_factor": [1.0, 2, 3, 4, 5, 6],
        },
        "sliding_window": 7,
        "num_key_value_heads": 4,
        "rope_theta": 1000.0,
    },
}

FAMILY = Family(
    name="phi3",
    read=read,
    describe=describe,
    names=names,
    gguf_config=gguf_config,
    gguf_names=gguf_names,
    tiny=TINY,
    ignore=("*.rotary_emb.inv_freq", "rope_factors_long.weight", "rope_factors_short.weight"),
)
