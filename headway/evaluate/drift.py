"""How far answers have moved: two networks on one text, token by token, by perplexity, divergence and first choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headway.errors import DataError
from headway.tape import Program

if TYPE_CHECKING:
    from headway.nn.transformer import Transformer

Floats = NDArray[np.float32]
# Logits of one row of tokens, [t, V] at a time and at most PIECE tokens each.
Answers = Callable[[Sequence[int]], Iterator[Floats]]
Progress = Callable[[int, int], None]  # tokens done, tokens in all

PIECE = 32  # tokens whose distributions are held at once
ROW = 512  # tokens that see each other

SAMPLE = Path(__file__).with_name("sample.txt")


@dataclass(frozen=True, kw_only=True)
class Drift:
    """One network beside another on the same tokens; divergences are in nats."""

    tokens: int  # places where the next token's two distributions were compared
    perplexity: float  # of the one: exp of the mean of -log p(next token)
    other_perplexity: float
    mean_divergence: float  # of KL(one || other)
    p99_divergence: float
    most_divergence: float
    same_choice: float  # share of places where both find the same token likeliest


def drift(one: Answers, other: Answers, rows: Sequence[Sequence[int]], progress: Progress | None = None) -> Drift:
    """Both networks on `rows` of token ids; in memory are the logits of one piece. `progress` is told tokens.

    DataError when no row has two tokens, or a logit is no number.
    """
    divergences: list[NDArray[np.float64]] = []
    losses: tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]] = ([], [])
    same: list[NDArray[np.bool_]] = []
    done, total = 0, sum(map(len, rows))
    for row in rows:
        at = 0
        for a, b in zip(one(row), other(row), strict=True):
            p, q = log_softmax(a), log_softmax(b)
            divergences.append(kl(p, q))
            same.append(p.argmax(-1) == q.argmax(-1))
            following = np.asarray(row[at + 1 : at + 1 + len(p)], np.intp)
            places = np.arange(len(following))
            losses[0].append(-p[places, following])
            losses[1].append(-q[places, following])
            at, done = at + len(p), done + len(p)
            if progress is not None:
                progress(done, total)
    each = np.concatenate(divergences) if divergences else np.empty(0)
    first, second = (np.concatenate(part) if part else np.empty(0) for part in losses)
    if not first.size:
        raise DataError("the text is too short to compare anything; two tokens are the least")
    return Drift(
        tokens=each.size,
        perplexity=math.exp(first.mean()),
        other_perplexity=math.exp(second.mean()),
        mean_divergence=float(each.mean()),
        p99_divergence=float(np.quantile(each, 0.99)),
        most_divergence=float(each.max()),
        same_choice=float(np.concatenate(same).mean()),
    )


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    """Log-probabilities [t, V] in double precision; DataError for logits that are no numbers."""
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    if not np.isfinite(wide.sum()):
        raise DataError("a network answers with logits that are not finite; its weights are damaged")
    return wide


def kl(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """sum p (log p - log q) of each row of log-probabilities, never below 0."""
    return np.maximum((np.exp(p) * (p - q)).sum(-1), 0.0)


def rows_of(ids: Sequence[int], context: int) -> list[list[int]]:
    """A text's tokens in rows of at most ROW, or of `context` where that is shorter; the rest of one token is left."""
    size = min(ROW, context)
    rows = [list(ids[start : start + size]) for start in range(0, len(ids), size)]
    return [row for row in rows if len(row) > 1]


def of_program(program: Program) -> Answers:
    """What a tape answers."""

    def answers(row: Sequence[int]) -> Iterator[Floats]:
        cache = program.cache(1, len(row))
        for start in range(0, len(row), PIECE):
            logits = program.step([row[start : start + PIECE]], cache, keep="all", horizons=[len(row)]).logits
            assert logits is not None
            yield logits

    return answers


def of_modules(network: Transformer) -> Answers:
    """What modules answer."""
    import torch

    from headway.batch import Batch

    def answers(row: Sequence[int]) -> Iterator[Floats]:
        cache = network.cache(1, len(row))
        for start in range(0, len(row), PIECE):
            piece = [list(row[start : start + PIECE])]
            batch = Batch.of(piece, starts=cache.lengths, horizons=[len(row)], device=network.device)
            with torch.inference_mode():
                logits = network(batch, cache, keep="all").logits
            assert logits is not None
            yield logits[0].float().cpu().numpy()

    return answers
