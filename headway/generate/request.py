"""What is asked of a generation and what comes back: frozen requests, events, completions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from headway.errors import RequestError
from headway.generate.check import distinct, flag, ids, inside, number, pairs, require, texts, whole

Finish = Literal["stop", "length"]

STOP_LIMIT = 256  # strings in one request
PENALTY_LIMIT = 10.0  # of a beam's length: beyond it the power of a long answer is no number
BAN, ONLY = -100.0, 100.0  # the two ends of a logit bias are not sums: never this id, nothing but this id


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen; as it stands, greedily. RequestError for a value out of range.

    The steps are taken in this order, which is that of transformers: logit bias, repetition, presence and
    frequency penalties, repeated n-grams; then, unless the choice is greedy, temperature, top-k, top-p,
    min-p, typical. Temperature 0, top-k 1 and top-p 0 are greedy; of equal logits the lowest id wins.
    """

    temperature: float = 0.0  # divides the logits; 0 is greedy
    top_k: int = 0  # so many largest; 0 is all
    top_p: float = 1.0  # the fewest largest whose probabilities reach this sum (arXiv 1904.09751)
    min_p: float = 0.0  # at least this fraction of the largest probability (arXiv 2407.01082)
    typical_p: float = 1.0  # the fewest most typical that reach this sum (arXiv 2202.00666)
    repetition_penalty: float = 1.0  # divides positive, multiplies negative logits of ids seen (arXiv 1909.05858)
    penalise_prompt: bool = True  # whether the ids of the prompt count as seen
    presence_penalty: float = 0.0  # subtracted from ids generated so far
    frequency_penalty: float = 0.0  # subtracted once for every time an id was generated
    no_repeat_ngram: int = 0  # no run of so many tokens twice, prompt included; 0 is free
    logit_bias: tuple[tuple[int, float], ...] = ()  # added to an id's logit; -100 bans it, 100 allows nothing else

    def __post_init__(self) -> None:
        number("temperature", self.temperature, low=0)
        whole("top_k", self.top_k, low=0)
        for field in ("top_p", "min_p", "typical_p"):
            number(field, getattr(self, field), low=0, high=1)
        number("repetition_penalty", self.repetition_penalty, low=0, open_low=True)
        flag("penalise_prompt", self.penalise_prompt)
        for field in ("presence_penalty", "frequency_penalty"):
            number(field, getattr(self, field), low=-2, high=2)
        whole("no_repeat_ngram", self.no_repeat_ngram, low=0)
        pairs("logit_bias", self.logit_bias)
        for pair in self.logit_bias:
            whole("logit_bias id", pair[0], low=0)
            number(f"logit_bias of id {pair[0]}", pair[1], low=BAN, high=ONLY)
        distinct("logit_bias", [pair[0] for pair in self.logit_bias])

    @property
    def greedy(self) -> bool:
        """Whether the largest logit is taken, once penalties and bias have had their say."""
        return self.temperature == 0 or self.top_k == 1 or self.top_p == 0

    @property
    def adjusts(self) -> bool:
        """Whether any penalty, ban or bias changes the logits."""
        return bool(self.logit_bias) or self.no_repeat_ngram > 0 or self.counts

    @property
    def counts(self) -> bool:
        """Whether the choice depends on how often an id was seen."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt and what is wanted of it. RequestError for a value out of range.

    The same request gives the same tokens alone and in any batch: every draw depends on `seed`, the number
    of the choice and the number of the token alone. Generation ends with "stop" at an id of `end_ids` or a
    stop string, with "length" after `max_tokens` tokens or where the context is full.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()  # texts that end the answer, wherever tokens split them; never part of it
    end_ids: tuple[int, ...] = ()
    ignore_end: bool = False  # go on past `end_ids`
    logprobs: bool = False  # the model's own log-probability of every token, before bias, penalties and filters
    top_logprobs: int = 0  # the so many likeliest ids beside it
    n: int = 1  # answers, which share the prompt's computation
    seed: int = 0

    def __post_init__(self) -> None:
        ids("prompt", self.prompt)
        require(len(self.prompt) > 0, "prompt", self.prompt, "is empty: give at least one token, as the start token")
        whole("max_tokens", self.max_tokens, low=1)
        texts("stop", self.stop)
        require(len(self.stop) <= STOP_LIMIT, "number of stop strings", len(self.stop), f"must be at most {STOP_LIMIT}")
        ids("end_ids", self.end_ids)
        flag("ignore_end", self.ignore_end)
        flag("logprobs", self.logprobs)
        whole("top_logprobs", self.top_logprobs, low=0)
        require(self.logprobs or not self.top_logprobs, "top_logprobs", self.top_logprobs, "needs logprobs=True")
        whole("n", self.n, low=1)
        whole("seed", self.seed)

    @property
    def ends(self) -> frozenset[int]:
        """The ids that end the answer."""
        return frozenset() if self.ignore_end else frozenset(self.end_ids)


@dataclass(frozen=True, kw_only=True)
class Beams:
    """Beam search: the likeliest of many answers, kept side by side; a request's `n` best are returned.

    An answer's score is the sum of its log-probabilities over length ** length_penalty, the end token
    counted, as in transformers. With `early_stopping` True the search ends once `beams` answers are finished,
    with False once the best unfinished one scores no better at its present length, with "never" once it
    cannot at any length up to the limit.
    """

    beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        whole("beams", self.beams, low=1)
        number("length_penalty", self.length_penalty, low=-PENALTY_LIMIT, high=PENALTY_LIMIT)
        known = self.early_stopping is True or self.early_stopping is False or self.early_stopping == "never"
        require(known, "early_stopping", self.early_stopping, 'must be True, False or "never"')


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a model can take."""

    vocab: int  # rows of the embedding
    known: Collection[int]  # ids that may be generated
    context: int  # tokens of a prompt and its answer together
    rows: int  # answers at once
    text: bool  # whether there is a tokenizer

    def check(self, request: Request) -> Request:
        """Return `request`, or raise RequestError for what this model cannot take; nothing is ever cut."""
        inside("prompt", request.prompt, self.vocab)
        if len(request.prompt) >= self.context:
            raise RequestError(
                f"prompt has {len(request.prompt)} tokens, but the context of {self.context} tokens "
                "must hold the prompt and at least one new token; shorten the prompt"
            )
        whole("n", request.n, low=1, high=self.rows)
        whole("top_logprobs", request.top_logprobs, low=0, high=len(self.known))
        require(self.text or not request.stop, "stop", request.stop, "needs a tokenizer: stop strings are text")
        self._check_bias(request.sampling.logit_bias)
        return request

    def _check_bias(self, bias: tuple[tuple[int, float], ...]) -> None:
        for token, _ in bias:
            require(token in self.known, "logit_bias id", token, f"must be a known id, below {max(self.known) + 1}")
        banned = sum(value == BAN for _, value in bias)
        require(banned < len(self.known), f"number of ids banned by {BAN:g} in logit_bias", banned, "leaves no id")


