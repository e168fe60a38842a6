"""Attention weights: one tensor a layer, those that led to the answer, in batches and with a cache."""

from __future__ import annotations

import pytest
import torch

from headway.batch import Batch
from headway.explain import attention_paths, attentions
from headway.nn import Transformer, build
from tests.zoo import HEADS, ZOO

ROWS = [[5, 1, 88, 3, 3, 17], [7, 0, 9]]
every_spec = pytest.mark.parametrize("name", ZOO)


def model_of(name: str) -> Transformer:
    return build(ZOO[name], seed=3)


@every_spec
@pytest.mark.parametrize("pad", ["left", "right"])
@pytest.mark.case("C19")
def test_every_layer_gives_its_weights_and_the_answer_is_the_usual_one(name: str, pad: str) -> None:
    model = model_of(name)
    batch = Batch.of(ROWS, pad=pad)
    found = attentions(model, batch)
    real = batch.segments > 0
    with torch.inference_mode():
        usual = model(batch).logits[real]
    assert (found.output.logits[real] - usual).abs().max() < 1e-5 * max(1.0, usual.abs().max())
    assert list(found.weights) == list(attention_paths(ZOO[name]))
    for path, weights in found.weights.items():
        assert weights.shape == (2, HEADS, 6, 6)
        sums = weights.sum(-1).transpose(1, 2)[real]
        if "sinks" in name:
            assert (sums < 1).all()
        else:
            assert torch.allclose(sums, torch.ones_like(sums), atol=1e-5)
        assert weights.triu(1).max() == 0, path
        assert weights.transpose(1, 3)[~real].abs().max() == 0, "padded keys are looked at"
        assert weights.transpose(1, 2)[~real].abs().max() == 0, "padding looks at something"


@every_spec
@pytest.mark.case("C19")
def test_with_a_cache_the_weights_are_over_the_whole_text(name: str) -> None:
    model = model_of(name)
    whole = attentions(model, Batch.of([ROWS[0]])).weights
    with torch.inference_mode():
        cache = model.cache(1, 6)
        model(Batch.of([ROWS[0][:5]], horizons=[6]), cache)
    step = attentions(model, Batch.of([ROWS[0][5:]], starts=cache.lengths, horizons=[6]), cache, keep="last").weights
    for path, weights in step.items():
        assert weights.shape == (1, HEADS, 1, 6)
        assert (weights[:, :, 0] - whole[path][:, :, 5]).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["window", "sinks_window", "rotary"])
def test_uneven_rows_in_a_turning_window_keep_their_places(name: str) -> None:
    model = model_of(name)
    rows, horizons = [list(range(12)), [7, 0, 9]], [12, 3]
    whole = attentions(model, Batch.of(rows, horizons=horizons)).weights
    with torch.inference_mode():
        cache = model.cache(2, 12)
        model(Batch.of([row[:2] for row in rows], horizons=horizons), cache)
    rest = Batch.of([row[2:] for row in rows], starts=cache.lengths, horizons=horizons, pad="left")
    for path, weights in attentions(model, rest, cache).weights.items():
        assert weights.shape == (2, HEADS, 10, 12)
        assert (weights[0] - whole[path][0, :, 2:]).abs().max() < 1e-5
        assert (weights[1, :, -1] - whole[path][1, :, 2]).abs().max() < 1e-5
