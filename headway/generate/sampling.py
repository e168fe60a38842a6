"""From logits to the next token: pure functions on rows of logits, in the order that `Sampling` states."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from headway.errors import CheckpointError
from headway.generate.arrays import (
    Array,
    array_namespace,
    copied,
    ids_like,
    largest,
    like,
    log_softmax,
    logsumexp,
    places_of_largest,
    precise,
)
from headway.generate.request import BAN, ONLY, Sampling, TokenLogprob

NEVER = -math.inf
FIRST_LOOK = 1024  # largest logits that top-p examines before the whole vocabulary

quiet = np.errstate(all="ignore")  # infinities are meant, and torch says nothing about them either


@dataclass(frozen=True, eq=False)
class Known:
    """The ids that a tokenizer knows, decided once: all others have probability exactly 0.

    A head is often wider than the tokenizer, since its rows are padded for speed; the rows behind the last
    known id are cut off, and ids in a gap get logit minus infinity, so that the rest sums to 1.
    """

    ids: Collection[int]
    width: int  # one more than the largest known id
    gaps: NDArray[np.intp] | None  # unknown ids below it

    @classmethod
    def of(cls, known: Iterable[int], vocab: int) -> Known:
        """The known ids among the `vocab` ids of a head."""
        if isinstance(known, range) and known.start == 0 and known.step == 1:  # usual, and no set of a whole vocabulary
            inside: Collection[int] = known[:vocab]
        else:
            inside = frozenset(range(vocab)).intersection(known)
        if not inside:
            raise CheckpointError(f"the tokenizer knows none of the model's {vocab} ids; it belongs to another model")
        width = max(inside) + 1
        gaps = sorted(set(range(width)).difference(inside)) if len(inside) < width else []
        return cls(inside, width, np.array(gaps) if gaps else None)

    def __call__(self, logits: Array) -> Array:
        """Logits [..., vocab] -> [..., width]."""
        kept = logits if logits.shape[-1] == self.width else logits[..., : self.width]
        if self.gaps is not None:
            kept = copied(kept)
            kept[..., self.gaps] = NEVER
        return kept


class History:
    """What a sequence has said: which ids its prompt holds, and how often each id was generated since.

    Only a sequence's own ids enter: never padding, never another row's.
    """

    def __init__(self, prompt: Iterable[int]) -> None:
        self.prompt = frozenset(prompt)
        self.counts: dict[int, int] = {}

    def push(self, token: int) -> None:
        """Count a generated id."""
        self.counts[token] = self.counts.get(token, 0) + 1

    def copy(self) -> History:
        """The same past, to go on differently."""
        other = object.__new__(History)
        other.prompt, other.counts = self.prompt, self.counts.copy()
        return other

    def seen(self, prompt: bool, width: int) -> list[int]:
        """The ids below `width` that were generated, those of the prompt too if `prompt`."""
        return [token for token in (self.prompt | self.counts.keys() if prompt else self.counts) if token < width]


def greedy(logits: Array) -> Array:
    """[N], the id of the largest logit of each row [N, V]; the lowest id of equal ones."""
    return array_namespace(logits).argmax(logits, axis=-1)


def adjust(
    logits: Array, sampling: Sampling, histories: Sequence[History] = (), tokens: Sequence[Sequence[int]] = ()
) -> Array:
    """Bias, penalties and bans on [N, V]; `histories` and `tokens` (all of a row, prompt first) as these need them."""
    if sampling.logit_bias:
        logits = bias(logits, sampling.logit_bias)
    if sampling.counts:
        logits = penalise(logits, sampling, histories)
    if sampling.no_repeat_ngram:
        logits = ban(logits, [repeats(row, sampling.no_repeat_ngram) for row in tokens])
    return logits


@quiet
def narrow(logits: Array, sampling: Sampling) -> Array:
    """Temperature and filters on [N, V] float64; what they remove is minus infinity, and something always stays."""
    return _filtered(top_k(heat(logits, sampling.temperature), sampling.top_k), sampling)


def _filtered(logits: Array, sampling: Sampling, total: Array | None = None) -> Array:
    return typical_p(min_p(top_p(logits, sampling.top_p, total), sampling.min_p), sampling.typical_p)


@quiet
def choose(
    logits: Array,
    sampling: Sampling,
    uniforms: Sequence[float],
    histories: Sequence[History] = (),
    tokens: Sequence[Sequence[int]] = (),
) -> Array:
    """[N], the next id of each row of logits [N, V]: what `draw` draws of what `narrow` leaves, or the largest."""
    logits = adjust(precise(logits), sampling, histories, tokens) if sampling.adjusts else logits
    if sampling.greedy:
        return greedy(logits)
    heated, ids, total = _shortlist(logits, sampling)
    drawn = draw(_filtered(heated, sampling, total), uniforms)
    return drawn if ids is None else array_namespace(ids).take_along_axis(ids, drawn[:, None], axis=-1)[:, 0]


def _shortlist(logits: Array, sampling: Sampling) -> tuple[Array, Array | None, Array | None]:
    """Heated logits of the ids that top-k and top-p can leave, these ids, and the logarithm of all ids' sum.

    The ids are None where they are all; the sum where it is that of the ids.
    """
    xp, vocab = array_namespace(logits), logits.shape[-1]
    if 0 < sampling.top_k < vocab:
        ids = largest_ids(logits, sampling.top_k)
        return heat(precise(xp.take_along_axis(logits, ids, axis=-1)), sampling.temperature), ids, None
    heated = heat(precise(logits), sampling.temperature)
    if sampling.top_p == 1 or vocab <= FIRST_LOOK:
        return heated, None, None
    total, ids = logsumexp(heated), largest_ids(heated, FIRST_LOOK)
    few = xp.take_along_axis(heated, ids, axis=-1)
    if bool(xp.any(xp.sum(xp.exp(few - total), axis=-1) < sampling.top_p)):
        return heated, None, None
    return few, ids, total


def bias(logits: Array, values: Sequence[tuple[int, float]]) -> Array:
    """Logits [N, V] with biases added: -100 bans an id, 100 bans all ids but those that have it, others are sums."""
    only = any(value == ONLY for _, value in values)
    sums = [NEVER if value == BAN or (only and value != ONLY) else value for _, value in values]
    ids = ids_like([token for token, _ in values], logits)
    kept = logits[:, ids] + like(sums, logits)
    changed = array_namespace(logits).full_like(logits, NEVER) if only else copied(logits)
    changed[:, ids] = kept
    return changed


def penalise(logits: Array, sampling: Sampling, histories: Sequence[History]) -> Array:
    """Penalties on [N, V], each on the ids that its row has seen.

    Positive logits are divided, negative ones multiplied by the repetition penalty, once (arXiv 1909.05858); the
    presence penalty is taken off ids that were generated, the frequency penalty for each time.
    """
    if not sampling.counts:
        return logits
    found = [history.seen(sampling.penalise_prompt, logits.shape[-1]) for history in histories]
    rows = ids_like([row for row, ids in enumerate(found) for _ in ids], logits)
    columns = ids_like([token for ids in found for token in ids], logits)
    times = [history.counts.get(token, 0) for history, ids in zip(histories, found, strict=True) for token in ids]
    counts = like(times, logits)
    values, penalty = logits[rows, columns], float(sampling.repetition_penalty)
    if penalty != 1:
        values = array_namespace(logits).where(values > 0, values / penalty, values * penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        values = values - sampling.presence_penalty * (counts > 0) - sampling.frequency_penalty * counts
    changed = copied(logits)
    changed[rows, columns] = values
    return changed


def repeats(tokens: Sequence[int], size: int) -> list[int]:
    """The ids that would complete a run of `size` tokens that `tokens` holds already."""
    last = list(tokens[len(tokens) - size + 1 :])
    starts = range(len(tokens) - size + 1)
    return sorted({tokens[start + size - 1] for start in starts if list(tokens[start : start + size - 1]) == last})


def ban(logits: Array, tokens: Sequence[Sequence[int]]) -> Array:
    """Minus infinity for these ids of each row; a row that would have nothing left stays as it is."""
    xp, fewer = array_namespace(logits), copied(logits)
    for row, ids in enumerate(tokens):
        fewer[row, ids_like([token for token in ids if token < logits.shape[-1]], logits)] = NEVER
    return xp.where(xp.any(fewer > NEVER, axis=-1, keepdims=True), fewer, logits)


def heat(logits: Array, temperature: float) -> Array:
    """Logits over the temperature; the largest becomes 0 first, so that no temperature overflows."""
    if temperature == 1:
        return logits
    most = array_namespace(logits).max(logits, axis=-1, keepdims=True)
    return (logits - most) / float(temperature)  # torch takes no int beyond 64 bits


def top_k(logits: Array, k: int) -> Array:
    """The k largest; 0, or more than there are, is all."""
    if k == 0 or k >= logits.shape[-1]:
        return logits
    return _keep_largest(logits, largest(logits, k)[..., -1:], k)


def top_p(logits: Array, p: float, total: Array | None = None) -> Array:
    """The fewest largest whose probabilities reach p (nucleus, arXiv 1904.09751); at least one.

    `total` [N, 1] is the logarithm of what all exponentials make, where ids are left out already.
    """
    if p == 1:
        return logits
    xp = array_namespace(logits)
    total = logsumexp(logits) if total is None else total
    ordered = -xp.sort(-logits, axis=-1)
    probabilities = xp.exp(ordered - total)
    before = xp.cumulative_sum(probabilities, axis=-1) - probabilities
    count = _at_least_one(before < p)
    return _keep_largest(logits, xp.take_along_axis(ordered, count - 1, axis=-1), count)


def min_p(logits: Array, fraction: float) -> Array:
    """Those of at least `fraction` times the largest probability (arXiv 2407.01082)."""
    if fraction == 0:
        return logits
    xp = array_namespace(logits)
    return xp.where(logits < xp.max(logits, axis=-1, keepdims=True) + math.log(fraction), NEVER, logits)


def typical_p(logits: Array, p: float) -> Array:
    """The fewest whose surprise is nearest to the entropy and whose probabilities reach p (arXiv 2202.00666)."""
    if p == 1:
        return logits
    xp = array_namespace(logits)
    surprise = -log_softmax(logits)
    probabilities = xp.exp(-surprise)
    entropy = xp.sum(xp.where(probabilities > 0, probabilities * surprise, 0.0), axis=-1, keepdims=True)
    distance = xp.abs(surprise - entropy)
    order = xp.argsort(distance, axis=-1)
    ordered, mass = (xp.take_along_axis(x, order, axis=-1) for x in (distance, probabilities))
    before = xp.cumulative_sum(mass, axis=-1) - mass
    count = _at_least_one(before < p)
    near = _keep_largest(-distance, -xp.take_along_axis(ordered, count - 1, axis=-1), count)
    return xp.where(near == NEVER, NEVER, logits)


def _at_least_one(among: Array) -> Array:
    """[N, 1], how many of each row's are true; 1 where none is."""
    xp = array_namespace(among)
    count = xp.count_nonzero(among, axis=-1, keepdims=True)
    return xp.where(count < 1, 1, count)


