"""What family files are written with: the Family itself, the usual parts and the usual names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headway.checkpoint.rules import Key, Names, Pairs
from headway.errors import CheckpointError, SpecError
from headway.families.config import MOST_LAYERS, Config
from headway.families.ropes import Tensors, context_length, gguf_number, gguf_rope, read_rope, write_rope
from headway.spec.check import check
from headway.spec.codec import to_json
from headway.spec.mixers import Attention, FeedForward, Mixer
from headway.spec.model import Branch, LayerSpec, ModelSpec, StackSpec, Step, Tie
from headway.spec.parts import Activation, Init, Norm
from headway.spec.position import Rope
from headway.spec.stems import LMHead, TokenStem

__all__ = [
    "ACTIVATION_WORDS",
    "DECODER",
    "GATE_UP",
    "GGUF_NAMES",
    "HF_NAMES",
    "LAYER",
    "QKV",
    "Config",
    "Family",
    "Plain",
    "Tensors",
    "context_length",
    "fused",
    "gguf_ends",
    "gguf_fields",
    "gguf_number",
    "gguf_own",
    "gguf_turned",
    "gguf_vocab",
    "language_model",
    "layer_types",
    "num_layers",
    "plain",
    "pre_norm",
    "read_rope",
    "sliding_layers",
    "token_ids",
    "window_of",
    "write_rope",
]


def _no_gguf(meta: Config, tensors: Tensors) -> dict[str, Any]:
    """For a family whose GGUF files go under another one's architecture."""
    raise CheckpointError(f"{meta.file}: no GGUF architecture belongs to this family")


@dataclass(frozen=True)
class Family:
    """A published architecture: how its files are read, named and written.

    `read` turns a config.json into a spec and `describe` turns it back; call `write`, which proves the way back.
    `gguf_config` states GGUF metadata as the config.json that `read` takes.
    """

    name: str
    read: Callable[[Config], ModelSpec]
    describe: Callable[[ModelSpec], dict[str, Any]]
    names: Callable[[ModelSpec], Names]
    gguf_names: Callable[[ModelSpec], Names]
    tiny: Mapping[str, dict[str, Any]]  # small config.json's with awkward sizes, for tests and lessons
    gguf_config: Callable[[Config, Tensors], dict[str, Any]] = _no_gguf
    prefix: str = "model."  # what a file of the bare stack, without head, leaves out
    wrappings: Mapping[str, str] = field(
        default_factory=dict
    )  # prefix inside a larger model's file -> prefix in `names`
    ignore: tuple[str, ...] = ()  # names a file may hold and the model has no use for, `*` a wildcard

    def write(self, spec: ModelSpec) -> dict[str, Any]:
        """The config.json of `spec`; SpecError names the first value that such a file cannot hold."""
        config = self.describe(spec)
        back = to_json(replace(self.read(Config(config)), name=spec.name))
        if difference := _difference(to_json(spec), back):
            path, value, other = difference
            raise SpecError(f"{path} = {value} does not fit into a {self.name} config.json, which would say {other}")
        return config

    def spellings(self, name: str) -> Iterator[str]:
        """How a file may spell `name`: as it is, as a bare stack's, or inside a larger model."""
        yield name
        if name.startswith(self.prefix):
            yield name.removeprefix(self.prefix)
        for outer, inner in self.wrappings.items():
            if name.startswith(inner):
                yield outer + name.removeprefix(inner)


# What a config.json need not hold for the answers to be the same.
_TRAINING = frozenset({"drop", "init"})


