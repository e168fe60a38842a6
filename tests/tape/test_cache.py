"""The tape's cache keeps the clock of headway.cache: the same lengths, refusals and answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from headway.batch import Batch
from headway.errors import RequestError
from headway.fast import TapeNetwork
from headway.tape import TapeCache
from tests.tape.specs import pair

ROWS = [[5, 1, 88, 3, 3, 17, 96], [7, 0, 9]]

CHANGES: dict[str, Callable[[Any], None]] = {
    "select": lambda cache: cache.select([1, 0, 1]),
    "fork": lambda cache: cache.fork(0, 3),
    "truncate": lambda cache: cache.truncate([0, 3]),
    "reserve": lambda cache: cache.reserve(50),
    "drop": lambda cache: cache.select([1]),
}


def filled(tape: TapeNetwork, capacity: int = 24) -> TapeCache:
    cache = tape.cache(len(ROWS), capacity)
    tape(Batch.of(ROWS), cache)
    return cache


@pytest.mark.parametrize("name", ["rotary", "window", "bucketed"])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_that_of_the_other_cache(name: str, change: str) -> None:
    modules, tape = pair(name)
    ours, theirs = filled(tape), modules.cache(2, 24)
    modules(Batch.of(ROWS), theirs)
    CHANGES[change](ours)
    CHANGES[change](theirs)
    assert (ours.lengths, ours.capacity, ours.rows) == (theirs.lengths, theirs.capacity, theirs.rows)
    for _ in range(3):
        batch = Batch.of([[4 + row] for row in range(ours.rows)], starts=ours.lengths)
        torch.testing.assert_close(tape(batch, ours).logits, modules(batch, theirs).logits, atol=1e-4, rtol=0)
    assert ours.lengths == theirs.lengths


@pytest.mark.parametrize("name", ["rotary", "window"])
def test_rows_of_another_cache_are_taken_over(name: str) -> None:
    modules, tape = pair(name)
    ours, other = filled(tape, 8), tape.cache(1, 30)
    tape(Batch.of([[61, 2, 3]]), other)
    ours.extend(other)
    assert (ours.lengths, ours.capacity) == ((7, 3, 3), 30)
    logits = tape(Batch.of([[4], [5], [6]], starts=ours.lengths), ours).logits[:, 0]
    for got, row in zip(logits, [[*ROWS[0], 4], [*ROWS[1], 5], [61, 2, 3, 6]], strict=True):
        torch.testing.assert_close(got, modules(Batch.of([row])).logits[0, -1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["rotary", "window"])
def test_a_snapshot_can_be_restored_more_than_once(name: str) -> None:
    _, tape = pair(name)
    cache = filled(tape)
    snapshot = cache.snapshot()
    batch = Batch.of([[4], [5]], starts=cache.lengths)
    first = tape(batch, cache).logits
    for _ in range(2):
        cache.reserve(cache.capacity + 8)
        tape(Batch.of([[8], [9]], starts=cache.lengths), cache)
        cache.restore(snapshot)
        assert cache.capacity == 24
        assert torch.equal(tape(batch, cache).logits, first)


@pytest.mark.parametrize("lengths", [[7, 3], [5, 3], [0, 2], [8, 3], [0, 0], [4, 3]])
@pytest.mark.parametrize("name", ["rotary", "window"])
def test_it_can_go_back_where_the_other_can(name: str, lengths: list[int]) -> None:
    modules, tape = pair(name)
    theirs = modules.cache(2, 24)
    modules(Batch.of(ROWS), theirs)
    assert filled(tape).can_truncate(lengths) == theirs.can_truncate(lengths)


def test_a_turned_window_refuses_to_go_back() -> None:
    _, tape = pair("window")
    with pytest.raises(AssertionError, match="cannot go back"):
        filled(tape).truncate([5, 3])


def test_two_caches_take_turns() -> None:
    _, tape = pair("window")
    one, other = filled(tape), filled(tape)
    batch = Batch.of([[4], [5]], starts=one.lengths)
    first = tape(batch, one).logits
    tape(Batch.of([[9], [9]], starts=(8, 4)), one)
    assert torch.equal(tape(batch, other).logits, first)


def test_a_row_that_outgrows_its_cache_is_refused_and_nothing_has_moved() -> None:
    _, tape = pair("rotary")
    cache = filled(tape, 8)
    with pytest.raises(RequestError, match="room for 8 tokens a row, but a row would have 9"):
        tape(Batch.of([[4, 5], [5, 6]], starts=cache.lengths), cache)
    assert cache.lengths == (7, 3)
