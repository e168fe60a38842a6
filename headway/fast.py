"""A network that answers through the tape: torch tensors in and out, native calls in between."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.batch import Batch, Output
from headway.native import library
from headway.spec.model import ModelSpec
from headway.tape import Program, TapeCache, missing
from headway.tape.program import Keep


class TapeNetwork:
    """What generation needs of a model (`generate.past.Network`), on a tape. It has no modules and no taps."""

    def __init__(self, program: Program) -> None:
        self.program = program

    @property
    def spec(self) -> ModelSpec:
        """What the model is."""
        return self.program.spec

    @property
    def device(self) -> torch.device:
        """Where tensors go in and come out."""
        return torch.device("cpu")

    def cache(self, rows: int, capacity: int) -> TapeCache:
        """An empty cache for `rows` sequences of up to `capacity` tokens."""
        return self.program.cache(rows, capacity)

    def __call__(self, batch: Batch, cache: TapeCache | None = None, *, keep: Keep = "all") -> Output:
        """Hidden states of the decoder and float32 logits, as `nn.Transformer` gives them; padding holds zeros."""
        real = batch.segments > 0
        rows, types, horizons = _rows(batch, real, documents=cache is None)
        if cache is None:
            cache = self.program.cache(len(rows), max(1, *map(len, rows)))
        else:
            assert batch.starts == cache.lengths, f"batch starts at {batch.starts}, the cache stands at {cache.lengths}"
        packed = len(rows) != batch.rows
        answer = self.program.step(
            rows, cache, keep="all" if packed and keep == "last" else keep, horizons=horizons, types=types
        )
        hidden = _spread(torch.from_numpy(answer.hidden), real)
        logits = None
        if answer.logits is not None:
            logits = torch.from_numpy(answer.logits)
            if keep == "all":
                logits = _spread(logits, real)
            elif packed:
                logits = _spread(logits, real)[torch.arange(batch.rows), batch.last()][:, None]
            else:
                logits = _spread(logits, real.any(dim=1, keepdim=True))
        return Output(hidden={self.spec.decoder.name: hidden}, logits=logits)


def obstacle(spec: ModelSpec) -> str:
    """One line why `spec` cannot run on a tape here; empty when it can."""
    if library.load() is None:
        return library.reason()
    lacks = missing(spec)
    more = f" and {len(lacks) - 1} more" if len(lacks) > 1 else ""
    return f"no native form for {lacks[0]}{more}" if lacks else ""


def _rows(
    batch: Batch, real: Tensor, *, documents: bool
) -> tuple[list[list[int]], list[list[int]] | None, Sequence[int]]:
    """Token ids of every row without padding; of every document of a packed batch, when nothing is cached."""
    types = None if batch.types is None else batch.types
    if batch.even:
        return batch.tokens.tolist(), None if types is None else types.tolist(), batch.horizons
    marks: list[Tensor] = []
    horizons: list[int] = []
    for row, horizon in enumerate(batch.horizons):
        segments = batch.segments[row]
        last = int(segments.max()) if documents else 1
        marks += [(segments == number) & real[row] for number in range(1, last + 1)] if last > 1 else [real[row]]
        horizons += [horizon] * max(last, 1)
    owners = [row for row in range(batch.rows) for _ in range(max(1, int(batch.segments[row].max()) if documents else 1))]
    ids = [batch.tokens[row][mark].tolist() for row, mark in zip(owners, marks, strict=True)]
    kinds = None if types is None else [types[row][mark].tolist() for row, mark in zip(owners, marks, strict=True)]
    return ids, kinds, horizons


def _spread(flat: Tensor, real: Tensor) -> Tensor:
    """[N, D] of the real places as [B, T, D], zeros in between; a copy in any case."""
    out = flat.new_zeros(*real.shape, flat.shape[1])
    out[real] = flat
    return out
