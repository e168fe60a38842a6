"""The same inputs two ways, layer by layer: how far two models, or two ways to run one, are apart, and where first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.batch import Batch
from headway.cache.cache import Cache
from headway.errors import RequestError
from headway.nn.taps import Taps
from headway.nn.transformer import Transformer
from headway.spec.model import ModelSpec

Rows = Sequence[Sequence[int]]  # token ids of each text
Sites = dict[str, list[Tensor]]  # site -> what is there at every token of each row, [T, n]

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float16: 1e-2}
CHUNK = 5  # tokens of a prompt computed at a time; odd, so that no row is cut evenly


@dataclass(frozen=True, kw_only=True)
class Gap:
    """How far two calculations are apart at one site; infinitely where a number is not finite.

    Each token is measured by its own largest value, since one with huge values rounds more coarsely than the others.
    """

    site: str  # "stacks.decoder.layers.3.output"
    difference: float  # the largest absolute difference
    relative: float  # the largest of any token's differences, divided by the token's largest value or by 1
    agrees: bool


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two calculations of the same texts, site by site from the embedding to the logits."""

    name: str
    tolerance: float
    gaps: tuple[Gap, ...]
    same_choice: int = 0  # places where both find the same token likeliest
    places: int = 0

    @property
    def agrees(self) -> bool:
        """Whether every site does."""
        return all(gap.agrees for gap in self.gaps)

    @property
    def first(self) -> Gap | None:
        """The first site that differs beyond the tolerance, in the order of the forward."""
        return next((gap for gap in self.gaps if not gap.agrees), None)

    @property
    def widest(self) -> Gap:
        """The site with the largest relative difference."""
        return max(self.gaps, key=lambda gap: gap.relative)


@dataclass(frozen=True, kw_only=True)
class Check:
    """A way to compute texts that must give what each gives alone."""

    name: str
    what: str
    run: Callable[[Transformer, Rows], Sites]


@torch.inference_mode()
def compare(one: Transformer, other: Transformer, rows: Rows, *, tolerance: float = 0.0) -> Comparison:
    """The same token ids through both networks, each row alone.

    A site agrees when its relative difference (see `Gap`) is at most `tolerance`; 0 takes the usual one of the coarser
    of the two types (`usual_tolerance`). RequestError when the two cannot be compared.
    """
    _require_comparable(one.spec, other.spec)
    _require_rows(one.spec, rows)
    _require_rows(other.spec, rows)
    limit = tolerance or max(usual_tolerance(one), usual_tolerance(other))
    return _compare("both models", alone(one, rows), alone(other, rows), limit)


@torch.inference_mode()
def check_alone(network: Transformer, rows: Rows, *, tolerance: float = 0.0) -> Iterator[Comparison]:
    """One model against itself: every way to compute the texts (`CHECKS`) beside each of them alone and uncached."""
    _require_rows(network.spec, rows)
    limit = tolerance or usual_tolerance(network)
    expected = alone(network, rows)
    for check in CHECKS:
        yield _compare(check.name, expected, check.run(network, rows), limit)


def usual_tolerance(network: Transformer) -> float:
    """The relative difference that rounding explains: 1e-4 in float32, 6e-2 in bfloat16, 1e-2 in float16."""
    return TOLERANCES[network.dtype]


