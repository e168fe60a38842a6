"""`headway verify`: exit codes, the first layer that differs, and the same as JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import headway
from headway.cli import main
from headway.evaluate import CHECKS
from tests import zoo


@pytest.fixture(scope="module")
def changed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with one number of its layer changed."""
    model = headway.load(tiny)
    with torch.no_grad():
        model.network.get_parameter("stacks.decoder.layers.0.feed_forward.down.weight")[0, 0] += 3.0
    folder = tmp_path_factory.mktemp("verify") / "changed"
    model.save(folder)
    return folder


def test_a_model_against_itself(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tiny)]) == 0
    page = capsys.readouterr().out
    assert all(f"\n{check.name} " in page for check in CHECKS)
    assert page.endswith("All agree, within 0.0001 of a token's largest value.\n")


def test_a_model_beside_its_copy(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tiny), str(tiny), "--text", "Hello"]) == 0
    page = capsys.readouterr().out
    assert "1 text of 5 tokens" in page
    assert "The same token is likeliest at 5 of 5 places." in page


def test_the_first_difference_is_named_and_is_exit_code_one(
    tiny: Path, changed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tiny), str(changed)]) == 1
    assert "\nThey differ first at stacks.decoder.layers.0.output: " in capsys.readouterr().out
    assert main(["verify", str(tiny), str(changed), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["agrees"] is False
    assert found["tokens_agree"] is True
    assert found["comparisons"][0]["first"] == "stacks.decoder.layers.0.output"
    assert [gap["site"] for gap in found["comparisons"][0]["gaps"]][-1] == "logits"
    assert main(["verify", str(tiny), str(changed), "--tolerance", "1000"]) == 0


def test_tokenizers_that_read_differently_are_a_difference(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    assert main(["verify", str(tiny), str(other), "--text", "cab"]) == 1
    assert "The two tokenizers read the texts differently" in capsys.readouterr().out
    assert main(["verify", str(tiny), str(other), "--text", "xyz"]) == 0


def test_texts_of_a_file(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts.txt").write_text("one\n\n三\n", encoding="utf-8")
    assert main(["verify", str(tiny), "--file", str(tmp_path / "texts.txt")]) == 0
    assert "2 texts of 3, 3 tokens" in capsys.readouterr().out


def test_a_model_without_a_tokenizer_gets_sample_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    headway.build(zoo.ZOO["window"]).save(tmp_path / "bare")
    assert main(["verify", str(tmp_path / "bare")]) == 0
    assert "3 texts of 24, 12, 8 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", ""], "--text is empty"),
        (["--text", "x", "--file", "y"], "give --text or --file, not both"),
        (["--file", "not-there.txt"], "not-there.txt: cannot be read"),
        (["--tolerance", "0"], "--tolerance 0 leaves no room"),
        (["not-there/at/all"], "no such file or folder"),
    ],
)
def test_a_mistake_is_one_line(
    tiny: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tiny), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_models_of_another_vocabulary_are_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    headway.build(zoo.ZOO["window"]).save(tmp_path / "bare")
    assert main(["verify", str(tiny), str(tmp_path / "bare")]) == 2
    assert "stacks.decoder.stem.vocab is 260 in the one and 97 in the other" in capsys.readouterr().err
