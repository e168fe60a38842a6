"""Llama 2 and 3, SmolLM2, TinyLlama: pre-norm RMSNorm, rotary positions, grouped queries, SwiGLU."""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.checkpoint.rules import Key, Names, Pairs
from headway.families import kit
from headway.families.kit import Config, Family, Tensors
from headway.spec.check import check
from headway.spec.mixers import Attention, FeedForward
from headway.spec.model import Branch, LayerSpec, ModelSpec, StackSpec, Step, Tie
from headway.spec.parts import Norm
from headway.spec.position import GivenScaling, Mask
from headway.spec.stems import LMHead, TokenStem


def read(config: Config) -> ModelSpec:
    """The spec of a `model_type: llama` config."""
    width, heads = config.int("hidden_size"), config.int("num_attention_heads")
    head_dim = config.int("head_dim", width // heads)
    norm = Norm(kind="rms", eps=config.float("rms_norm_eps", 1e-6))
    attention = Attention(
        heads=heads,
        kv_heads=config.int("num_key_value_heads", heads),
        head_dim=head_dim,
        value_dim=head_dim,
        scale=head_dim**-0.5,
        mask=Mask.causal(),
        rope=kit.read_rope(config, head_dim, base=10000.0),
        biases="qkvo" if config.bool("attention_bias", False) else "",
    )
    feed_forward = FeedForward(
        hidden=config.int("intermediate_size"),
        activation=config.activation("hidden_act", "silu"),
        gated=True,
        bias=config.bool("mlp_bias", False),
    )
    layer = LayerSpec(
        steps=(
            Step(branches=(Branch(name="attention", mixer=attention, norm=norm),)),
            Step(branches=(Branch(name="feed_forward", mixer=feed_forward, norm=norm),)),
        )
    )
    vocab = config.int("vocab_size")
    decoder = StackSpec(
        name="decoder",
        width=width,
        context=config.int("max_position_embeddings", 2048),
        stem=TokenStem(vocab=vocab, width=width),
        layers=(layer,) * config.int("num_hidden_layers"),
        final_norm=norm,
    )
    tie = Tie(alias="heads.lm.weight", owner="stacks.decoder.stem.tokens.weight")
    return check(
        ModelSpec(
            name="llama",
            family="llama",
            stacks=(decoder,),
            heads=(LMHead(name="lm", stack="decoder", vocab=vocab),),
            ties=(tie,) if config.bool("tie_word_embeddings", False) else (),
        )
    )


def write(spec: ModelSpec) -> dict[str, Any]:
    """The config.json of `spec`."""
    decoder = spec.decoder
    layer = kit.common(decoder.layers, "layers", "llama")
    attention, feed_forward = (branch.mixer for branch in layer.branches)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": decoder.stem.vocab,
        "hidden_size": decoder.width,
        "intermediate_size": feed_forward.hidden,
        "num_hidden_layers": len(decoder.layers),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "hidden_act": feed_forward.activation,
        "max_position_embeddings": decoder.context,
        "rms_norm_eps": decoder.final_norm.eps,
        "rope_parameters": kit.write_rope(attention.rope),
        "attention_bias": bool(attention.biases),
        "mlp_bias": feed_forward.bias,
        "tie_word_embeddings": bool(spec.ties),
    }


def names(spec: ModelSpec) -> Names:
    """Names in a safetensors file."""
    return kit.HF_NAMES


def gguf_config(meta: Config, tensors: Tensors) -> dict[str, Any]:
    """GGUF metadata of architecture `llama` as a config.json."""
    raise NotImplementedError


def gguf_names(spec: ModelSpec) -> Names:
    """Names in a GGUF file, whose query and key rows are in interleaved rotary order."""
    attention = next(spec.decoder.layers[0].branches).mixer
    assert isinstance(attention, Attention)
    turned = Pairs(attention.head_dim)
    return {
        **kit.GGUF_NAMES,
        f"{kit.LAYER}.attention.q": Key("blk.*.attn_q", (turned,)),
        f"{kit.LAYER}.attention.k": Key("blk.*.attn_k", (turned,)),
    }
