"""The benchmark beside other engines, without any of them: what is asked, compared, held against goals and shown."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import _peers
import peers
import pytest
from _common import Figure, Goal, Limits, markdown, put, table
from _peers import Contender, Files, LeftOutError, Worker

from headway import families
from headway.families.kit import Config
from headway.loader import save_network
from headway.nn import build
from tests import needs

TINY = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
}
FOUR_BITS = {
    "headway Q4_0": [200.0, 240.0, 210.0],
    "headway Q4_1": [180.0, 150.0, 160.0],
    "llama.cpp Q4_0": [110.0, 100.0, 90.0],
    "llama.cpp Q4_1": [80.0, 90.0, 70.0],
    "ONNX Runtime int4": [120.0, 121.0, 119.0],
}


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which no peer is installed."""
    monkeypatch.setattr(_peers, "PEERS", tmp_path)
    monkeypatch.setattr(_peers, "PYTHON", tmp_path / "bin" / "python")
    _peers.absence.cache_clear()
    yield
    _peers.absence.cache_clear()


def bench(source: Path, *arguments: str) -> peers.Bench:
    chosen = peers.choices(arguments)
    limits = {threads: Limits(read=20e9, multiply=70e9) for threads in chosen.threads}
    return peers.Bench(chosen, Files(source), list(range(96)) * 50, limits)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.Q4_1.gguf"
    path.write_bytes(b"weights")
    return path


# The command line


def test_everything_is_asked_of_all_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_SMOLLM2", raising=False)
    chosen = peers.choices([])
    assert (chosen.only, chosen.bits) == (peers.QUESTIONS, tuple(peers.FORMS))
    assert chosen.threads == ((1, 2) if len(_peers.cores()) > 1 else (1,))
    assert (chosen.json, chosen.model) == (None, None)


