"""A window of four shows four keys, the token itself among them, however a text is fed in."""

from __future__ import annotations

import pytest
import torch

from headway.batch import Batch
from headway.nn import Record, build
from headway.spec import Mask
from tests.zoo import attention, decoder, layer

ROW = [3, 1, 4, 1, 5, 9, 2, 6]
SEEN = {4: [1, 2, 3, 4, 4, 4, 4, 4], 8: [*range(1, 9)], 9: [*range(1, 9)], 0: [*range(1, 9)], None: [*range(1, 9)]}


@pytest.mark.case("C26")
@pytest.mark.parametrize("window", SEEN)
@pytest.mark.parametrize("chunk", [8, 3, 1])
@torch.inference_mode()
def test_both_back_ends_see_alike_whole_in_chunks_and_one_by_one(window: int | None, chunk: int) -> None:
    one = attention(mask=Mask.causal(window))
    model = build(decoder(layer(one), layer(one)), seed=3)
    whole = model(Batch.of([ROW])).logits[0]
    fused, watched = model.cache(1, 8), model.cache(1, 8)
    answers: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    seen: list[int] = []
    for start in range(0, 8, chunk):
        batch = Batch.of([ROW[start : start + chunk]], starts=fused.lengths)
        record = Record("*.weights")  # asking for weights takes the eager back end
        answers.append(model(batch, fused).logits[0])
        others.append(model(batch, watched, tap=record).logits[0])
        counts = [(weights[0, 0] > 0).sum(-1).tolist() for weights in record.seen.values()]
        assert counts[0] == counts[1]
        seen += counts[0]
    assert seen == SEEN[window]
    torch.testing.assert_close(torch.cat(answers), whole, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.cat(others), whole, atol=1e-5, rtol=0)
