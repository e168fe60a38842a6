"""The logit lens: behind the last layer it is the model's answer, and looks are the attention's own."""

from __future__ import annotations

import pytest
import torch

from headway.batch import Batch
from headway.errors import RequestError
from headway.explain import attentions, explain
from headway.nn import build
from tests.zoo import VOCAB, ZOO

IDS = [5, 1, 88, 3, 3, 17, 96]
every_spec = pytest.mark.parametrize("name", ZOO)


@every_spec
def test_behind_the_last_layer_it_is_the_model_s_answer(name: str) -> None:
    model = build(ZOO[name], seed=3)
    found = explain(model, IDS, top=4)
    with torch.inference_mode():
        probabilities = model(Batch.of([IDS])).logits[0, -1].softmax(-1)
    assert len(found.layers) == len(ZOO[name].decoder.layers)
    for says in (found.layers[-1].says, found.candidates):
        assert [each.id for each in says] == probabilities.topk(4).indices.tolist()
        assert [each.probability for each in says] == pytest.approx(probabilities.topk(4).values.tolist(), abs=1e-5)


@every_spec
def test_looks_are_the_mean_over_heads_at_the_last_token(name: str) -> None:
    model = build(ZOO[name], seed=3)
    found = explain(model, IDS, top=len(IDS))
    weights = list(attentions(model, Batch.of([IDS])).weights.values())
    for view, layer in zip(found.layers, weights, strict=True):
        mean = layer[0, :, -1].mean(0)
        assert {look.position: look.weight for look in view.looks} == pytest.approx(dict(enumerate(mean.tolist())))
        assert [look.weight for look in view.looks] == sorted((look.weight for look in view.looks), reverse=True)


def test_tokens_without_a_tokenizer_are_ids() -> None:
    found = explain(build(ZOO["rotary"], seed=3), IDS, top=2 * VOCAB)
    assert found.tokens[2].text == "#88"
    assert len(found.candidates) == VOCAB
    assert sum(each.probability for each in found.embedding_says) == pytest.approx(1)


@pytest.mark.parametrize(("ids", "top", "message"), [([], 3, "no tokens"), (IDS, 0, "top = 0")])
def test_nothing_to_explain_is_refused(ids: list[int], top: int, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        explain(build(ZOO["rotary"]), ids, top=top)
