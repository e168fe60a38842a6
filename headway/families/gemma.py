"""Gemma 2 and the text half of Gemma 3: sandwich norms, GeGLU, local and global layers in turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headway.checkpoint.rules import Add, Key, Names
from headway.families import kit
from headway.families.kit import Config, Family, Tensors
from headway.spec.mixers import Attention, FeedForward
from headway.spec.model import ModelSpec
from headway.spec.parts import HeadNorm, Norm
from headway.spec.position import Mask, Rope
from headway.spec.stems import TokenStem


@dataclass(frozen=True)
class _Generation:
    """Where Gemma 2 and Gemma 3 differ, and what a config means when it is silent."""

    model_type: str
    architecture: str
    vocab: int
    context: int
    period: int  # every so many layers one is global
    theta: float  # of global layers
    local_theta: float | None  # None: local layers turn as global ones do
    qk_norm: bool
    attention_cap: float
    final_cap: float
    odd_layers: int  # the depth of the one size whose scores are not scaled by head_dim, in GGUF files


_SECOND = _Generation(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    vocab=256000,
    context=8192,
    period=2,
    theta=10000.0,
    local_theta=None,
    qk_norm=False,
    attention_cap=50.0,
    final_cap=30.0,
    odd_layers=46,
)
_THIRD = _Generation(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    vocab=262208,
    context=131072,
    period=6,
    theta=1000000.0,
    local_theta=10000.0,
    qk_norm=True,
    attention_cap=0.0,
    final_cap=0.0,
    odd_layers=62,
)


def read(config: Config) -> ModelSpec:
    """The spec of a `model_type: gemma2`, `gemma3_text` or `gemma3` config; of the last, the text half."""
    generation = _SECOND if config.text("model_type") == "gemma2" else _THIRD
    config = _text_half(config)
    if config.flag("use_bidirectional_attention", False):
        raise config.refuse("use_bidirectional_attention", True, "makes it an encoder; only false is read here")
    width, head_dim = config.whole("hidden_size"), config.whole("head_dim", 256)
    heads = config.whole("num_attention_heads", 8)
    rope = kit.read_rope(config, head_dim, generation.theta)
    local_rope = rope if generation.local_theta is None else _local_rope(config, head_dim, generation.local_theta)
    norm = Norm(kind="rms", eps=config.number("rms_norm_eps", 1e-6, least=0.0), offset=1.0)
    feed_forward = FeedForward(
        hidden=config.whole("intermediate_size"),
        activation=config.activation("hidden_activation", "gelu_pytorch_tanh"),
        gated=True,
    )

    def attention(mask: Mask, rope: Rope) -> Attention:
        return Attention(
            heads=heads,
            kv_heads=config.whole("num_key_value_heads", 4, null=heads),
            head_dim=head_dim,
            value_dim=head_dim,
            scale=config.number("query_pre_attn_scalar", 256, above=0.0) ** -0.5,
            mask=mask,
            rope=rope,
            qk_norm=HeadNorm(norm=norm) if generation.qk_norm else None,
            softcap=config.number("attn_logit_softcapping", generation.attention_cap, null=0.0, least=0.0),
            biases="qkvo" if config.flag("attention_bias", False) else "",
            drop=config.fraction("attention_dropout", 0.0),
        )

    local = attention(Mask.causal(config.window("sliding_window", 4096)), local_rope)
    everywhere = attention(Mask.causal(), rope)
    period = config.whole("sliding_window_pattern", generation.period)
    sliding = kit.sliding_layers(config, lambda index: (index + 1) % period != 0)
    mixers = (local if slides else everywhere for slides in sliding)
    vocab = config.whole("vocab_size", generation.vocab)
    return kit.language_model(
        config,
        "gemma",
        stem=TokenStem(vocab=vocab, width=width, scale=width**0.5, round_scale=True),
        context=kit.context_length(config, rope, generation.context),
        layers=tuple(kit.pre_norm(mixer, feed_forward, norm, norm_out=norm) for mixer in mixers),
        final_norm=norm,
        tied=config.flag("tie_word_embeddings", True),
        softcap=config.number("final_logit_softcapping", generation.final_cap, null=0.0, least=0.0),
    )


def _text_half(config: Config) -> Config:
    """The nested `text_config` of a model that also sees, with the tie that is stated above it."""
    if not config.has("text_config"):
        return config
    text = config.section("text_config")
    return replace(text, data={"tie_word_embeddings": config.data.get("tie_word_embeddings"), **text.data})


def _local_rope(config: Config, head_dim: int, theta: float) -> Rope:
    """The rope of local layers, which a scaling rule for long contexts leaves alone."""
    nested = config.section("rope_parameters").data.get("sliding_attention")
    own = {"rope_parameters": nested, "rope_theta": config.data.get("rope_local_base_freq")}
    return kit.read_rope(replace(config, data={**config.data, **own, "rope_scaling": None}), head_dim, theta)


def describe(spec: ModelSpec) -> dict[str, Any]:
    """The config.json of `spec`; a norm of queries and keys tells Gemma 3 from Gemma 2."""
    model = kit.plain(spec)
    generation = _SECOND if model.attention.qk_norm is None else _THIRD
    kinds = kit.layer_types(model.attentions)
    ropes = {kind: a.rope for kind, a in zip(reversed(kinds), reversed(model.attentions), strict=True)}
    fields = model.fields(generation.architecture, generation.model_type, ropes.get("full_attention"))
    activation = fields.pop("hidden_act")
    if generation.local_theta is not None:
        local = model.fields("", "", ropes.get("sliding_attention"))
        parameters = {
            kind: f["rope_parameters"] for kind, f in (("full_attention", fields), ("sliding_attention", local))
        }
        fields |= {"rope_parameters": parameters, "rope_local_base_freq": local["rope_theta"]}
        fields |= {"sliding_window_pattern": _period(kinds, generation.period)}
    return {
        **fields,
        "hidden_activation": activation,
        "attention_bias": bool(model.attention.biases),
        "query_pre_attn_scalar": _scalar(model.attention.scale),
        "attn_logit_softcapping": model.attention.softcap or None,
        "final_logit_softcapping": model.head.softcap or None,
        # Where no layer is local: transformers opens no Gemma whose window is null.
        "sliding_window": kit.window_of(model.attentions) if "sliding_attention" in kinds else model.context,
        "layer_types": kinds,
    }


def _period(kinds: list[str], usual: int) -> int | None:
    """Every so many layers one is global, for readers that know no `layer_types`; None when they follow no period."""
    local = [kind == "sliding_attention" for kind in kinds]
    periods = (usual, *range(1, len(kinds) + 2))
    return next((p for p in periods if local == [(index + 1) % p != 0 for index in range(len(kinds))]), None)


def _scalar(scale: float) -> int | float:
    """The number whose inverse root is `scale`: a whole one where `scale`, maybe kept in 32 bits, means one."""
    number = scale**-2
    return round(number) if abs(number - round(number)) < 1e-6 * number else number


_NORMS = {
    f"{kit.LAYER}.attention_norm": ("input_layernorm", "attn_norm"),
    f"{kit.LAYER}.attention_norm_out": ("post_attention_layernorm", "post_attention_norm"),
    f"{kit.LAYER}.feed_forward_norm": ("pre_feedforward_layernorm", "ffn_norm"),
    f"{kit.LAYER}.feed_forward_norm_out": ("post_feedforward_layernorm", "post_ffw_norm"),
    f"{kit.LAYER}.attention.q_norm": ("self_attn.q_norm", "attn_q_norm"),
    f"{kit.LAYER}.attention.k_norm": ("self_attn.k_norm", "attn_k_norm"),
}


def names(spec: ModelSpec) -> Names:
    """Names in a safetensors file."""
    return {**kit.HF_NAMES, **{path: f"model.layers.*.{name}" for path, (name, _) in _NORMS.items()}}


def gguf_config(meta: Config, tensors: Tensors) -> dict[str, Any]:
    """GGUF metadata of architecture `gemma2` or `gemma3` as a config.json."""
    own = kit.gguf_own(meta)
    generation = _SECOND if meta.text("general.architecture") == "gemma2" else _THIRD
    fields = kit.gguf_fields(meta, tensors)
    per_head = fields["hidden_size"] // fields["num_attention_heads"]
    usual = per_head if fields["num_hidden_layers"] == generation.odd_layers else fields["head_dim"]
    return {
        "model_type": generation.model_type,
        **fields,
        "query_pre_attn_scalar": _scalar(kit.gguf_number(own, "attention.scale", usual**-0.5)),
        "attn_logit_softcapping": own.number("attn_logit_softcapping", generation.attention_cap),
        "final_logit_softcapping": own.number("final_logit_softcapping", generation.final_cap),
        "sliding_window": own.window("attention.sliding_window", 4096),
        "sliding_window_pattern": own.whole("attention.sliding_window_pattern", generation.period),
        "rope_local_base_freq": kit.gguf_number(own, "rope.freq_base_swa", 10000.0),
    }


def gguf_names(spec: ModelSpec) -> Names:
    """Names in a GGUF file, where every norm is stored with the 1 already added."""
    less = (Add(-1.0),)
    layers: Names = {path: Key(f"blk.*.{name}", less) for path, (_, name) in _NORMS.items()}
    return {**kit.GGUF_NAMES, **layers, f"{kit.DECODER}.final_norm": Key("output_norm", less)}


_SIZES: dict[str, Any] = {
    "vocab_size": 127,
    "hidden_size": 36,
    "intermediate_size": 55,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "query_pre_attn_scalar": 24,
    "sliding_window": 7,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-6,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}

TINY: dict[str, dict[str, Any]] = {
    "gemma2": _SIZES
    | {
        "model_type": "gemma2",
        "num_hidden_layers": 3,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3": _SIZES
    | {
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 1000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "gemma3-layers": _SIZES
    | {
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "final_logit_softcapping": 2.0,
        "tie_word_embeddings": False,
        "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
    },
}

FAMILY = Family(
    name="gemma",
    read=read,
    describe=describe,
    names=names,
    gguf_config=gguf_config,
    gguf_names=gguf_names,
    tiny=TINY,
    wrappings={"language_model.": "", "model.language_model.": "model."},
    ignore=("*vision_tower.*", "*multi_modal_projector.*", "*.rotary_emb.inv_freq"),
)
