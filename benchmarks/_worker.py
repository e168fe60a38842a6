"""One engine in a process of its own: python _worker.py ENGINE SETTINGS reads prompts as JSON lines and answers.

Runs in headway's environment or in that of the peers, so it imports neither before it knows which engine it is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from _tasks import resident

Prompts = Sequence[Sequence[int]]
Rows = list[list[int]]


class Clock:
    """Seconds since the start at which every answer had its first token, and at which all were whole."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.first: float | None = None

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    def token(self) -> None:
        """Every answer has one more token."""
        if self.first is None:
            self.first = self.now


class Engine(ABC):
    """Something that answers prompts greedily with exactly `new` tokens each; an end token cuts nothing short."""

    @abstractmethod
    def generate(self, prompts: Prompts, new: int, clock: Clock) -> Rows:
        """New ids of every prompt; `clock` is told of the steps where the engine lets one see them."""

    def cache_bytes(self, tokens: int) -> int | None:
        """What the past of so many tokens takes in memory, where the engine tells."""
        return None


class Headway(Engine):
    """headway on a tape, by its public API."""

    def __init__(self, path: str, threads: int, context: int) -> None:
        import headway

        self.model = headway.load(path, engine="tape")

    def generate(self, prompts: Prompts, new: int, clock: Clock) -> Rows:
        if len(prompts) > 1:
            answers = self.model.generate_all(prompts, max_tokens=new, temperature=0.0, ignore_end=True)
            return [list(answer.tokens) for answer in answers]
        ids: list[int] = []
        for event in self.model.stream(prompts[0], max_tokens=new, temperature=0.0, ignore_end=True):
            ids += event.tokens
            clock.token()
        return [ids]

    def cache_bytes(self, tokens: int) -> int:
        return self.model.runner.cache(1, tokens).nbytes


class LlamaCpp(Engine):
    """llama.cpp by its C API, as its own batched programs use it: one decode a step, greedy by numpy."""

    ROWS = 8

    def __init__(self, path: str, threads: int, context: int) -> None:
        import llama_cpp

        self.c = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, None)
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self.threads, self.context_size = threads, context
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.batch = llama_cpp.llama_batch_init(max(context, 512), 0, 1)
        self.contexts: dict[int, Any] = {}

    def context(self, rows: int) -> Any:
        """An empty context for so many sequences, made when it is first asked for."""
        c = self.c
        if rows not in self.contexts:
            params = c.llama_context_default_params()
            params.n_ctx = self.context_size * rows
            params.n_batch, params.n_ubatch = max(512, self.context_size), 512
            params.n_seq_max = rows
            params.n_threads = params.n_threads_batch = self.threads
            params.no_perf = True
            self.contexts[rows] = c.llama_init_from_model(self.model, params)
        context = self.contexts[rows]
        c.llama_memory_clear(c.llama_get_memory(context), True)
        return context

    def generate(self, prompts: Prompts, new: int, clock: Clock) -> Rows:
        context = self.context(len(prompts))
        ids: Rows = [[] for _ in prompts]
        news, starts = [list(prompt) for prompt in prompts], [0] * len(prompts)
        for _ in range(new):
            places = self._decode(context, news, starts)
            starts = [start + len(tokens) for start, tokens in zip(starts, news, strict=True)]
            news = [[self._likeliest(context, place)] for place in places]
            for row, tokens in zip(ids, news, strict=True):
                row += tokens
            clock.token()
        return ids

    def _decode(self, context: Any, news: Rows, starts: list[int]) -> list[int]:
        """One step; returns where in the batch each row's last token lies."""
        batch, places, n = self.batch, [], 0
        for row, (tokens, start) in enumerate(zip(news, starts, strict=True)):
            for offset, token in enumerate(tokens):
                batch.token[n], batch.pos[n] = token, start + offset
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, row
                batch.logits[n] = offset == len(tokens) - 1
                n += 1
            places.append(n - 1)
        batch.n_tokens = n
        if self.c.llama_decode(context, batch):
            raise SystemExit("llama.cpp cannot decode")
        return places

    def _likeliest(self, context: Any, place: int) -> int:
        logits = self.c.llama_get_logits_ith(context, place)
        return int(np.ctypeslib.as_array(logits, (self.size,)).argmax())


