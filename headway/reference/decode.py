"""Greedy decoding without a cache: the whole prefix is computed again for every token."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headway.reference.model import hidden, logits
from headway.reference.parameters import Below, Tied, Weights
from headway.spec import ModelSpec


def greedy(
    spec: ModelSpec,
    weights: Weights,
    prompt: Sequence[int],
    count: int,
    end_ids: Collection[int] = (),
    *,
    memory_tokens: Sequence[int] = (),
) -> list[int]:
    """Up to `count` new token ids, each the likeliest after all before it; the lowest id wins a tie.

    Stops early after an id of `end_ids`, which is the last one returned.
    """
    head, tokens = spec.heads[0], list(prompt)
    matrix = Below(Tied(weights, spec.ties), f"heads.{head.name}")
    new: list[int] = []
    while len(new) < count and not (new and new[-1] in end_ids):
        last = hidden(spec, weights, tokens + new, memory_tokens=memory_tokens)[-1]
        new.append(likeliest(logits(head, matrix, last)))
    return new


def likeliest(scores: Sequence[float]) -> int:
    """The id of the highest score; the lowest id among equals."""
    return max(range(len(scores)), key=scores.__getitem__)