def _difference(one: Any, other: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Path and values of the first place where two specs (as JSON) give other answers."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        places = ((f"{path}.{key}".lstrip("."), one[key], other[key]) for key in one if key not in _TRAINING)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        places = ((f"{path}[{index}]", *pair) for index, pair in enumerate(zip(one, other, strict=True)))
    else:
        return None if one == other else (path, _short(one), _short(other))
    return next((found for place in places if (found := _difference(place[1], place[2], place[0]))), None)


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return str(value["is"])
    return f"{len(value)} items" if isinstance(value, list) else repr(value)


# Specs from configs


def pre_norm(
    attention: Attention, feed_forward: FeedForward, norm: Norm, *, norm_out: Norm | None = None, drop: float = 0.0
) -> LayerSpec:
    """x + attention(norm x), then x + feed_forward(norm x); with `norm_out` the sandwich of Gemma."""
    mixers: dict[str, Mixer] = {"attention": attention, "feed_forward": feed_forward}
    branches = (
        Branch(name=name, mixer=mixer, norm=norm, norm_out=norm_out, drop=drop) for name, mixer in mixers.items()
    )
    return LayerSpec(steps=tuple(Step(branches=(branch,)) for branch in branches))


def num_layers(config: Config, name: str = "num_hidden_layers") -> int:
    """The number of layers."""
    return config.whole(name, most=MOST_LAYERS)


def sliding_layers(config: Config, usual: Callable[[int], bool]) -> list[bool]:
    """Which layers are local: as `layer_types` lists them, or else those whose index is a `usual` one."""
    count = num_layers(config)
    kinds = config.get("layer_types", None)
    if kinds is None:
        return [usual(index) for index in range(count)]
    if not isinstance(kinds, list | tuple) or len(kinds) != count:
        raise config.refuse("layer_types", kinds, f"must be a list of num_hidden_layers={count} kinds")
    for kind in kinds:
        if kind not in ("sliding_attention", "full_attention"):
            raise config.refuse("layer_types", kind, "is not a known kind: sliding_attention, full_attention")
    return [kind == "sliding_attention" for kind in kinds]


def language_model(
    config: Config,
    family: str,
    *,
    stem: TokenStem,
    context: int,
    layers: tuple[LayerSpec, ...],
    final_norm: Norm,
    tied: bool,
    softcap: float = 0.0,
) -> ModelSpec:
    """A decoder with one language-model head, checked; CheckpointError names the config's file."""
    decoder = StackSpec(
        name="decoder", width=stem.width, context=context, stem=stem, layers=layers, final_norm=final_norm
    )
    spec = ModelSpec(
        name=family,
        family=family,
        stacks=(decoder,),
        heads=(LMHead(name="lm", stack="decoder", vocab=stem.vocab, softcap=softcap),),
        ties=(Tie(alias="heads.lm.weight", owner="stacks.decoder.stem.tokens.weight"),) if tied else (),
        init=Init(std=config.number("initializer_range", 0.02, least=0.0)),
    )
    try:
        return check(spec)
    except SpecError as error:
        raise CheckpointError(f"{config.file}: {error}") from None


# Configs from specs


@dataclass(frozen=True)
class Plain:
    """A decoder whose every layer is one attention and one feed-forward: what these families' configs describe."""

    spec: ModelSpec
    stem: TokenStem
    norm: Norm
    head: LMHead
    attentions: tuple[Attention, ...]
    feed_forward: FeedForward
    drop: float

    @property
    def attention(self) -> Attention:
        """The first layer's."""
        return self.attentions[0]

    @property
    def context(self) -> int:
        """The longest sequence, in tokens."""
        return self.spec.decoder.context

    def fields(self, architecture: str, model_type: str, rope: Rope | None = None) -> dict[str, Any]:
        """The fields that Llama named and most decoders kept, the first layer's rope included if none is given.

        Token ids are not the spec's; who knows the tokenizer adds them.
        """
        first = self.attention
        rope = rope or first.rope
        if rope is None:
            raise SpecError(f"layers[0].attention.rope = None, but a {self.spec.family} config.json always states one")
        return {
            "architectures": [architecture],
            "model_type": model_type,
            "vocab_size": self.stem.vocab,
            "hidden_size": self.stem.width,
            "intermediate_size": self.feed_forward.hidden,
            "num_hidden_layers": len(self.attentions),
            "num_attention_heads": first.heads,
            "num_key_value_heads": first.kv_heads,
            "head_dim": first.head_dim,
            "hidden_act": ACTIVATION_WORDS[self.feed_forward.activation],
            "rms_norm_eps": self.norm.eps,
            **write_rope(rope, first.head_dim, self.context),
            "attention_dropout": first.drop,
            "initializer_range": self.spec.init.std,
            "tie_word_embeddings": bool(self.spec.ties),
        }


ACTIVATION_WORDS: dict[Activation, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "gelu_quick": "quick_gelu",
    "silu": "silu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
}


def plain(spec: ModelSpec) -> Plain:
    """`spec` taken apart, or SpecError when it is no such decoder."""
    way_out = f'a {spec.family} config.json cannot hold it; set family="headway" to keep the spec itself'
    if len(spec.stacks) != 1 or len(spec.heads) != 1:
        raise SpecError(f"stacks = {len(spec.stacks)}, heads = {len(spec.heads)}: {way_out}")
    stack = spec.stacks[0]
    if stack.final_norm is None or not stack.layers:
        raise SpecError(
            f"stacks.{stack.name} has {len(stack.layers)} layers, final_norm = {stack.final_norm}: {way_out}"
        )
    attentions, feed_forwards = [], []
    for index, layer in enumerate(stack.layers):
        match tuple(branch.mixer for branch in layer.branches):
            case (Attention() as attention, FeedForward() as feed_forward):
                attentions.append(attention)
                feed_forwards.append(feed_forward)
            case mixers:
                kinds = ", ".join(type(mixer).__name__ for mixer in mixers)
                raise SpecError(f"stacks.{stack.name}.layers[{index}] is {kinds}: {way_out}")
    return Plain(
        spec=spec,
        stem=stack.stem,
        norm=stack.final_norm,
        head=spec.heads[0],
        attentions=tuple(attentions),
        feed_forward=feed_forwards[0],
        drop=next(stack.layers[0].branches).drop,
    )


def layer_types(attentions: tuple[Attention, ...]) -> list[str]:
    """`layer_types` of config.json: the windowed value is sliding, or the first of two that see everything."""
    values = list(dict.fromkeys((attention.mask, attention.rope) for attention in attentions))
    first = values[0] if len(values) > 1 else None
    local = next((value for value in values if value[0].window), first)
    return ["sliding_attention" if (a.mask, a.rope) == local else "full_attention" for a in attentions]


def window_of(attentions: tuple[Attention, ...]) -> int | None:
    """The window of the layers that have one."""
    return next((attention.mask.window for attention in attentions if attention.mask.window), None)


def token_ids(config: Mapping[str, Any]) -> dict[str, Any]:
    """The ids that begin, end and pad, which a spec does not hold, from the config.json that a model came with.

    Null where it names none, lest a reader take its family's own, which may lie outside the vocabulary.
    """
    inner = config.get("text_config")
    places = (config, inner if isinstance(inner, Mapping) else {})
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: next((place[name] for place in places if place.get(name) is not None), None) for name in names}


