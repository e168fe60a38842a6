"""The modules against the oracle in plain Python: every spec of the zoo, every place of a sequence."""

from __future__ import annotations

import pytest
import torch

from headway.batch import Batch
from headway.nn import Transformer, build
from headway.reference import decode
from headway.reference import model as reference
from headway.spec import SinusoidalPositions, TokenStem
from headway.spec.count import shapes
from headway.spec.position import Pairing
from tests.zoo import VOCAB, ZOO, attention, decoder, layer

TOKENS = [5, 1, 88, 3, 3, 17, 96, 40, 2, 9, 11]


def plain_weights(model: Transformer) -> dict[str, list]:
    return {path: model.get_parameter(path).tolist() for path in shapes(model.spec)}


def vary_vectors(model: Transformer) -> Transformer:
    """Norms at one and biases at zero would hide that they are read at all."""
    dice = torch.Generator().manual_seed(4)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter += torch.randn(parameter.shape, generator=dice) * 0.3
    return model


@pytest.mark.parametrize("name", ZOO)
@torch.inference_mode()
def test_logits_are_those_of_plain_python(name: str) -> None:
    model = vary_vectors(build(ZOO[name], seed=3))
    got = model(Batch.of([TOKENS])).logits[0]
    expected = torch.tensor(reference.forward(ZOO[name], plain_weights(model), TOKENS))
    assert (got - expected).abs().max() < 1e-4
    assert expected.std() > 0.1


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("width", [6, 7])
@torch.inference_mode()
def test_sinusoids_of_any_width_are_those_of_plain_python(width: int, layout: Pairing) -> None:
    positions = SinusoidalPositions(base=100.0, layout=layout, offset=2)
    spec = decoder(layer(attention()), stem=TokenStem(vocab=VOCAB, width=width, positions=positions))
    model = build(spec, seed=3)
    got = model(Batch.of([TOKENS])).logits[0]
    expected = torch.tensor(reference.forward(spec, plain_weights(model), TOKENS))
    assert (got - expected).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["rotary", "longrope", "window", "alibi"])
@torch.inference_mode()
def test_greedy_with_a_cache_is_greedy_by_recomputing_the_prefix(name: str) -> None:
    from headway.generate import Engine, Request

    model = build(ZOO[name], seed=3)
    expected = decode.greedy(ZOO[name], plain_weights(model), TOKENS[:5], 10)
    (answer,) = Engine(model).complete([Request(prompt=tuple(TOKENS[:5]), max_tokens=10)])
    assert list(answer.tokens) == expected
