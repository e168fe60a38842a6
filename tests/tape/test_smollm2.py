"""A real model: the tape's greedy answers on float32 weights are the modules' own; packed, logits stay close."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import headway

PROMPTS = [
    "The capital of France is",
    "Once upon a time there was",
    "def fibonacci(n):",
    "Water boils at",
    "1, 2, 3, 4,",
    "The most important thing about",
    "In 1969, humans",
    "Dear Sir or Madam,",
    "To make bread you need",
    "Photosynthesis is",
]
# Mean KL divergence of the next token's distribution, in nats: inputs of products are rounded to 8 bits.
BOUND = 0.003


@pytest.mark.parity
def test_greedy_answers_on_the_same_float32_weights_are_identical(smollm2_gguf: Path) -> None:
    tape = headway.load(smollm2_gguf, dtype="float32", engine="tape")
    modules = headway.load(smollm2_gguf, engine="modules")
    ours, theirs = (m.generate_all(PROMPTS, max_tokens=100, temperature=0.0) for m in (tape, modules))
    assert [one.tokens for one in ours] == [one.tokens for one in theirs]


def test_packed_weights_stay_close_and_small(smollm2_gguf: Path) -> None:
    tape = headway.load(smollm2_gguf, engine="tape")
    modules = headway.load(smollm2_gguf, engine="modules")
    assert tape.report is not None
    assert set(tape.report.dtypes) == {"Q4_1", "Q8_0", "F32"}
    assert tape.report.bytes < 1.05 * tape.report.file_bytes
    ids = [tape.ids(prompt) for prompt in PROMPTS[:3]]
    ours, theirs = tape.logits(ids), modules.logits(ids)
    real = ~theirs.isnan().any(dim=-1)
    assert torch.equal(real, ~ours.isnan().any(dim=-1))
    mine, right = ours[real].log_softmax(dim=-1), theirs[real].log_softmax(dim=-1)
    assert (right.exp() * (right - mine)).sum(dim=-1).mean() < BOUND