def test_each_question_each_width_and_each_count_of_threads_can_be_chosen() -> None:
    chosen = peers.choices(["--only", "decode,busy", "--bits", "fp32", "--threads", "2", "--json", "out.json"])
    assert (chosen.only, chosen.bits, chosen.threads) == (("decode", "busy"), ("fp32",), (2,))
    assert chosen.json == Path("out.json")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "decode,speed"], "--only speed: it is one or more of decode,prefill,"),
        (["--bits", "5"], "--bits 5: it is one or more of 4-bit,8-bit,fp32"),
        (["--threads", "0"], "at least 1"),
        (["--threads", "two"], "at least 1"),
        (["--rounds", "0"], "at least 1"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        peers.choices(arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


# What is compared with what


def rows(figures: list[Figure]) -> dict[tuple[str, str], Figure]:
    return {(figure.what, figure.yardstick): figure for figure in figures}


def test_each_of_our_forms_stands_beside_every_peer_the_best_of_them_first() -> None:
    figures = peers.compared("decode", "4-bit", 2, FOUR_BITS, limit={"Q4_0": 260.0, "Q4_1": 200.0}.get)
    best, second, third = "ONNX Runtime int4", "llama.cpp Q4_0", "llama.cpp Q4_1"
    assert [figure.yardstick for figure in figures] == ["", best, second, third] * 2
    found = rows(figures)
    assert found["decode, Q4_0, 2 threads", best].ratios == [200 / 120, 240 / 121, 210 / 119]
    assert {place for place, figure in found.items() if figure.goal is not None} == {
        ("decode, Q4_0, 2 threads", ""),
        ("decode, Q4_0, 2 threads", best),
        ("decode, Q4_1, 2 threads", ""),
        ("decode, Q4_1, 2 threads", third),
    }


@pytest.mark.parametrize(("threads", "least"), [(1, 1.4), (2, 1.8)])
def test_four_bits_are_held_against_the_best_peer_and_the_memory(threads: int, least: float) -> None:
    figures = peers.compared("decode", "4-bit", threads, FOUR_BITS, limit=lambda _: 280.0)
    title = f"decode, Q4_0, {peers.counted(threads)}"
    found = rows(figures)
    goal = found[title, "ONNX Runtime int4"].goal
    assert goal == Goal("ratio", "at least", least)
    assert goal.met(found[title, "ONNX Runtime int4"]) == (threads == 1)  # 1.76x
    share = found[title, ""].goal
    assert share == Goal("limit", "at least", 0.7)
    assert share.met(found[title, ""])  # 210 of 280
    assert not share.met(Figure(what="", unit="tokens/s", ours=[190.0], limit=280.0))


def test_remarks_tell_whether_ids_agree_and_when_the_first_token_came() -> None:
    answers = {"headway F32": [5, 6, 7], "llama.cpp F32": [5, 6, 7], "CTranslate2 float32": [5, 9, 7]}
    assert peers.agreement(answers, "headway F32", "llama.cpp F32") == "same ids"
    assert peers.agreement(answers, "headway F32", "CTranslate2 float32") == "ids part after 1"
    said = partial(peers.first_tokens, FOUR_BITS)
    figures = rows(peers.compared("prefill", "4-bit", 1, FOUR_BITS, remark=said))
    best = figures["prefill, Q4_0, 1 thread", "ONNX Runtime int4"]
    assert best.remark == "the best peer, first token after 2.44 s, theirs 4.27 s"


def test_without_a_peer_our_own_figure_still_stands() -> None:
    ours = {name: found for name, found in FOUR_BITS.items() if name.startswith("headway")}
    figures = peers.compared("prefill", "4-bit", 2, ours)
    assert [(figure.what, figure.remark) for figure in figures] == [
        ("prefill, Q4_0, 2 threads", "no peer is here"),
        ("prefill, Q4_1, 2 threads", "no peer is here"),
    ]


def test_every_width_of_every_question_has_a_goal() -> None:
    for bits, forms in peers.FORMS.items():
        names = [f"{engine} {form}" for engine, of_it in forms.items() for form in of_it]
        for what in ("decode", "prefill", "batch", "batch decode"):
            figures = peers.compared(what, bits, 2, {name: [1.0] for name in names})
            assert any(figure.goal is not None for figure in figures), (what, bits)


def test_a_long_past_is_held_against_its_bytes() -> None:
    # 100 MB at 20 GB/s are 5 ms.
    whole, extra = peers.longer([0.010, 0.010], [0.015, 0.017], 100_000_000, Limits(20e9, 70e9), 2)
    assert whole.ratios == pytest.approx([1.0, 17 / 15])
    assert extra.ratios == pytest.approx([1.0, 1.4])
    assert extra.remark == "100 MB more of cache"


# What is shown


def test_the_table_says_what_is_met_and_what_is_missed() -> None:
    text = table(peers.compared("decode", "4-bit", 2, FOUR_BITS, limit=lambda _: 280.0))
    lines = text.splitlines()
    assert "limit (reached)" in lines[0]
    assert "at least 70% of the limit: met" in lines[1]
    assert "280 (75%)" in lines[1]
    assert "120 ONNX Runtime int4" in lines[2]
    assert "at least 1.8x: MISSED" in lines[2]
    assert lines[2].endswith("the best peer")
    assert not any(line != line.rstrip() for line in lines)


def test_the_report_and_the_json_hold_every_figure_and_every_reason(source: Path) -> None:
    asked = bench(source, "--rounds", "3", "--threads", "1,2")
    asked.figures += peers.compared("decode", "8-bit", 1, {"headway Q8_0": [150.0, 140.0, 160.0]})
    asked.leave_out(Contender("llama.cpp", "Q8_0"), LeftOutError("not installed: make bench-peers"))
    machine: dict[str, Any] = {"processor": "A Core", "quiet": False, "others": 1.3, "peers": {"ctranslate2": "4.8.5"}}
    text = "\n".join(peers.report(asked, machine))
    assert "left out: llama.cpp Q8_0: not installed: make bench-peers" in text
    assert "medians of 3 interleaved rounds; A Core, ctranslate2 4.8.5" in text
    assert "this machine, 1 thread: reads 20.0 GB/s" in text
    assert "NOT QUIET: other programs kept 1.3 cores busy" in text
    whole = json.loads(json.dumps(peers.as_json(asked, machine)))
    assert whole["figures"][0]["ours"] == [150.0, 140.0, 160.0]
    assert whole["limits"]["2"]["read"] == 20e9
    assert list(whole["left_out"]) == ["llama.cpp Q8_0"]


def test_the_table_is_put_into_a_page_where_its_mark_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- peers -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    for _ in range(2):
        put(page, "peers", markdown(peers.compared("decode", "4-bit", 2, FOUR_BITS)))
    lines = page.read_text(encoding="utf-8").splitlines()
    assert (lines[0], lines[1], lines[-2], lines[-1]) == ("before", "<!-- peers -->", "<!-- end -->", "after")
    assert [line.count("|") for line in lines[2:-2]] == [10] * 8
    with pytest.raises(SystemExit, match="has no place <!-- others -->"):
        put(page, "others", "")


# Who takes part


@pytest.mark.usefixtures("nobody")
def test_peers_that_are_not_installed_are_left_out_with_the_way_in(source: Path) -> None:
    asked = bench(source)
    for engine in _peers.PACKAGES:
        assert _peers.absence(engine) == "not installed: make bench-peers"
    with asked.workers([Contender("ONNX Runtime", "int4"), Contender("headway", "Q8_0")], 1) as workers:
        assert workers == {}
    assert asked.left_out == {
        "ONNX Runtime int4": "not installed: make bench-peers",
        "headway Q8_0": "its file is made by llama.cpp, which is not installed: make bench-peers",
    }
    assert _peers.versions() == {}


@pytest.mark.usefixtures("nobody")
def test_the_file_itself_needs_nobody(source: Path) -> None:
    assert Files(source).path(Contender("headway", "Q4_1")) == source


def test_a_file_that_cannot_be_made_leaves_nothing_half_made(source: Path, nobody: None) -> None:
    files = Files(source)
    for code in ("import sys; open(sys.argv[1], 'w'); sys.exit('no room')", "import sys; sys.exit('no room')"):
        with pytest.raises(LeftOutError, match="^thing cannot be made: no room$"):
            files._made("thing", partial(command, code))
        assert not (files.room / "thing").exists()
    made = files._made("thing", partial(command, "import sys; open(sys.argv[1], 'w').write('whole')"))
    assert made.read_text(encoding="utf-8") == "whole"
    assert [path.name for path in files.room.iterdir()] == ["thing"]


def command(code: str, to: Path) -> list[str | Path]:
    return [sys.executable, "-c", code, to]


def test_as_many_processors_as_threads_and_no_more() -> None:
    if not hasattr(os, "sched_getaffinity"):
        assert _peers.cpus(1) == []
        return
    assert set(_peers.cpus(1)) <= os.sched_getaffinity(0)
    with pytest.raises(SystemExit, match="--threads 4096: this process may use"):
        _peers.cpus(4096)


# A worker


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs.native()
    path = tmp_path_factory.mktemp("model") / "tiny"
    spec = families.for_config(TINY, "config.json").read(Config(TINY))
    save_network(build(spec, seed=3), path)
    return path


def test_a_worker_answers_line_after_line(folder: Path) -> None:
    worker = Worker(Contender("headway", "F32"), folder, 1, 32)
    try:
        alone = worker.ask(prompts=[[1, 2, 3, 4]], new=5)
        both = worker.ask(prompts=[[1, 2, 3, 4], [9, 8, 7, 6]], new=5)
        cache = [worker.ask(cache=tokens)["bytes"] for tokens in (8, 16)]
    finally:
        worker.close()
    assert len(alone["ids"][0]) == 5
    assert both["ids"][0] == alone["ids"][0]
    assert 0 < alone["first"] < alone["total"]
    assert cache[1] == 2 * cache[0] == 16 * 2 * 2 * 16 * 4  # tokens, layers, keys and values, numbers, bytes
    assert alone["peak"] > 0


def test_a_worker_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_peers, "PYTHON", sys.executable)  # an environment without that package
    with pytest.raises(LeftOutError, match="^CTranslate2 int8 failed: ModuleNotFoundError: .*ctranslate2"):
        Worker(Contender("CTranslate2", "int8"), tmp_path, 1)
