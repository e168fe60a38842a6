"""The verbs that report: models, inspect, doctor, and the facts line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import headway
from headway.checkpoint import shelf
from headway.cli import doctor, facts, machine, main
from headway.generate import Event
from headway.spec import codec
from headway.spec.count import cache_bytes, parameters
from tests.cli.conftest import TEMPLATE, write_model


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(list(map(str, arguments))) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


def test_models_lists_the_shelf(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    shown = told(capsys, "models")
    data = json.loads(told(capsys, "models", "--json"))
    assert [model["name"] for model in data["models"]] == list(shelf.SHELF)
    assert not any(model["downloaded"] for model in data["models"])
    assert data["folder"] == str(tmp_path / "models")
    for item in shelf.SHELF.values():
        assert item.name in shown
        assert item.purpose in shown
        assert item.licence in shown


def test_models_tells_what_is_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    item = replace(shelf.SHELF["smollm2"], size=3)
    monkeypatch.setitem(shelf.SHELF, "smollm2", item)
    item.path.parent.mkdir(parents=True)
    item.path.write_bytes(b"abc")
    data = {model["name"]: model for model in json.loads(told(capsys, "models", "--json"))["models"]}
    assert data["smollm2"]["downloaded"]
    assert data["smollm2"]["path"] == str(item.path)


def test_inspect_agrees_with_the_loaded_model(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(told(capsys, "inspect", tiny, "--json"))
    model = headway.load(tiny)
    report = model.report
    assert report is not None
    assert codec.from_json(data["spec"]) == model.spec
    assert data["parameters"] == parameters(model.spec) == sum(p.numel() for p in model.network.parameters())
    assert data["memory_bytes"] == report.bytes
    assert data["file_dtypes"] == report.file_dtypes
    assert data["cache_bytes_at_full_context"] == cache_bytes(model.spec, 4096, 1, 4)
    assert data["tensors"] == {"found": report.found, "tied": [], "ignored": [], "unused": []}
    assert data["chat_template"] == TEMPLATE
    assert data["tokenizer"]["size"] == 260


def test_inspect_draws_a_line_for_every_part(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, "inspect", tiny)
    for part in ("family headway", "GQA: 6 heads", "SwiGLU", "RMSNorm", "head lm", "float32", "13 found", "260 tokens"):
        assert part in shown
    assert not [line for line in shown.splitlines() if line != line.rstrip()]


def test_inspect_reads_no_weights(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headway.checkpoint.store import Store

    def refuse(*arguments: object) -> None:
        raise AssertionError("a weight was read")

    for way in ("read", "read_into", "floats"):
        monkeypatch.setattr(Store, way, refuse)
    assert "GQA" in told(capsys, "inspect", tiny)


def test_inspect_prints_the_template_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = TEMPLATE + "{# " + "x\n" * 50 + " #}"
    model = write_model(tmp_path / "long", template=long)
    assert told(capsys, "inspect", model, "--template") == long + "\n"
    shown = told(capsys, "inspect", model)
    assert shown.count("x\n") < 10
    assert "--template prints all" in shown


def test_doctor_finds_nothing_wrong_here(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(told(capsys, "doctor", "--json"))
    assert data["problems"] == []
    assert data["libraries"]["torch"]
    assert data["processor"]["usable"] >= data["torch"]["threads"]
    assert data["a tiny model"]["answers"]
    assert "Everything works." in told(capsys, "doctor")


def test_doctor_reports_what_fails_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise OSError("no\nlibrary")

    monkeypatch.setattr(doctor, "torch_build", broken)
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "torch: OSError: no library" in shown
    assert "does not work" in shown


def test_doctor_sorts_packages_by_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["torch>=2", "nonesuch-a>=1,<2; extra == 'serve'", 'numpy[x]>2; extra == "serve"', "rich ; extra=='demo'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: wanted)
    found = {one["extra"]: one["missing"] for one in doctor.extras()}
    assert found == {"serve": ["nonesuch-a"], "demo": []}


def test_writable_looks_at_the_nearest_folder_that_is_there(tmp_path: Path) -> None:
    assert doctor.writable(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("")
    assert not doctor.writable(tmp_path / "file" / "c")


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ({}, math.inf),
    ],
)
def test_core_limit_of_both_control_groups(
    files: dict[str, str], limit: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "CONTROL", tmp_path)
    monkeypatch.setattr(machine, "allowed_cores", lambda: 8)
    assert machine.core_limit() == limit
    assert machine.usable_cores() == min(8, math.ceil(min(8, limit)))


def test_memory_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "CONTROL", tmp_path)
    total = machine.memory().total
    (tmp_path / "memory.max").write_text("1000000")
    (tmp_path / "memory.current").write_text("400000")
    found = machine.memory()
    assert (found.total, found.limit) == (total, 1_000_000)
    assert found.available == 600_000


def test_threads_wait_politely_unless_the_user_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, expected in (({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)):
        for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        machine.wait_politely()
        assert os.environ.get("GOMP_SPINCOUNT") == expected


def test_peak_memory_is_in_bytes() -> None:
    assert 10**7 < machine.peak_memory() < 10**12


def stepped(monkeypatch: pytest.MonkeyPatch, *times: float) -> None:
    clock = iter(times)
    monkeypatch.setattr(facts.time, "perf_counter", lambda: next(clock))


def event(number: int, completion: int) -> Event:
    return Event(request=number, choice=0, tokens=(1,), prompt_tokens=5, completion_tokens=completion)


def test_clock_leaves_first_tokens_out_of_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    stepped(monkeypatch, 0.0, 2.0, 2.0, 3.0, 3.0)
    clock = facts.Clock()

    def events() -> Iterator[Event]:
        yield from (event(0, 1), event(1, 1), event(0, 2), event(1, 2))

    assert len(list(clock.watch(events()))) == 4
    assert clock.first_seconds == 2.0
    assert clock.tokens_per_second == 2.0
    assert clock.data()["prompt_tokens"] == 10
    assert "first token 2.00 s | 2.0 tokens/s" in clock.line()


def test_clock_of_one_token_knows_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    stepped(monkeypatch, 0.0, 2.0)
    clock = facts.Clock()
    list(clock.watch([event(0, 1)]))
    assert "tokens/s" not in clock.line()


def test_types_name_what_holds_most() -> None:
    assert facts.types({"F32": 1, "Q4_K": 900, "Q6_K": 99}) == "Q4_K + Q6_K"
    assert facts.types({"BF16": 10}) == "bfloat16"