# Configs from GGUF


def gguf_own(meta: Config) -> Config:
    """The metadata that belong to the file's architecture."""
    own = meta.under(f"{meta.text('general.architecture')}.")
    if own.whole("expert_count", 0, least=0):
        raise own.refuse("expert_count", own.get("expert_count"), "is a mixture of experts, which this family is not")
    return own


def gguf_fields(meta: Config, tensors: Tensors) -> dict[str, Any]:
    """Sizes, rope and norm as config.json calls them; tied when there is no output matrix."""
    own = gguf_own(meta)
    width, heads = own.whole("embedding_length"), own.whole("attention.head_count")
    head_dim = own.whole("attention.key_length", width // heads)
    if own.whole("attention.value_length", head_dim) != head_dim:
        raise own.refuse("attention.value_length", own.get("attention.value_length"), f"must be key_length={head_dim}")
    return {
        "vocab_size": gguf_vocab(meta),
        "hidden_size": width,
        "intermediate_size": own.whole("feed_forward_length"),
        "num_hidden_layers": own.whole("block_count", most=MOST_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": own.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": own.whole("context_length"),
        "rms_norm_eps": gguf_number(own, "attention.layer_norm_rms_epsilon"),
        **gguf_rope(own, tensors, head_dim),
        **gguf_ends(meta, tensors),
    }


def gguf_vocab(meta: Config) -> int:
    """Rows of the embedding."""
    own = gguf_own(meta)
    return own.whole("vocab_size") if own.has("vocab_size") else len(meta.get("tokenizer.ggml.tokens"))


def gguf_ends(meta: Config, tensors: Tensors) -> dict[str, Any]:
    """Whether the head is the embedding, and the ids that begin, end and pad."""
    ids = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {
        "tie_word_embeddings": "output.weight" not in tensors,
        **{f"{name}_token_id": meta.get(f"tokenizer.ggml.{key}_token_id", None) for name, key in ids.items()},
    }


def gguf_turned(spec: ModelSpec) -> Names:
    """Names in GGUF files of architecture `llama`, whose query and key rows are in interleaved rotary order."""
    turned = Pairs(plain(spec).attention.head_dim)
    return {
        **GGUF_NAMES,
        f"{LAYER}.attention.q": Key("blk.*.attn_q", (turned,)),
        f"{LAYER}.attention.k": Key("blk.*.attn_k", (turned,)),
    }


# Names

DECODER = "stacks.decoder"
LAYER = "stacks.decoder.layers.*"
QKV = (f"{LAYER}.attention.q", f"{LAYER}.attention.k", f"{LAYER}.attention.v")
GATE_UP = (f"{LAYER}.feed_forward.gate", f"{LAYER}.feed_forward.up")


def fused(names: Names, wholes: Names) -> Names:
    """`names` of a file that keeps each group of `wholes` as one matrix."""
    parts = {part for group in wholes if isinstance(group, tuple) for part in group}
    return {**{path: name for path, name in names.items() if path not in parts}, **wholes}


# The names that Llama gave and most decoders kept.
HF_NAMES: dict[str | tuple[str, ...], Any] = {
    f"{DECODER}.stem.tokens": "model.embed_tokens",
    f"{LAYER}.attention_norm": "model.layers.*.input_layernorm",
    f"{LAYER}.attention.q": "model.layers.*.self_attn.q_proj",
    f"{LAYER}.attention.k": "model.layers.*.self_attn.k_proj",
    f"{LAYER}.attention.v": "model.layers.*.self_attn.v_proj",
    f"{LAYER}.attention.o": "model.layers.*.self_attn.o_proj",
    f"{LAYER}.feed_forward_norm": "model.layers.*.post_attention_layernorm",
    f"{LAYER}.feed_forward.gate": "model.layers.*.mlp.gate_proj",
    f"{LAYER}.feed_forward.up": "model.layers.*.mlp.up_proj",
    f"{LAYER}.feed_forward.down": "model.layers.*.mlp.down_proj",
    f"{DECODER}.final_norm": "model.norm",
    "heads.lm": "lm_head",
}

GGUF_NAMES: dict[str | tuple[str, ...], Any] = {
    f"{DECODER}.stem.tokens": "token_embd",
    f"{LAYER}.attention_norm": "blk.*.attn_norm",
    f"{LAYER}.attention.q": "blk.*.attn_q",
    f"{LAYER}.attention.k": "blk.*.attn_k",
    f"{LAYER}.attention.v": "blk.*.attn_v",
    f"{LAYER}.attention.o": "blk.*.attn_output",
    f"{LAYER}.feed_forward_norm": "blk.*.ffn_norm",
    f"{LAYER}.feed_forward.gate": "blk.*.ffn_gate",
    f"{LAYER}.feed_forward.up": "blk.*.ffn_up",
    f"{LAYER}.feed_forward.down": "blk.*.ffn_down",
    f"{DECODER}.final_norm": "output_norm",
    "heads.lm": "output",
}
