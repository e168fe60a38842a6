"""The two things that flow: a Batch of tokens going in, an Output coming out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from headway.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Batch:
    """B rows of T tokens.

    Segment 0 is padding; tokens of one row see each other only inside their segment: padding on either
    side, packed documents and single texts are one mechanism, and masks derive from these fields alone.
    """

    tokens: Tensor  # B T, token ids
    positions: Tensor  # B T, place of each token in its own document, 0 first
    segments: Tensor  # B T, 0 padding, else the number of the document in its row
    starts: tuple[int, ...]  # position of each row's first token: how many came before, in a cache
    lengths: tuple[int, ...]  # real tokens of each row, known without asking the device
    horizons: tuple[tuple[int, ...], ...]  # whole length of each row's documents, past and announced tokens included
    even: bool  # no padding, one document a row, every row starts at the same position
    types: Tensor | None = None  # B T, token types (BERT's first and second text)
    memory: Tensor | None = None  # B S D, what cross-attention reads
    targets: Tensor | None = None  # B T, the id that each place should predict
    weights: Tensor | None = None  # B T, how much each target counts, 0 is not at all

    @classmethod
    def of(
        cls,
        rows: Sequence[Sequence[int]],
        *,
        starts: Sequence[int] | None = None,
        horizons: Sequence[int] | None = None,
        pad: Literal["left", "right"] = "right",
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Rows of token ids of any lengths, padded to the longest; one document each.

        `starts` gives the position of each row's first token (how many are in the cache already);
        `horizons` the length that each sequence will have once its announced tokens are computed.
        """
        if not rows:
            raise DataError("a batch needs at least one row of token ids; got none")
        lengths = tuple(len(row) for row in rows)
        width = max(lengths)
        if width == 0:
            raise DataError("every row of token ids is empty; a model needs at least one token")
        starts = tuple(starts) if starts is not None else (0,) * len(rows)
        ends = tuple(start + length for start, length in zip(starts, lengths, strict=True))
        even = min(lengths) == width and len(set(starts)) == 1
        left = pad == "left"
        tokens, positions, segments = [], [], []
        for row, start, length in zip(rows, starts, lengths, strict=True):
            blank = [0] * (width - length)
            place, real = list(range(start, start + length)), [1] * length
            tokens.append(blank + list(row) if left else list(row) + blank)
            positions.append(blank + place if left else place + blank)
            segments.append(blank + real if left else real + blank)
        packed = torch.tensor([tokens, positions, segments], dtype=torch.long, device=device)
        return cls(
            tokens=packed[0],
            positions=packed[1],
            segments=packed[2],
            starts=starts,
            lengths=lengths,
            horizons=tuple((length,) for length in (ends if horizons is None else horizons)),
            even=even,
        )

    @classmethod
    def pack(cls, rows: Sequence[Sequence[Sequence[int]]], *, device: torch.device | str = "cpu") -> Batch:
        """Rows of several documents each, end to end; positions start at 0 in every document."""
        flat = [[token for document in row for token in document] for row in rows]
        places = [[place for document in row for place in range(len(document))] for row in rows]
        marks = [[number for number, document in enumerate(row, 1) for _ in document] for row in rows]
        batch = cls.of(flat, device=device)
        width = batch.tokens.shape[1]
        positions = torch.tensor([p + [0] * (width - len(p)) for p in places], device=device)
        segments = torch.tensor([m + [0] * (width - len(m)) for m in marks], device=device)
        return cls(
            tokens=batch.tokens,
            positions=positions,
            segments=segments,
            starts=batch.starts,
            lengths=batch.lengths,
            horizons=tuple(tuple(len(document) for document in row) or (0,) for row in rows),
            even=batch.even and all(len(row) == 1 for row in rows),
        )

    def last(self) -> Tensor:
        """[B], the column of each row's last real token."""
        columns = torch.arange(self.width, device=self.tokens.device)
        return ((self.segments > 0) * columns).argmax(dim=1)

    @property
    def rows(self) -> int:
        """B, the number of rows."""
        return self.tokens.shape[0]

    @property
    def width(self) -> int:
        """T, tokens of the longest row, padding included."""
        return self.tokens.shape[1]


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a forward returns: last hidden states by stack, and logits by head when asked for."""

    hidden: dict[str, Tensor]  # stack -> B T D, after the final norm
    logits: Tensor | None = None  # B T V (or B 1 V for the last real token of each row), float32
    others: dict[str, Tensor] = field(default_factory=dict)  # further heads by name