def sample_rows(spec: ModelSpec, count: int = 3) -> list[list[int]]:
    """Rows of token ids for a model without a tokenizer, the same ones each time, of different lengths."""
    stack = spec.decoder
    generator = torch.Generator().manual_seed(0)
    lengths = [max(1, min(stack.context, 24) // (1 + place)) for place in range(count)]
    return [torch.randint(stack.stem.vocab, (length,), generator=generator).tolist() for length in lengths]


# Ways to compute


def alone(network: Transformer, rows: Rows) -> Sites:
    """Each row by itself, without a cache."""
    return joined(_observe(network, Batch.of([row], device=network.device)) for row in rows)


def equal_batch(network: Transformer, rows: Rows) -> Sites:
    """As many copies of each row as there are rows, in one batch: the last copy counts."""
    return joined(_last_row(_observe(network, Batch.of([row] * len(rows), device=network.device))) for row in rows)


def padded_right(network: Transformer, rows: Rows) -> Sites:
    """All rows in one batch, padded behind."""
    return _observe(network, Batch.of(rows, device=network.device))


def padded_left(network: Transformer, rows: Rows) -> Sites:
    """All rows in one batch, padded in front."""
    return _observe(network, Batch.of(rows, pad="left", device=network.device))


def packed(network: Transformer, rows: Rows) -> Sites:
    """All texts end to end in one row."""
    seen = _observe(network, Batch.pack([rows], device=network.device))
    lengths = [len(row) for row in rows]
    return {site: list(values[0].split(lengths)) for site, values in seen.items()}


def cached(network: Transformer, rows: Rows) -> Sites:
    """All rows through one cache, a token at a time."""
    return _in_chunks(network, rows, 1)


def chunked(network: Transformer, rows: Rows) -> Sites:
    """All rows through one cache, CHUNK tokens at a time."""
    return _in_chunks(network, rows, CHUNK)


def written_out(network: Transformer, rows: Rows) -> Sites:
    """Each row by itself, attention by the written-out formula and not by the fused kernel."""
    return joined(_observe(network, Batch.of([row], device=network.device), eager=True) for row in rows)


CHECKS = (
    Check(name="batched", what="equal rows in one batch", run=equal_batch),
    Check(name="padded right", what="uneven rows in one batch, padded behind", run=padded_right),
    Check(name="padded left", what="uneven rows in one batch, padded in front", run=padded_left),
    Check(name="packed", what="all texts end to end in one row", run=packed),
    Check(name="cached", what="uneven rows through a cache, a token at a time", run=cached),
    Check(name="chunked", what=f"uneven rows through a cache, {CHUNK} tokens at a time", run=chunked),
    Check(name="written out", what="attention by its formula instead of the fused kernel", run=written_out),
)


def sites(spec: ModelSpec) -> tuple[str, ...]:
    """What is compared, in the order of the forward: stems, layers, last norms, logits."""
    found: list[str] = []
    for stack in spec.stacks:
        at = f"stacks.{stack.name}"
        found += [f"{at}.stem.output", *(f"{at}.layers.{n}.output" for n in range(len(stack.layers))), f"{at}.output"]
    return (*found, "logits")


def joined(parts: Iterable[Sites]) -> Sites:
    """Rows of several runs, one after the other."""
    found: Sites = {}
    for part in parts:
        for site, values in part.items():
            found.setdefault(site, []).extend(values)
    return found


class _Watch(Taps):
    """Keeps what is at some sites; with `eager` it makes attention show its weights, which the fused kernel cannot."""

    def __init__(self, wanted: Iterable[str], *, eager: bool) -> None:
        self.wanted, self.eager = frozenset(wanted), eager
        self.seen: dict[str, Tensor] = {}

    def wants(self, path: str) -> bool:
        return path in self.wanted or (self.eager and path.endswith(".weights"))

    def __call__(self, path: str, x: Tensor) -> Tensor:
        if path in self.wanted:
            self.seen[path] = x
        return x


def _observe(network: Transformer, batch: Batch, cache: Cache | None = None, *, eager: bool = False) -> Sites:
    """What is at every site, at the real tokens of each row."""
    names = sites(network.spec)
    watch = _Watch(names[:-1], eager=eager)
    output = network(batch, cache, tap=watch)
    seen = {**watch.seen, "logits": output.logits}
    real = batch.segments > 0
    return {
        site: [row[kept].float() for row, kept in zip(seen[site], real, strict=True)]
        for site in names
        if seen[site] is not None
    }


def _in_chunks(network: Transformer, rows: Rows, size: int) -> Sites:
    horizons = [len(row) for row in rows]
    cache = network.cache(len(rows), max(horizons))
    parts: list[Sites] = []
    while cache.lengths != tuple(horizons):
        pieces = [row[start : start + size] for row, start in zip(rows, cache.lengths, strict=True)]
        batch = Batch.of(pieces, starts=cache.lengths, horizons=horizons, device=network.device)
        parts.append(_observe(network, batch, cache))
    return {site: [torch.cat([part[site][row] for part in parts]) for row in range(len(rows))] for site in parts[0]}


def _last_row(seen: Sites) -> Sites:
    return {site: values[-1:] for site, values in seen.items()}


# How far apart


def _compare(name: str, expected: Sites, got: Sites, tolerance: float) -> Comparison:
    gaps = tuple(_gap(site, torch.cat(values), torch.cat(got[site]), tolerance) for site, values in expected.items())
    one, other = torch.cat(expected["logits"]).argmax(-1), torch.cat(got["logits"]).argmax(-1)
    return Comparison(
        name=name, tolerance=tolerance, gaps=gaps, same_choice=int((one == other).sum()), places=one.numel()
    )


def _gap(site: str, one: Tensor, other: Tensor, tolerance: float) -> Gap:
    apart = (one - other.to(one.device)).abs().amax(-1)
    relative = float((apart / one.abs().amax(-1).clamp(min=1.0)).max())
    if not math.isfinite(relative):
        return Gap(site=site, difference=math.inf, relative=math.inf, agrees=False)
    return Gap(site=site, difference=float(apart.max()), relative=relative, agrees=relative <= tolerance)


def _require_comparable(one: ModelSpec, other: ModelSpec) -> None:
    """RequestError that names the first size in which two models differ."""
    pairs: list[tuple[str, object, object]] = [
        ("stacks", [stack.name for stack in one.stacks], [stack.name for stack in other.stacks])
    ]
    for first, second in zip(one.stacks, other.stacks, strict=False):
        at = f"stacks.{first.name}"
        pairs += [
            (f"{at}.stem.vocab", first.stem.vocab, second.stem.vocab),
            (f"{at}.width", first.width, second.width),
            (f"{at}.layers", len(first.layers), len(second.layers)),
        ]
    pairs.append(("the head's vocabulary", one.heads[0].vocab, other.heads[0].vocab))
    for name, here, there in pairs:
        if here != there:
            raise RequestError(
                f"{name} is {here} in the one and {there} in the other; only models of the same shape can be compared"
            )


def _require_rows(spec: ModelSpec, rows: Rows) -> None:
    stack = spec.decoder
    if not rows or not all(rows):
        raise RequestError("a text has no tokens; give at least one word in each")
    longest = max(map(len, rows))
    if longest > stack.context:
        raise RequestError(f"a text has {longest} tokens, but the context is {stack.context}; shorten it")
    beyond = next((token for row in rows for token in row if not 0 <= token < stack.stem.vocab), None)
    if beyond is not None:
        raise RequestError(f"token id {beyond} is not in the vocabulary of {stack.stem.vocab}; compare models that fit")
