"""Who sees whom, on every path and back end."""

from __future__ import annotations

import pytest
import torch

from headway.batch import Batch
from headway.nn import Record, build
from headway.ops.mask import visible
from headway.spec import Mask
from tests.zoo import attention, decoder, layer

WEIGHTS = "stacks.decoder.layers.0.attention.weights"


def counts(mask: Mask, length: int) -> list[int]:
    places = torch.arange(length)[None]
    ones = torch.ones_like(places)
    return visible(mask, places, ones, places, ones)[0, 0].sum(-1).tolist()


def test_a_causal_window_counts_the_token_itself() -> None:
    assert counts(Mask.causal(4), 8) == [1, 2, 3, 4, 4, 4, 4, 4]


@pytest.mark.case("C26")
@pytest.mark.parametrize("window", [None, 0])
def test_no_window_is_full_attention(window: int | None) -> None:
    assert counts(Mask.causal(window), 6) == [1, 2, 3, 4, 5, 6]


def test_a_bidirectional_window_reaches_both_ways() -> None:
    assert counts(Mask(before=1, after=2), 5) == [3, 4, 4, 3, 2]


@pytest.mark.case("C26")
@pytest.mark.parametrize("window", [1, 3, 4, 8, 9])
@pytest.mark.parametrize("chunk", [8, 3, 1])
def test_prefill_chunks_and_decode_see_equally_many_keys(window: int, chunk: int) -> None:
    model = build(decoder(layer(attention(mask=Mask.causal(window)))))
    row = [3, 1, 4, 1, 5, 9, 2, 6]
    cache, seen = model.cache(1, 8), []
    for start in range(0, 8, chunk):
        record = Record(WEIGHTS)
        model(Batch.of([row[start : start + chunk]], starts=cache.lengths), cache, tap=record)
        seen += (record.seen[WEIGHTS][0, 0] > 0).sum(-1).tolist()
    assert seen == [min(place + 1, window) for place in range(8)]


@pytest.mark.case("C26")
@pytest.mark.parametrize("chunk", [3, 1])
def test_a_window_with_left_padding_sees_only_real_keys(chunk: int) -> None:
    model = build(decoder(layer(attention(mask=Mask.causal(4)))))
    rows = [[3, 1, 4, 1, 5, 9, 2, 6], [9, 9, 8]]
    cache, seen = model.cache(2, 8), [[], []]
    while cache.lengths != (8, 3):
        pieces = [row[done : done + chunk] for row, done in zip(rows, cache.lengths, strict=True)]
        batch = Batch.of(pieces, starts=cache.lengths, pad="left")
        record = Record(WEIGHTS)
        model(batch, cache, tap=record)
        for number in range(2):
            real = batch.segments[number] > 0
            seen[number] += (record.seen[WEIGHTS][number, 0][real] > 0).sum(-1).tolist()
    assert seen == [[1, 2, 3, 4, 4, 4, 4, 4], [1, 2, 3]]
