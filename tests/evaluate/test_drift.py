"""The figures of a drift by hand, on networks of which every logit is known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest

import headway
from headway.errors import DataError
from headway.evaluate.drift import PIECE, ROW, SAMPLE, Answers, drift, kl, log_softmax, of_modules, of_program, rows_of
from headway.fast import tape_of
from tests import needs, zoo


def table(logits: np.ndarray) -> Answers:
    """A network that answers a token by its row of a table, whatever stood before."""

    def answers(row: Sequence[int]) -> Iterator[np.ndarray]:
        for start in range(0, len(row), PIECE):
            yield logits[list(row[start : start + PIECE])]

    return answers


def numbers(seed: int, vocab: int = 11) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((vocab, vocab)).astype(np.float32) * 3


def test_figures_are_those_of_the_definitions() -> None:
    one, other = numbers(1), numbers(2)
    random = np.random.default_rng(3)
    rows = [random.integers(0, 11, size).tolist() for size in (2, PIECE, PIECE + 1, 3 * PIECE + 5)]
    found = drift(table(one), table(other), rows)
    p, q = (np.exp(each.astype(float)) / np.exp(each.astype(float)).sum(1, keepdims=True) for each in (one, other))
    tokens = [token for row in rows for token in row]
    each = np.array([(p[token] * np.log(p[token] / q[token])).sum() for token in tokens])
    pairs = [pair for row in rows for pair in pairwise(row)]
    assert found.tokens == len(tokens)
    assert found.mean_divergence == pytest.approx(each.mean(), rel=1e-9)
    assert found.p99_divergence == pytest.approx(np.quantile(each, 0.99), rel=1e-9)
    assert found.most_divergence == pytest.approx(each.max(), rel=1e-9)
    assert found.perplexity == pytest.approx(math.exp(-np.mean([math.log(p[pair]) for pair in pairs])), rel=1e-9)
    assert found.other_perplexity == pytest.approx(math.exp(-np.mean([math.log(q[pair]) for pair in pairs])), rel=1e-9)
    assert found.same_choice == np.mean([p[token].argmax() == q[token].argmax() for token in tokens])


def test_a_network_beside_itself_has_not_moved() -> None:
    one = numbers(4)
    found = drift(table(one), table(one.copy()), [[1, 2, 3, 4]])
    assert (found.mean_divergence, found.most_divergence, found.same_choice) == (0.0, 0.0, 1.0)
    assert found.perplexity == found.other_perplexity


def test_divergence_of_far_apart_distributions_is_exact() -> None:
    logits = np.float32([[0, -200], [0, 0]])
    p = log_softmax(logits)
    assert kl(p[:1], p[1:]) == pytest.approx([math.log(2)])
    assert kl(p[1:], p[:1]) == pytest.approx([100 - math.log(2)])


def test_what_is_no_number_or_too_short_is_refused() -> None:
    broken = numbers(5)
    broken[3, 3] = np.nan
    with pytest.raises(DataError, match="not finite"):
        drift(table(numbers(5)), table(broken), [[1, 3]])
    with pytest.raises(DataError, match="two tokens are the least"):
        drift(table(numbers(5)), table(numbers(6)), [])


def test_rows_hold_all_tokens_but_a_last_one_alone() -> None:
    assert rows_of(range(7), 3) == [[0, 1, 2], [3, 4, 5]]
    assert [len(row) for row in rows_of(range(2 * ROW + 2), 10**6)] == [ROW, ROW, 2]


def test_modules_and_tape_answer_alike_piece_by_piece() -> None:
    needs.native()
    network = headway.build(zoo.decoder(zoo.layer(zoo.attention()), context=128), seed=2).network
    row = np.random.default_rng(1).integers(0, zoo.VOCAB, 2 * PIECE + 7).tolist()
    found = drift(of_modules(network), of_program(tape_of(network).program), [row])
    assert found.tokens == len(row)
    assert found.most_divergence < 1e-8
    assert found.same_choice == 1.0


def test_the_sample_is_english_and_chinese() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    assert "ferry" in text
    assert sum("\u4e00" <= letter <= "\u9fff" for letter in text) > 400
