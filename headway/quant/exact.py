"""Blocks that native calls do not read, as blocks of another format that hold the same numbers to the bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from headway.checkpoint.dtypes import Bytes
from headway.checkpoint.gguf_blocks import BLOCKS, q3_k_parts
from headway.quant.blocks import packed
from headway.tape.weights import Raw

SAME = {"Q3_K": "Q6_K"}


def in_native_blocks(raws: Iterable[tuple[str, Raw]]) -> Iterator[tuple[str, Raw]]:
    """The same parameters; matrices of a format in SAME in the format that stands for it."""
    for path, raw in raws:
        if raw.dtype == "Q3_K":
            blocks = np.ascontiguousarray(raw.array).reshape(-1, BLOCKS[raw.dtype].bytes)
            raw = Raw(SAME[raw.dtype], raw.shape, q3_k_as_q6_k(blocks).reshape(raw.shape[0], -1))
        yield path, raw


def q3_k_as_q6_k(blocks: Bytes) -> Bytes:
    """[N, 110] to [N, 210]: both have a scale of at most 8 bits for runs of 16, and a float16 over it."""
    numbers, scales = q3_k_parts(blocks)
    q = (numbers + 32).astype(np.uint8)
    low, high = packed(q & np.uint8(15), 64, 4), packed(q >> np.uint8(4), 32, 2)
    return np.concatenate([low, high, scales.view(np.uint8), blocks[:, 108:110]], axis=1)
