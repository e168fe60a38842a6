"""The reference against transformers: other people's code, the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest

from headway.reference import attend, bucket, forward, greedy, hidden, rope_frequencies, sinusoid, worked
from headway.reference.position import alibi_slopes, rope_magnitude
from headway.spec import (
    Alibi,
    Attention,
    Branch,
    BucketBias,
    DynamicScaling,
    FeedForward,
    HeadNorm,
    LayerSpec,
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    LMHead,
    LongRopeScaling,
    Mask,
    ModelSpec,
    Norm,
    Rope,
    Scaling,
    SinusoidalPositions,
    StackSpec,
    Step,
    Tie,
    TokenStem,
    YarnScaling,
    check,
)
from headway.spec.count import shapes
from headway.spec.position import longrope_attention, yarn_attention

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

TOKENS = [3, 17, 5, 5, 29, 11, 2, 40, 8, 31, 23, 9, 14, 14, 6, 37, 1, 20, 33, 12, 7, 25]
VOCAB, WIDTH, HIDDEN = 43, 24, 33

Pick = Callable[[Any], Any]
Names = dict[str, str | tuple[str, Pick]]


def rows(start: int, stop: int | None) -> Pick:
    """Rows of a matrix that fuses several, stored [out, in]."""
    return lambda tensor: tensor[start:stop]


def columns(start: int = 0, stop: int | None = None) -> Pick:
    """Rows of a matrix (or entries of a bias) that fuses several, stored [in, out]."""
    return lambda tensor: tensor[..., start:stop].t()


def interleaved(part: int, heads: int) -> Pick:
    """The query, key or value rows of a matrix that fuses them head by head."""
    return lambda tensor: tensor.unflatten(0, (heads, 3, -1))[:, part].flatten(0, 1)


def whole(tensor: Any) -> Any:
    """The tensor as it is."""
    return tensor


def weights_of(spec: ModelSpec, model: Any, names: Names) -> dict[str, Any]:
    """Nested lists for every path of the spec; a `*` of a name stands for the layer in both worlds."""
    theirs = model.state_dict()
    found = {}
    for path in shapes(spec):
        name = next(name for pattern, name in names.items() if fnmatchcase(path, pattern))
        source, pick = (name, whole) if isinstance(name, str) else name
        layer = path.split(".")[3] if ".layers." in path else ""
        kind = path.rsplit(".", 1)[1]
        found[path] = pick(theirs[source.replace("*", layer).replace("{}", kind)]).tolist()
    return found


def randomized(model: Any) -> Any:
    """Weights large enough to bend every nonlinearity, small enough to keep float32 exact to 1e-4."""
    torch.manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0, 0.25)
    return model.eval()


def assert_same(spec: ModelSpec, model: Any, names: Names, tokens: list[int] = TOKENS, **inputs: Any) -> None:
    check(spec)
    ours = forward(spec, weights_of(spec, model, names), tokens)
    with torch.no_grad():
        theirs = model(torch.tensor([tokens]), **inputs).logits[0]
    assert theirs.std() > 0.1
    assert torch.allclose(torch.tensor(ours), theirs, rtol=0, atol=1e-4)


def decoder(
    layers: tuple[LayerSpec, ...], stem: TokenStem | None = None, tied: bool = False, **fields: Any
) -> ModelSpec:
    head = fields.pop("head", LMHead(name="lm", stack="decoder", vocab=VOCAB))
    stack = StackSpec(
        name="decoder",
        width=WIDTH,
        context=64,
        stem=stem or TokenStem(vocab=VOCAB, width=WIDTH),
        layers=layers,
        **fields,
    )
    ties = (Tie(alias="heads.lm.weight", owner="stacks.decoder.stem.tokens.weight"),) if tied else ()
    return ModelSpec(name="tiny", family="tiny", stacks=(stack,), heads=(head,), ties=ties)


def pre_norm(attention: Attention, feed_forward: FeedForward, norm: Norm) -> LayerSpec:
    return LayerSpec(
        steps=(
            Step(branches=(Branch(name="attention", mixer=attention, norm=norm),)),
            Step(branches=(Branch(name="feed_forward", mixer=feed_forward, norm=norm),)),
        )
    )


def parallel(attention: Attention, feed_forward: FeedForward, norm: Norm) -> LayerSpec:
    branches = (Branch(name="attention", mixer=attention), Branch(name="feed_forward", mixer=feed_forward))
    return LayerSpec(steps=(Step(branches=branches, inner=norm),))


def sandwich(attention: Attention, feed_forward: FeedForward, norm: Norm) -> LayerSpec:
    return LayerSpec(
        steps=(
            Step(branches=(Branch(name="attention", mixer=attention, norm=norm, norm_out=norm),)),
            Step(branches=(Branch(name="feed_forward", mixer=feed_forward, norm=norm, norm_out=norm),)),
        )
    )


LAYER = "stacks.decoder.layers.*"
LLAMA: Names = {
    "stacks.decoder.stem.tokens.weight": "model.embed_tokens.weight",
    **{f"{LAYER}.attention.{x}.*": f"model.layers.*.self_attn.{x}_proj.{{}}" for x in "qkvo"},
    **{f"{LAYER}.attention.{x}_norm.weight": f"model.layers.*.self_attn.{x}_norm.weight" for x in "qk"},
    **{f"{LAYER}.feed_forward.{x}.*": f"model.layers.*.mlp.{x}_proj.{{}}" for x in ("gate", "up", "down")},
    f"{LAYER}.attention_norm.*": "model.layers.*.input_layernorm.{}",
    f"{LAYER}.feed_forward_norm.*": "model.layers.*.post_attention_layernorm.{}",
    "stacks.decoder.final_norm.*": "model.norm.{}",
    "heads.lm.weight": "lm_head.weight",
}
GEMMA: Names = {
    f"{LAYER}.attention_norm_out.*": "model.layers.*.post_attention_layernorm.{}",
    f"{LAYER}.feed_forward_norm.*": "model.layers.*.pre_feedforward_layernorm.{}",
    f"{LAYER}.feed_forward_norm_out.*": "model.layers.*.post_feedforward_layernorm.{}",
    **{name: theirs for name, theirs in LLAMA.items() if "feed_forward_norm" not in name},
}

DIM, BASE = 10, 10000.0
ROPES: dict[str, tuple[dict[str, Any], Scaling | None]] = {
    "plain": ({"rope_type": "default"}, None),
    "linear": ({"rope_type": "linear", "factor": 3.0}, LinearScaling(factor=3.0)),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.0}, DynamicScaling(factor=2.0, original=16)),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        Llama3Scaling(factor=4.0, low=1.0, high=4.0, original=16),
    ),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
        YarnScaling(
            factor=4.0, original=256, beta_fast=32.0, beta_slow=1.0, attention=yarn_attention(4.0), truncate=True
        ),
    ),
    "yarn untruncated": (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 512,
            "beta_fast": 20.0,
            "beta_slow": 2.0,
            "truncate": False,
            "attention_factor": 0.9,
        },
        YarnScaling(factor=4.0, original=512, beta_fast=20.0, beta_slow=2.0, attention=0.9, truncate=False),
    ),
    "longrope": (
        {
            "rope_type": "longrope",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4],
            "long_factor": [1.5, 2.0, 3.0, 5.0, 8.0],
        },
        LongRopeScaling(
            short=(1.0, 1.1, 1.2, 1.3, 1.4),
            long=(1.5, 2.0, 3.0, 5.0, 8.0),
            original=16,
            attention=longrope_attention(4.0, 16),
        ),
    ),
}


def llama_config(parameters: dict[str, Any]) -> Any:
    return transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=DIM,
        max_position_embeddings=16,
        rope_parameters={"rope_theta": BASE, **parameters},
        attention_bias=True,
        attn_implementation="eager",
    )


def llama(scaling: Scaling | None) -> ModelSpec:
    norm = Norm(kind="rms", eps=1e-6)
    attention = Attention(
        heads=6,
        kv_heads=2,
        head_dim=DIM,
        value_dim=DIM,
        scale=DIM**-0.5,
        mask=Mask.causal(),
        rope=Rope(dim=DIM, base=BASE, scaling=scaling),
        biases="qkvo",
    )
    layer = pre_norm(attention, FeedForward(hidden=HIDDEN, activation="silu", gated=True), norm)
    return decoder((layer, layer), final_norm=norm)


@pytest.mark.parametrize("length", [9, 16, len(TOKENS)])
@pytest.mark.parametrize("kind", ROPES)
def test_llama_agrees_under_every_rope(kind: str, length: int) -> None:
    parameters, scaling = ROPES[kind]
    model = randomized(transformers.LlamaForCausalLM(llama_config(parameters)))
    assert_same(llama(scaling), model, LLAMA, TOKENS[:length])


@pytest.mark.parametrize("length", [9, 200])
@pytest.mark.parametrize("kind", [kind for kind in ROPES if kind != "plain"])
def test_frequencies_agree_with_the_published_rules(kind: str, length: int) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters, scaling = ROPES[kind]
    rope = Rope(dim=DIM, base=BASE, scaling=scaling)
    theirs, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](llama_config(parameters), "cpu", seq_len=length)
    assert rope_frequencies(rope, length) == pytest.approx(theirs.tolist(), rel=1e-6)
    assert rope_magnitude(rope) == pytest.approx(factor)


def test_greedy_agrees_with_generate() -> None:
    model = randomized(transformers.LlamaForCausalLM(llama_config({"rope_type": "default"})))
    spec = llama(None)
    ours = greedy(spec, weights_of(spec, model, LLAMA), TOKENS[:4], 6)
    theirs = model.generate(
        torch.tensor([TOKENS[:4]]), max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert ours == theirs[0, 4:].tolist()


def test_worked_example_agrees_with_attention_weights() -> None:
    model = randomized(transformers.LlamaForCausalLM(llama_config({"rope_type": "default"})))
    spec = llama(None)
    ours = worked(spec, weights_of(spec, model, LLAMA), TOKENS, layer=1, head=4)
    with torch.no_grad():
        theirs = model(torch.tensor([TOKENS]), output_attentions=True).attentions[1][0, 4]
    assert torch.allclose(torch.tensor(ours.weights), theirs, atol=1e-5)


@pytest.mark.parametrize("length", [9, len(TOKENS)])
def test_phi3_agrees_with_partial_longrope_and_fused_matrices(length: int) -> None:
    short, long, original = (1.0, 1.1, 1.2), (1.5, 3.0, 8.0), 16
    config = transformers.Phi3Config(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=64,
        original_max_position_embeddings=original,
        sliding_window=7,
        pad_token_id=0,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": BASE,
            "partial_rotary_factor": 0.75,
            "short_factor": list(short),
            "long_factor": list(long),
            "original_max_position_embeddings": original,
        },
        attn_implementation="eager",
    )
    norm = Norm(kind="rms", eps=config.rms_norm_eps)
    scaling = LongRopeScaling(short=short, long=long, original=original, attention=longrope_attention(4.0, original))
    attention = Attention(
        heads=3,
        kv_heads=1,
        head_dim=8,
        value_dim=8,
        scale=8**-0.5,
        mask=Mask.causal(7),
        rope=Rope(dim=6, base=BASE, scaling=scaling),
    )
    layer = pre_norm(attention, FeedForward(hidden=HIDDEN, activation="silu", gated=True), norm)
    names: Names = {
        f"{LAYER}.attention.q.weight": ("model.layers.*.self_attn.qkv_proj.weight", rows(0, 24)),
        f"{LAYER}.attention.k.weight": ("model.layers.*.self_attn.qkv_proj.weight", rows(24, 32)),
        f"{LAYER}.attention.v.weight": ("model.layers.*.self_attn.qkv_proj.weight", rows(32, 40)),
        f"{LAYER}.feed_forward.gate.weight": ("model.layers.*.mlp.gate_up_proj.weight", rows(0, HIDDEN)),
        f"{LAYER}.feed_forward.up.weight": ("model.layers.*.mlp.gate_up_proj.weight", rows(HIDDEN, None)),
        **LLAMA,
    }
    model = randomized(transformers.Phi3ForCausalLM(config))
    assert_same(decoder((layer, layer), final_norm=norm), model, names, TOKENS[:length])


def test_gpt2_agrees_with_learned_positions() -> None:
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=WIDTH, n_layer=2, n_head=3, n_inner=HIDDEN, attn_implementation="eager"
    )
    norm = Norm(kind="layer", eps=1e-5, bias=True)
    attention = Attention(
        heads=3, kv_heads=3, head_dim=8, value_dim=8, scale=8**-0.5, mask=Mask.causal(), biases="qkvo"
    )
    layer = pre_norm(attention, FeedForward(hidden=HIDDEN, activation="gelu_tanh", bias=True), norm)
    stem = TokenStem(vocab=VOCAB, width=WIDTH, positions=LearnedPositions(length=32))
    fused = {
        f"{LAYER}.attention.{x}.*": ("transformer.h.*.attn.c_attn.{}", columns(24 * i, 24 * i + 24))
        for i, x in enumerate("qkv")
    }
    names: Names = {
        "stacks.decoder.stem.tokens.weight": "transformer.wte.weight",
        "stacks.decoder.stem.positions.weight": "transformer.wpe.weight",
        **fused,
        f"{LAYER}.attention.o.*": ("transformer.h.*.attn.c_proj.{}", columns()),
        f"{LAYER}.feed_forward.up.*": ("transformer.h.*.mlp.c_fc.{}", columns()),
        f"{LAYER}.feed_forward.down.*": ("transformer.h.*.mlp.c_proj.{}", columns()),
        f"{LAYER}.attention_norm.*": "transformer.h.*.ln_1.{}",
        f"{LAYER}.feed_forward_norm.*": "transformer.h.*.ln_2.{}",
        "stacks.decoder.final_norm.*": "transformer.ln_f.{}",
    }
    model = randomized(transformers.GPT2LMHeadModel(config))
    assert_same(decoder((layer, layer), stem, tied=True, final_norm=norm), model, names)


def test_opt_agrees_with_positions_from_the_third_row() -> None:
    config = transformers.OPTConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        word_embed_proj_dim=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=3,
        ffn_dim=HIDDEN,
        max_position_embeddings=32,
        attn_implementation="eager",
    )
    norm = Norm(kind="layer", eps=1e-5, bias=True)
    attention = Attention(
        heads=3, kv_heads=3, head_dim=8, value_dim=8, scale=8**-0.5, mask=Mask.causal(), biases="qkvo"
    )
    layer = pre_norm(attention, FeedForward(hidden=HIDDEN, activation="relu", bias=True), norm)
    stem = TokenStem(vocab=VOCAB, width=WIDTH, positions=LearnedPositions(length=32, offset=2))
    root = "model.decoder"
    names: Names = {
        "stacks.decoder.stem.tokens.weight": f"{root}.embed_tokens.weight",
        "stacks.decoder.stem.positions.weight": f"{root}.embed_positions.weight",
        **{f"{LAYER}.attention.{x}.*": f"{root}.layers.*.self_attn.{x}_proj.{{}}" for x in "qkv"},
        f"{LAYER}.attention.o.*": f"{root}.layers.*.self_attn.out_proj.{{}}",
        f"{LAYER}.feed_forward.up.*": f"{root}.layers.*.fc1.{{}}",
        f"{LAYER}.feed_forward.down.*": f"{root}.layers.*.fc2.{{}}",
        f"{LAYER}.attention_norm.*": f"{root}.layers.*.self_attn_layer_norm.{{}}",
        f"{LAYER}.feed_forward_norm.*": f"{root}.layers.*.final_layer_norm.{{}}",
        "stacks.decoder.final_norm.*": f"{root}.final_layer_norm.{{}}",
    }
    model = randomized(transformers.OPTForCausalLM(config))
    assert_same(decoder((layer, layer), stem, tied=True, final_norm=norm), model, names)


def test_gemma2_agrees_with_caps_windows_and_sandwiches() -> None:
    config = transformers.Gemma2Config(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=10,
        query_pre_attn_scalar=17,
        sliding_window=5,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        attn_implementation="eager",
    )
    norm = Norm(kind="rms", eps=1e-6, offset=1.0)
    attention = Attention(
        heads=4,
        kv_heads=2,
        head_dim=10,
        value_dim=10,
        scale=17**-0.5,
        mask=Mask.causal(5),
        rope=Rope(dim=10, base=10000.0),
        softcap=2.0,
    )
    feed_forward = FeedForward(hidden=HIDDEN, activation="gelu_tanh", gated=True)
    near = sandwich(attention, feed_forward, norm)
    far = sandwich(replace(attention, mask=Mask.causal()), feed_forward, norm)
    stem = TokenStem(vocab=VOCAB, width=WIDTH, scale=WIDTH**0.5, round_scale=True)
    head = LMHead(name="lm", stack="decoder", vocab=VOCAB, softcap=3.0)
    spec = decoder((near, far), stem, tied=True, head=head, final_norm=norm)
    assert_same(spec, randomized(transformers.Gemma2ForCausalLM(config)), GEMMA)


def test_gemma3_agrees_with_two_ropes_and_normed_queries() -> None:
    config = transformers.Gemma3TextConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=10,
        query_pre_attn_scalar=10,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
        },
        attn_implementation="eager",
    )
    norm = Norm(kind="rms", eps=1e-6, offset=1.0)
    local = Attention(
        heads=4,
        kv_heads=1,
        head_dim=10,
        value_dim=10,
        scale=10**-0.5,
        mask=Mask.causal(5),
        rope=Rope(dim=10, base=100.0),
        qk_norm=HeadNorm(norm=norm),
    )
    rope = Rope(dim=10, base=10000.0, scaling=LinearScaling(factor=8.0))
    feed_forward = FeedForward(hidden=HIDDEN, activation="gelu_tanh", gated=True)
    near = sandwich(local, feed_forward, norm)
    far = sandwich(replace(local, mask=Mask.causal(), rope=rope), feed_forward, norm)
    stem = TokenStem(vocab=VOCAB, width=WIDTH, scale=WIDTH**0.5, round_scale=True)
    spec = decoder((near, far, near), stem, tied=True, final_norm=norm)
    assert_same(spec, randomized(transformers.Gemma3ForCausalLM(config)), GEMMA)


def test_olmo2_agrees_with_norms_over_all_heads_and_after_the_mixer() -> None:
    config = transformers.Olmo2Config(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        pad_token_id=0,
        attn_implementation="eager",
    )
    norm = Norm(kind="rms", eps=config.rms_norm_eps)
    attention = Attention(
        heads=6,
        kv_heads=2,
        head_dim=4,
        value_dim=4,
        scale=0.5,
        mask=Mask.causal(),
        rope=Rope(dim=4, base=10000.0),
        qk_norm=HeadNorm(norm=norm, over="heads"),
    )
    feed_forward = FeedForward(hidden=HIDDEN, activation="silu", gated=True)
    layer = LayerSpec(
        steps=(
            Step(branches=(Branch(name="attention", mixer=attention, norm_out=norm),)),
            Step(branches=(Branch(name="feed_forward", mixer=feed_forward, norm_out=norm),)),
        )
    )
    assert_same(decoder((layer, layer), final_norm=norm), randomized(transformers.Olmo2ForCausalLM(config)), GEMMA)


def test_cohere_agrees_with_parallel_branches_and_interleaved_pairs() -> None:
    config = transformers.CohereConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        logit_scale=0.25,
        pad_token_id=0,
        eos_token_id=1,
        attn_implementation="eager",
    )
    norm = Norm(kind="layer", eps=config.layer_norm_eps)
    attention = Attention(
        heads=6,
        kv_heads=3,
        head_dim=4,
        value_dim=4,
        scale=0.5,
        mask=Mask.causal(),
        rope=Rope(dim=4, base=config.rope_parameters["rope_theta"], pairing="interleaved"),
    )
    layer = parallel(attention, FeedForward(hidden=HIDDEN, activation="silu", gated=True), norm)
    head = LMHead(name="lm", stack="decoder", vocab=VOCAB, scale=0.25)
    names: Names = {f"{LAYER}.attention_inner.weight": "model.layers.*.input_layernorm.weight", **LLAMA}
    spec = decoder((layer, layer), tied=True, head=head, final_norm=norm)
    assert_same(spec, randomized(transformers.CohereForCausalLM(config)), names)


def test_gpt_neox_agrees_with_two_norms_in_one_step_and_a_quarter_turned() -> None:
    config = transformers.GPTNeoXConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=3,
        rotary_pct=0.25,
        use_parallel_residual=True,
        attn_implementation="eager",
    )
    norm = Norm(kind="layer", eps=1e-5, bias=True)
    attention = Attention(
        heads=3,
        kv_heads=3,
        head_dim=8,
        value_dim=8,
        scale=8**-0.5,
        mask=Mask.causal(),
        rope=Rope(dim=2, base=10000.0),
        biases="qkvo",
    )
    feed_forward = FeedForward(hidden=HIDDEN, activation="gelu", bias=True)
    branches = (
        Branch(name="attention", mixer=attention, norm=norm),
        Branch(name="feed_forward", mixer=feed_forward, norm=norm),
    )
    layer = LayerSpec(steps=(Step(branches=branches),))
    root = "gpt_neox.layers.*"
    names: Names = {
        "stacks.decoder.stem.tokens.weight": "gpt_neox.embed_in.weight",
        **{
            f"{LAYER}.attention.{x}.*": (f"{root}.attention.query_key_value.{{}}", interleaved(i, 3))
            for i, x in enumerate("qkv")
        },
        f"{LAYER}.attention.o.*": f"{root}.attention.dense.{{}}",
        f"{LAYER}.feed_forward.up.*": f"{root}.mlp.dense_h_to_4h.{{}}",
        f"{LAYER}.feed_forward.down.*": f"{root}.mlp.dense_4h_to_h.{{}}",
        f"{LAYER}.attention_norm.*": f"{root}.input_layernorm.{{}}",
        f"{LAYER}.feed_forward_norm.*": f"{root}.post_attention_layernorm.{{}}",
        "stacks.decoder.final_norm.*": "gpt_neox.final_layer_norm.{}",
        "heads.lm.weight": "lm_head.weight",
    }
    spec = decoder((layer, layer), final_norm=norm)
    assert_same(spec, randomized(transformers.GPTNeoXForCausalLM(config)), names)


def test_bloom_agrees_with_slopes_for_six_heads() -> None:
    config = transformers.BloomConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, n_layer=2, n_head=6, attn_implementation="eager"
    )
    norm = Norm(kind="layer", eps=1e-5, bias=True)
    attention = Attention(
        heads=6, kv_heads=6, head_dim=4, value_dim=4, scale=0.5, mask=Mask.causal(), bias="alibi", biases="qkvo"
    )
    layer = pre_norm(attention, FeedForward(hidden=4 * WIDTH, activation="gelu_tanh", bias=True), norm)
    root = "transformer.h.*"
    names: Names = {
        "stacks.decoder.stem.tokens.weight": "transformer.word_embeddings.weight",
        "stacks.decoder.stem.norm.*": "transformer.word_embeddings_layernorm.{}",
        **{
            f"{LAYER}.attention.{x}.*": (f"{root}.self_attention.query_key_value.{{}}", interleaved(i, 6))
            for i, x in enumerate("qkv")
        },
        f"{LAYER}.attention.o.*": f"{root}.self_attention.dense.{{}}",
        f"{LAYER}.feed_forward.up.*": f"{root}.mlp.dense_h_to_4h.{{}}",
        f"{LAYER}.feed_forward.down.*": f"{root}.mlp.dense_4h_to_h.{{}}",
        f"{LAYER}.attention_norm.*": f"{root}.input_layernorm.{{}}",
        f"{LAYER}.feed_forward_norm.*": f"{root}.post_attention_layernorm.{{}}",
        "stacks.decoder.final_norm.*": "transformer.ln_f.{}",
    }
    stem = TokenStem(vocab=VOCAB, width=WIDTH, norm=norm)
    spec = decoder((layer, layer), stem, tied=True, final_norm=norm, biases=(Alibi(name="alibi", heads=6),))
    assert_same(spec, randomized(transformers.BloomForCausalLM(config)), names)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 71])
@pytest.mark.parametrize("max_bias", [8, 4])
def test_alibi_slopes_agree_with_mpt(heads: int, max_bias: int) -> None:
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    ours = alibi_slopes(heads, max_bias)
    theirs = build_mpt_alibi_tensor(heads, 2, max_bias)
    assert [-slope for slope in ours] == pytest.approx(theirs[:, 0, 0].tolist())


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (64, 256)])
def test_buckets_agree_with_t5(buckets: int, max_distance: int, bidirectional: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    bias = BucketBias(name="rel", heads=1, buckets=buckets, max_distance=max_distance, bidirectional=bidirectional)
    distances = range(-400, 401)
    theirs = T5Attention._relative_position_bucket(torch.tensor(distances), bidirectional, buckets, max_distance)
    assert [bucket(bias, distance) for distance in distances] == theirs.tolist()


def test_t5_agrees_from_encoder_to_logits() -> None:
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=WIDTH,
        d_kv=5,
        d_ff=HIDDEN,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = randomized(transformers.T5ForConditionalGeneration(config))
    norm = Norm(kind="rms", eps=1e-6)
    own = Attention(heads=4, kv_heads=4, head_dim=5, value_dim=5, scale=1.0, mask=Mask(), bias="rel")
    cross = replace(own, bias="", source="memory")
    feed_forward = Step(
        branches=(
            Branch(
                name="feed_forward", mixer=FeedForward(hidden=HIDDEN, activation="gelu_tanh", gated=True), norm=norm
            ),
        )
    )
    encoder_layer = LayerSpec(steps=(Step(branches=(Branch(name="attention", mixer=own, norm=norm),)), feed_forward))
    decoder_layer = LayerSpec(
        steps=(
            Step(branches=(Branch(name="attention", mixer=replace(own, mask=Mask.causal()), norm=norm),)),
            Step(branches=(Branch(name="cross", mixer=cross, norm=norm),)),
            feed_forward,
        )
    )
    stem = TokenStem(vocab=VOCAB, width=WIDTH)
    bias = BucketBias(name="rel", heads=4, buckets=8, max_distance=12, bidirectional=True)
    encoder = StackSpec(
        name="encoder", width=WIDTH, context=64, stem=stem, layers=(encoder_layer,) * 2, final_norm=norm, biases=(bias,)
    )
    stack = replace(
        encoder,
        name="decoder",
        layers=(decoder_layer,) * 3,
        biases=(replace(bias, bidirectional=False),),
        memory="encoder",
    )
    spec = check(
        ModelSpec(
            name="t5",
            family="t5",
            stacks=(encoder, stack),
            heads=(LMHead(name="lm", stack="decoder", vocab=VOCAB, scale=WIDTH**-0.5),),
            ties=(
                Tie(alias="heads.lm", owner="stacks.decoder.stem.tokens"),
                Tie(alias="stacks.decoder.stem", owner="stacks.encoder.stem"),
            ),
        )
    )
    names: Names = {"stacks.encoder.stem.tokens.weight": "shared.weight"}
    for side, places in {"encoder": ["attention"], "decoder": ["attention", "cross"]}.items():
        block = f"{side}.block.*.layer"
        for number, name in enumerate(places):
            kind = "EncDecAttention" if name == "cross" else "SelfAttention"
            names[f"stacks.{side}.layers.*.{name}_norm.weight"] = f"{block}.{number}.layer_norm.weight"
            names |= {
                f"stacks.{side}.layers.*.{name}.{x}.weight": f"{block}.{number}.{kind}.{x}.weight" for x in "qkvo"
            }
        dense = f"{block}.{len(places)}"
        names[f"stacks.{side}.layers.*.feed_forward_norm.weight"] = f"{dense}.layer_norm.weight"
        for part, name in {"gate": "wi_0", "up": "wi_1", "down": "wo"}.items():
            names[f"stacks.{side}.layers.*.feed_forward.{part}.weight"] = f"{dense}.DenseReluDense.{name}.weight"
        first = f"{side}.block.0.layer.0.SelfAttention"
        names[f"stacks.{side}.biases.rel.weight"] = f"{first}.relative_attention_bias.weight"
        names[f"stacks.{side}.final_norm.weight"] = f"{side}.final_layer_norm.weight"
    source = TOKENS[:15]
    ours = forward(spec, weights_of(spec, model, names), TOKENS, memory_tokens=source)
    with torch.no_grad():
        theirs = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([TOKENS])).logits[0]
    assert theirs.std() > 0.1
    assert torch.allclose(torch.tensor(ours), theirs, rtol=0, atol=1e-4)


def test_bert_agrees_with_post_norm_types_and_no_mask() -> None:
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=HIDDEN,
        max_position_embeddings=32,
        attn_implementation="eager",
    )
    model = randomized(transformers.BertModel(config, add_pooling_layer=False))
    norm = Norm(kind="layer", eps=1e-12, bias=True)
    attention = Attention(heads=3, kv_heads=3, head_dim=8, value_dim=8, scale=8**-0.5, mask=Mask(), biases="qkvo")
    feed_forward = FeedForward(hidden=HIDDEN, activation="gelu", bias=True)
    layer = LayerSpec(
        steps=(
            Step(branches=(Branch(name="attention", mixer=attention),), outer=norm),
            Step(branches=(Branch(name="feed_forward", mixer=feed_forward),), outer=norm),
        )
    )
    stem = TokenStem(vocab=VOCAB, width=WIDTH, positions=LearnedPositions(length=32), types=2, norm=norm)
    spec = decoder((layer, layer), stem, tied=True)
    root = "encoder.layer.*"
    names: Names = {
        "stacks.decoder.stem.tokens.weight": "embeddings.word_embeddings.weight",
        "stacks.decoder.stem.positions.weight": "embeddings.position_embeddings.weight",
        "stacks.decoder.stem.types.weight": "embeddings.token_type_embeddings.weight",
        "stacks.decoder.stem.norm.*": "embeddings.LayerNorm.{}",
        **{
            f"{LAYER}.attention.{x}.*": f"{root}.attention.self.{name}.{{}}"
            for x, name in {"q": "query", "k": "key", "v": "value"}.items()
        },
        f"{LAYER}.attention.o.*": f"{root}.attention.output.dense.{{}}",
        f"{LAYER}.attention_outer.*": f"{root}.attention.output.LayerNorm.{{}}",
        f"{LAYER}.feed_forward.up.*": f"{root}.intermediate.dense.{{}}",
        f"{LAYER}.feed_forward.down.*": f"{root}.output.dense.{{}}",
        f"{LAYER}.feed_forward_outer.*": f"{root}.output.LayerNorm.{{}}",
    }
    types = [0] * 9 + [1] * (len(TOKENS) - 9)
    ours = hidden(spec, weights_of(spec, model, names), TOKENS, types=types)
    with torch.no_grad():
        theirs = model(torch.tensor([TOKENS]), token_type_ids=torch.tensor([types])).last_hidden_state[0]
    assert torch.allclose(torch.tensor(ours), theirs, rtol=0, atol=1e-4)


def test_sinks_agree_with_gpt_oss() -> None:
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    torch.manual_seed(3)
    q, k, v = torch.randn(1, 4, 7, 6), torch.randn(1, 2, 7, 6), torch.randn(1, 2, 7, 6)
    module = torch.nn.Module()
    module.sinks, module.num_key_value_groups = torch.nn.Parameter(torch.randn(4)), 2
    mask = torch.full((7, 7), -math.inf).triu(1)[None, None]
    with torch.no_grad():
        theirs, weights = eager_attention_forward(module, q, k, v, mask, scaling=0.7)
    for head in range(4):
        ours = attend(
            q[0, head].tolist(),
            k[0, head // 2].tolist(),
            v[0, head // 2].tolist(),
            scale=0.7,
            mask=Mask.causal(),
            sink=module.sinks[head].item(),
        )
        assert torch.allclose(torch.tensor(ours.weights), weights[0, head], atol=1e-6)
        assert torch.allclose(torch.tensor(ours.output), theirs[0, :, head], atol=1e-6)


def test_half_sinusoids_agree_with_marian() -> None:
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    theirs = MarianSinusoidalPositionalEmbedding(9, 10).create_weight()
    ours = [sinusoid(SinusoidalPositions(layout="half"), 10, position) for position in range(9)]
    assert torch.allclose(torch.tensor(ours), theirs, atol=1e-6)
