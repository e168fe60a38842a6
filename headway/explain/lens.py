"""Layer by layer: where the last token looks, and what the model would say if it stopped there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.batch import Batch
from headway.errors import RequestError
from headway.explain.attention import attention_paths
from headway.explain.tokens import Token, label, name
from headway.nn.taps import Record
from headway.nn.transformer import Transformer
from headway.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Candidate:
    """A token that may come next."""

    id: int
    text: str
    probability: float


@dataclass(frozen=True)
class Look:
    """A token that is looked at, and with how much of the attention."""

    position: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class LayerView:
    """One layer as the last token sees it."""

    layer: int
    looks: tuple[Look, ...]  # the heaviest weights, averaged over the heads of all attentions; none without attention
    says: tuple[Candidate, ...]  # the likeliest next tokens, read off the residual stream behind this layer


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What happens at the last token of a text, and what comes of it."""

    tokens: tuple[Token, ...]
    embedding_says: tuple[Candidate, ...]  # the same reading before the first layer
    layers: tuple[LayerView, ...]
    candidates: tuple[Candidate, ...]  # the likeliest next tokens of the whole model


@torch.inference_mode()
def explain(
    network: Transformer, ids: Sequence[int], *, tokenizer: Tokenizer | None = None, top: int = 5
) -> Explanation:
    """Where the last token looks and what each layer would say: the logit lens.

    The lens puts the residual stream behind a layer through the model's own last norm and head, as if no layer
    followed; behind the last layer it is the model's answer. RequestError for no tokens, or a `top` below 1.
    """
    if not ids:
        raise RequestError("the text has no tokens; give at least one word")
    if top < 1:
        raise RequestError(f"top = {top} is not a count; give 1 or more")
    spec = network.spec
    stack, head = spec.decoder, spec.heads[0]
    stream = [f"stacks.{stack.name}.stem.output"]
    stream += [f"stacks.{stack.name}.layers.{index}.output" for index in range(len(stack.layers))]
    record = Record(*stream, "*.weights")
    output = network(Batch.of([ids], device=network.device), keep="last", tap=record)
    assert output.logits is not None
    states = torch.stack([record.seen[path][0, -1] for path in stream])
    final_norm = network.get_submodule(f"stacks.{stack.name}.final_norm")
    logits = network.heads[head.name](final_norm(states))
    says = [_likeliest(row, top, tokenizer) for row in logits]
    looks: dict[int, list[Tensor]] = {}
    for path in attention_paths(spec):
        _, owner, _, index, _ = path.split(".")
        if owner == stack.name:
            looks.setdefault(int(index), []).append(record.seen[f"{path}.weights"][0, :, -1])
    return Explanation(
        tokens=label(tokenizer, ids),
        embedding_says=says[0],
        layers=tuple(
            LayerView(layer=index, looks=_heaviest(looks.get(index, []), top), says=says[index + 1])
            for index in range(len(stack.layers))
        ),
        candidates=_likeliest(output.logits[0, -1], top, tokenizer),
    )


def _likeliest(logits: Tensor, top: int, tokenizer: Tokenizer | None) -> tuple[Candidate, ...]:
    probabilities = logits.float().softmax(-1)
    values, ids = probabilities.topk(min(top, probabilities.shape[-1]))
    return tuple(
        Candidate(token, name(tokenizer, token), value)
        for token, value in zip(ids.tolist(), values.tolist(), strict=True)
    )


def _heaviest(weights: list[Tensor], top: int) -> tuple[Look, ...]:
    """The largest of weights [H, S] after the mean over heads."""
    if not weights:
        return ()
    mean = torch.cat(weights).mean(0)
    values, places = mean.topk(min(top, mean.shape[-1]))
    return tuple(Look(place, weight) for place, weight in zip(places.tolist(), values.tolist(), strict=True))
