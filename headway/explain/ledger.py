"""What a forward needs beside weights and cache: every tensor counted from its making to its last use."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental import _config as experimental
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headway.batch import Batch
from headway.cache.cache import Cache
from headway.nn.build import empty, fill
from headway.nn.transformer import Transformer
from headway.ops.linear import WIDEN_ROWS, has_half_matmul
from headway.spec.count import shapes
from headway.spec.model import ModelSpec, StackSpec

LARGEST = 3  # kinds of tensors that a peak names
Dtypes = Mapping[str, torch.dtype]  # parameter -> type


@dataclass(frozen=True, kw_only=True)
class Alive:
    """Tensors of one kind that live at the same time."""

    count: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int  # of all of them


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The most bytes that a forward's tensors hold at once, and the largest of those tensors."""

    bytes: int
    largest: tuple[Alive, ...]


@torch.no_grad()  # not inference mode: it would hide what a composed operation does inside
def peak(network: Transformer, rows: int, past: int, new: int) -> Peak:
    """The peak of a forward of `rows` x `new` tokens that follow `past` cached ones, with logits of the last one only.

    A network without storage (`outline`) computes nothing and counts as it would on this machine's CPU.
    """
    cache = network.cache(rows, past + new)
    known = [*network.parameters(), *(tensor for slot in cache.slots.values() for tensor in slot.tensors())]
    hollow = network.device.type == "meta"
    ledger = Ledger(known)
    # Without padding every place counts: what a tensor without values cannot say itself.
    with experimental.patch(meta_nonzero_assume_all_nonzero=True) if hollow else nullcontext():  # type: ignore[attr-defined]
        _forward(network, cache, rows, past + new - 1, 1)  # tables that stay are made before the counting
        with ledger, AsOnCpu() if hollow else nullcontext():
            _forward(network, cache, rows, past, new)
    return ledger.peak


def outline(spec: ModelSpec, dtypes: Dtypes) -> Transformer:
    """A network without storage whose peaks are those of `spec` with parameters of these types.

    Of equal layers it has only the first and the last: nothing adds up from layer to layer but the tables that all
    share, and those are there when the last one runs.
    """
    stacks = []
    origins: dict[str, str] = {}
    for stack in spec.stacks:
        kept = _first_and_last(spec, stack, dtypes)
        stacks.append(replace(stack, layers=tuple(stack.layers[index] for index in kept)))
        origins |= {
            f"stacks.{stack.name}.layers.{new}.": f"stacks.{stack.name}.layers.{old}." for new, old in enumerate(kept)
        }
    short = replace(spec, stacks=tuple(stacks), ties=())
    tensors = {}
    for path, shape in shapes(short).items():
        start = next((start for start in origins if path.startswith(start)), "")
        origin = _owner(spec, origins.get(start, "") + path.removeprefix(start))
        tensors[path] = torch.empty(shape, dtype=dtypes[origin], device="meta")
    return fill(empty(short), tensors)


def _first_and_last(spec: ModelSpec, stack: StackSpec, dtypes: Dtypes) -> list[int]:
    """Places of the first and the last of equal layers, in order; equal ones have parameters of the same types."""
    paths = shapes(replace(spec, ties=()))
    alike: dict[object, list[int]] = {}
    for index, layer in enumerate(stack.layers):
        at = f"stacks.{stack.name}.layers.{index}."
        types = tuple(dtypes[_owner(spec, path)] for path in paths if path.startswith(at))
        alike.setdefault((layer, types), []).append(index)
    return sorted({place for places in alike.values() for place in (places[0], places[-1])})


def _owner(spec: ModelSpec, path: str) -> str:
    """The parameter that `path` is, or is tied to."""
    for tie in spec.ties:
        if path == tie.alias or path.startswith(f"{tie.alias}."):
            return _owner(spec, tie.owner + path.removeprefix(tie.alias))
    return path


def _forward(network: Transformer, cache: Cache, rows: int, past: int, new: int) -> None:
    cache.lengths = (past,) * rows
    batch = Batch.of([[0] * new] * rows, starts=cache.lengths, device=network.device)
    network(batch, cache, keep="last")


class Ledger(TorchDispatchMode):
    """Adds up the bytes of tensors that live while it is active; those in `known` cost nothing.

    What a kernel takes and gives back inside itself is not seen.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self._known = [tensor.untyped_storage() for tensor in known]  # kept, so that their keys stay theirs
        self._free = {storage._cdata for storage in self._known}
        self._alive: dict[int, tuple[int, tuple[int, ...], torch.dtype]] = {}
        self._now = 0
        self.peak = Peak(bytes=0, largest=())

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._book(tensor)
        return out

    def _book(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive or key in self._free:
            return
        self._alive[key] = (storage.nbytes(), tuple(tensor.shape), tensor.dtype)
        self._now += storage.nbytes()
        weakref.finalize(storage, self._strike, key)
        if self._now > self.peak.bytes:
            self.peak = Peak(bytes=self._now, largest=self._largest())

    def _strike(self, key: int) -> None:
        self._now -= self._alive.pop(key)[0]

    def _largest(self) -> tuple[Alive, ...]:
        alive = [
            Alive(count=count, shape=shape, dtype=str(dtype).removeprefix("torch."), bytes=count * size)
            for (size, shape, dtype), count in Counter(self._alive.values()).items()
        ]
        return tuple(sorted(alive, key=lambda each: -each.bytes)[:LARGEST])


class AsOnCpu(TorchFunctionMode):
    """Makes tensors without storage take the two ways that a CPU takes and they would not.

    PyTorch's fused attention wants queries, keys and values of one size; `ops.linear` widens half precision.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.scaled_dot_product_attention and args[1].shape[-1] == args[2].shape[-1]:
            return _fused(*args, **(kwargs or {}))
        if func is F.linear and args[0].dtype.itemsize == 2 and _many_rows(args[0]) and not has_half_matmul():
            return _widened(*args)
        return func(*args, **(kwargs or {}))


def _fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, drop: float, causal: bool = False, **more: Any
) -> Tensor:
    """The CPU's kernel, which takes a mask as numbers to add."""
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, float("-inf")).to(q.dtype)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, drop, causal, attn_mask=mask, scale=more["scale"]
    )[0]


def _widened(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)


def _many_rows(x: Tensor) -> bool:
    return x[..., 0].numel() >= WIDEN_ROWS
