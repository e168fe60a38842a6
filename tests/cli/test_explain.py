"""`headway explain`: pages that fit, in two languages, and the same numbers as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from rich.cells import cell_len

from headway.cli import explain as verb
from headway.cli import main
from headway.cli.example import WORDS
from headway.cli.matrix import Table, folded, number, short

TEXT = "Hi 你"


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_page_fits_its_width_and_ends_with_agreement(
    tiny: Path, lang: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["explain", str(tiny), TEXT, "--worked", "--head", "4", "--lang", lang]) == 0
    page = capsys.readouterr().out
    lines = page.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert [line for line in lines if line != line.rstrip()] == []
    verdict = WORDS[lang]["agree"].split("{")[0]  # type: ignore[index]
    assert verdict.strip() in page
    assert "⟨e4⟩" in page
    assert "␣" in page


def test_more_decimals_are_shown_when_asked_for(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", str(tiny), TEXT, "--worked", "--digits", "7", "--json"])
    value = json.loads(capsys.readouterr().out)["steps"][0]["python"][0][0]
    main(["explain", str(tiny), TEXT, "--worked", "--digits", "7"])
    assert f"{value:.7f}" in capsys.readouterr().out


def test_json_holds_every_step_in_full(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tiny), TEXT, "--worked", "--head", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["agrees"] is True
    assert (found["head"], found["kv_head"], found["heads"], found["kv_heads"]) == (4, 1, 6, 2)
    assert [token["text"] for token in found["tokens"]] == ["H", "i", "␣", "⟨e4⟩", "⟨bd⟩", "⟨a0⟩"]
    steps = {step["step"]: step for step in found["steps"]}
    assert steps["masked"]["python"][0][1:] == [None] * 5
    assert steps["masked"]["difference"] <= found["difference"] < found["tolerance"] == 1e-5
    assert steps["scores"]["network"] is None
    for row, weights in enumerate(steps["weights"]["python"]):
        assert math.fsum(weights) == pytest.approx(1)
        assert weights[row + 1 :] == [0.0] * (5 - row)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_without_worked_there_is_a_line_a_layer(tiny: Path, lang: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tiny), "Hello", "--top", "2", "--lang", lang]) == 0
    page = capsys.readouterr().out
    assert verb.LAYERS[lang]["title"].format(token="o") in page  # type: ignore[index]
    assert main(["explain", str(tiny), "Hello", "--top", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["layers"]) == 1
    assert len(found["layers"][0]["looks"]) == len(found["candidates"]) == 2
    assert found["layers"][0]["says"][0]["id"] == found["candidates"][0]["id"]
    assert f"{found['candidates'][0]['probability']:.2%}" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([TEXT, "--worked", "--layer", "7"], "layer = 7 is not there; the model has layers 0 to 0"),
        ([TEXT, "--worked", "--head", "6"], "head = 6 is not there"),
        ([TEXT, "--worked", "--branch", "cross"], "has no attention called cross"),
        ([TEXT, "--lang", "fr"], "--lang fr is not a language of these pages; give en or zh"),
        ([TEXT, "--dtype", "int3"], "dtype = int3 is not one of"),
        ([""], "TEXT is empty"),
        (["x" * 5000], "TEXT has 5000 tokens, but the model's context is 4096"),
    ],
)
def test_a_mistake_is_one_line(
    tiny: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(tiny), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_disagreement_is_exit_code_one(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.explain import worked

    monkeypatch.setitem(worked.TOLERANCES, "float32", 1e-12)
    assert main(["explain", str(tiny), TEXT, "--worked"]) == 1


def lines(table: Table, width: int) -> list[str]:
    return [line.plain for line in table.lines(width)]


def test_a_table_keeps_its_first_and_last_columns() -> None:
    table = Table(heads=[str(n) for n in range(20)], labels=["a"], cells=[[f"{n}.5" for n in range(20)]])
    assert lines(table, 25) == ["     0    1    2  …    19", "a  0.5  1.5  2.5  …  19.5"]
    assert "…" not in lines(table, 200)[1]


def test_chinese_labels_are_two_cells_wide() -> None:
    table = Table(heads=["你好", "b"], labels=["词", "x"], cells=[["1", "2"], ["3", "4"]])
    assert lines(table, 40) == ["    你好  b", "词     1  2", "x      3  4"]


def test_long_texts_are_folded_in_the_middle() -> None:
    assert folded(5, 12, 2) == [0, 1, 2, 3, 4]
    assert folded(100, 6, 2) == [0, 1, 2, None, 98, 99]


@pytest.mark.parametrize(
    ("value", "text"),
    [(-math.inf, "−∞"), (1.23456, "1.235"), (-0.0001, "0.000"), (-0.5, "-0.500"), (1234567.0, "1.235e+06")],
)
def test_numbers_have_so_many_decimals(value: float, text: str) -> None:
    assert number(value, 3) == text


def test_labels_are_cut_by_cells() -> None:
    assert short("abcdefghijklm") == "abcdefghijk…"
    assert cell_len(short("一二三四五六七八九")) <= 12
