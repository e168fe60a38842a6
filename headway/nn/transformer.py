"""The whole model: stacks of layers and the heads that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from headway.batch import Batch, Output
from headway.cache.cache import Cache
from headway.nn.frame import Frame
from headway.nn.heads import make_head
from headway.nn.stack import Stack
from headway.nn.taps import Taps
from headway.spec.model import ModelSpec

Keep = Literal["all", "last", "none"]
UNTOUCHED = Taps()


@dataclass(frozen=True)
class Answer:
    """What one step came to."""

    logits: Tensor | None  # N V, see `Transformer.step`


class Transformer(nn.Module):
    """A model built from its spec; parameters live at the paths that `spec.count.shapes` lists."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.stacks = nn.ModuleDict({stack.name: Stack(stack) for stack in spec.stacks})
        self.heads = nn.ModuleDict({head.name: make_head(head, spec.stack(head.stack).width) for head in spec.heads})

    def forward(self, batch: Batch, cache: Cache | None = None, *, keep: Keep = "all", tap: Taps = UNTOUCHED) -> Output:
        """Hidden states of every stack, and float32 logits [B, T, V] of the language-model head.

        `keep="last"` gives logits of each row's last real token only, [B, 1, V]; "none" gives no logits.
        With a cache the batch's tokens follow those that the cache keeps, and are kept themselves.
        """
        frame = Frame(batch, cache, tap)
        hidden = {name: stack(frame) for name, stack in self.stacks.items()}
        if cache is not None and frame.step is not None:
            cache.commit(frame.step)
        if keep == "none" or not self.spec.heads:
            return Output(hidden=hidden)
        head = self.spec.heads[0]
        return Output(hidden=hidden, logits=self.heads[head.name](self._kept(hidden[head.stack], batch, keep)))

    @torch.inference_mode()
    def step(
        self,
        rows: Sequence[Sequence[int]],
        cache: Cache | None = None,
        *,
        keep: Keep = "last",
        horizons: Sequence[int] | None = None,
    ) -> Answer:
        """Compute the next tokens of every row of `cache`, or whole rows without one; a row may have none.

        Logits are [N, V] of all tokens, row after row ("all"), or of the last one of each row that has any ("last").
        """
        starts = None if cache is None else cache.lengths
        batch = Batch.of(rows, starts=starts, horizons=horizons, device=self.device)
        logits = self(batch, cache, keep=keep).logits
        if logits is None:
            return Answer(None)
        if keep == "all":
            return Answer(logits.flatten(0, 1) if batch.even else logits[batch.segments > 0])
        logits = logits[:, 0]
        fed = [row for row, length in enumerate(batch.lengths) if length]
        return Answer(logits if len(fed) == len(rows) else logits[fed])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that hidden states and the cache have."""
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def cache(self, rows: int, capacity: int) -> Cache:
        """An empty cache for `rows` sequences of up to `capacity` tokens, in the model's dtype and place."""
        return Cache.of(self.spec, rows, capacity, self.dtype, self.device)

    def _kept(self, hidden: Tensor, batch: Batch, keep: Keep) -> Tensor:
        if keep == "all":
            return hidden
        if batch.even:
            return hidden[:, -1:]
        return hidden[torch.arange(batch.rows, device=hidden.device), batch.last()][:, None]
