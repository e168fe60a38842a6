"""A real network whose answer is written beforehand, and a tokenizer of given pieces."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from headway.nn import Transformer, empty
from headway.nn.build import fill
from headway.spec import LearnedPositions, LMHead, ModelSpec, StackSpec, TokenStem

CONTEXT = 24


def scripted(answer: Sequence[int], *, prompt: int, vocab: int = 96, context: int = CONTEXT) -> Transformer:
    """A network that answers a prompt of `prompt` tokens with `answer`, whatever the ids: it reads positions alone.

    Hidden state of position p is the p-th unit vector; the head's p-th column prefers the token that follows.
    """
    stem = TokenStem(vocab=vocab, width=context, positions=LearnedPositions(length=context))
    stack = StackSpec(name="decoder", width=context, context=context, stem=stem, layers=())
    head = LMHead(name="lm", stack="decoder", vocab=vocab)
    spec = ModelSpec(name="scripted", family="headway", stacks=(stack,), heads=(head,))
    weight = torch.zeros(vocab, context)
    for place, token in enumerate(answer):
        weight[token, prompt - 1 + place] = 9.0
    return fill(
        empty(spec),
        {
            "stacks.decoder.stem.tokens.weight": torch.zeros(vocab, context),
            "stacks.decoder.stem.positions.weight": torch.eye(context),
            "heads.lm.weight": weight,
        },
    )


class Pieces:
    """A tokenizer whose ids are fixed texts."""

    def __init__(self, pieces: Mapping[int, str], known: Collection[int] | None = None) -> None:
        self.pieces = pieces
        self.known_ids = frozenset(pieces if known is None else known)

    def stream(self, prompt_ids: tuple[int, ...]) -> PieceStream:
        return PieceStream(self.pieces)


class PieceStream:
    """Every id gives its text at once; `late` ids give it with the next one, as half a character would."""

    def __init__(self, pieces: Mapping[int, str]) -> None:
        self.pieces, self.late = pieces, ""

    def push(self, token: int) -> str:
        text = self.late + self.pieces.get(token, "")
        self.late = ""
        if text.endswith("~"):  # marks a piece whose text is not whole yet
            self.late, text = text[:-1], ""
        return text

    def finish(self) -> str:
        text, self.late = self.late, ""
        return text
