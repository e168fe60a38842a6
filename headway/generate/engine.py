"""Runs requests together: uneven prompts, chunked prefill, answers that come and go, one event a token."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from headway.errors import RequestError
from headway.generate.arrays import Array
from headway.generate.check import whole
from headway.generate.past import Network, Past
from headway.generate.request import Completion, Event, Limits, Request, Sampling, TokenLogprob, join
from headway.generate.sampling import Known, choose, greedy, measure
from headway.generate.sequence import Sequence, Texts


class Engine:
    """A network that answers requests; without a tokenizer, in token ids alone.

    Greedy answers are the same alone, in any batch, in chunks of any size, and with `cached=False`, which
    computes every prefix anew. Holds no state between runs.
    """

    def __init__(
        self, network: Network, tokenizer: Texts | None = None, *, chunk: int = 512, rows: int = 64, cached: bool = True
    ) -> None:
        """`chunk`: prompt tokens of a row in one step; `rows`: answers at once, further ones wait."""
        whole("chunk", chunk, low=1)
        whole("rows", rows, low=1)
        if not network.spec.heads:
            raise RequestError(f"model {network.spec.name} has no language-model head, so it generates no text")
        self.network, self.tokenizer = network, tokenizer
        self.chunk, self.rows, self.cached = chunk, rows, cached
        decoder, head = network.spec.decoder, network.spec.heads[0]
        ids = range(head.vocab) if tokenizer is None else tokenizer.known_ids
        self.known = Known.of(ids, head.vocab)
        self.limits = Limits(
            vocab=decoder.stem.vocab,
            known=self.known.ids,
            context=decoder.context,
            rows=rows,
            text=tokenizer is not None,
        )

    def run(self, requests: Iterable[Request]) -> Iterator[Event]:
        """The events of all requests as they happen; RequestError at once when one of them cannot be served."""
        return self._events([self.limits.check(request) for request in requests])

    def complete(self, requests: Iterable[Request]) -> list[Completion]:
        """Whole answers, by request and choice."""
        return join(self.run(requests))

    def past(self) -> Past:
        """An empty past of this engine's network."""
        return Past(self.network, chunk=self.chunk, cached=self.cached)

    def sequence(self, request: Request, number: int, choice: int) -> Sequence:
        """An answer of `request` that has not begun."""
        return Sequence(
            request,
            number,
            choice,
            context=self.limits.context,
            texts=self.tokenizer,
        )

    def _events(self, requests: list[Request]) -> Iterator[Event]:
        running = Running(self)
        for request in requests:
            running.add(request)
        while running.busy:
            yield from running.step()


