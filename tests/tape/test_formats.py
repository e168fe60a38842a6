"""Packed weights on the tape against modules on the same weights dequantised.

What differs is how inputs of products are rounded: to 8 bits in blocks of 32 or more, so to 1/254 of the block's
largest number. Errors of that size at every product leave an error of BOUND in the logits' norm.
"""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from headway.batch import Batch
from headway.checkpoint.gguf_blocks import BLOCKS
from headway.errors import CheckpointError
from headway.fast import TapeNetwork
from headway.native import library
from headway.native.structs import Format
from headway.nn import Transformer
from headway.nn.build import empty, fill
from headway.spec import Attention, Mask, ModelSpec, Rope, TokenStem
from headway.spec.count import shapes
from headway.tape import Program, Weights
from headway.tape.weights import Raw
from tests.zoo import RMS, attention, decoder, feed_forward, layer

BOUND = 0.03
NOT_NATIVE = ["Q2_K", "Q3_K"]  # widened to float32 when loaded
PACKED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
HALVES = ["F16", "BF16"]
SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}  # where the halves lie
SIZES = {"Q2_K": 0.02, "Q3_K": 0.001, "Q4_K": 0.0004, "Q5_K": 0.0002, "Q6_K": 0.00003}
ROWS = [[5, 1, 88, 3, 3, 17, 96, 40, 2, 9, 11, 54, 6, 7], [7, 0, 9]]


def model() -> ModelSpec:
    mixer = attention(heads=4, kv_heads=2, head_dim=64, value_dim=64, scale=0.125, rope=Rope(dim=64, base=500.0))
    wide = feed_forward(hidden=512)
    return decoder(
        layer(mixer, wide),
        layer(mixer, wide),
        width=256,
        stem=TokenStem(vocab=97, width=256),
        tied=True,
        final_norm=RMS,
    )


