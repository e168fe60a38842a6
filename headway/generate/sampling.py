"""From logits to the next token: pure functions on rows of logits, in the order that `Sampling` states."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import torch
from torch import Tensor

from headway.errors import CheckpointError
from headway.generate.request import BAN, ONLY, Sampling, TokenLogprob

NEVER = -math.inf
FIRST_LOOK = 1024  # largest logits that top-p examines before it sorts the whole vocabulary


@dataclass(frozen=True)
class Known:
    """The ids that a tokenizer knows, decided once: all others have probability exactly 0.

    A head is often wider than the tokenizer, since its rows are padded for speed; the rows behind the last
    known id are cut off, and ids in a gap get logit minus infinity, so that the rest sums to 1.
    """

    ids: frozenset[int]
    width: int  # one more than the largest known id
    gaps: Tensor | None  # unknown ids below it

    @classmethod
    def of(cls, known: Iterable[int], vocab: int, device: torch.device | str = "cpu") -> Known:
        """The known ids among the `vocab` ids of a head."""
        inside = frozenset(token for token in known if 0 <= token < vocab)
        if not inside:
            raise CheckpointError(f"the tokenizer knows none of the model's {vocab} ids; it belongs to another model")
        width = max(inside) + 1
        gaps = sorted(set(range(width)) - inside)
        return cls(inside, width, torch.tensor(gaps, device=device) if gaps else None)

    def __call__(self, logits: Tensor) -> Tensor:
        """Logits [..., vocab] -> [..., width]."""
        kept = logits[..., : self.width]
        return kept if self.gaps is None else kept.index_fill(-1, self.gaps, NEVER)


class History:
    """What a sequence has said: which ids its prompt holds, and how often each id was generated since.

    Only a sequence's own ids enter: never padding, never another row's.
    """

    def __init__(self, prompt: Iterable[int], width: int, device: torch.device | str = "cpu") -> None:
        self.prompt = torch.zeros(width, dtype=torch.bool, device=device)
        self.prompt[torch.tensor([token for token in prompt if token < width], dtype=torch.long)] = True
        self.counts = torch.zeros(width, dtype=torch.float64, device=device)

    def push(self, token: int) -> None:
        """Count a generated id."""
        self.counts[token] += 1

    def copy(self) -> History:
        """The same past, to go on differently."""
        other = object.__new__(History)
        other.prompt, other.counts = self.prompt, self.counts.clone()
        return other


def greedy(logits: Tensor) -> Tensor:
    """[N], the id of the largest logit of each row [N, V]; the lowest id of equal ones."""
    return logits.argmax(dim=-1)


def precise(logits: Tensor) -> Tensor:
    """Logits in float64 (on the CPU where the device has none), so that draws agree between devices."""
    return (logits.cpu() if logits.device.type == "mps" else logits).double()


def adjust(
    logits: Tensor, sampling: Sampling, histories: Sequence[History] = (), tokens: Sequence[Sequence[int]] = ()
) -> Tensor:
    """Bias, penalties and bans on [N, V]; `histories` and `tokens` (all of a row, prompt first) as these need them."""
    if sampling.logit_bias:
        logits = logits + bias_vector(sampling.logit_bias, logits.shape[-1], logits.device)
    if sampling.counts:
        prompt = torch.stack([history.prompt for history in histories]).to(logits.device)
        counts = torch.stack([history.counts for history in histories]).to(logits.device)
        seen = counts > 0 if not sampling.penalise_prompt else prompt | (counts > 0)
        logits = repetition(logits, seen, float(sampling.repetition_penalty))
        logits = presence_and_frequency(logits, counts, sampling.presence_penalty, sampling.frequency_penalty)
    if sampling.no_repeat_ngram:
        logits = ban(logits, [repeats(row, sampling.no_repeat_ngram) for row in tokens])
    return logits


def narrow(logits: Tensor, sampling: Sampling) -> Tensor:
    """Temperature and filters on [N, V] float64; what they remove is minus infinity, and something always stays."""
    logits = heat(logits, sampling.temperature)
    logits = top_k(logits, sampling.top_k)
    logits = top_p(logits, sampling.top_p)
    logits = min_p(logits, sampling.min_p)
    return typical_p(logits, sampling.typical_p)


def choose(
    logits: Tensor,
    sampling: Sampling,
    uniforms: Sequence[float],
    histories: Sequence[History] = (),
    tokens: Sequence[Sequence[int]] = (),
) -> Tensor:
    """[N], the next id of each row of logits [N, V]."""
    logits = adjust(precise(logits), sampling, histories, tokens) if sampling.adjusts else logits
    return greedy(logits) if sampling.greedy else draw(narrow(precise(logits), sampling), uniforms)


@lru_cache(maxsize=64)
def bias_vector(bias: tuple[tuple[int, float], ...], width: int, device: torch.device) -> Tensor:
    """[V] float64 to add: -100 bans an id, 100 bans all ids but those that have it, others are sums."""
    only = any(value == ONLY for _, value in bias)
    vector = torch.full((width,), NEVER if only else 0.0, dtype=torch.float64, device=device)
    for token, value in bias:
        vector[token] = NEVER if value == BAN or (only and value != ONLY) else value
    return vector


def repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Positive logits of seen ids [N, V] divided, negative ones multiplied, each id once (arXiv 1909.05858)."""
    if penalty == 1:
        return logits
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def presence_and_frequency(logits: Tensor, counts: Tensor, presence: float, frequency: float) -> Tensor:
    """`presence` off ids that were generated, `frequency` off for each time; `counts` [N, V] of generated ids."""
    if not presence and not frequency:
        return logits
    return logits - presence * (counts > 0) - frequency * counts


