"""One clock, and what a cache can be asked for."""

from __future__ import annotations

import pytest
import torch

from headway.batch import Batch
from headway.cache import Cache
from headway.errors import RequestError
from headway.nn import Transformer, build
from headway.spec import Mask
from headway.spec.count import cache_bytes
from tests.zoo import ZOO, attention, decoder, layer

ROWS = [[5, 1, 88, 3, 3, 17, 96], [7, 0, 9]]


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


def filled(name: str, rows: list[list[int]] = ROWS) -> tuple[Transformer, Cache]:
    model = build(ZOO[name])
    cache = model.cache(len(rows), 24)
    model(Batch.of(rows), cache)
    return model, cache


def following(model: Transformer, cache: Cache, tokens: list[int]) -> torch.Tensor:
    return model(Batch.of([[token] for token in tokens], starts=cache.lengths), cache).logits[:, 0]


@pytest.mark.parametrize("name", ["rotary", "window", "bucketed"])
def test_select_reorders_forks_and_drops_rows(name: str) -> None:
    model, cache = filled(name)
    cache.select([1, 0, 1])
    assert cache.lengths == (3, 7, 3)
    got = following(model, cache, [4, 5, 6])
    for row, token, logits in zip([1, 0, 1], [4, 5, 6], got, strict=True):
        expected = model(Batch.of([[*ROWS[row], token]])).logits[0, -1]
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_fork_puts_copies_beside_the_row() -> None:
    _, cache = filled("rotary")
    cache.fork(0, 3)
    assert cache.lengths == (7, 7, 7, 3)


@pytest.mark.parametrize("name", ["rotary", "alibi"])
def test_truncate_goes_back_to_any_earlier_length(name: str) -> None:
    model, cache = filled(name)
    assert cache.can_truncate([2, 3])
    cache.truncate([2, 3])
    got = following(model, cache, [4, 5])
    torch.testing.assert_close(got[0], model(Batch.of([[*ROWS[0][:2], 4]])).logits[0, -1], atol=1e-4, rtol=0)
    torch.testing.assert_close(got[1], model(Batch.of([[*ROWS[1], 5]])).logits[0, -1], atol=1e-4, rtol=0)


def test_a_turned_window_says_that_it_cannot_go_back() -> None:
    model, cache = filled("window")
    assert not cache.can_truncate([5, 3])
    assert cache.can_truncate([0, 2])
    with pytest.raises(AssertionError, match="cannot go back"):
        cache.truncate([5, 3])
    cache.truncate([0, 2])
    again = model(Batch.of([ROWS[0], [9]], starts=cache.lengths), cache, keep="last").logits
    torch.testing.assert_close(again[0, 0], model(Batch.of([ROWS[0]])).logits[0, -1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["rotary", "window"])
def test_a_snapshot_can_be_restored_more_than_once(name: str) -> None:
    model, cache = filled(name)
    snapshot = cache.snapshot()
    first = following(model, cache, [4, 5])
    for _ in range(2):
        following(model, cache, [8, 9])
        cache.restore(snapshot)
        assert cache.lengths == (7, 3)
        torch.testing.assert_close(following(model, cache, [4, 5]), first)


@pytest.mark.parametrize("name", ["rotary", "window"])
def test_reserve_grows_and_keeps(name: str) -> None:
    model = build(ZOO[name])
    cache = model.cache(2, 3)
    model(Batch.of([row[:3] for row in ROWS]), cache)
    with pytest.raises(RequestError, match="room for 3 tokens"):
        following(model, cache, [4, 5])
    cache.reserve(20)
    got = model(Batch.of([ROWS[0][3:], [6]], starts=cache.lengths), cache, keep="last").logits
    torch.testing.assert_close(got[0, 0], model(Batch.of([ROWS[0]])).logits[0, -1], atol=1e-4, rtol=0)


@pytest.mark.case("C23")
@pytest.mark.parametrize("tokens", [3, 16])
def test_planned_bytes_are_the_tensors_bytes(tokens: int) -> None:
    spec = decoder(layer(attention(mask=Mask.causal(4))), layer(attention()), layer(attention(kv_heads=3)))
    cache = Cache.of(spec, 5, tokens, torch.float16)
    assert cache.nbytes == cache_bytes(spec, tokens, 5, 2)


def test_stale_tokens_never_leak_into_a_shorter_row() -> None:
    model, cache = filled("rotary")
    cache.truncate([0, 0])
    for slot in cache.slots.values():
        slot.replace([tensor.fill_(1e4) for tensor in slot.tensors()])
    got = model(Batch.of([ROWS[1], ROWS[0]]), cache, keep="last").logits
    torch.testing.assert_close(got[0, 0], model(Batch.of([ROWS[1]])).logits[0, -1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["rotary", "window"])
def test_extend_takes_over_rows_of_another_capacity(name: str) -> None:
    model, cache = filled(name, ROWS[:1])
    other = model.cache(1, 5)
    model(Batch.of(ROWS[1:]), other)
    cache.extend(other)
    assert cache.lengths == (7, 3)
    for row, token, logits in zip(ROWS, [4, 5], following(model, cache, [4, 5]), strict=True):
        expected = model(Batch.of([[*row, token]])).logits[0, -1]
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
