"""Tape and modules give the same answer to 1e-4 in float32: alone, batched, packed, cached, chunked."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headway.batch import Batch
from headway.native.structs import Op
from tests.tape.specs import CAUSAL, SPECS, pair

CLOSE = 1e-4
LONG = [5, 1, 88, 3, 3, 17, 90, 40, 2, 9, 11, 54]
ROWS = [LONG, [7, 0, 9], [61, 2, 3, 4, 5, 0, 0]]

every_spec = pytest.mark.parametrize("name", SPECS)
every_decoder = pytest.mark.parametrize("name", CAUSAL)


def rows_for(name: str) -> list[list[int]]:
    vocab = SPECS[name].decoder.stem.vocab
    return [[token % vocab for token in row] for row in ROWS]


def gap(one: Tensor, other: Tensor) -> float:
    assert torch.isfinite(one).all()
    assert torch.isfinite(other).all()
    return (one - other).abs().max().item()


@every_spec
def test_a_row_alone(name: str) -> None:
    modules, tape = pair(name)
    for row in rows_for(name):
        ours, theirs = tape(Batch.of([row])), modules(Batch.of([row]))
        assert gap(ours.logits, theirs.logits) < CLOSE
        stack = SPECS[name].decoder.name
        assert gap(ours.hidden[stack], theirs.hidden[stack]) < CLOSE


@every_spec
def test_uneven_rows(name: str) -> None:
    modules, tape = pair(name)
    batch = Batch.of(rows_for(name), pad="left")
    real = batch.segments > 0
    assert gap(tape(batch).logits[real], modules(batch).logits[real]) < CLOSE
    assert gap(tape(batch, keep="last").logits, modules(batch, keep="last").logits) < CLOSE
    assert tape(batch, keep="none").logits is None


@every_spec
def test_packed_documents(name: str) -> None:
    modules, tape = pair(name)
    one, two, three = rows_for(name)
    batch = Batch.pack([[one[:5], two, three], [two]])
    real = batch.segments > 0
    assert gap(tape(batch).logits[real], modules(batch).logits[real]) < CLOSE
    assert gap(tape(batch, keep="last").logits, modules(batch, keep="last").logits) < CLOSE


@every_decoder
@pytest.mark.parametrize("chunk", [1, 5])
def test_chunks_through_the_cache(name: str, chunk: int) -> None:
    modules, tape = pair(name)
    one, _, three = rows_for(name)
    row = one + three
    cache = tape.cache(1, len(row))
    parts = []
    for start in range(0, len(row), chunk):
        batch = Batch.of([row[start : start + chunk]], starts=cache.lengths, horizons=[len(row)])
        parts.append(tape(batch, cache).logits[0])
    assert gap(torch.cat(parts), modules(Batch.of([row])).logits[0]) < CLOSE


@every_decoder
def test_uneven_rows_decoded_one_by_one(name: str) -> None:
    modules, tape = pair(name)
    rows = rows_for(name)
    horizons = [len(row) + 6 for row in rows]
    caches = modules.cache(3, 32), tape.cache(3, 32)
    for network, cache in zip((modules, tape), caches, strict=True):
        network(Batch.of(rows, horizons=horizons), cache)
    for _ in range(6):
        batch = Batch.of([[4], [19], [33]], starts=caches[0].lengths, horizons=horizons)
        theirs, ours = modules(batch, caches[0]).logits, tape(batch, caches[1]).logits
        assert gap(ours, theirs) < CLOSE
        assert caches[0].lengths == caches[1].lengths


@given(name=st.sampled_from(CAUSAL), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_any_split_of_any_rows(name: str, seed: int) -> None:
    dice = random.Random(seed)
    modules, tape = pair(name)
    vocab = SPECS[name].decoder.stem.vocab
    with torch.inference_mode():
        rows = [[dice.randrange(vocab) for _ in range(dice.randint(1, 14))] for _ in range(dice.randint(1, 3))]
        horizons = [len(row) for row in rows]
        cache = tape.cache(len(rows), max(horizons))
        got: list[list[Tensor]] = [[] for _ in rows]
        while cache.lengths != tuple(horizons):
            pieces = [row[done : done + dice.randint(0, 5)] for row, done in zip(rows, cache.lengths, strict=True)]
            if not any(pieces):
                continue
            batch = Batch.of(pieces, starts=cache.lengths, horizons=horizons, pad=dice.choice(["left", "right"]))
            logits = tape(batch, cache).logits
            for parts, row, real in zip(got, logits, batch.segments > 0, strict=True):
                parts.append(row[real])
        for row, parts in zip(rows, got, strict=True):
            assert gap(torch.cat(parts), modules(Batch.of([row])).logits[0]) < CLOSE


@every_decoder
def test_a_step_longer_than_a_run_takes_several(name: str) -> None:
    modules, tape = pair(name)
    tape.program._tape = tape.program._lower(5)
    try:
        batch = Batch.of(rows_for(name))
        real = batch.segments > 0
        assert gap(tape(batch).logits[real], modules(batch).logits[real]) < CLOSE
        assert gap(tape(batch, keep="last").logits, modules(batch, keep="last").logits) < CLOSE
    finally:
        tape.program._tape = tape.program._lower(64)


def test_a_token_that_the_model_does_not_have_spoils_its_own_row_alone() -> None:
    modules, tape = pair("rotary")
    logits = tape(Batch.of([[5, 1_000_000], [5, 1]])).logits
    assert logits[0, 1].isnan().all()
    assert gap(logits[1], modules(Batch.of([[5, 1]])).logits[0]) < CLOSE


def test_the_tape_lists_its_calls_and_what_they_cost() -> None:
    _, tape = pair("rotary")
    program = tape.program
    assert program.calls[0] == "embed stacks.decoder.stem.tokens.weight"
    assert program.calls[-1] == "linear heads.lm"
    program.profile()
    tape(Batch.of([[5, 1]]))
    costs = program.profile(on=False)
    assert [f"{cost.op.name.lower()} {cost.label}" for cost in costs] == program.calls
    assert sum(cost.nanoseconds for cost in costs if cost.op is Op.LINEAR) > 0
    assert program.profile(on=False) == []