class OnnxGenai(Engine):
    """ONNX Runtime GenAI on a folder of its own model builder."""

    def __init__(self, path: str, threads: int, context: int) -> None:
        import onnxruntime_genai

        self.og = onnxruntime_genai
        config = onnxruntime_genai.Config(path)
        options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self.model = onnxruntime_genai.Model(config)

    def generate(self, prompts: Prompts, new: int, clock: Clock) -> Rows:
        length = len(prompts[0])
        assert all(len(prompt) == length for prompt in prompts)
        params = self.og.GeneratorParams(self.model)
        total = length + new
        params.set_search_options(max_length=total, min_length=total, batch_size=len(prompts), do_sample=False)
        generator = self.og.Generator(self.model, params)
        generator.append_tokens(np.array(prompts, np.int32))
        for _ in range(new):
            generator.generate_next_token()
            clock.token()
        return [[int(token) for token in generator.get_sequence(row)[length:]] for row in range(len(prompts))]


class CTranslate2(Engine):
    """CTranslate2 on a folder of its own converter; the folder's name ends with the type it computes in."""

    def __init__(self, path: str, threads: int, context: int) -> None:
        import ctranslate2

        kind = Path(path).name.rpartition("-")[2]
        self.model = ctranslate2.Generator(
            path, device="cpu", compute_type=kind, inter_threads=1, intra_threads=threads
        )
        self.words = json.loads((Path(path) / "vocabulary.json").read_text(encoding="utf-8"))

    def generate(self, prompts: Prompts, new: int, clock: Clock) -> Rows:
        def step(_: object) -> bool:
            clock.token()
            return False

        answers = self.model.generate_batch(
            [[self.words[token] for token in prompt] for prompt in prompts],
            max_length=new,
            min_length=new,
            include_prompt_in_result=False,
            callback=step,
        )
        return [answer.sequences_ids[0] for answer in answers]


class Transformers(Engine):
    """transformers' generate as it comes."""

    def __init__(self, path: str, threads: int, context: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = 0

    def generate(self, prompts: Prompts, new: int, clock: Clock) -> Rows:
        torch = self.torch
        ids = torch.tensor(prompts)

        def seen(tokens: Any, _: Any, **__: Any) -> Any:
            clock.token()
            return torch.zeros(len(tokens), dtype=torch.bool)

        answer = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            do_sample=False,
            stopping_criteria=[seen],
        )
        return answer[:, ids.shape[1] :].tolist()


ENGINES = {
    "headway": Headway,
    "llama.cpp": LlamaCpp,
    "ONNX Runtime": OnnxGenai,
    "CTranslate2": CTranslate2,
    "transformers": Transformers,
}


def answer(engine: Engine, asked: dict[str, Any]) -> dict[str, Any]:
    """What a line of JSON asks for."""
    if "cache" in asked:
        return {"bytes": engine.cache_bytes(asked["cache"])}
    if "prompts" not in asked:
        return {"peak": resident("VmHWM")}
    clock = Clock()
    ids = engine.generate(asked["prompts"], asked["new"], clock)
    total = clock.now
    return {"first": clock.first, "total": total, "ids": ids, "peak": resident("VmHWM")}


def own_stdout() -> TextIO:
    """The standard output for answers alone: from now on what libraries print there goes to the standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def main(name: str, settings: str) -> None:
    """Answer line after line until the input ends."""
    given = json.loads(settings)
    if given["cpus"]:
        os.sched_setaffinity(0, given["cpus"])  # before any library counts cores or starts threads
    start = time.perf_counter()
    with own_stdout() as out:
        engine = ENGINES[name](given["path"], given["threads"], given["context"])
        print(json.dumps({"ready": time.perf_counter() - start}), file=out, flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(engine, json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