def largest_ids(logits: Array, count: int) -> Array:
    """[N, count] ascending, the ids of the largest of each row; of equal ones the lowest."""
    xp = array_namespace(logits)
    ids = places_of_largest(logits, count)
    smallest = xp.min(xp.take_along_axis(logits, ids, axis=-1), axis=-1, keepdims=True)
    if bool(xp.any(xp.count_nonzero(logits >= smallest, axis=-1) > count)):
        ids = places_of_largest(top_k(logits, count), count)
    return xp.sort(ids, axis=-1)


def _keep_largest(values: Array, smallest: Array, count: Array | int) -> Array:
    """The `count` ([N, 1] or one) largest of [N, V], of which the last is `smallest`; of equal ones the lowest ids."""
    xp = array_namespace(values)
    kept = values >= smallest
    if bool(xp.any(xp.count_nonzero(kept, axis=-1, keepdims=True) > count)):
        above, equal = values > smallest, values == smallest
        room = count - xp.count_nonzero(above, axis=-1, keepdims=True)
        kept = above | (equal & (xp.cumulative_sum(xp.astype(equal, xp.int64), axis=-1) <= room))
    return xp.where(kept, values, NEVER)


@quiet
def draw(logits: Array, uniforms: Sequence[float]) -> Array:
    """[N], the first id at which the cumulative probability passes the row's number in [0, 1).

    In the order of ids, not of probabilities: a logit's rounding error then moves no id far. An id of
    probability 0 is never drawn.
    """
    xp = array_namespace(logits)
    weights = xp.exp(logits - xp.max(logits, axis=-1, keepdims=True))
    reached = xp.where(weights > 0, xp.cumulative_sum(weights, axis=-1), 0.0)
    number = like(uniforms, logits)[:, None]
    passed = reached > number * xp.max(reached, axis=-1, keepdims=True)
    return xp.argmax(xp.astype(passed, xp.uint8), axis=-1)


