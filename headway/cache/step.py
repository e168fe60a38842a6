"""One forward's place in the clock: which tokens are new, where each row stands before and after."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from headway.batch import Batch


@dataclass(frozen=True)
class Step:
    """New tokens of a batch whose rows start where the cache stands."""

    batch: Batch

    @property
    def starts(self) -> tuple[int, ...]:
        """Tokens kept of each row before this forward."""
        return self.batch.starts

    @property
    def even(self) -> bool:
        """Whether all rows start together and bring equally many tokens, so that one number serves for all."""
        return self.batch.even

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Tokens of each row once the new ones are kept."""
        return tuple(start + count for start, count in zip(self.starts, self.batch.lengths, strict=True))

    @cached_property
    def real(self) -> Tensor:
        """[B, T], true where a new token is not padding."""
        return self.batch.segments > 0

    @cached_property
    def sources(self) -> tuple[Tensor, Tensor]:
        """Row and column of every new token that is not padding, row by row."""
        rows, columns = self.real.nonzero(as_tuple=True)
        return rows, columns

    @cached_property
    def places(self) -> Tensor:
        """Place in its row of every token of `sources`, the past counted."""
        return self.batch.positions[self.sources]

    @cached_property
    def new_positions(self) -> Tensor:
        """[B, T] place of every new token, -1 for padding."""
        return torch.where(self.real, self.batch.positions, -1)

    def end_column(self) -> Tensor:
        """`ends` as [B, 1]."""
        return torch.tensor(self.ends, device=self.batch.tokens.device)[:, None]

    def start_column(self) -> Tensor:
        """`starts` as [B, 1]."""
        return torch.tensor(self.starts, device=self.batch.tokens.device)[:, None]
