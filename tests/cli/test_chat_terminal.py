"""The conversation at a terminal, at a real pseudo-terminal: streaming, Ctrl-C, commands, history."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are a matter of Unix", allow_module_level=True)

from tests.cli.pseudo import CTRL_C, CTRL_D, Terminal


def test_conversation_from_first_prompt_to_end(says_a: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    with Terminal("chat", says_a, "--prompt", "first question", "--max-tokens", 12) as terminal:
        terminal.expect("> first question")
        terminal.expect("aaaaaaaaaaaa")
        terminal.expect("tokens/s")
        terminal.expect("\n> ")

        terminal.type("second\n")
        terminal.expect("aaaaaaaaaaaa")
        terminal.expect("\n> ")

        terminal.type("/params max_tokens 3\n")
        terminal.expect("max_tokens          3")
        terminal.type("/system 你好\n")
        terminal.expect("system: 你好")
        terminal.type('"""several\nlines\n"""\n')
        terminal.expect("\naaa\n")
        terminal.type("/retry\n")
        terminal.expect("same answer again")
        terminal.expect("\naaa\n")
        terminal.type("one\\\nmore\n")
        terminal.expect("\naaa\n")
        terminal.type("/undo\n")
        terminal.expect("taken back: one more")

        terminal.type(f"/save {file}\n")
        terminal.expect("saved 6 turns")
        messages = json.loads(file.read_text(encoding="utf-8"))["messages"]
        assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 3]
        assert [message["content"] for message in messages] == [
            "你好", "first question", "a" * 12, "second", "a" * 12, "several\nlines", "aaa",
        ]  # fmt: skip

        terminal.type("/clear\n")
        terminal.expect("cleared")
        terminal.type("/undo\n")
        terminal.expect("nothing was asked yet")
        terminal.type(f"/load {file}\n")
        terminal.expect("loaded 6 turns")

        for mistake, said in {
            "/params temperature -1": "headway: temperature = -1",
            "/params colour red": "headway: there is no parameter colour",
            "/params top_k many": "headway: top_k = many is not a number",
            "/nonsense": "there is no command /nonsense",
            "/load": "headway: /load needs the name of a file",
            "/load /nowhere": "headway: /nowhere: cannot be read",
            "raise": "no such thing",
        }.items():
            terminal.type(f"{mistake}\n")
            terminal.expect(said)
            terminal.expect("\n> ")
        terminal.type("/help\n")
        terminal.expect("/exit")
        terminal.type("/facts\n")
        terminal.expect("parameters")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_ctrl_c_ends_the_answer_and_twice_at_the_prompt_the_chat(says_a: Path) -> None:
    with Terminal("chat", says_a, "--max-tokens", 900_000) as terminal:
        terminal.expect("/help")
        terminal.expect("> ")
        terminal.type("go on\n")
        terminal.expect("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
        terminal.type(CTRL_C)
        terminal.expect("(stopped)")
        terminal.expect("\n> ")
        terminal.type("/params max_tokens 2\n")
        terminal.expect("\n> ")
        terminal.type("again\n")
        terminal.expect("\naa\n")
        terminal.expect("\n> ")
        terminal.type(CTRL_C)
        terminal.expect("Ctrl-C again")
        terminal.expect("> ")
        terminal.type(CTRL_C)
        assert terminal.end() == 0
        assert "Traceback" not in terminal.expect("")


def test_conversation_longer_than_the_context_says_so_and_shows_the_way_out(small_context: Path) -> None:
    with Terminal("chat", small_context, "--max-tokens", 5) as terminal:
        terminal.expect("> ")
        terminal.type("a question\n")
        terminal.expect("aaaaa")
        terminal.expect("\n> ")
        terminal.type("a question that does not fit beside the first\n")
        terminal.expect("context of 48 tokens")
        terminal.expect("/clear")
        terminal.expect("\n> ")
        terminal.type("/clear\n")
        terminal.type("b\n")
        terminal.expect("aaaaa")
        terminal.type("/exit\n")
        assert terminal.end() == 0


def test_ctrl_c_while_loading_is_one_line(says_a: Path) -> None:
    with Terminal("chat", says_a) as terminal:
        terminal.expect("loading")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        terminal.expect("headway: interrupted")
        assert "Traceback" not in terminal._seen


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_every_line_of_a_pipe_is_a_turn(options: list[str], says_a: Path, shell: Run) -> None:
    done = shell("chat", says_a, "--max-tokens", 3, *options, stdin="one\n\n/help\n")
    assert done.returncode == 0
    if options:
        assert [json.loads(line)["answer"] for line in done.stdout.splitlines()] == ["aaa", "aaa"]
    else:
        assert done.stdout == "aaa\naaa\n"
    assert "Traceback" not in done.stderr
