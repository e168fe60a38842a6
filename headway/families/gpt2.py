"""GPT-2: learned positions, LayerNorm before each part, GELU, biases everywhere, the head tied to the embedding."""

from __future__ import annotations

from itertools import product
from typing import Any

from headway.checkpoint.rules import Key, Names, Transpose
from headway.errors import SpecError
from headway.families import kit
from headway.families.kit import Config, Family, Tensors
from headway.spec.mixers import Attention, FeedForward
from headway.spec.model import ModelSpec
from headway.spec.parts import Norm
from headway.spec.position import LearnedPositions, Mask
from headway.spec.stems import TokenStem


def read(config: Config) -> ModelSpec:
    """The spec of a `model_type: gpt2` config."""
    width, heads = config.whole("n_embd"), config.whole("n_head")
    if width % heads:
        raise config.refuse("n_head", heads, f"must divide n_embd={width}")
    if config.flag("add_cross_attention", False):
        raise config.refuse(
            "add_cross_attention", True, "makes it a decoder beside an encoder; only false is read here"
        )
    count, context = kit.num_layers(config, "n_layer"), config.whole("n_positions", 1024)
    norm = Norm(kind="layer", eps=config.number("layer_norm_epsilon", 1e-5, least=0.0), bias=True)
    feed_forward = FeedForward(
        hidden=config.whole("n_inner", 4 * width),
        activation=config.activation("activation_function", "gelu_new"),
        bias=True,
    )
    scales = _scales(
        width // heads,
        count,
        by_width=config.flag("scale_attn_weights", True),
        by_layer=config.flag("scale_attn_by_inverse_layer_idx", False),
    )
    drop = config.fraction("resid_pdrop", 0.1)

    def attention(scale: float) -> Attention:
        return Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=width // heads,
            value_dim=width // heads,
            scale=scale,
            mask=Mask.causal(),
            biases="qkvo",
            drop=config.fraction("attn_pdrop", 0.1),
        )

    return kit.language_model(
        config,
        "gpt2",
        stem=TokenStem(
            vocab=config.whole("vocab_size"),
            width=width,
            positions=LearnedPositions(length=context),
            drop=config.fraction("embd_pdrop", 0.1),
        ),
        context=context,
        layers=tuple(kit.pre_norm(attention(scale), feed_forward, norm, drop=drop) for scale in scales),
        final_norm=norm,
        tied=config.flag("tie_word_embeddings", True),
    )


def _scales(head_dim: int, count: int, *, by_width: bool, by_layer: bool) -> list[float]:
    """What the scores of each layer are multiplied by."""
    scale = head_dim**-0.5 if by_width else 1.0
    return [scale / (index + 1) if by_layer else scale for index in range(count)]


def describe(spec: ModelSpec) -> dict[str, Any]:
    """The config.json of `spec`."""
    model = kit.plain(spec)
    head_dim, count = model.attention.head_dim, len(model.attentions)
    stated = [attention.scale for attention in model.attentions]
    switches = [
        {"scale_attn_weights": by_width, "scale_attn_by_inverse_layer_idx": by_layer}
        for by_width, by_layer in product((True, False), (False, True))
        if _scales(head_dim, count, by_width=by_width, by_layer=by_layer) == stated
    ]
    if not switches:
        raise SpecError(f"attention.scale = {stated[0]:g}, ... is none of the scales that a gpt2 config.json can state")
    activation = model.feed_forward.activation
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.stem.vocab,
        "n_embd": model.stem.width,
        "n_inner": model.feed_forward.hidden,
        "n_layer": count,
        "n_head": model.attention.heads,
        "n_positions": model.context,
        "n_ctx": model.context,
        "activation_function": "gelu_new" if activation == "gelu_tanh" else kit.ACTIVATION_WORDS[activation],
        "layer_norm_epsilon": model.norm.eps,
        **switches[0],
        "attn_pdrop": model.attention.drop,
        "resid_pdrop": model.drop,
        "embd_pdrop": model.stem.drop,
        "initializer_range": spec.init.std,
        "tie_word_embeddings": bool(spec.ties),
    }


def names(spec: ModelSpec) -> Names:
    """Names in a safetensors file, whose matrices are [in, out] and whose q, k and v are one."""
    turned = (Transpose(),)
    return {
        f"{kit.DECODER}.stem.tokens": "transformer.wte",
        f"{kit.DECODER}.stem.positions": "transformer.wpe",
        f"{kit.LAYER}.attention_norm": "transformer.h.*.ln_1",
        kit.QKV: Key("transformer.h.*.attn.c_attn", turned),
        f"{kit.LAYER}.attention.o": Key("transformer.h.*.attn.c_proj", turned),
        f"{kit.LAYER}.feed_forward_norm": "transformer.h.*.ln_2",
        f"{kit.LAYER}.feed_forward.up": Key("transformer.h.*.mlp.c_fc", turned),
        f"{kit.LAYER}.feed_forward.down": Key("transformer.h.*.mlp.c_proj", turned),
        f"{kit.DECODER}.final_norm": "transformer.ln_f",
        "heads.lm": "lm_head",
    }


def gguf_config(meta: Config, tensors: Tensors) -> dict[str, Any]:
    """GGUF metadata of architecture `gpt2` as a config.json."""
    own = kit.gguf_own(meta)
    return {
        "model_type": "gpt2",
        "vocab_size": kit.gguf_vocab(meta),
        "n_embd": own.whole("embedding_length"),
        "n_inner": own.whole("feed_forward_length"),
        "n_layer": own.whole("block_count"),
        "n_head": own.whole("attention.head_count"),
        "n_positions": own.whole("context_length"),
        "layer_norm_epsilon": kit.gguf_number(own, "attention.layer_norm_epsilon"),
        **kit.gguf_ends(meta, tensors),
    }


def gguf_names(spec: ModelSpec) -> Names:
    """Names in a GGUF file, whose matrices are [out, in] as here, with q, k and v still one."""
    return {**kit.fused(kit.GGUF_NAMES, {kit.QKV: "blk.*.attn_qkv"}), f"{kit.DECODER}.stem.positions": "position_embd"}


_SIZES: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 113,
    "n_embd": 30,
    "n_layer": 3,
    "n_head": 3,
    "n_positions": 64,
    "layer_norm_epsilon": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 1,
}

TINY: dict[str, dict[str, Any]] = {
    "default": _SIZES,
    "inner": _SIZES | {"n_inner": 67, "activation_function": "relu", "tie_word_embeddings": False},
    "scaled": _SIZES | {"n_head": 5, "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
}

FAMILY = Family(
    name="gpt2",
    read=read,
    describe=describe,
    names=names,
    gguf_config=gguf_config,
    gguf_names=gguf_names,
    tiny=TINY,
    prefix="transformer.",
    ignore=("*.attn.bias", "*.attn.masked_bias"),
)
