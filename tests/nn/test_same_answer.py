"""One model, one answer: alone, batched, padded, packed, cached, chunked, eager or fused."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headway.batch import Batch
from headway.nn import Record, Transformer, build
from headway.spec import Tie
from tests.zoo import VOCAB, ZOO

CLOSE = 1e-4
ROWS = [[5, 1, 88, 3, 3, 17, 96, 40, 2, 9, 11, 54], [7, 0, 9], [61, 2, 3, 4, 5, 0, 0]]
BIASED = {"learned", "alibi", "bucketed", "rotary", "sinusoidal_post_norm"}

every_spec = pytest.mark.parametrize("name", ZOO)


def model_of(name: str) -> Transformer:
    return build(ZOO[name], seed=3)


def alone(model: Transformer, row: list[int]) -> Tensor:
    return model(Batch.of([row])).logits[0]


def gap(one: Tensor, other: Tensor) -> float:
    assert torch.isfinite(one).all()
    assert torch.isfinite(other).all()
    return (one - other).abs().max().item()


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


@every_spec
@pytest.mark.parametrize("pad", ["left", "right"])
@pytest.mark.case("C02")
def test_a_padded_row_answers_as_alone(name: str, pad: str) -> None:
    model = model_of(name)
    logits = model(Batch.of(ROWS, pad=pad)).logits
    assert torch.isfinite(logits).all()
    for row, got in zip(ROWS, logits, strict=True):
        real = got[-len(row) :] if pad == "left" else got[: len(row)]
        assert gap(real, alone(model, row)) < CLOSE


@every_spec
def test_packed_documents_do_not_see_each_other(name: str) -> None:
    model = model_of(name)
    pack = [[ROWS[0], ROWS[1], ROWS[2]], [ROWS[1]]]  # one of them past the original length of every scaled rope
    logits = model(Batch.pack(pack)).logits
    for row, got in zip(pack, logits, strict=True):
        start = 0
        for document in row:
            assert gap(got[start : start + len(document)], alone(model, document)) < CLOSE
            start += len(document)


@every_spec
@pytest.mark.case("C02")
@pytest.mark.parametrize("pad", ["left", "right"])
def test_a_cache_filled_in_uneven_rows_answers_as_alone(name: str, pad: str) -> None:
    model = model_of(name)
    horizons = [len(row) for row in ROWS]
    cache = model.cache(len(ROWS), 12)
    model(Batch.of([row[:2] for row in ROWS], pad=pad, horizons=horizons), cache)
    assert cache.lengths == (2, 2, 2)
    rest = [row[2:] for row in ROWS]
    last = model(Batch.of(rest, starts=cache.lengths, pad=pad, horizons=horizons), cache, keep="last").logits
    for row, got in zip(ROWS, last, strict=True):
        assert gap(got[0], alone(model, row)[-1]) < CLOSE
    assert cache.lengths == (12, 3, 7)


@every_spec
@pytest.mark.case("C02", "C26")
@pytest.mark.parametrize("chunk", [1, 3, 5])
def test_chunks_through_the_cache_answer_as_the_whole(name: str, chunk: int) -> None:
    model = model_of(name)
    row = ROWS[0] + ROWS[2]
    cache = model.cache(1, len(row))
    parts = []
    for start in range(0, len(row), chunk):
        batch = Batch.of([row[start : start + chunk]], starts=cache.lengths, horizons=[len(row)])
        parts.append(model(batch, cache).logits[0])
    assert gap(torch.cat(parts), alone(model, row)) < CLOSE


@every_spec
def test_uneven_rows_decoded_one_by_one_answer_as_alone(name: str) -> None:
    model = model_of(name)
    cache = model.cache(3, 32)
    horizons = [len(row) + 6 for row in ROWS]
    model(Batch.of(ROWS, horizons=horizons), cache)
    tail = [[4], [19], [33]]
    rows = [list(row) for row in ROWS]
    for _ in range(6):
        logits = model(Batch.of(tail, starts=cache.lengths, horizons=horizons), cache).logits
        rows = [row + more for row, more in zip(rows, tail, strict=True)]
    for row, got, horizon in zip(rows, logits, horizons, strict=True):
        whole = model(Batch.of([row], horizons=[horizon])).logits[0]
        assert gap(got[0], whole[-1]) < CLOSE


@every_spec
def test_watching_the_weights_does_not_move_the_answer(name: str) -> None:
    model = model_of(name)
    batch = Batch.of(ROWS, pad="left")
    record = Record("*.weights")
    watched = model(batch, tap=record).logits
    real = batch.segments > 0
    assert gap(watched[real], model(batch).logits[real]) < CLOSE
    assert len(record.seen) == sum(1 for path in record.seen if path.endswith("attention.weights")) > 0
    sinks = "sinks" in name
    for weights in record.seen.values():
        assert weights.shape == (3, weights.shape[1], 12, 12)
        sums = weights.sum(-1).transpose(1, 2)[real]
        assert (sums < 1.0).all() if sinks else torch.allclose(sums, torch.ones_like(sums), atol=1e-5)
        padded_keys = weights.transpose(1, 3)[~real].transpose(1, 2)
        rows_of_pads = real[(~real).nonzero()[:, 0]]
        assert padded_keys.transpose(1, 2)[rows_of_pads].abs().max() == 0


@given(name=st.sampled_from(sorted(ZOO)), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_any_split_of_any_rows_answers_as_alone(name: str, seed: int) -> None:
    dice = random.Random(seed)
    model = model_of(name)
    rows = [[dice.randrange(VOCAB) for _ in range(dice.randint(1, 14))] for _ in range(dice.randint(1, 3))]
    horizons = [len(row) for row in rows]
    cache = model.cache(len(rows), max(horizons))
    got: list[list[Tensor]] = [[] for _ in rows]
    with torch.inference_mode():
        while cache.lengths != tuple(horizons):
            pieces = [row[done : done + dice.randint(0, 5)] for row, done in zip(rows, cache.lengths, strict=True)]
            if not any(pieces):
                continue
            pad = dice.choice(["left", "right"])
            batch = Batch.of(pieces, starts=cache.lengths, horizons=horizons, pad=pad)
            logits = model(batch, cache).logits
            for parts, row, real in zip(got, logits, batch.segments > 0, strict=True):
                parts.append(row[real])
        for row, parts in zip(rows, got, strict=True):
            assert gap(torch.cat(parts), alone(model, row)) < CLOSE


@pytest.mark.parametrize("name", sorted(BIASED))
@pytest.mark.case("C02")
def test_a_row_of_only_a_start_token_survives_a_wide_batch(name: str) -> None:
    model = model_of(name)
    rows = [[0], ROWS[0]]
    logits = model(Batch.of(rows, pad="left"), keep="last").logits
    assert gap(logits[0, 0], alone(model, [0])[-1]) < CLOSE
    assert gap(logits[1, 0], alone(model, ROWS[0])[-1]) < CLOSE


def test_a_model_with_tied_layers_runs_each_at_its_own_place() -> None:
    tie = Tie(alias="stacks.decoder.layers.1", owner="stacks.decoder.layers.0")
    model = build(replace(ZOO["rotary"], ties=(*ZOO["rotary"].ties, tie)))
    layers = model.stacks["decoder"].layers
    assert layers[0].attention.q.weight is layers[1].attention.q.weight
    cache = model.cache(1, 12)
    model(Batch.of([ROWS[0][:5]]), cache)
    last = model(Batch.of([ROWS[0][5:]], starts=cache.lengths), cache, keep="last").logits
    assert gap(last[0, 0], alone(model, ROWS[0])[-1]) < CLOSE