@dataclass(frozen=True)
class TokenLogprob:
    """The model's log-probability (natural) of a token, and of the likeliest ids at its place, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Event:
    """What one step added to one answer. The texts of its events, joined, are the answer.

    `text` may be empty: half a character, or what may become a stop string, is held back until it is
    known. `tokens` counts the end token and the tokens of a stop string; `text` never shows them.
    """

    request: int  # place in the list of requests
    choice: int  # which of the request's n answers
    tokens: tuple[int, ...]
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None  # set on the last event of an answer
    stopped_by: str | int | None = None  # the stop string or end id that was met
    prompt_tokens: int
    completion_tokens: int  # so far


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A whole answer."""

    request: int
    choice: int
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...]
    finish: Finish
    stopped_by: str | int | None
    prompt_tokens: int
    score: float = 0.0  # of a beam: the sum of log-probabilities over length ** length_penalty

    @property
    def completion_tokens(self) -> int:
        """Tokens that the model produced, the end token included."""
        return len(self.tokens)


def join(events: Iterable[Event]) -> list[Completion]:
    """The completions whose events these are, by request and choice."""
    answers: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        answers.setdefault((event.request, event.choice), []).append(event)
    return [_joined(answers[key]) for key in sorted(answers)]


def _joined(events: list[Event]) -> Completion:
    last = events[-1]
    assert last.finish is not None, "an answer ends with the event that says why"
    return Completion(
        request=last.request,
        choice=last.choice,
        tokens=tuple(token for event in events for token in event.tokens),
        text="".join(event.text for event in events),
        logprobs=tuple(logprob for event in events for logprob in event.logprobs),
        finish=last.finish,
        stopped_by=last.stopped_by,
        prompt_tokens=last.prompt_tokens,
    )
