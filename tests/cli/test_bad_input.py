"""What cannot be done as asked: exit code 2, one line that names the thing, no traceback, nothing written."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli import main
from tests.cli.conftest import write_tokenizer


def copy(tiny: Path, place: Path) -> Path:
    folder = place / "model"
    shutil.copytree(tiny, folder)
    return folder


def configured(tiny: Path, place: Path, change: Callable[[dict], None]) -> Path:  # type: ignore[type-arg]
    folder = copy(tiny, place)
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def llama(place: Path, **changes: object) -> Path:
    """A folder with the config of a small Llama and no weights."""
    place.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 260, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (place / "config.json").write_text(json.dumps({**config, **changes}))
    write_tokenizer(place)
    return place


def missing(tiny: Path, place: Path) -> Path:
    return place / "nowhere.gguf"


def wrong_folder(tiny: Path, place: Path) -> Path:
    (place / "empty").mkdir()
    return place / "empty"


def cut_safetensors(tiny: Path, place: Path) -> Path:
    folder = copy(tiny, place)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return folder


def cut_gguf(tiny: Path, place: Path) -> Path:
    (place / "cut.gguf").write_bytes(b"GGUF" + struct.pack("<IQ", 3, 5))
    return place / "cut.gguf"


def gguf_architecture(tiny: Path, place: Path) -> Path:
    key, value = b"general.architecture", b"rwkv9"
    text = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(value)) + value
    (place / "odd.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text + bytes(64))
    return place / "odd.gguf"


def model_type(tiny: Path, place: Path) -> Path:
    return configured(tiny, place, lambda config: config.update(model_type="nonesuch"))


def impossible_field(tiny: Path, place: Path) -> Path:
    return weights_of(tiny, llama(place / "model", num_attention_heads=-4))


def unknown_rope(tiny: Path, place: Path) -> Path:
    return weights_of(tiny, llama(place / "model", rope_scaling={"rope_type": "spiral", "factor": 2.0}))


def missing_tensors(tiny: Path, place: Path) -> Path:
    return weights_of(tiny, llama(place / "model"))


def weights_of(tiny: Path, folder: Path) -> Path:
    shutil.copy(tiny / "model.safetensors", folder)
    return folder


def wrong_shape(tiny: Path, place: Path) -> Path:
    return configured(tiny, place, lambda config: config["spec"]["stacks"][0]["stem"].update(vocab=99))


def missing_shard(tiny: Path, place: Path) -> Path:
    folder = copy(tiny, place)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"stacks.decoder.stem.tokens.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def pickled(tiny: Path, place: Path) -> Path:
    folder = copy(tiny, place)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": [1.0]}, protocol=2))
    return folder


def no_json(tiny: Path, place: Path) -> Path:
    folder = copy(tiny, place)
    (folder / "config.json").write_text("{")
    return folder


@pytest.mark.parametrize("verb", ["inspect", "generate", "chat"])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (missing, ("nowhere.gguf", "no such file")),
        (wrong_folder, ("empty",)),
        (cut_safetensors, ("model.safetensors",)),
        (cut_gguf, ("cut.gguf",)),
        (gguf_architecture, ("odd.gguf", "general.architecture", "rwkv9")),
        (model_type, ("config.json", "model_type", "nonesuch")),
        (impossible_field, ("config.json", "num_attention_heads", "-4")),
        (unknown_rope, ("config.json", "rope", "spiral")),
        (missing_tensors, ("missing",)),
        (wrong_shape, ("shape", "99")),
        (missing_shard, ("model-00001-of-00002.safetensors",)),
        (pickled, ("pytorch_model.bin",)),
        (no_json, ("config.json", "JSON")),
    ],
)
def test_model_that_cannot_be(
    verb: str, make: Callable[[Path, Path], Path], said: tuple[str, ...], tiny: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model = make(tiny, tmp_path)
    arguments = {"inspect": [], "generate": ["hello"], "chat": ["--prompt", "hello"]}[verb]
    refused([verb, str(model), *arguments], said, tmp_path, capsys)


def refused(arguments: list[str], said: tuple[str, ...], place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hold `main` to a refusal that says `said` and leaves `place` as it was."""
    before = sorted(place.rglob("*"))
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("headway: ")
    assert output.err.count("\n") == 1
    for part in said:
        assert part in output.err
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--temperature", "-1"], ("temperature", "-1")),
        (["--top-p", "1.5"], ("top_p", "1.5")),
        (["--top-k", "-2"], ("top_k", "-2")),
        (["--min-p", "2"], ("min_p", "2")),
        (["--max-tokens", "0"], ("max_tokens", "0")),
        (["--stop", ""], ("stop",)),
        (["--dtype", "int3"], ("dtype", "int3")),
        (["--device", "abacus"], ("device", "abacus")),
    ],
)
@pytest.mark.parametrize("verb", ["generate", "chat"])
def test_option_out_of_range(
    verb: str, options: list[str], said: tuple[str, ...], tiny: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    prompt = ["hello"] if verb == "generate" else ["--prompt", "hello"]
    refused([verb, str(tiny), *prompt, *options], said, tmp_path, capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generate", "MODEL", ""], ("PROMPT is empty",)),
        (["generate", "MODEL", "a\udcffb"], ("PROMPT is not UTF-8",)),
        (["generate", "MODEL", "x", "--num-beams", "0"], ("beams", "0")),
        (["generate", "MODEL", "x", "--n", "0"], ("n = 0",)),
        (["generate", "MODEL", "x", "--num-beams", "2", "--temperature", "1"], ("temperature", "beam")),
        (["generate", "MODEL", "x", "--system", "s"], ("--system", "--chat")),
        (["generate", "MODEL", "x", "--file", "f.txt"], ("--file", "not both")),
        (["generate", "MODEL", "--file", "nowhere.txt"], ("nowhere.txt",)),
        (["generate", "MODEL", "raise", "--chat"], ("no such thing",)),
        (["chat", "MODEL", "--prompt", ""], ("--prompt is empty",)),
        (["chat", "MODEL", "--prompt", "raise"], ("no such thing",)),
        (["generate", "no-such-model", "x"], ("no-such-model", "smollm2")),
    ],
)
def test_request_that_cannot_be(
    arguments: list[str], said: tuple[str, ...], tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused([str(tiny) if part == "MODEL" else part for part in arguments], said, tmp_path, capsys)


@pytest.mark.parametrize("verb", ["generate", "chat"])
def test_prompt_longer_than_the_context(
    verb: str, small_context: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"generate": ["x" * 60], "chat": ["--prompt", "x" * 60]}[verb]
    refused([verb, str(small_context), *arguments], ("tokens", "context", "48"), tmp_path, capsys)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.txt", b"\n \n", ("empty.txt", "no prompts")),
        ("bytes.txt", b"good\n\xff\xfe", ("bytes.txt", "UTF-8", "0xff")),
        ("odd.jsonl", b'{"prompt": "x"}\n{"text": "y"}\n', ("odd.jsonl line 2", "prompt")),
        ("cut.jsonl", b'{"prompt": \n', ("cut.jsonl line 1", "JSON")),
        ("void.jsonl", b'{"prompt": ""}\n', ("void.jsonl line 1", "empty")),
    ],
)
def test_file_of_prompts_that_cannot_be(
    name: str, content: bytes, said: tuple[str, ...], tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    refused(["generate", str(tiny), "--file", str(tmp_path / name)], said, tmp_path, capsys)


def test_prompt_of_many_that_is_too_long_is_named(
    small_context: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.txt").write_text("short\n" + "x" * 60 + "\n")
    arguments = ["generate", str(small_context), "--file", str(tmp_path / "prompts.txt")]
    refused(arguments, ("prompt 2 of 2", "context"), tmp_path, capsys)
