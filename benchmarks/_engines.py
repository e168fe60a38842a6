"""headway and transformers behind one call, on the same weights: prompts in, new ids out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from _common import Limits, Options, model_file

import headway
from headway.spec.count import cache_bytes, flops_per_token

Prompts = Sequence[Sequence[int]]
Generate = Callable[[Prompts, int], list[list[int]]]

ROOT = Path(__file__).resolve().parent.parent
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@contextmanager
def saved(chosen: Options, *dtypes: str) -> Iterator[list[Path]]:
    """SmolLM2 as folders of safetensors, one for each dtype, which both engines open; gone afterwards."""
    torch.set_num_threads(chosen.threads)
    with tempfile.TemporaryDirectory(prefix="headway-benchmark-") as room:
        folders = [Path(room) / dtype for dtype in dtypes]
        for folder, dtype in zip(folders, dtypes, strict=True):
            headway.load(model_file(chosen), dtype=DTYPES[dtype]).save(folder)
        yield folders


def prompt(model: headway.Model, length: int, skip: int = 0) -> list[int]:
    """The first `length` ids of an English text, from its character `skip` on."""
    ids = model.ids((ROOT / "LICENSE").read_text(encoding="utf-8")[skip : skip + 16 * length])
    assert len(ids) >= length
    return ids[:length]


def ours(model: headway.Model) -> Generate:
    """headway by its public API; no end token cuts an answer short."""

    def generate(prompts: Prompts, new: int) -> list[list[int]]:
        answers = model.generate_all(prompts, max_tokens=new, temperature=0.0, ignore_end=True)
        return [list(answer.tokens) for answer in answers]

    return generate


def theirs(folder: Path, dtype: str) -> Generate:
    """transformers' generate as it comes, except that no end token cuts an answer short."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype]).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    def generate(prompts: Prompts, new: int) -> list[list[int]]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in prompts])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts])
        answer = model.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False)
        return answer[:, longest:].tolist()

    return generate


def agreement(one: list[list[int]], other: list[list[int]]) -> str:
    """Whether both gave the same ids, and if not, after how many they part."""
    if one == other:
        return "same ids"
    pairs = [list(zip(left, right, strict=True)) for left, right in zip(one, other, strict=True)]
    same = [next((place for place, (a, b) in enumerate(row) if a != b), len(row)) for row in pairs]
    return f"ids part after {', '.join(map(str, same))}"


@dataclass(frozen=True)
class Work:
    """What the machine has to do at the least, and how long that takes it."""

    model: headway.Model
    limits: Limits

    def prefill(self, lengths: Sequence[int]) -> float:
        """Seconds for prompts of these lengths: their multiplications, the head once for each."""
        spec = self.model.spec
        head = 2 * spec.heads[0].vocab * spec.decoder.width
        operations = sum(length * (flops_per_token(spec, length // 2) - head) + head for length in lengths)
        return operations / self.limits.multiply

    def step(self, pasts: Sequence[int]) -> float:
        """Seconds for one more token of each row, with so many before it: all weights read once, every past too."""
        spec, network = self.model.spec, self.model.network
        moved = sum(parameter.nbytes for parameter in network.parameters())
        moved += sum(cache_bytes(spec, past, 1, network.dtype.itemsize) for past in pasts)
        operations = sum(flops_per_token(spec, past) for past in pasts)
        return max(moved / self.limits.read, operations / self.limits.multiply)
