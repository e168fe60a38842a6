"""What an answer cost: sizes, times and memory, as one line for people and as data for programs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.machine import peak_memory
from headway.cli.terminal import amount, size

if TYPE_CHECKING:
    from headway.generate import Completion, Event
    from headway.loader import Report

DTYPE_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
NOTABLE = 0.02  # a type that holds less of the parameters than this is not named


@dataclass(frozen=True, kw_only=True)
class Loading:
    """What it took to get a model ready."""

    model: str
    report: Report
    start_seconds: float  # from the start of the process to the moment when loading could begin: mostly imports
    load_seconds: float

    @property
    def parameters(self) -> int:
        """Numbers in memory, each counted once."""
        return sum(self.report.dtypes.values())

    @property
    def bits_per_weight(self) -> float:
        """Bits that the file spends on one parameter."""
        return 8 * self.report.file_bytes / max(1, sum(self.report.file_dtypes.values()))

    def line(self) -> str:
        """For people."""
        return (
            f"{Path(self.model).name}: {amount(self.parameters)} parameters | {self.bits()} | {self.engine()} | "
            f"load {self.load_seconds:.2f} s (after {self.start_seconds:.1f} s of imports)"
        )

    def engine(self) -> str:
        """What runs the model, and why it is not the tape where that was to be."""
        return self.report.engine + (f" ({self.report.note})" if self.report.note else "")

    def bits(self) -> str:
        """How wide the weights are in memory, and in a file that has them otherwise."""
        stored, held = types(self.report.file_dtypes), types(self.report.dtypes)
        return held if stored == held else f"{stored} file ({self.bits_per_weight:.1f} bits a weight), {held} in memory"

    def data(self) -> dict[str, Any]:
        """For programs."""
        return {
            "model": self.model,
            "path": str(self.report.path),
            "parameters": self.parameters,
            "bits_per_weight": round(self.bits_per_weight, 3),
            "file_dtypes": dict(self.report.file_dtypes),
            "dtypes": dict(self.report.dtypes),
            "engine": self.report.engine,
            "engine_note": self.report.note,
            "start_seconds": round(self.start_seconds, 3),
            "load_seconds": round(self.load_seconds, 3),
        }


class Clock:
    """Times a generation from the moment it is made."""

    def __init__(self) -> None:
        self.prompt_tokens: dict[int, int] = {}  # of each request
        self.tokens = 0
        self._began = time.perf_counter()
        self._first = self._last = 0.0
        self._later = 0  # tokens after each answer's first

    def watch(self, events: Iterable[Event]) -> Iterator[Event]:
        """The same events, seen as they pass."""
        for event in events:
            self._last = time.perf_counter()
            self._first = self._first or self._last
            self.prompt_tokens[event.request] = event.prompt_tokens
            self.tokens += len(event.tokens)
            self._later += min(len(event.tokens), event.completion_tokens - 1)
            yield event

    def finished(self, answers: Sequence[Completion]) -> Sequence[Completion]:
        """The same answers, which came all at once, at the end of a search."""
        self._last = time.perf_counter()
        self.prompt_tokens = {answer.request: answer.prompt_tokens for answer in answers}
        self.tokens = sum(answer.completion_tokens for answer in answers)
        return answers

    @property
    def first_seconds(self) -> float:
        """Until the first token of all; of a search, until all are there."""
        return max(0.0, (self._first or self._last) - self._began)

    @property
    def tokens_per_second(self) -> float:
        """Of all answers together, their first tokens left out; 0 when there were no others."""
        return self._later / (self._last - self._first) if self._later and self._last > self._first else 0.0

    def line(self) -> str:
        """For people."""
        memory = f" | peak memory {size(peak_memory())}" if peak_memory() else ""
        if not self._first:
            return f"{self.tokens} tokens in {self.first_seconds:.2f} s{memory}"
        speed = f" | {self.tokens_per_second:.1f} tokens/s" if self.tokens_per_second else ""
        return f"first token {self.first_seconds:.2f} s{speed}{memory}"

    def data(self) -> dict[str, Any]:
        """For programs."""
        return {
            "prompt_tokens": sum(self.prompt_tokens.values()),
            "tokens": self.tokens,
            "first_token_seconds": round(self.first_seconds, 4),
            "tokens_per_second": round(self.tokens_per_second, 2),
            "peak_memory_bytes": peak_memory(),
        }


def types(counts: Mapping[str, int]) -> str:
    """The types that hold most parameters, most first: Q4_K + Q6_K."""
    total = sum(counts.values())
    named = sorted((name for name in counts if counts[name] >= NOTABLE * total), key=lambda name: -counts[name])
    return " + ".join(DTYPE_NAMES.get(name, name) for name in named)
