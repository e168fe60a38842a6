"""Which matrix gets which format: a plan over a spec, with every exception named."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from headway.errors import RequestError
from headway.quant.formats import FORMATS, GROUPS, Format, format_of
from headway.spec.count import shapes
from headway.spec.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a user asks for. `group` and `symmetric` are int4's; `tables` is the format of embeddings and heads.

    int4 with a zero for each group (not `symmetric`) takes an eighth of a bit more at 64 and errs less, most of all on
    weights that were rounded so before; transformers does not open such folders yet, though it opens the others.
    `tables` "" keeps them at 8 bits where `to` has fewer, as is usual: they are read by row, and errors in a head
    reach the answer as they are.
    """

    to: str
    group: int = 64
    symmetric: bool = True
    tables: str = ""

    def __post_init__(self) -> None:
        """RequestError for a format or group that is not known, or does not go with the others."""
        to = format_of(self.to)
        if self.group not in GROUPS:
            raise RequestError(f"group = {self.group} is not one of {', '.join(map(str, GROUPS))}; -1 is a whole row")
        if self.tables and _home(format_of(self.tables)) & _home(to) == set():
            raise RequestError(f"tables in {self.tables} do not go into one file with {to.name}")

    @property
    def format(self) -> Format:
        """What most matrices become."""
        return format_of(self.to)

    @property
    def table_format(self) -> Format:
        """What embeddings and heads become."""
        if self.tables:
            return format_of(self.tables)
        if self.format.bits >= 8:
            return self.format
        return FORMATS["q8_0" if self.format.gguf else "int8"]

    def describe(self) -> str:
        """In few words: int4 in groups of 64."""
        if self.format.code != "I4":
            return self.format.name
        groups = "whole rows" if self.group == -1 else f"groups of {self.group}"
        return f"{self.format.name} in {groups}" + ("" if self.symmetric else " with zeros")


def _home(format: Format) -> set[str]:
    return {name for name, there in (("gguf", format.gguf), ("safetensors", format.safetensors)) if there}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Formats by the paths of matrices; what is not in it stays as it is. `exceptions` says which differ, and why."""

    recipe: Recipe
    formats: Mapping[str, Format]
    exceptions: Mapping[str, str]

    def line(self) -> str:
        """The exceptions in one line; empty when there are none."""
        counts = Counter(self.exceptions.values())
        return "; ".join(f"{count} {'matrix' if count == 1 else 'matrices'} {why}" for why, count in counts.items())


def plan(spec: ModelSpec, recipe: Recipe) -> Plan:
    """Every matrix of `spec` and its format. Norms and vectors, positions and biases on scores stay as they are."""
    formats: dict[str, Format] = {}
    exceptions: dict[str, str] = {}
    for path, shape in shapes(spec).items():
        if not is_matrix(path, shape):
            continue
        wanted = recipe.table_format if is_table(path) else recipe.format
        formats[path] = found = fitting(wanted, shape[1])
        if found is not wanted:
            exceptions[path] = f"in {found.name}: rows of {shape[1]} are no whole blocks of {wanted.span}"
        elif found is not recipe.format:
            exceptions[path] = f"in {found.name}: embeddings and heads"
    return Plan(recipe=recipe, formats=formats, exceptions=exceptions)


def fitting(format: Format, cols: int) -> Format:
    """`format`, or the nearest one that holds rows of `cols` numbers."""
    while cols % format.span:
        format = FORMATS[format.fallback] if format.fallback else FORMATS["float16"]
    return format


def is_matrix(path: str, shape: tuple[int, ...]) -> bool:
    """Whether products or rows of it are taken, so that it may be rounded."""
    kept = (".biases.", ".stem.positions.", ".stem.types.")
    return len(shape) == 2 and math.prod(shape) > 0 and not any(part in path for part in kept)


def is_table(path: str) -> bool:
    """Whether it is an embedding of tokens or a head."""
    return path.startswith("heads.") or path.endswith(".stem.tokens.weight")
