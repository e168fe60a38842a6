"""The public face: load or build a model, then ask it for logits, text, explanations, or a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.batch import Batch
from headway.checkpoint.resolve import resolve
from headway.errors import DataError
from headway.loader import Progress, Report, load_network, parse_dtype, save_network
from headway.nn.build import build as build_network
from headway.nn.taps import Taps
from headway.nn.transformer import UNTOUCHED, Transformer
from headway.spec.model import ModelSpec
from headway.text.tokenizer import Tokenizer, load_tokenizer

Ids = Sequence[int] | Sequence[Sequence[int]] | Tensor


class Model:
    """A network with its tokenizer and what its files say beside the weights.

    `spec` is what the model is, `network` the torch module, `tokenizer` None when there is no vocabulary,
    `report` what loading found (None for a model built here).
    """

    def __init__(
        self,
        network: Transformer,
        tokenizer: Tokenizer | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        generation_config: Mapping[str, Any] | None = None,
        report: Report | None = None,
    ) -> None:
        self.network = network
        self.tokenizer = tokenizer
        self.config = dict(config or {})
        self.generation_config = dict(generation_config or {})
        self.report = report

    @property
    def spec(self) -> ModelSpec:
        """What the model is, as data."""
        return self.network.spec

    @torch.inference_mode()
    def logits(self, ids: Ids, *, tap: Taps = UNTOUCHED) -> Tensor:
        """Float32 logits [B, T, V] of token ids: one list, lists of any lengths, or a tensor [T] or [B, T].

        Places past the end of a shorter row hold NaN, so that nobody mistakes them for an answer.
        """
        batch = self._batch(ids)
        logits = self.network(batch, tap=tap).logits
        return logits.masked_fill((batch.segments == 0)[..., None], float("nan"))

    @torch.inference_mode()
    def hidden(self, ids: Ids, *, tap: Taps = UNTOUCHED) -> Tensor:
        """Hidden states [B, T, D] after the last norm, in the model's dtype; NaN past the end of a shorter row."""
        batch = self._batch(ids)
        hidden = self.network(batch, keep="none", tap=tap).hidden[self.spec.decoder.name]
        return hidden.masked_fill((batch.segments == 0)[..., None], float("nan"))

    def save(self, folder: str | Path, *, max_shard_bytes: int = 5_000_000_000, overwrite: bool = False) -> None:
        """Write a folder that the standard tools open: config, weights as safetensors, tokenizer.

        A folder that exists and is not empty is refused unless `overwrite`; it appears whole or not at all.
        """
        save_network(
            self.network,
            Path(folder),
            config=self.config,
            generation_config=self.generation_config,
            extras=self.tokenizer.save if self.tokenizer is not None else None,
            max_shard_bytes=max_shard_bytes,
            overwrite=overwrite,
        )

    def _batch(self, ids: Ids) -> Batch:
        rows = as_rows(ids)
        vocab, context = self.spec.decoder.stem.vocab, self.spec.decoder.context
        for number, row in enumerate(rows):
            if not row:
                raise DataError(f"row {number} of the token ids is empty; a row needs at least one token")
            if len(row) > context:
                raise DataError(f"row {number} has {len(row)} tokens, but the model's context is {context}; shorten it")
            bad = next((token for token in row if not 0 <= token < vocab), None)
            if bad is not None:
                raise DataError(f"row {number} holds token id {bad}; this model's ids are 0 to {vocab - 1}")
        return Batch.of(rows, device=self.network.device)


def as_rows(ids: Ids) -> list[list[int]]:
    """Token ids in any accepted form as a list of rows."""
    if isinstance(ids, Tensor):
        if ids.ndim not in (1, 2) or ids.is_floating_point():
            raise DataError(f"token ids as a tensor are whole numbers [T] or [B, T]; got {ids.dtype} {list(ids.shape)}")
        ids = ids.tolist()
    rows = list(ids)
    if not rows:
        raise DataError("no token ids were given; a model needs at least one token")
    if all(isinstance(row, int) for row in rows):
        return [[int(token) for token in rows]]  # type: ignore[arg-type]
    try:
        return [[int(token) for token in row] for row in rows]  # type: ignore[union-attr]
    except (TypeError, ValueError):
        raise DataError("token ids are a list of whole numbers, or a list of such lists") from None


def load(
    ref: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Model:
    """Load a model: a folder, a .gguf or .safetensors file, a name on the shelf ("smollm2"), or a hub id ("owner/name").

    dtype "auto" keeps what the file holds; quantised GGUF tensors become float32, which holds them exactly.
    CheckpointError or SpecError names the file, the field and the way out.
    """
    path = resolve(str(ref))
    loaded = load_network(path, dtype=dtype, device=device, progress=progress)
    return Model(
        loaded.network,
        find_tokenizer(path),
        config=loaded.config,
        generation_config=loaded.generation_config,
        report=loaded.report,
    )


def find_tokenizer(path: Path) -> Tokenizer | None:
    """The tokenizer beside or inside a checkpoint, or None when there is none."""
    if path.suffix == ".gguf":
        return load_tokenizer(path)
    folder = path if path.is_dir() else path.parent
    return load_tokenizer(folder) if (folder / "tokenizer.json").exists() else None


def build(
    spec: ModelSpec,
    *,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    tokenizer: Tokenizer | None = None,
) -> Model:
    """A model of `spec` with fresh weights; the same seed gives the same weights on every device."""
    return Model(build_network(spec, seed=seed, dtype=parse_dtype(dtype), device=device), tokenizer)
