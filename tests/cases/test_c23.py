"""The plan of a cache counts key heads and the head's own size, and is what the tensors take."""

from __future__ import annotations

import pytest
import torch

from headway.cache import Cache
from headway.explain.plan import plan
from tests.zoo import attention, decoder, layer

SMALL = attention(heads=8, kv_heads=2, head_dim=8, value_dim=8, rope=None)
LARGE = attention(heads=32, kv_heads=8, head_dim=128, value_dim=128, rope=None)


@pytest.mark.case("C23")
@pytest.mark.parametrize("sequences", [1, 3])  # a beam is a sequence too
def test_two_small_layers_in_float16_take_2048_bytes(sequences: int) -> None:
    spec = decoder(layer(SMALL), layer(SMALL))
    planned = plan(spec, dtype=torch.float16, tokens=16, batch=sequences)
    assert planned.cache_bytes == 2048 * sequences
    assert Cache.of(spec, sequences, 16, torch.float16).nbytes == planned.cache_bytes


@pytest.mark.case("C23")
def test_an_eight_billion_parameter_model_takes_a_gibibyte_at_8192_tokens() -> None:
    planned = plan(decoder(*[layer(LARGE)] * 32, context=8192), dtype=torch.float16, tokens=8192)
    assert planned.cache_bytes_per_token == 131072
    assert planned.cache_bytes == 2**30
