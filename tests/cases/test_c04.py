"""An answer ends where any of a folder's three files says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import headway
from headway.loader import save_network
from tests.generate.scripted import scripted

WORDS = [f"w{at} " for at in range(96)]


def folder_of(path: Path, answer: list[int], config: Any, generation: Any) -> Path:
    """A model that answers a prompt of two tokens with `answer`, and whose tokenizer names id 7 as its end."""
    save_network(scripted(answer, prompt=2), path)
    stated = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**stated, **config}))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: at for at, word in enumerate(WORDS)}, "w0 "))
    core.add_special_tokens([WORDS[7]])
    core.decoder = tokenizers.decoders.Fuse()
    core.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": WORDS[7]}))
    return path


@pytest.mark.case("C04")
@pytest.mark.parametrize("end", [5, 6, 7])
def test_each_files_end_stops_the_fourth_token(tmp_path: Path, end: int) -> None:
    folder = folder_of(tmp_path / "m", [1, 2, 3, end, 8, 9], {"eos_token_id": 5}, {"eos_token_id": [5, 6]})
    model = headway.load(folder)
    answer = model.generate([10, 11], max_tokens=6)
    assert (answer.finish, answer.stopped_by, answer.text) == ("stop", end, "w1 w2 w3 ")
    assert answer.tokens == (1, 2, 3, end)
    streamed = list(model.stream([10, 11], max_tokens=6))
    assert "".join(event.text for event in streamed) == answer.text
    assert streamed[-1].finish == "stop"


@pytest.mark.case("C04")
def test_an_explicit_end_replaces_the_files_and_an_ignored_one_runs_on(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", [1, 6, 3, 7, 8, 9], {"eos_token_id": 5}, {"eos_token_id": [5, 6]})
    model = headway.load(folder)
    explicit = model.generate([10, 11], max_tokens=6, end_ids=(8,))
    assert (explicit.finish, explicit.stopped_by, explicit.tokens) == ("stop", 8, (1, 6, 3, 7, 8))
    on = model.generate([10, 11], max_tokens=5, ignore_end=True)
    assert (on.finish, on.stopped_by, on.tokens) == ("length", None, (1, 6, 3, 7, 8))


@pytest.mark.case("C04")
@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        ({}, None, (7,)),
        ({"eos_token_id": None}, {}, (7,)),
        ({"eos_token_id": 5}, None, (5, 7)),
        ({"eos_token_id": [5, 6]}, {"eos_token_id": 6}, (5, 6, 7)),
    ],
)
def test_one_end_a_list_and_none_all_load(tmp_path: Path, config: Any, generation: Any, ends: tuple[int, ...]) -> None:
    folder = folder_of(tmp_path / "m", [1], config, generation)
    assert headway.load(folder).defaults.end_ids == ends


@pytest.mark.case("C04")
def test_ends_survive_a_save(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", [1, 2, 3, 6], {"eos_token_id": 5}, {"eos_token_id": [5, 6]})
    headway.load(folder).save(tmp_path / "again")
    assert headway.load(tmp_path / "again").defaults.end_ids == (5, 6, 7)
