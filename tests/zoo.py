"""Small decoders with awkward sizes, one for every thing that the algebra can say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headway.spec import (
    Alibi,
    Attention,
    Branch,
    BucketBias,
    FeedForward,
    HeadNorm,
    LayerScale,
    LayerSpec,
    LearnedPositions,
    LMHead,
    LongRopeScaling,
    Mask,
    ModelSpec,
    Norm,
    Rope,
    SinusoidalPositions,
    StackSpec,
    Step,
    Tie,
    TokenStem,
    YarnScaling,
    check,
)
from headway.spec.parts import Init

WIDTH, VOCAB, HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM, HIDDEN = 40, 97, 6, 2, 10, 14, 52
RMS = Norm(kind="rms", eps=1e-5)
LAYER = Norm(kind="layer", eps=1e-5, bias=True)


def attention(**changes: Any) -> Attention:
    plain = Attention(
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        value_dim=VALUE_DIM,
        scale=0.3,
        mask=Mask.causal(),
        rope=Rope(dim=HEAD_DIM, base=500.0),
    )
    return replace(plain, **changes)


def feed_forward(**changes: Any) -> FeedForward:
    return replace(FeedForward(hidden=HIDDEN, activation="silu", gated=True), **changes)


def layer(mixer: Attention, inner: FeedForward | None = None, norm: Norm = RMS, **branch: Any) -> LayerSpec:
    """A pre-norm layer."""
    second = inner or feed_forward()
    return LayerSpec(
        steps=(
            Step(branches=(Branch(name="attention", mixer=mixer, norm=norm, **branch),)),
            Step(branches=(Branch(name="feed_forward", mixer=second, norm=norm, **branch),)),
        )
    )


def decoder(*layers: LayerSpec, tied: bool = False, head: dict[str, Any] | None = None, **stack: Any) -> ModelSpec:
    """A decoder of these layers; `stack` and `head` change fields of its stack and head."""
    plain = StackSpec(
        name="decoder", width=WIDTH, context=64, stem=TokenStem(vocab=VOCAB, width=WIDTH), layers=layers, final_norm=RMS
    )
    tie = Tie(alias="heads.lm.weight", owner="stacks.decoder.stem.tokens.weight")
    return check(
        ModelSpec(
            name="tiny",
            family="headway",
            stacks=(replace(plain, **stack),),
            heads=(replace(LMHead(name="lm", stack="decoder", vocab=VOCAB), **(head or {})),),
            ties=(tie,) if tied else (),
            init=Init(std=0.25, depth_scaled=False),
        )
    )


def _stem(**changes: Any) -> TokenStem:
    return replace(TokenStem(vocab=VOCAB, width=WIDTH), **changes)


def _post_norm() -> LayerSpec:
    plain = feed_forward(gated=False, activation="relu")
    return LayerSpec(
        steps=(
            Step(branches=(Branch(name="attention", mixer=attention(biases="qkvo")),), outer=LAYER),
            Step(branches=(Branch(name="feed_forward", mixer=plain),), outer=LAYER),
        )
    )


def _sandwich() -> LayerSpec:
    norm = Norm(kind="rms", eps=1e-6, offset=1.0)
    return layer(attention(), feed_forward(activation="gelu_tanh"), norm=norm, norm_out=norm)


def _parallel() -> LayerSpec:
    both = (Branch(name="attention", mixer=attention()), Branch(name="feed_forward", mixer=feed_forward(gated=False)))
    return LayerSpec(steps=(Step(branches=both, inner=LAYER, residual=0.9),))


ZOO: dict[str, ModelSpec] = {
    "rotary": decoder(layer(attention()), layer(attention()), tied=True),
    "multi_query": decoder(layer(attention(kv_heads=1)), layer(attention(kv_heads=1))),
    "partial_interleaved": decoder(
        layer(attention(rope=Rope(dim=6, base=500.0, pairing="interleaved"))),
        layer(attention(rope=None)),
        layer(attention()),
    ),
    "yarn": decoder(
        layer(
            attention(
                rope=Rope(
                    dim=HEAD_DIM,
                    base=500.0,
                    scaling=YarnScaling(
                        factor=4.0, original=8, beta_fast=32.0, beta_slow=1.0, attention=1.1, truncate=True
                    ),
                )
            )
        ),
        layer(attention()),
    ),
    "longrope": decoder(
        *(
            layer(
                attention(
                    rope=Rope(
                        dim=HEAD_DIM,
                        base=500.0,
                        scaling=LongRopeScaling(
                            short=(1.0, 1.1, 1.2, 1.3, 1.4), long=(1.0, 2.0, 3.0, 5.0, 8.0), original=9, attention=1.2
                        ),
                    )
                )
            )
            for _ in range(2)
        )
    ),
    "learned": decoder(
        layer(
            attention(rope=None, kv_heads=HEADS, biases="qkvo"),
            feed_forward(gated=False, activation="gelu", bias=True),
            LAYER,
        ),
        layer(attention(rope=None, kv_heads=HEADS, biases="qkv"), feed_forward(activation="gelu_quick"), LAYER),
        stem=_stem(positions=LearnedPositions(length=64, offset=2)),
        final_norm=LAYER,
        tied=True,
    ),
    "sinusoidal_post_norm": decoder(
        _post_norm(), _post_norm(), stem=_stem(positions=SinusoidalPositions(), scale=3.0), final_norm=None
    ),
    "alibi": decoder(
        layer(attention(rope=None, bias="alibi")),
        layer(attention(rope=None, bias="alibi")),
        biases=(Alibi(name="alibi", heads=HEADS),),
        stem=_stem(norm=LAYER),
    ),
    "bucketed": decoder(
        layer(attention(rope=None, bias="rel")),
        layer(attention(rope=None, bias="rel", mask=Mask.causal(4))),
        biases=(BucketBias(name="rel", heads=HEADS, buckets=8, max_distance=11, bidirectional=False),),
    ),
    "window": decoder(layer(attention(mask=Mask.causal(4))), layer(attention()), layer(attention(mask=Mask.causal(7)))),
    "softcap_sandwich": decoder(
        _sandwich(),
        layer(attention(softcap=1.5, qk_norm=HeadNorm(norm=Norm(kind="rms", eps=1e-6, offset=1.0)))),
        head={"softcap": 3.0},
        stem=_stem(scale=6.3, round_scale=True),
    ),
    "sinks_window": decoder(layer(attention(sinks=True, mask=Mask.causal(4))), layer(attention(sinks=True))),
    "norm_over_heads": decoder(
        layer(attention(qk_norm=HeadNorm(norm=RMS, over="heads"))), layer(attention(kv_heads=3))
    ),
    "parallel": decoder(_parallel(), _parallel(), head={"scale": 0.4, "bias": True}),
    "layer_scale": decoder(layer(attention(), scale=LayerScale(initial=0.3)), layer(attention(), scale=0.7)),
    "factorised": decoder(layer(attention()), stem=_stem(width=24, types=3)),
}
