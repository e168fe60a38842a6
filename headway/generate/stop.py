"""Why an answer ends, and what of its text may be shown before that is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Stream(Protocol):
    """A decoder that takes ids one by one and gives back whole characters."""

    def push(self, token: int, /) -> str: ...

    def finish(self) -> str: ...


class StopStrings:
    """Finds stop strings in a text that arrives in pieces; how the text was cut into pieces never matters.

    The match that is complete first wins; of two that end together the longer one. What could still
    become a match is held back and released by `finish`.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self.matched: str | None = None
        self._held = ""

    def push(self, text: str) -> str:
        """What may be shown now that `text` follows; "" once a stop string was found."""
        if self.matched is not None:
            return ""
        seen = self._held + text
        found = [(start + len(stop), start, stop) for stop in self.stops if (start := seen.find(stop)) >= 0]
        if found:
            _, start, self.matched = min(found)
            self._held = ""
            return seen[:start]
        keep = self._undecided(seen)
        self._held = seen[keep:]
        return seen[:keep]

    def finish(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, seen: str) -> int:
        """Where the longest end of `seen` begins that is the beginning of a stop string."""
        longest = max(map(len, self.stops), default=1)
        for start in range(max(0, len(seen) - longest + 1), len(seen)):
            tail = seen[start:]
            if any(stop.startswith(tail) for stop in self.stops):
                return start
        return len(seen)


class Writer:
    """From ids to the text that may be shown: whole characters, before any stop string."""

    def __init__(self, stream: Stream, stops: Sequence[str]) -> None:
        self._stream, self._stops = stream, StopStrings(stops)

    @property
    def matched(self) -> str | None:
        """The stop string that was found."""
        return self._stops.matched

    def push(self, token: int) -> str:
        """The text that may be shown after this id."""
        return self._stops.push(self._stream.push(token))

    def finish(self) -> str:
        """The text still held back when no more ids come."""
        rest = self._stops.push(self._stream.finish())
        return rest if self.matched is not None else rest + self._stops.finish()
