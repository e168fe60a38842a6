"""How likely a model finds given texts: the log-probability of every token after the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.errors import RequestError
from headway.generate.check import ids, inside, require, whole
from headway.generate.engine import Engine
from headway.generate.request import TokenLogprob
from headway.generate.sampling import measure


@dataclass(frozen=True)
class Score:
    """Natural log-probabilities of a row's tokens, those excepted that were given to begin with."""

    tokens: tuple[TokenLogprob, ...]

    @property
    def total(self) -> float:
        """The log-probability of the whole row."""
        return sum(token.logprob for token in self.tokens)


def score(engine: Engine, rows: Sequence[Sequence[int]], *, top: int = 0, given: int = 1) -> list[Score]:
    """Score rows of token ids, with the `top` likeliest ids at every place; RequestError for an impossible row.

    The first `given` tokens of each row are only read: nothing comes before the first one. Scored ids that the
    tokenizer does not know have probability 0 here too, as in generation.
    """
    whole("given", given, low=1)
    for row in rows:
        _check(engine, tuple(row), given)
    by_length = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    found: dict[int, Score] = {}
    for start in range(0, len(rows), engine.rows):
        numbers = by_length[start : start + engine.rows]
        found |= zip(numbers, _score(engine, [list(rows[number]) for number in numbers], top, given), strict=True)
    return [found[number] for number in range(len(rows))]


def _score(engine: Engine, rows: list[list[int]], top: int, given: int) -> list[Score]:
    past, done = engine.past(), [0] * len(rows)
    found: list[list[TokenLogprob]] = [[] for _ in rows]
    while any(count < len(row) for count, row in zip(done, rows, strict=True)):
        advance = past.advance(rows, keep="all")
        assert advance.logits is not None
        place = 0  # of the row's first token among the logits
        for row, (start, count) in enumerate(zip(advance.starts, advance.counts, strict=True)):
            first = max(start + 1, given)
            targets = rows[row][first : start + count + 1]
            if targets:
                begin = place + first - 1 - start  # the logits of a place foretell the next one
                logits = engine.known(advance.logits[begin : begin + len(targets)])
                found[row] += measure(logits, targets, top)
            done[row] = start + count
            place += count
    return [Score(tuple(row)) for row in found]


def _check(engine: Engine, row: tuple[int, ...], given: int) -> None:
    limits = engine.limits
    ids("row", row)
    inside("row", row, limits.vocab)
    require(len(row) > 0, "row", row, "is empty: give at least one token")
    for token in row[given:]:
        require(token in limits.known, "row id", token, "is unknown to the tokenizer, so its probability is 0")
    if len(row) > limits.context:
        raise RequestError(f"row has {len(row)} tokens, but the context is {limits.context} tokens; shorten it")
