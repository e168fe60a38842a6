"""Names of a file set beside the model's own, each with what turns one into the other and back."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.spec.count import shapes
from headway.spec.model import ModelSpec

Array = NDArray[Any]


class Form(ABC):
    """One invertible change of layout or value; `apply` goes from the file to the model, `undo` back."""

    @abstractmethod
    def apply(self, arrays: list[Array]) -> list[Array]:
        """The model's arrays from the file's."""

    @abstractmethod
    def undo(self, arrays: list[Array]) -> list[Array]:
        """The file's arrays from the model's."""


@dataclass(frozen=True)
class Transpose(Form):
    """[in, out] in the file, [out, in] in the model (GPT-2's Conv1D); a bias stays as it is."""

    def apply(self, arrays: list[Array]) -> list[Array]:
        return [array.T for array in arrays]

    def undo(self, arrays: list[Array]) -> list[Array]:
        return [array.T for array in arrays]


@dataclass(frozen=True)
class Split(Form):
    """Several projections stored as one matrix, cut along its rows."""

    sizes: tuple[int, ...]

    def apply(self, arrays: list[Array]) -> list[Array]:
        (whole,) = arrays
        if whole.ndim == 0 or whole.shape[0] != sum(self.sizes):
            return [whole]  # the caller reports the shape that does not fit
        return np.split(whole, np.cumsum(self.sizes)[:-1].tolist())

    def undo(self, arrays: list[Array]) -> list[Array]:
        return [np.concatenate(arrays)]


@dataclass(frozen=True)
class Pairs(Form):
    """Rows of every head reordered from interleaved rotary pairs (2i, 2i+1) to half-split ones (i, i + dim/2).

    The head count is the number of rows over `head_dim`, so keys use theirs and queries theirs.
    """

    head_dim: int

    def apply(self, arrays: list[Array]) -> list[Array]:
        return [self._turn(array, (self.head_dim // 2, 2)) for array in arrays]

    def undo(self, arrays: list[Array]) -> list[Array]:
        return [self._turn(array, (2, self.head_dim // 2)) for array in arrays]

    def _turn(self, array: Array, inner: tuple[int, int]) -> Array:
        rest = array.shape[1:]
        if not array.size or array.ndim == 0 or array.shape[0] % self.head_dim:
            return array  # the caller reports the shape that does not fit
        return array.reshape(-1, *inner, *rest).swapaxes(1, 2).reshape(array.shape)


@dataclass(frozen=True)
class Add(Form):
    """What the file's values lack (GGUF stores Gemma's norms with 1 added: amount -1); the arrays must be floats."""

    amount: float

    def apply(self, arrays: list[Array]) -> list[Array]:
        return [self._plus(array, self.amount) for array in arrays]

    def undo(self, arrays: list[Array]) -> list[Array]:
        return [self._plus(array, -self.amount) for array in arrays]

    def _plus(self, array: Array, amount: float) -> Array:
        assert array.dtype.kind == "f", f"{array.dtype} holds bits, not numbers"
        return array + np.asarray(amount, array.dtype)


@dataclass(frozen=True)
class Rule:
    """`keys` of the file and `paths` of the model hold the same numbers, in the given forms."""

    keys: tuple[str, ...]
    paths: tuple[str, ...]
    forms: tuple[Form, ...] = ()

    @property
    def computes(self) -> bool:
        """Whether the forms change values, so that raw bits of half precision will not do."""
        return any(isinstance(form, Add) for form in self.forms)

    def apply(self, arrays: list[Array]) -> list[Array]:
        """Arrays of `paths` from arrays of `keys`."""
        for form in self.forms:
            arrays = form.apply(arrays)
        return arrays

    def undo(self, arrays: list[Array]) -> list[Array]:
        """Arrays of `keys` from arrays of `paths`."""
        for form in reversed(self.forms):
            arrays = form.undo(arrays)
        return arrays


@dataclass(frozen=True)
class Key:
    """A name in the file, with what changes on the way; a plain string stands for a Key without changes."""

    name: str
    forms: tuple[Form, ...] = ()


# Module path in the model (or several that the file stores as one matrix) -> name in the file.
# `*` stands for the layer's number; `.weight` and `.bias` follow on both sides by themselves.
Names = Mapping[str | tuple[str, ...], str | Key]


def expand(names: Names, spec: ModelSpec) -> list[Rule]:
    """One rule for every parameter that `spec` owns; AssertionError when the names leave one out."""
    owned = shapes(spec)
    groups = {path: group for group in names for path in ((group,) if isinstance(group, str) else group)}
    rules: list[Rule] = []
    done: set[str] = set()
    for path in owned:
        if path in done:
            continue
        pattern, index, suffix = _parts(path, groups)
        group = groups[pattern]
        key = names[group]
        key = key if isinstance(key, Key) else Key(key)
        members = (group,) if isinstance(group, str) else group
        paths = tuple(member.replace("*", index) + suffix for member in members)
        forms = key.forms
        if len(paths) > 1:
            forms = (*forms, Split(tuple(owned[member][0] for member in paths)))
        rules.append(Rule((key.name.replace("*", index) + suffix,), paths, forms))
        done.update(paths)
    return rules


def aliases(names: Names, spec: ModelSpec) -> list[Rule]:
    """Rules under which a file may hold a tied parameter a second time, or only there."""
    groups = {path: group for group in names for path in ((group,) if isinstance(group, str) else group)}
    rules = []
    for tie in spec.ties:
        pattern, index, suffix = _parts(tie.alias, groups)
        key = names[groups[pattern]]
        key = key if isinstance(key, Key) else Key(key)
        rules.append(Rule((key.name.replace("*", index) + suffix,), (tie.owner,), key.forms))
    return rules


def _parts(path: str, groups: Mapping[str, Any]) -> tuple[str, str, str]:
    """The pattern in `groups`, the layer's number and the suffix that together make `path`."""
    found = re.search(r"\.layers\.(\d+)\.", path)
    index = found.group(1) if found else ""
    pattern = path.replace(f".layers.{index}.", ".layers.*.", 1) if found else path
    if pattern in groups:
        return pattern, index, ""
    module, dot, last = pattern.rpartition(".")
    assert module in groups, f"no name for {path}"
    return module, index, dot + last