class Running:
    """Requests under way: those that wait, those whose prompt is being computed, those that answer."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.waiting: deque[tuple[int, Request]] = deque()
        self.groups: list[Group] = []
        self._added = 0

    def add(self, request: Request) -> int:
        """Let a checked request in as soon as there is room; returns the number that its events carry."""
        self.waiting.append((self._added, request))
        self._added += 1
        return self._added - 1

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.waiting or self.groups)

    def step(self) -> list[Event]:
        """Let in what has room, advance every group, merge groups that have caught up."""
        self._admit()
        events = [event for group in self.groups for event in group.step()]
        # Newcomers have a cache of their own until their prompts are computed: nobody waits as padding.
        groups = [group for group in self.groups if group.rows]
        answering = [group for group in groups if group.answering]
        if len(answering) > 1:
            answering[0].join(*answering[1:])
        self.groups = answering[:1] + [group for group in groups if group not in answering]
        return events

    def _admit(self) -> None:
        if not self.waiting:
            return
        room = self.engine.rows - sum(row.answers for group in self.groups for row in group.rows)
        alike: dict[tuple[int, int], list[Sequence]] = {}
        while self.waiting and self.waiting[0][1].n <= room:
            number, request = self.waiting.popleft()
            room -= request.n
            # Prompts of like length are computed together, so that less than half of any batch is padding.
            length = len(request.prompt)
            key = -(-length // self.engine.chunk), length.bit_length()
            alike.setdefault(key, []).append(self.engine.sequence(request, number, 0))
        self.groups += [Group(self.engine, rows) for rows in alike.values()]


class Group:
    """Sequences that share a past: row i of it is that of `rows[i]`."""

    def __init__(self, engine: Engine, rows: list[Sequence]) -> None:
        self.engine, self.rows, self.past = engine, rows, engine.past()

    @property
    def answering(self) -> bool:
        """Whether every row's prompt is computed."""
        return all(row.made for row in self.rows)

    def join(self, *others: Group) -> None:
        """Take over the rows of `others`."""
        self.past.join(*(other.past for other in others))
        self.rows = [row for group in (self, *others) for row in group.rows]

    def step(self) -> list[Event]:
        """One step of the network, and a token for every row that has caught up with what is known of it."""
        advance = self.past.advance([row.tokens for row in self.rows])
        if not advance.ready:
            return []
        assert advance.logits is not None
        rows, logits = self._fork(self.engine.known(advance.logits), advance.ready)
        tokens = next_tokens(rows, logits)
        logprobs = token_logprobs(rows, logits, tokens)
        events = [row.push(token, logprob) for row, token, logprob in zip(rows, tokens, logprobs, strict=True)]
        if any(event.finish for event in events):
            self._leave()
        return events

    def _fork(self, logits: Array, ready: list[int]) -> tuple[list[Sequence], Array]:
        """The rows that get a token, and their logits: a prompt now computed stands once for every answer of it."""
        if all(row.answers == 1 for row in self.rows):
            return [self.rows[place] for place in ready], logits
        at = {row: place for place, row in enumerate(ready)}
        sources: list[int] = []
        rows: list[Sequence] = []
        for place, row in enumerate(self.rows):
            others = range(1, row.answers) if place in at else range(0)
            rows += [row, *(self.engine.sequence(row.request, row.number, choice) for choice in others)]
            sources += [place] * (1 + len(others))
            row.answers -= len(others)
        self.rows = rows
        self.past.arrange(sources)
        fed = [row for row, source in zip(rows, sources, strict=True) if source in at]
        return fed, logits[[at[source] for source in sources if source in at]]

    def _leave(self) -> None:
        stay = [place for place, row in enumerate(self.rows) if not row.finished]
        self.rows = [self.rows[place] for place in stay]
        if self.rows:
            self.past.arrange(stay)


def next_tokens(rows: list[Sequence], logits: Array) -> list[int]:
    """The next token of each row of logits [N, V]."""
    if all(row.plain for row in rows):
        return greedy(logits).tolist()
    alike: dict[Sampling, list[int]] = {}
    for place, row in enumerate(rows):
        alike.setdefault(row.request.sampling, []).append(place)
    tokens = [0] * len(rows)
    for sampling, places in alike.items():
        members = [rows[place] for place in places]
        picked = choose(
            logits[places],
            sampling,
            [row.uniform() for row in members],
            [row.history for row in members if row.history is not None],
            [row.tokens for row in members],
        )
        for place, token in zip(places, picked.tolist(), strict=True):
            tokens[place] = token
    return tokens


def token_logprobs(rows: list[Sequence], logits: Array, tokens: list[int]) -> list[tuple[TokenLogprob, ...]]:
    """For each row that asks, the model's own log-probability of its token and of the likeliest ids."""
    found: list[tuple[TokenLogprob, ...]] = [()] * len(rows)
    asking = [place for place, row in enumerate(rows) if row.request.logprobs]
    if asking:
        top = max(rows[place].request.top_logprobs for place in asking)
        entries = measure(logits[asking], [tokens[place] for place in asking], top)
        for place, entry in zip(asking, entries, strict=True):
            found[place] = (replace(entry, top=entry.top[: rows[place].request.top_logprobs]),)
    return found
