"""`headway plan`: bytes in the right units, a hub model by its config alone, and the real tensors beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli import main
from headway.cli.plan import binary, bytes_of, count, place
from tests.explain.test_plan import LLAMA

WEIGHTS = 260 * 40 * 2 + 260 + 40 * 3 + 40 * (60 + 20 + 28) + 84 * 40 + 3 * 40 * 52


def test_json_is_in_bytes(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(tiny), "--tokens", "100", "--batch", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == WEIGHTS
    assert found["weight_bytes"] == found["file_bytes"] == 4 * WEIGHTS
    assert found["cache_bytes_per_token"] == 2 * (10 + 14) * 4
    assert found["cache_bytes"] == 3 * 100 * found["cache_bytes_per_token"]
    assert found["total_bytes"] == found["weight_bytes"] + found["cache_bytes"] + found["prefill"]["bytes"]
    assert "measured" not in found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_measured_is_as_predicted(tiny: Path, dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", str(tiny), "--tokens", "40", "--batch", "2", "--dtype", dtype, "--measure"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for name, value in found["measured"].items():
        assert found[name] == value
    assert main(arguments) == 0
    page = capsys.readouterr().out
    assert f"= {found['weight_bytes']:,} B" in page
    assert f"= {found['cache_bytes']:,} B" in page


@pytest.mark.parametrize("width", [80, 120])
def test_a_page_fits_its_width(
    tiny: Path, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(tiny.parent)
    assert main(["plan", "./tiny", "--measure", "--tokens", "64"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= width


def test_without_measure_nothing_is_loaded(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.checkpoint.files import Store

    for name in ("read", "read_into", "floats"):
        monkeypatch.setattr(Store, name, lambda *_: pytest.fail("a tensor was read"))
    assert main(["plan", str(tiny)]) == 0


def test_a_hub_model_needs_its_config_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(repo: str, file: str, *, revision: str | None, local_files_only: bool) -> str:
        asked.append((repo, file, revision, local_files_only))
        (tmp_path / file).write_text(json.dumps(LLAMA))
        return str(tmp_path / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setenv("HEADWAY_OFFLINE", "1")
    assert place("someone/something@v2", whole=False) == tmp_path
    assert asked == [("someone/something", "config.json", "v2", True)]


def test_a_hub_model_that_is_not_to_be_had_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HEADWAY_OFFLINE", "1")
    assert main(["plan", "someone/nothing-of-that-name"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "someone/nothing-of-that-name" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "5000"], "tokens = 5000 is more than the model's context of 4096"),
        (["--tokens", "0"], "0"),
        (["--batch", "-3"], "-3"),
        (["--dtype", "int3"], "dtype = int3 is not one of"),
        (["--cache-dtype", "int3"], "dtype = int3 is not one of"),
    ],
)
def test_a_mistake_is_one_line(
    tiny: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(tiny), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1023, ""),
        (1024, "1.0 KiB"),
        (1048576, "1.0 MiB"),
        (1048575, "1.0 MiB"),
        (2**30, "1.0 GiB"),
        (3 * 2**39, "1.5 TiB"),
    ],
)
@pytest.mark.case("C23")
def test_bytes_are_bytes_and_powers_of_two(size: int, text: str) -> None:
    assert binary(size) == text
    assert bytes_of(size) == f"{size:,} B"


@pytest.mark.parametrize(("number", "text"), [(999, "999.0 FLOP"), (2_500_000, "2.5 MFLOP"), (10**13, "10.0 TFLOP")])
def test_operations_are_powers_of_ten(number: int, text: str) -> None:
    assert count(number) == text
