"""A network that answers through the tape: torch tensors in and out, native calls in between."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.batch import Batch, Output
from headway.errors import RequestError
from headway.native import library
from headway.nn.transformer import Transformer
from headway.spec.model import ModelSpec
from headway.tape import Program, TapeCache, Weights, obstacle
from headway.tape.program import Keep
from headway.tape.weights import of_arrays


class TapeNetwork:
    """A program that is asked as modules are: a Batch in, an Output out. It has no modules and no taps."""

    def __init__(self, program: Program) -> None:
        self.program = program

    @property
    def spec(self) -> ModelSpec:
        """What the model is."""
        return self.program.spec

    def cache(self, rows: int, capacity: int) -> TapeCache:
        """An empty cache for `rows` sequences of up to `capacity` tokens."""
        return self.program.cache(rows, capacity)

    def __call__(self, batch: Batch, cache: TapeCache | None = None, *, keep: Keep = "all") -> Output:
        """Hidden states of the decoder and float32 logits, as `nn.Transformer` gives them; padding holds zeros."""
        rows, types, horizons = _rows(batch)
        if cache is None:
            cache = self.program.cache(len(rows), max(1, *map(len, rows)))
        else:
            assert batch.starts == cache.lengths, f"batch starts at {batch.starts}, the cache stands at {cache.lengths}"
        packed = len(rows) != batch.rows
        among = "all" if packed and keep == "last" else keep
        answer = self.program.step(rows, cache, keep=among, horizons=horizons, types=types)
        hidden = _spread(torch.from_numpy(answer.hidden), batch)
        logits = None
        if answer.logits is not None:
            logits = torch.from_numpy(answer.logits)
            if among == "all":
                logits = _spread(logits, batch)
            elif batch.even:
                logits = logits[:, None]
            else:
                logits = _filled(logits, (batch.segments > 0).any(dim=1, keepdim=True))
            if keep == "last" and packed:
                logits = logits[torch.arange(batch.rows), batch.last()][:, None]
        return Output(hidden={self.spec.decoder.name: hidden}, logits=logits)


def tape_of(network: Transformer, *, threads: int | None = None) -> TapeNetwork:
    """A tape over the memory of modules on the CPU; RequestError when this model or this machine needs modules."""
    native = library.load()
    reason = obstacle(network.spec)
    if native is None or reason:
        raise RequestError(f"{network.spec.name} cannot run on a tape: {reason}")
    pool = library.Pool(native, threads)
    arrays = {path: _array(parameter.detach()) for path, parameter in network.named_parameters()}
    return TapeNetwork(Program(network.spec, Weights(network.spec, of_arrays(arrays), native, pool, copy=False), pool))


def _array(tensor: Tensor) -> NDArray[Any]:
    """The tensor's memory; bfloat16 as its bits."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _rows(batch: Batch) -> tuple[list[list[int]], list[list[int]] | None, list[int]]:
    """Ids, types if there are any, and horizon of every document, row after row: padding is left out."""
    horizons = [length for row in batch.horizons for length in row]
    if batch.even:
        return batch.tokens.tolist(), None if batch.types is None else batch.types.tolist(), horizons
    documents = [(row, number) for row, lengths in enumerate(batch.horizons) for number in range(1, len(lengths) + 1)]
    parts = [(row, batch.segments[row] == number) for row, number in documents]
    ids = [batch.tokens[row][mark].tolist() for row, mark in parts]
    types = None if batch.types is None else [batch.types[row][mark].tolist() for row, mark in parts]
    return ids, types, horizons


def _spread(flat: Tensor, batch: Batch) -> Tensor:
    """[N, D] of the batch's tokens as [B, T, D], zeros where there is padding."""
    if batch.even:
        return flat.view(batch.rows, batch.width, flat.shape[1])
    return _filled(flat, batch.segments > 0)


def _filled(flat: Tensor, places: Tensor) -> Tensor:
    """[N, D] at the true places of [B, T], zeros elsewhere."""
    out = flat.new_zeros(*places.shape, flat.shape[1])
    out[places] = flat
    return out
