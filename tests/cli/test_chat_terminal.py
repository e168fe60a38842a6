"""The conversation at a terminal, at a real pseudo-terminal: streaming, Ctrl-C, commands, history."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.pseudo import CTRL_C, CTRL_D, Terminal

READY = "\n> "  # typed before it, a control character may meet a terminal that is not in readline's hands yet


def turn(terminal: Terminal, typed: str, *said: str) -> None:
    """Type a line at the prompt, and wait for what must follow and for the next prompt."""
    terminal.type(f"{typed}\n")
    for text in (*said, READY):
        terminal.expect(text)


def test_conversation_from_first_prompt_to_end(says_a: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    with Terminal("chat", says_a, "--prompt", "first question", "--max-tokens", 12) as terminal:
        for text in ("> first question", "a" * 12, "tokens/s", READY):
            terminal.expect(text)
        turn(terminal, "second", "a" * 12)
        turn(terminal, "/params max_tokens 3", "max_tokens          3")
        turn(terminal, "/system 你好", "system: 你好")
        turn(terminal, '"""several\nlines\n"""', "\naaa\n")
        turn(terminal, "/retry", "same answer again", "\naaa\n")
        turn(terminal, "one\\\nmore", "\naaa\n")
        turn(terminal, "/undo", "taken back: one more")
        turn(terminal, f"/save {file}", "saved 6 turns")
        messages = json.loads(file.read_text(encoding="utf-8"))["messages"]
        assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 3]
        assert [message["content"] for message in messages] == [
            "你好", "first question", "a" * 12, "second", "a" * 12, "several\nlines", "aaa",
        ]  # fmt: skip
        turn(terminal, "/clear", "cleared")
        turn(terminal, "/undo", "nothing was asked yet")
        turn(terminal, f"/load {file}", "loaded 6 turns")
        for mistake, said in {
            "/params temperature -1": "headway: temperature = -1",
            "/params colour red": "headway: there is no parameter colour",
            "/params top_k many": "headway: top_k = many is not a number",
            "/nonsense": "there is no command /nonsense",
            "/load": "headway: /load needs the name of a file",
            "/load /nowhere": "headway: /nowhere: cannot be read",
            "raise": "no such thing",
        }.items():
            turn(terminal, mistake, said)
        turn(terminal, "/help", "/exit")
        turn(terminal, "/facts", "parameters")
        terminal.press(CTRL_D)
        assert terminal.end() == 0


def test_ctrl_c_ends_the_answer_and_twice_at_the_prompt_the_chat(says_a: Path) -> None:
    with Terminal("chat", says_a, "--max-tokens", 900_000) as terminal:
        terminal.expect(READY)
        terminal.type("go on\n")
        terminal.expect("a" * 30)
        terminal.type(CTRL_C)
        terminal.expect("(stopped)")
        terminal.expect(READY)
        turn(terminal, "/params max_tokens 2", "max_tokens")
        turn(terminal, "again", "\naa\n")
        terminal.press(CTRL_C)
        terminal.expect("Ctrl-C again")
        terminal.expect(READY)
        terminal.press(CTRL_C)
        assert terminal.end() == 0
        assert "Traceback" not in terminal.seen


def test_conversation_longer_than_the_context_says_so_and_shows_the_way_out(small_context: Path) -> None:
    with Terminal("chat", small_context, "--max-tokens", 5) as terminal:
        terminal.expect(READY)
        turn(terminal, "a question", "aaaaa")
        turn(terminal, "a question that does not fit beside the first", "context of 48 tokens", "/clear")
        turn(terminal, "/clear", "cleared")
        turn(terminal, "b", "aaaaa")
        terminal.type("/exit\n")
        assert terminal.end() == 0


def test_ctrl_c_while_loading_is_one_line(says_a: Path) -> None:
    with Terminal("chat", says_a) as terminal:
        terminal.expect("loading")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        terminal.expect("headway: interrupted")
        assert "Traceback" not in terminal.seen


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_every_line_of_a_pipe_is_a_turn(options: list[str], says_a: Path, shell: Run) -> None:
    done = shell("chat", says_a, "--max-tokens", 3, *options, stdin="one\n\n/help\n")
    assert done.returncode == 0
    if options:
        assert [json.loads(line)["answer"] for line in done.stdout.splitlines()] == ["aaa", "aaa"]
    else:
        assert done.stdout == "aaa\naaa\n"
    assert "Traceback" not in done.stderr
