"""`headway generate`: what goes to stdout, from which prompts, in which form."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

import headway
from headway.cli import main
from headway.cli.generate import in_order
from headway.generate import Event
from tests.cli.conftest import Run, write_model


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["generate", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_answer_is_all_that_stdout_gets(says_a: Path, shell: Run) -> None:
    done = shell("generate", says_a, "hello", "--max-tokens", 5)
    assert (done.returncode, done.stdout) == (0, "aaaaa\n")
    assert done.stderr.count("\n") == 1
    for fact in ("says-a", "35.1K parameters", "float32", "load", "first token", "tokens/s", "peak memory"):
        assert fact in done.stderr


def test_streamed_and_whole_answers_are_the_same(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    streamed = answer(capsys, tiny, "hello", "--max-tokens", 30)
    assert answer(capsys, tiny, "hello", "--max-tokens", 30, "--no-stream") == streamed
    data = json.loads(answer(capsys, tiny, "hello", "--max-tokens", 30, "--json"))
    assert data["answers"][0]["text"].removesuffix("\n") + "\n" == streamed


def test_answer_is_that_of_the_library(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--temperature", 0.8, "--top-k", 20, "--top-p", 0.9, "--min-p", 0.01, "--seed", 7]
    data = json.loads(answer(capsys, tiny, "hello", "--max-tokens", 9, *options, "--json"))
    expected = headway.load(tiny).generate(
        "hello", max_tokens=9, temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=7
    )
    assert data["answers"][0]["tokens"] == list(expected.tokens)
    assert data["facts"]["tokens"] == 9
    assert data["facts"]["prompt_tokens"] == 5


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--seed", 3], "--seed without"),
        (["--top-k", 5, "--top-p", 0.9, "--min-p", 0.1], "--top-k, --top-p, --min-p without"),
        (["--seed", 3, "--temperature", 0], ""),
        (["--seed", 3, "--temperature", 0.5], ""),
        ([], ""),
    ],
)
def test_options_of_chance_without_chance_are_remarked(
    options: list[object], named: str, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(tiny), "hello", "--max-tokens", "1", *map(str, options)]) == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warned) == bool(named)
    assert all(f"{named} --temperature: the likeliest token is always taken" in line for line in warned)


def test_beams_give_the_n_best(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(answer(capsys, tiny, "hello", "--max-tokens", 6, "--num-beams", 3, "--n", 2, "--json"))
    expected = headway.load(tiny).generate_all(["hello"], max_tokens=6, beams=3, n=2)
    assert [found["tokens"] for found in data["answers"]] == [list(one.tokens) for one in expected]
    assert data["facts"]["tokens"] == sum(one.completion_tokens for one in expected)


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_prompt_comes_from_a_pipe(
    arguments: list[str], tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = answer(capsys, tiny, "你好\n second line", "--max-tokens", 5)
    piped = io.TextIOWrapper(io.BytesIO("你好\n second line\n".encode()))
    monkeypatch.setattr(sys, "stdin", piped)
    assert answer(capsys, tiny, *arguments, "--max-tokens", 5) == expected


def test_pipe_that_is_no_utf8_is_a_mistake(tiny: Path, shell: Run) -> None:
    done = shell("generate", tiny, "-", stdin=b"good \xff bad")
    assert done.returncode == 2
    assert done.stderr == "headway: stdin is not UTF-8 text (byte 0xff at place 5); convert it first\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("prompts.txt", "one\n\n two \u2028 zwei\r\n"),
        ("prompts.jsonl", '"one"\n{"prompt": " two \\u2028 zwei", "id": 7}\n'),
    ],
)
def test_file_of_prompts(
    name: str, content: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_bytes(content.encode())
    data = json.loads(answer(capsys, tiny, "--file", file, "--max-tokens", 3, "--json"))
    prompts = [found["prompt"].rstrip() for found in data["answers"]]
    assert prompts == ["one", " two \u2028 zwei"]
    alone = json.loads(answer(capsys, tiny, "one", "--max-tokens", 3, "--json"))
    assert data["answers"][0]["tokens"] == alone["answers"][0]["tokens"]


def test_several_answers_have_a_line_that_says_whose_they_are(says_a: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = answer(capsys, says_a, "a prompt", "--n", 2, "--max-tokens", 2)
    assert shown == "--- 1.1  a prompt\naa\n--- 1.2  a prompt\naa\n"


def test_chat_puts_the_prompt_into_the_template(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = "<|system|>be brief<|end|><|user|>hello<|end|><|assistant|>"
    data = json.loads(answer(capsys, tiny, "hello", "--chat", "--system", "be brief", "--max-tokens", 2, "--json"))
    ids = headway.load_tokenizer(tiny).encode(raw, parse_special=True)
    assert data["answers"][0]["prompt_tokens"] == len(ids)
    assert data["answers"][0]["tokens"] == list(headway.load(tiny).generate(ids, max_tokens=2).tokens)


def test_stop_string_ends_the_answer(says_a: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(answer(capsys, says_a, "x", "--stop", "aaa", "--stop", "zz", "--json"))["answers"][0]
    assert (found["text"], found["finish"], found["stopped_by"]) == ("", "stop", "aaa")


def event(request: int, choice: int, text: str, finish: bool = False) -> Event:
    return Event(
        request=request, choice=choice, tokens=(1,), text=text, finish="stop" if finish else None, prompt_tokens=1,
        completion_tokens=1,
    )  # fmt: skip


def test_answers_come_in_order_each_as_soon_as_it_can() -> None:
    seen: list[str] = []

    def events() -> list[Event]:
        return [event(1, 0, "c", True), event(0, 0, "a"), event(0, 1, "b", True), event(0, 0, "a", True)]

    def watched() -> object:
        for each in events():
            seen.append(each.text)
            yield each
        seen.append("end")

    answers = in_order(watched(), 2, 2)  # type: ignore[arg-type]
    assert [next(answers).text for _ in range(3)] == ["aa", "b", "c"]
    assert seen == ["c", "a", "b", "a"]


def test_answer_ends_where_the_template_ends_a_turn(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "<|system|>"}), encoding="utf-8")
    model = headway.load(folder)
    assert model.tokenizer is not None
    assert model.defaults.end_ids == tuple(sorted(map(model.tokenizer.id_of, ("<|system|>", "<|end|>"))))  # type: ignore[type-var]


def test_smollm2_answers_from_its_file(smollm2_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", str(smollm2_gguf), "--prompt", "What is the capital of France?", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "Paris" in found["answer"]
    assert found["finish"] == "stop"
    assert found["facts"]["parameters"] == 134_515_008
    assert found["facts"]["file_dtypes"].keys() == {"Q4_1", "Q8_0", "F32"}