def repeats(tokens: Sequence[int], size: int) -> list[int]:
    """The ids that would complete a run of `size` tokens that `tokens` holds already."""
    last = list(tokens[len(tokens) - size + 1 :])
    starts = range(len(tokens) - size + 1)
    return sorted({tokens[start + size - 1] for start in starts if list(tokens[start : start + size - 1]) == last})


def ban(logits: Tensor, tokens: Sequence[Sequence[int]]) -> Tensor:
    """Minus infinity for these ids of each row; a row that would have nothing left stays as it is."""
    banned = torch.zeros(logits.shape, dtype=torch.bool)
    for row, ids in enumerate(tokens):
        banned[row, torch.tensor([token for token in ids if token < logits.shape[-1]], dtype=torch.long)] = True
    fewer = logits.masked_fill(banned.to(logits.device), NEVER)
    return torch.where((fewer > NEVER).any(dim=-1, keepdim=True), fewer, logits)


def heat(logits: Tensor, temperature: float) -> Tensor:
    """Logits over the temperature; the largest becomes 0 first, so that no temperature overflows."""
    if temperature == 1:
        return logits
    return (logits - logits.amax(dim=-1, keepdim=True)) / float(temperature)  # torch takes no int beyond 64 bits


def top_k(logits: Tensor, k: int) -> Tensor:
    """The k largest; 0, or more than there are, is all."""
    if k == 0 or k >= logits.shape[-1]:
        return logits
    return _keep_largest(logits, logits.topk(k).values[..., -1:], torch.tensor([[k]], device=logits.device))


def top_p(logits: Tensor, p: float) -> Tensor:
    """The fewest largest whose probabilities reach p (nucleus, arXiv 1904.09751); at least one."""
    if p == 1:
        return logits
    total = logits.logsumexp(dim=-1, keepdim=True)
    look = min(FIRST_LOOK, logits.shape[-1])
    largest = logits.topk(look).values
    if ((largest - total).exp().sum(dim=-1) < p).any():
        largest = logits.sort(dim=-1, descending=True).values
    probabilities = (largest - total).exp()
    before = probabilities.cumsum(dim=-1) - probabilities
    count = (before < p).sum(dim=-1, keepdim=True).clamp(min=1)
    return _keep_largest(logits, largest.gather(-1, count - 1), count)


def min_p(logits: Tensor, fraction: float) -> Tensor:
    """Those of at least `fraction` times the largest probability (arXiv 2407.01082)."""
    if fraction == 0:
        return logits
    return logits.masked_fill(logits < logits.amax(dim=-1, keepdim=True) + math.log(fraction), NEVER)


def typical_p(logits: Tensor, p: float) -> Tensor:
    """The fewest whose surprise is nearest to the entropy and whose probabilities reach p (arXiv 2202.00666)."""
    if p == 1:
        return logits
    surprise = -logits.log_softmax(dim=-1)
    probabilities = (-surprise).exp()
    entropy = torch.where(probabilities > 0, probabilities * surprise, 0.0).sum(dim=-1, keepdim=True)
    distance = (surprise - entropy).abs()
    ordered, order = distance.sort(dim=-1)
    mass = probabilities.gather(-1, order)
    before = mass.cumsum(dim=-1) - mass
    count = (before < p).sum(dim=-1, keepdim=True).clamp(min=1)
    near = _keep_largest(-distance, -ordered.gather(-1, count - 1), count)
    return logits.masked_fill(near == NEVER, NEVER)


def _keep_largest(values: Tensor, smallest: Tensor, count: Tensor) -> Tensor:
    """The `count` [.., 1] largest of [N, V], of which the last is `smallest`; of equal ones the lowest ids."""
    above, equal = values > smallest, values == smallest
    room = count - above.sum(dim=-1, keepdim=True)
    return values.masked_fill(~(above | (equal & (equal.cumsum(dim=-1) <= room))), NEVER)


def draw(logits: Tensor, uniforms: Sequence[float]) -> Tensor:
    """[N], the first id at which the cumulative probability passes the row's number in [0, 1).

    In the order of ids, not of probabilities: a logit's rounding error then moves no id far. An id of
    probability 0 is never drawn.
    """
    probabilities = logits.softmax(dim=-1)
    reached = torch.where(probabilities > 0, probabilities.cumsum(dim=-1), 0.0)
    number = torch.tensor(uniforms, dtype=logits.dtype, device=logits.device)[:, None]
    passed = reached > number * reached.amax(dim=-1, keepdim=True)
    return passed.to(torch.uint8).argmax(dim=-1)


def uniform(seed: int, choice: int, place: int) -> float:
    """The number in [0, 1) that draws token `place` of answer `choice`: depends on these three alone."""
    digest = blake2b(f"{seed} {choice} {place}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 12) / 2**52  # 52 bits: times a sum below it never rounds up to it


def measure(logits: Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """The log-probability under logits [N, V] of each row's token, and of the `top` likeliest ids."""
    logprobs = precise(logits).log_softmax(dim=-1)
    ids = torch.tensor(tokens, device=logprobs.device)[:, None]
    own = logprobs.gather(-1, ids)[:, 0].tolist()
    if not top:
        return [TokenLogprob(token, logprob) for token, logprob in zip(tokens, own, strict=True)]
    values, order = likeliest(logprobs, top)
    pairs = zip(tokens, own, order.tolist(), values.tolist(), strict=True)
    return [TokenLogprob(t, o, tuple(zip(best, best_own, strict=True))) for t, o, best, best_own in pairs]


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and ids [N, count] of the largest, best first; of equal ones the lowest id first."""
    ids = top_k(logits, count).topk(count).indices.sort(dim=-1).values
    values, order = logits.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, order)
