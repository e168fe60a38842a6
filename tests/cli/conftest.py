"""A tiny chat model in a folder, with a vocabulary of bytes, and `headway` as users start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import headway
from headway.spec import TokenStem
from tests import zoo

collect_ignore = ["test_chat_terminal.py"] if sys.platform == "win32" else []  # which has no pseudo-terminals

SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
TEMPLATE = (
    "{%- for m in messages -%}"
    "{%- if m.content == 'raise' -%}{{ raise_exception('no such thing') }}{%- endif -%}"
    "<|{{ m.role }}|>{{ m.content }}<|end|>"
    "{%- endfor -%}{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
Run = Callable[..., subprocess.CompletedProcess[str]]


def write_tokenizer(folder: Path, template: str = TEMPLATE) -> int:
    """Every byte a token, and the specials of the template; returns the size of the vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: number for number, piece in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(special, special=True) for special in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": SPECIAL[0], "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return len(vocab)


def write_model(folder: Path, *, context: int = 4096, says: str = "", template: str = TEMPLATE) -> Path:
    """A tiny model that talks at random, or whose every token is the letter `says`."""
    vocab = len(SPECIAL) + 256
    stem = TokenStem(vocab=vocab, width=zoo.WIDTH)
    spec = zoo.decoder(zoo.layer(zoo.attention()), stem=stem, context=context, head={"vocab": vocab, "bias": True})
    model = headway.build(spec, seed=1)
    if says:
        letter = len(SPECIAL) + sorted(pre_tokenizers.ByteLevel.alphabet()).index(says)
        with torch.no_grad():
            model.network.heads["lm"].bias[letter] = 1e4
    model.save(folder)
    write_tokenizer(folder, template)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def says_a(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says "a" for ever."""
    return write_model(tmp_path_factory.mktemp("models") / "says-a", context=1_000_000, says="a")


@pytest.fixture(scope="session")
def small_context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "small", context=48, says="a")


@pytest.fixture
def shell(tmp_path: Path) -> Run:
    """`headway ARGUMENTS` in a process of its own."""

    def run(*arguments: object, stdin: str | bytes = "", **environment: str) -> subprocess.CompletedProcess[str]:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [sys.executable, "-m", "headway", *map(str, arguments)],
            input=given,
            capture_output=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            cwd=Path(headway.__file__).parent.parent,
            timeout=120,
            check=False,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
