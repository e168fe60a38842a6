"""A published model out of its GGUF file, beside transformers' own loading of the same file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import headway

pytestmark = pytest.mark.parity

TEXTS = {
    "English": "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
    "foolishness, it was the epoch of belief, it was the epoch of incredulity.",
    "code": "def fibonacci(n: int) -> list[int]:\n    a, b = 0, 1\n    found = []\n    while len(found) < n:\n"
    "        found.append(a)\n        a, b = b, a + b\n    return found\n",
    "Chinese": "学而时习之,不亦说乎?有朋自远方来,不亦乐乎?人不知而不愠,不亦君子乎?",
}


@pytest.fixture(scope="module")
def both(smollm2_gguf: Path):
    from transformers import AutoModelForCausalLM

    peer = AutoModelForCausalLM.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name, dtype=torch.float32)
    return headway.load(smollm2_gguf, engine="modules"), peer.eval()


@pytest.mark.parametrize("kind", TEXTS)
@torch.inference_mode()
def test_logits_agree_with_transformers_loading_the_same_file(both, kind: str) -> None:
    ours, peer = both
    ids = ours.tokenizer.encode(TEXTS[kind])
    assert len(ids) > 30
    difference = (ours.logits(ids) - peer(torch.tensor([ids])).logits).abs().max().item()
    print(f"{kind}: {len(ids)} tokens, largest difference of logits {difference:.1e}")
    assert difference < 1e-3
