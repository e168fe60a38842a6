"""Glass: read or replace any intermediate of a forward by its path, at no cost when nobody looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from torch import Tensor


class Taps:
    """Called as `tap(path, x)` at every site of a forward; returns what the forward goes on with.

    Sites, below the path of their module: "queries", "keys", "values" (B H T E, rotated), "scores",
    "weights" (B H T S), "mixed" (B H T Ev), "output" of a mixer, "activations" of a feed-forward, and of a
    stack "stem.output", "layers.N.output" (the residual stream) and "output".
    """

    def wants(self, path: str) -> bool:
        """Whether this site must exist: attention forms scores and weights only when somebody looks."""
        return False

    def __call__(self, path: str, x: Tensor) -> Tensor:
        return x


class Record(Taps):
    """Keeps a copy-free reference to every intermediate whose path matches one of the patterns (`*` a wildcard)."""

    def __init__(self, *patterns: str) -> None:
        self.patterns = patterns
        self.seen: dict[str, Tensor] = {}

    def wants(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self.patterns)

    def __call__(self, path: str, x: Tensor) -> Tensor:
        if self.wants(path):
            self.seen[path] = x
        return x


class Replace(Taps):
    """Puts the function's answer in place of the intermediate at each path."""

    def __init__(self, by: Mapping[str, Callable[[Tensor], Tensor]]) -> None:
        self.by = dict(by)

    def wants(self, path: str) -> bool:
        return path in self.by

    def __call__(self, path: str, x: Tensor) -> Tensor:
        change = self.by.get(path)
        return x if change is None else change(x)