def quantised(name: str, shape: tuple[int, ...], random: np.random.Generator) -> Raw:
    """A random matrix in a block format."""
    rows, cols = shape
    if name not in SCALES:
        values = random.standard_normal(shape).astype(np.float32) * 0.06
        return Raw(name, shape, gguf.quantize(values, gguf.GGMLQuantizationType[name]))
    kind = BLOCKS[name]
    blocks = random.integers(0, 256, (rows * cols // kind.elements, kind.bytes), dtype=np.uint8)
    for place in SCALES[name]:
        half = np.full((len(blocks), 1), SIZES[name], np.float16)
        blocks[:, place : place + 2] = half.view(np.uint8)
    return Raw(name, shape, blocks.reshape(rows, -1))


def both(name: str) -> tuple[Transformer, TapeNetwork]:
    native = library.load()
    assert native is not None
    spec, random = model(), np.random.default_rng(7)
    raws: dict[str, Raw] = {}
    for path, shape in shapes(spec).items():
        if len(shape) == 1:
            raws[path] = Raw("F32", shape, 1 + 0.1 * random.standard_normal(shape).astype(np.float32))
        elif name in HALVES:
            raws[path] = Raw("F32", shape, random.standard_normal(shape).astype(np.float32) * 0.06).to(name)
        else:
            raws[path] = quantised(name, shape, random)
    modules = fill(empty(spec), {path: torch.from_numpy(raw.floats().copy()) for path, raw in raws.items()})
    pool = library.Pool(native, 1)
    return modules, TapeNetwork(Program(spec, Weights(spec, raws.items(), native, pool), pool))


@pytest.mark.parametrize("name", [*PACKED, *NOT_NATIVE, *HALVES])
def test_logits_are_those_of_the_dequantised_weights_within_the_rounding(name: str) -> None:
    modules, tape = both(name)
    bound = BOUND if name in PACKED else 2e-3  # the cache alone rounds, to float16
    held = {matrix for matrix in tape.program.weights.dtypes if matrix != "F32"}
    assert held == (set() if name in NOT_NATIVE else {name})
    cache = tape.cache(2, 32)
    for rows in (ROWS, [[4], [19]]):
        batch = Batch.of([[*row] for row in rows], starts=cache.lengths)
        ours = tape(batch, cache, keep="last").logits[:, 0]
        known = ROWS if rows is ROWS else [[*row, *more] for row, more in zip(ROWS, rows, strict=True)]
        theirs = modules(Batch.of(known), keep="last").logits[:, 0]
        assert torch.isfinite(ours).all()
        assert ((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max() < bound


def test_one_row_and_many_give_the_same_logits_to_the_bit() -> None:
    _, tape = both("Q4_0")
    together = tape(Batch.of(ROWS)).logits
    for row, logits in zip(ROWS, together, strict=True):
        assert torch.equal(tape(Batch.of([row])).logits[0], logits[: len(row)])


def test_tied_matrices_are_held_once_and_packed_ones_in_the_size_of_the_file() -> None:
    _, tape = both("Q4_0")
    weights = tape.program.weights
    assert weights.matrix("heads.lm.weight") is weights.matrix("stacks.decoder.stem.tokens.weight")
    numbers = sum(np.prod(shape) for shape in shapes(model()).values() if len(shape) == 2)
    assert weights.nbytes < 1.1 * numbers * 18 / 32 + 97 * 256


def test_an_untied_embedding_stays_as_the_file_has_it() -> None:
    native = library.load()
    assert native is not None
    spec = decoder(layer(plain_attention(), feed_forward(hidden=64)), width=64, stem=TokenStem(vocab=97, width=64))
    random, pool = np.random.default_rng(1), library.Pool(native, 1)
    raws = {
        path: quantised("Q8_0", shape, random) if len(shape) == 2 else Raw("F32", shape, np.ones(shape, np.float32))
        for path, shape in shapes(spec).items()
    }
    weights = Weights(spec, raws.items(), native, pool)
    assert not weights.matrix("stacks.decoder.stem.tokens.weight").packed
    assert weights.matrix("heads.lm.weight").packed


def plain_attention() -> Attention:
    return attention(heads=2, kv_heads=1, head_dim=32, value_dim=32, mask=Mask.causal(), rope=None)


def test_weights_of_another_shape_or_without_values_are_refused() -> None:
    native = library.load()
    assert native is not None
    pool, spec = library.Pool(native, 1), decoder(layer(attention()))
    raws = {path: Raw("F32", shape, np.zeros(shape, np.float32)) for path, shape in shapes(spec).items()}
    path = "stacks.decoder.layers.0.attention.q.weight"
    with pytest.raises(CheckpointError, match=r"attention.q.weight has shape \[3, 3\]"):
        Weights(spec, {**raws, path: Raw("F32", (3, 3), np.zeros((3, 3), np.float32))}.items(), native, pool)
    del raws[path]
    with pytest.raises(CheckpointError, match=f"1 parameters have no values: {path}"):
        Weights(spec, raws.items(), native, pool)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_matrices_can_be_made_plain_when_they_are_read(dtype: str) -> None:
    native = library.load()
    assert native is not None
    pool, spec, random = library.Pool(native, 1), model(), np.random.default_rng(7)
    raws = {
        path: quantised("Q4_1", shape, random) if len(shape) == 2 else Raw("F32", shape, np.ones(shape, np.float32))
        for path, shape in shapes(spec).items()
    }
    program = Program(spec, Weights(spec, raws.items(), native, pool, dtype=dtype), pool)
    assert program.weights.matrix("heads.lm.weight").format is Format[dtype]
    modules = fill(empty(spec), {path: torch.from_numpy(raw.floats().copy()) for path, raw in raws.items()})
    ours, theirs = TapeNetwork(program)(Batch.of([ROWS[0]])).logits, modules(Batch.of([ROWS[0]])).logits
    assert (ours - theirs).norm() / theirs.norm() < {"F32": 1e-5, "F16": 2e-3, "BF16": 1e-2}[dtype]