def uniform(seed: int, choice: int, place: int) -> float:
    """The number in [0, 1) that draws token `place` of answer `choice`: depends on these three alone."""
    digest = blake2b(f"{seed} {choice} {place}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 12) / 2**52  # 52 bits: times a sum below it never rounds up to it


@quiet
def measure(logits: Array, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """The log-probability under logits [N, V] of each row's token, and of the `top` likeliest ids."""
    xp, logprobs = array_namespace(logits), log_softmax(precise(logits))
    own = xp.take_along_axis(logprobs, ids_like(tokens, logprobs)[:, None], axis=-1)[:, 0].tolist()
    if not top:
        return [TokenLogprob(token, logprob) for token, logprob in zip(tokens, own, strict=True)]
    values, order = likeliest(logprobs, top)
    pairs = zip(tokens, own, order.tolist(), values.tolist(), strict=True)
    return [TokenLogprob(t, o, tuple(zip(best, best_own, strict=True))) for t, o, best, best_own in pairs]


def likeliest(logits: Array, count: int) -> tuple[Array, Array]:
    """Values and ids [N, count] of the largest, best first; of equal ones the lowest id first."""
    xp, ids = array_namespace(logits), largest_ids(logits, count)
    values = xp.take_along_axis(logits, ids, axis=-1)
    order = xp.argsort(-values, axis=-1, stable=True)
    return xp.take_along_axis(values, order, axis=-1), xp.take_along_axis(ids, order, axis=-1)
