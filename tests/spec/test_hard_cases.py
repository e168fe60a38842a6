"""The published shapes that break toolkits, written as plain values: none needs a flag of its own."""

from __future__ import annotations

from headway.spec import (
    Attention,
    Branch,
    BucketBias,
    FeedForward,
    HeadNorm,
    LayerSpec,
    LinearScaling,
    LMHead,
    Mask,
    ModelSpec,
    Norm,
    Rope,
    StackSpec,
    Step,
    Tie,
    TokenStem,
    check,
    dumps,
    loads,
)
from headway.spec.count import cache_bytes, parameters, shapes

RMS = Norm(kind="rms", eps=1e-6)


def holds(spec: ModelSpec) -> ModelSpec:
    assert check(spec) is spec
    assert loads(dumps(spec)) == spec
    return spec


def pre(name: str, mixer: Attention | FeedForward, norm: Norm = RMS) -> Step:
    return Step(branches=(Branch(name=name, mixer=mixer, norm=norm),))


def test_t5_states_its_scale_and_shares_one_bias_a_stack() -> None:
    def attend(mask: Mask, source: str = "self", bias: str = "") -> Attention:
        return Attention(
            heads=8, kv_heads=8, head_dim=64, value_dim=64, scale=1.0, mask=mask, bias=bias, source=source
        )  # fmt: skip

    def stack(name: str, bidirectional: bool, *steps: Step) -> StackSpec:
        bias = BucketBias(name="rel", heads=8, buckets=32, max_distance=128, bidirectional=bidirectional)
        return StackSpec(
            name=name,
            width=512,
            context=512,
            stem=TokenStem(vocab=32128, width=512),
            layers=(LayerSpec(steps=steps),) * 6,
            final_norm=RMS,
            biases=(bias,),
            memory="" if bidirectional else "encoder",
        )

    inner = pre("feed_forward", FeedForward(hidden=2048, activation="relu"))
    encoder = stack("encoder", True, pre("attention", attend(Mask(), bias="rel")), inner)
    own, cross = attend(Mask.causal(), bias="rel"), attend(Mask(), source="memory")
    decoder = stack("decoder", False, pre("attention", own), pre("cross_attention", cross), inner)
    embedding = "stacks.encoder.stem.tokens.weight"
    spec = ModelSpec(
        name="t5-small",
        family="t5",
        stacks=(encoder, decoder),
        heads=(LMHead(name="lm", stack="decoder", vocab=32128, scale=512**-0.5),),
        ties=tuple(Tie(alias=a, owner=embedding) for a in ("stacks.decoder.stem.tokens.weight", "heads.lm.weight")),
    )
    assert parameters(holds(spec)) == 60_506_624
    assert sum("biases.rel" in path for path in shapes(spec)) == 2


def test_gemma3_is_two_attention_values_and_its_window_bounds_the_cache() -> None:
    norm = Norm(kind="rms", eps=1e-6, offset=1.0)

    def attend(mask: Mask, rope: Rope) -> Attention:
        return Attention(
            heads=4, kv_heads=1, head_dim=256, value_dim=256, scale=256**-0.5, mask=mask, rope=rope,
            qk_norm=HeadNorm(norm=norm),
        )  # fmt: skip

    def both(mixer: Attention) -> LayerSpec:
        inner = FeedForward(hidden=2048, activation="gelu_tanh", gated=True)
        return LayerSpec(
            steps=tuple(
                Step(branches=(Branch(name=name, mixer=m, norm=norm, norm_out=norm),))
                for name, m in (("attention", mixer), ("feed_forward", inner))
            )
        )

    local = both(attend(Mask.causal(512), Rope(dim=256, base=1e4)))
    wide = both(attend(Mask.causal(), Rope(dim=256, base=1e6, scaling=LinearScaling(factor=8.0))))
    spec = ModelSpec(
        name="gemma3-270m",
        family="gemma",
        stacks=(
            StackSpec(
                name="decoder",
                width=640,
                context=32768,
                stem=TokenStem(vocab=262144, width=640, scale=640**0.5, round_scale=True),
                layers=((local,) * 5 + (wide,)) * 3,
                final_norm=norm,
            ),
        ),
        heads=(LMHead(name="lm", stack="decoder", vocab=262144),),
        ties=(Tie(alias="heads.lm.weight", owner="stacks.decoder.stem.tokens.weight"),),
    )
    assert parameters(holds(spec)) == 268_098_176
    assert cache_bytes(spec, 32768, 1, 2) == 2 * 512 * (15 * 512 + 3 * 32768)


def test_palm_is_two_branches_of_one_step() -> None:
    attend = Attention(
        heads=6, kv_heads=1, head_dim=8, value_dim=8, scale=8**-0.5, mask=Mask.causal(), rope=Rope(dim=8, base=1e4)
    )
    inner = FeedForward(hidden=96, activation="silu", gated=True)
    branches = (Branch(name="attention", mixer=attend), Branch(name="feed_forward", mixer=inner))
    norm = Norm(kind="layer", eps=1e-5)
    step = Step(branches=branches, inner=norm)
    stack = StackSpec(
        name="decoder",
        width=40,
        context=2048,
        stem=TokenStem(vocab=50, width=40),
        layers=(LayerSpec(steps=(step,)),) * 2,
    )
    spec = ModelSpec(name="palm", family="palm", stacks=(stack,), heads=(LMHead(name="lm", stack="decoder", vocab=50),))
    assert [path for path in shapes(holds(spec)) if "inner" in path] == [
        f"stacks.decoder.layers.{index}.attention_inner.weight" for index in range(2)
    ]


def test_albert_is_layers_tied_to_the_first_and_a_narrow_embedding() -> None:
    attend = Attention(heads=4, kv_heads=4, head_dim=8, value_dim=8, scale=8**-0.5, mask=Mask(), biases="qkvo")
    inner = FeedForward(hidden=64, activation="gelu_tanh", bias=True)
    norm = Norm(kind="layer", eps=1e-12, bias=True)
    steps = tuple(
        Step(branches=(Branch(name=name, mixer=mixer),), outer=norm)
        for name, mixer in (("attention", attend), ("feed_forward", inner))
    )
    stack = StackSpec(
        name="encoder",
        width=32,
        context=512,
        stem=TokenStem(vocab=50, width=12, types=2, norm=norm),
        layers=(LayerSpec(steps=steps),) * 12,
    )
    first = "stacks.encoder.layers.0"
    ties = tuple(Tie(alias=f"stacks.encoder.layers.{index}", owner=first) for index in range(1, 12))
    spec = ModelSpec(name="albert", family="albert", stacks=(stack,), heads=(), ties=ties)
    assert {path.split(".layers.")[1].split(".")[0] for path in shapes(holds(spec)) if ".layers." in path} == {"0"}
