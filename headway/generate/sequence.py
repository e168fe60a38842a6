"""One answer in the making: what is known of it, what its events say, when it ends."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from headway.generate.request import Event, Finish, Request, TokenLogprob
from headway.generate.sampling import History, uniform
from headway.generate.stop import Stream, Writer


class Texts(Protocol):
    """What generation needs of a tokenizer."""

    @property
    def known_ids(self) -> Collection[int]: ...

    def stream(self, prompt_ids: tuple[int, ...], /) -> Stream: ...


class Sequence:
    """A prompt with one of its answers. Made by the engine; how much of it is computed, the cache's clock knows."""

    def __init__(
        self,
        request: Request,
        number: int,
        choice: int,
        *,
        context: int,
        texts: Texts | None,
    ) -> None:
        self.request, self.number, self.choice = request, number, choice
        self.answers = request.n if choice == 0 else 1  # how many it stands for until its prompt is computed
        self.finished = False
        self.tokens = list(request.prompt)
        self.limit = min(request.max_tokens, context - len(request.prompt))
        self.plain = request.sampling.greedy and not request.sampling.adjusts and not request.logprobs
        self.history = History(request.prompt) if request.sampling.counts else None
        self._ends = request.ends
        self._writer = None if texts is None else Writer(texts.stream(request.prompt), request.stop)

    @property
    def made(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - len(self.request.prompt)

    def uniform(self) -> float:
        """The number that draws the next token."""
        return uniform(self.request.seed, self.choice, self.made)

    def push(self, token: int, logprobs: tuple[TokenLogprob, ...] = ()) -> Event:
        """Take the next token; the event says what it added and whether it was the last."""
        self.tokens.append(token)
        if self.history is not None:
            self.history.push(token)
        text, stopped_by = self._write(token)
        finish: Finish | None = "stop" if stopped_by is not None else "length" if self.made >= self.limit else None
        if finish is not None and self._writer is not None:
            text += self._writer.finish()
            if stopped_by is None and self._writer.matched is not None:
                finish, stopped_by = "stop", self._writer.matched
        self.finished = finish is not None
        return Event(
            request=self.number,
            choice=self.choice,
            tokens=(token,),
            text=text,
            logprobs=logprobs,
            finish=finish,
            stopped_by=stopped_by,
            prompt_tokens=len(self.request.prompt),
            completion_tokens=self.made,
        )

    def _write(self, token: int) -> tuple[str, str | int | None]:
        """The text that the token lets be shown, and the end id or stop string that it completes."""
        if token in self._ends:
            return "", token
        if self._writer is None:
            return "", None
        text = self._writer.push(token)
        return text, self._writer.matched
