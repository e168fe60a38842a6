"""Every spec that tape and modules must agree on: the zoo's, every family's, and a few that neither has."""

from __future__ import annotations

from functools import lru_cache

from headway import families
from headway.families.kit import Config
from headway.fast import TapeNetwork, tape_of
from headway.nn import Transformer, build
from headway.spec import (
    ACTIVATIONS,
    Alibi,
    BucketBias,
    DynamicScaling,
    GivenScaling,
    HeadNorm,
    LinearScaling,
    Mask,
    ModelSpec,
    Norm,
    Rope,
    SinusoidalPositions,
    TokenStem,
)
from tests.zoo import HEAD_DIM, HEADS, LAYER, VOCAB, WIDTH, ZOO, attention, decoder, feed_forward, layer


def _rope(**changes: object) -> Rope:
    return Rope(dim=HEAD_DIM, base=500.0, **changes)  # type: ignore[arg-type]


SPECS: dict[str, ModelSpec] = {
    **ZOO,
    "activations": decoder(
        *(layer(attention(), feed_forward(activation=name)) for name in ACTIVATIONS),
        *(layer(attention(), feed_forward(activation=name, gated=False, bias=True)) for name in ACTIVATIONS),
    ),
    "scaled_ropes": decoder(
        layer(attention(rope=_rope(scaling=LinearScaling(factor=2.0)))),
        layer(attention(rope=_rope(scaling=GivenScaling(divisors=(1.0, 1.5, 2.0, 3.0, 9.0)), pairing="interleaved"))),
        layer(attention(rope=_rope(scaling=DynamicScaling(factor=2.0, original=6)))),
    ),
    "wide_queries": decoder(layer(attention(heads=HEADS, kv_heads=1, biases="qo", sinks=True, softcap=2.0))),
    "layer_norms": decoder(
        layer(attention(qk_norm=HeadNorm(norm=LAYER)), norm=Norm(kind="layer", eps=1e-5, weight=False)),
        layer(attention(), norm=Norm(kind="rms", eps=1e-5, weight=False)),
        stem=TokenStem(vocab=VOCAB, width=WIDTH, positions=SinusoidalPositions(layout="half", offset=1)),
    ),
    "both_ways": decoder(
        layer(attention(mask=Mask(), rope=None, bias="alibi")),
        layer(attention(mask=Mask(before=3, after=3))),
        layer(attention(mask=Mask(before=None, after=2), rope=None, bias="rel")),
        biases=(
            Alibi(name="alibi", heads=HEADS),
            BucketBias(name="rel", heads=HEADS, buckets=8, max_distance=11, bidirectional=True),
        ),
    ),
    **{
        f"{family.name}-{name}": family.read(Config(config))
        for family in families.all_families()
        for name, config in family.tiny.items()
    },
}
CAUSAL = [name for name in SPECS if name != "both_ways"]


@lru_cache(maxsize=4)
def pair(name: str) -> tuple[Transformer, TapeNetwork]:
    """The same weights as modules and on a tape."""
    modules = build(SPECS[name], seed=3)
    return modules, tape_of(modules, threads=2)
