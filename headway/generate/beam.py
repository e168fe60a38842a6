"""Beam search: the likeliest of many answers, kept side by side, for many prompts at once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from headway.errors import RequestError
from headway.generate.arrays import Array, array_namespace, like, log_softmax, precise
from headway.generate.engine import Engine
from headway.generate.request import Beams, Completion, Request, TokenLogprob
from headway.generate.sampling import NEVER, History, adjust, bias, likeliest
from headway.generate.score import score
from headway.generate.stop import Writer


@dataclass(frozen=True)
class Hypothesis:
    """A beginning of an answer, or a whole one: all tokens, prompt first, and the sum of log-probabilities."""

    tokens: tuple[int, ...]
    total: float
    history: History | None = None


@dataclass(frozen=True)
class Finished:
    """A whole answer and its score."""

    tokens: tuple[int, ...]
    score: float


def search(engine: Engine, requests: Iterable[Request], beams: Beams) -> list[Completion]:
    """The `n` best answers to each request, best first; RequestError when a request does not fit a beam search.

    Log-probabilities are normalised over the ids that may be chosen (bias and bans of ids come before
    the softmax, penalties and repeated n-grams after it, as in transformers).
    """
    searches = [
        Search(engine, _check(engine.limits.check(request), beams, engine), number, beams)
        for number, request in enumerate(requests)
    ]
    finished: list[Search] = []
    for some in _batches(searches, beams.beams, engine.rows):
        finished += _run(engine, some)
    return [completion for one in finished for completion in one.completions()]


def _check(request: Request, beams: Beams, engine: Engine) -> Request:
    if beams.beams > engine.rows:
        raise RequestError(f"beams = {beams.beams} must be at most {engine.rows}, the answers that may run at once")
    if request.n > beams.beams:
        raise RequestError(f"n = {request.n} must be at most beams = {beams.beams}: a search has so many answers")
    if not request.sampling.greedy:
        raise RequestError(
            f"temperature = {request.sampling.temperature} must be 0 in a beam search, which does not sample"
        )
    return request


def _batches(searches: list[Search], beams: int, rows: int) -> list[list[Search]]:
    size = rows // beams
    return [searches[start : start + size] for start in range(0, len(searches), size)]


def _run(engine: Engine, searches: list[Search]) -> list[Search]:
    """Row by row: the live hypotheses of the first search, of the second, and so on."""
    past, open_searches = engine.past(), list(searches)
    while open_searches:
        advance = past.advance([live.tokens for one in open_searches for live in one.live])
        logits = None if advance.logits is None else engine.known(advance.logits)
        at = {row: place for place, row in enumerate(advance.ready)}
        sources: list[int] = []
        start = 0
        for one in open_searches:
            rows = range(start, start + len(one.live))
            start = rows.stop
            if logits is None or not at.keys() >= set(rows):
                sources += rows
            else:
                places = [at[row] for row in rows]
                sources += [rows[source] for source in one.expand(logits[places[0] : places[-1] + 1])]
        open_searches = [one for one in open_searches if one.live]
        if sources:
            past.arrange(sources)
    return searches


class Search:
    """The search for one request. `live` is what may still grow, best first; empty once the search is over."""

    def __init__(self, engine: Engine, request: Request, number: int, beams: Beams) -> None:
        self.engine, self.request, self.number, self.beams = engine, request, number, beams
        self.sampling = replace(request.sampling, logit_bias=())
        self.limit = min(request.max_tokens, engine.limits.context - len(request.prompt))
        history = History(request.prompt) if self.sampling.counts else None
        self.live = [Hypothesis(request.prompt, 0.0, history)]
        self.finished: list[Finished] = []

    def expand(self, logits: Array) -> list[int]:
        """Grow every live hypothesis by logits [N, V]; returns which row each new live one came from."""
        sources: list[int] = []
        grown: list[Hypothesis] = []
        width = self.beams.beams
        for rank, (source, candidate) in enumerate(self._candidates(self._logprobs(logits))):
            if self._ended(candidate.tokens):
                # Below the best `beams` an end is no answer: such candidates only keep the search going.
                if rank < width:
                    self._finish(candidate)
            elif len(grown) < width:
                grown.append(candidate)
                sources.append(source)
        if not grown or self._over(grown[0]):
            grown, sources = [], []
        self.live = grown
        return sources

    def completions(self) -> list[Completion]:
        """The best answers, best first."""
        return [self._completion(choice, best) for choice, best in enumerate(self.finished[: self.request.n])]

    def _logprobs(self, logits: Array) -> Array:
        logits = precise(logits)
        if self.request.sampling.logit_bias:
            logits = bias(logits, self.request.sampling.logit_bias)
        histories = [live.history for live in self.live if live.history is not None]
        return adjust(log_softmax(logits), self.sampling, histories, [live.tokens for live in self.live])

    def _candidates(self, logprobs: Array) -> list[tuple[int, Hypothesis]]:
        """The best continuations, best first: enough that `beams` of them go on whatever ends."""
        totals = like([live.total for live in self.live], logprobs)
        scores = array_namespace(logprobs).reshape(logprobs + totals[:, None], (1, -1))
        count = min(max(2, 1 + len(self.request.ends)) * self.beams.beams, scores.shape[-1])
        values, places = likeliest(scores, count)
        found = []
        for value, place in zip(values[0].tolist(), places[0].tolist(), strict=True):
            source, token = divmod(place, logprobs.shape[-1])
            if value > NEVER:
                found.append((source, self._grow(self.live[source], token, value)))
        return found

    def _grow(self, live: Hypothesis, token: int, total: float) -> Hypothesis:
        history = None
        if live.history is not None:
            history = live.history.copy()
            history.push(token)
        return Hypothesis((*live.tokens, token), total, history)

    def _ended(self, tokens: tuple[int, ...]) -> bool:
        return tokens[-1] in self.request.ends or self._made(tokens) >= self.limit or self._stopped(tokens)

    def _stopped(self, tokens: tuple[int, ...]) -> bool:
        return bool(self.request.stop) and self._write(tokens)[1] is not None

    def _made(self, tokens: tuple[int, ...]) -> int:
        return len(tokens) - len(self.request.prompt)

    def _finish(self, one: Hypothesis) -> None:
        """Keep it among the best `beams` whole answers."""
        whole = Finished(one.tokens, self._score(one.total, self._made(one.tokens)))
        self.finished = sorted([*self.finished, whole], key=lambda answer: -answer.score)[: self.beams.beams]

    def _score(self, total: float, length: int) -> float:
        return total / math.pow(length, self.beams.length_penalty)

    def _over(self, best: Hypothesis) -> bool:
        """Whether the answers are complete and the best unfinished one will not better the worst of them."""
        if len(self.finished) < self.beams.beams:
            return False
        if self.beams.early_stopping is True:
            return True
        longest = self.beams.early_stopping == "never" and self.beams.length_penalty > 0
        length = self.limit if longest else self._made(best.tokens)
        return self._score(best.total, length) <= self.finished[-1].score

    def _write(self, tokens: tuple[int, ...]) -> tuple[str, str | int | None]:
        """The text of an answer, and what stopped it."""
        made = tokens[len(self.request.prompt) :]
        ended = made[-1] if made[-1] in self.request.ends else None
        if self.engine.tokenizer is None:
            return "", ended
        writer = Writer(self.engine.tokenizer.stream(self.request.prompt), self.request.stop)
        text = "".join([writer.push(token) for token in (made if ended is None else made[:-1])]) + writer.finish()
        return text, ended if writer.matched is None else writer.matched

    def _completion(self, choice: int, best: Finished) -> Completion:
        text, stopped_by = self._write(best.tokens)
        return Completion(
            request=self.number,
            choice=choice,
            tokens=best.tokens[len(self.request.prompt) :],
            text=text,
            logprobs=self._measured(best.tokens),
            finish="length" if stopped_by is None else "stop",
            stopped_by=stopped_by,
            prompt_tokens=len(self.request.prompt),
            score=best.score,
        )

    def _measured(self, tokens: tuple[int, ...]) -> tuple[TokenLogprob, ...]:
        if not self.request.logprobs:
            return ()
        (scored,) = score(self.engine, [tokens], top=self.request.top_logprobs, given=len(self.request.prompt))
        return scored.tokens
