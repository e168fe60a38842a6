"""Who looks at whom: the attention weights of any model, beside the answer that they led to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.batch import Batch, Output
from headway.cache.cache import Cache
from headway.cache.step import Step
from headway.nn.taps import Record
from headway.nn.transformer import Keep, Transformer
from headway.spec.mixers import Attention
from headway.spec.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Attentions:
    """One forward with everything that its attentions looked at.

    `weights` maps the path of each attention ("stacks.decoder.layers.3.attention"), in the order of the layers, to
    float32 [B, H, T, S]. Without a cache S are the batch's own columns; with one, S are the places of each row's
    text from its start, 0 for what a window has let go. A row that belongs to padding is 0, and so is every padded
    key. Rows sum to 1, to less where a sink takes its share.
    """

    weights: dict[str, Tensor]
    output: Output


@torch.inference_mode()
def attentions(network: Transformer, batch: Batch, cache: Cache | None = None, *, keep: Keep = "all") -> Attentions:
    """Run `batch` and keep every layer's attention weights; the answer is that of a forward nobody watches.

    The fused kernel never forms the weights, so that this one forward takes the written-out path of the same formula.
    """
    record = Record("*.weights")
    step = None if cache is None else Step(batch)
    output = network(batch, cache, keep=keep, tap=record)
    real = (batch.segments > 0)[:, None, :, None]
    weights = {}
    for path in attention_paths(network.spec):
        seen = record.seen[f"{path}.weights"].float() * real
        weights[path] = seen if cache is None or step is None else _in_place(seen, cache, step, path)
    return Attentions(weights=weights, output=output)


def attention_paths(spec: ModelSpec) -> dict[str, Attention]:
    """The path of every attention and what it is, stack by stack and layer by layer."""
    return {
        f"stacks.{stack.name}.layers.{index}.{branch.name}": branch.mixer
        for stack in spec.stacks
        for index, layer in enumerate(stack.layers)
        for branch in layer.branches
        if isinstance(branch.mixer, Attention)
    }


def _in_place(weights: Tensor, cache: Cache, step: Step, path: str) -> Tensor:
    """Weights over a slot's cells [B, H, T, cells] as weights over the places of the text [B, H, T, longest]."""
    positions = cache.slots[path].keys(step).positions
    rows, heads, queries, cells = weights.shape
    longest = max(step.ends)
    if cells == longest and positions.shape[0] == 1:
        ordered = torch.equal(positions[0], torch.arange(longest, device=positions.device))
        if ordered:
            return weights
    index = torch.where(positions < 0, longest, positions)[:, None, None].expand(rows, heads, queries, cells)
    return weights.new_zeros(rows, heads, queries, longest + 1).scatter_add(-1, index, weights)[..., :longest]
