"""`headway quantize`: what it writes, what its proof says, and what it refuses before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headway
from headway.checkpoint.store import open_store
from headway.cli import main
from tests import needs
from tests.quant.test_write import gguf_file


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("Twelve rolls, 渡船。" * 12, encoding="utf-8")
    return path


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


@pytest.mark.parametrize("to", ["int8", "int4", "float16"])
def test_a_folder_with_its_proof(
    tiny: Path, text: Path, tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["quantize", str(tiny), "--to", to, "--out", str(out), "--text", str(text)]) == 0
    page = said(capsys)
    assert f"{out}, " in page
    for line in ("file ", "weights in memory", "perplexity", "decoding, tokens/s", "the same token is likeliest at"):
        assert f"\n{line}" in page or f"\n  {line}" in page
    model = headway.load(out)
    assert model.tokenizer is not None
    assert model.generate("Twelve", max_tokens=4).text is not None


def test_the_same_for_programs(tiny: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    options = ["--to", "int4", "--group", "32", "--symmetric", "--out", str(out), "--text", str(text), "--json"]
    assert main(["quantize", str(tiny), *options]) == 0
    found = json.loads(said(capsys))
    assert found["recipe"] == {"to": "int4", "group": 32, "symmetric": True, "tables": ""}
    assert found["written"]["path"] == str(out)
    assert {each["format"] for each in found["written"]["matrices"]} == {"I4", "I8"}
    drift = found["drift"]
    assert 0 < drift["mean_divergence"] <= drift["p99_divergence"] <= drift["most_divergence"]
    assert 0 <= drift["same_choice"] <= 1
    assert found["other"]["file_bytes"] < found["original"]["file_bytes"]
    assert min(found["original"]["tokens_per_second"], found["other"]["tokens_per_second"]) > 0


def test_a_gguf_file_by_its_usual_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headway.cli import quantize
    from headway.quant import Recipe

    model = gguf_file(tmp_path / "Tiny-F32.gguf")
    monkeypatch.chdir(tmp_path)
    made = quantize.convert(str(model), model, Recipe(to="q5_0"), None, False)
    assert made.written.path == Path("Tiny-q5_0.gguf")
    with open_store(made.written.path) as store:
        assert store.entry("blk.0.attn_q.weight").dtype == "Q5_0"


def test_a_cache_alone(tiny: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs.native()
    before = sorted(tiny.rglob("*"))
    assert main(["quantize", str(tiny), "--cache", "int8", "--text", str(text), "--json"]) == 0
    found = json.loads(said(capsys))
    assert (found["written"], found["cache"]) == (None, "int8")
    assert found["other"]["cache_bytes"] < found["original"]["cache_bytes"]
    assert 0 < found["drift"]["mean_divergence"] < 0.01
    assert sorted(tiny.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "nothing to do: give --to FORMAT, or --cache int8"),
        (["--to", "q9"], "format q9 is not known"),
        (["--to", "int4", "--group", "48"], "group = 48 is not one of 32, 64, 128, -1"),
        (["--to", "int8", "--group", "32"], "are for int4; int8 has its own"),
        (["--to", "int8", "--tables", "q8_0"], "tables in q8_0 do not go into one file with int8"),
        (["--cache", "int4"], "--cache int4 is not int8"),
        (["--cache", "int8", "--group", "32"], "need --to FORMAT"),
        (["--to", "int8", "--text", "nowhere.txt"], "nowhere.txt: cannot be read"),
        (["--to", "q4_0"], "q4_0 cannot be kept there; give a name that ends in .gguf to --out"),
        (["--to", "q4_0", "--out", "x.gguf"], "cannot be written as GGUF"),
    ],
)
def test_mistakes_are_one_line_before_any_work(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["quantize", str(tiny), *options]) == 2
    caught = capsys.readouterr()
    assert words in caught.err
    assert caught.err.count("\n") == 1
    assert caught.out == ""
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_kept_unless_told(
    tiny: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    call = ["quantize", str(tiny), "--to", "int8", "--out", str(out), "--text", str(text)]
    assert main(call) == 0
    assert main(call) == 2
    assert "is there already; choose another name, or pass --overwrite" in capsys.readouterr().err
    assert main([*call, "--overwrite"]) == 0


def test_without_a_name_the_folder_is_called_as_the_model_is(
    tiny: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["quantize", str(tiny), "--to", "int8", "--text", str(text)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt", "tiny-int8"]
