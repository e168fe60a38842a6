"""The conversation at a terminal: line editing, input of several lines, /commands, and Ctrl-C that stops an answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headway.cli import options as shared
from headway.cli import terminal
from headway.cli.conversation import Conversation
from headway.errors import HeadwayError, RequestError

if TYPE_CHECKING:
    from headway.cli.chat import Talk
    from headway.model import Options

PROMPT, MORE = "> ", ". "
QUOTES = '"""'
# What /params shows and sets; the others of headway.model.Options make no sense for one answer at a time.
PARAMS = (
    *("max_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "no_repeat_ngram", "stop", "seed"),
)


class Dialogue:
    """Reads what is typed, until Ctrl-D, /exit, or Ctrl-C twice at the prompt."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.commands: dict[str, Callable[[str], None]] = {
            "/help": self.help,
            "/system": self.system,
            "/clear": self.clear,
            "/retry": self.retry,
            "/undo": self.undo,
            "/params": self.params,
            "/facts": self.facts,
            "/save": self.save,
            "/load": self.load,
            "/exit": self.exit,
        }
        self._leaving = False

    def run(self, first: str | None) -> None:
        """Answer `first` if there is one, then what is typed."""
        self._edit_lines()
        if first is not None:
            print(f"{PROMPT}{first}", flush=True)
            self._do(self._ask, first)
            terminal.note(self.talk.facts())
        else:
            terminal.note(self.talk.loading.line())
        terminal.note('Ctrl-C stops an answer, Ctrl-D ends the chat, """ begins several lines, /help lists commands')
        while not self._leaving:
            text = self._read()
            if text is None:
                break
            self._heed(text)

    def _heed(self, text: str) -> None:
        """Answer a question, or obey a command."""
        word, _, rest = text.strip().partition(" ")
        if not word:
            return
        if not word.startswith("/") or text.startswith("//"):
            self._do(self._ask, text.removeprefix("/") if text.startswith("//") else text)
        elif word == "/quit":
            self.exit(rest)
        elif word in self.commands:
            self._do(self.commands[word], rest.strip())
        else:
            terminal.say(f"there is no command {word}; /help lists them, and // puts a / before a question")

    def _do(self, action: Callable[[str], None], text: str) -> None:
        """A mistake costs one line here, not the conversation."""
        try:
            action(text)
        except HeadwayError as error:
            terminal.say(f"headway: {terminal.one_line(str(error))}")
        except KeyboardInterrupt:
            terminal.say("")

    def _ask(self, text: str) -> None:
        self.talk.ask(terminal.not_empty("the question", text))
        print(flush=True)

    def help(self, _: str) -> None:
        """/help: list the commands"""
        for command in self.commands.values():
            usage, _, what = (command.__doc__ or "").partition(": ")
            print(f"  {usage:<22}{what}")

    def system(self, text: str) -> None:
        """/system [TEXT]: show what the model is told first, or tell it TEXT; - takes it away"""
        if text:
            self.talk.conversation.system = "" if text == "-" else text
        print(f"system: {self.talk.conversation.system or '(nothing)'}")

    def clear(self, _: str) -> None:
        """/clear: forget all turns; the system message stays"""
        self.talk.conversation.turns.clear()
        print("cleared")

    def retry(self, _: str) -> None:
        """/retry: answer the last question again"""
        question = self.talk.conversation.undo()
        if question is None:
            raise RequestError("nothing was asked yet")
        if self.talk.model.request((0,), **self.talk.options).sampling.greedy:
            terminal.note("(greedy choice gives the same answer again; /params temperature 0.7 draws)")
        self._ask(question)

    def undo(self, _: str) -> None:
        """/undo: take the last question and its answer back"""
        question = self.talk.conversation.undo()
        print("nothing was asked yet" if question is None else f"taken back: {terminal.one_line(question)}")

    def params(self, text: str) -> None:
        """/params [NAME VALUE]: show how answers are chosen, or change it; - is the model's default"""
        name, _, value = text.partition(" ")
        if name:
            self._set(name, value.strip())
        request = self.talk.model.request((0,), **self.talk.options)
        values = {**vars(request), **vars(request.sampling)}
        for each in [name] if name else PARAMS:
            mark = "  (set)" if each in self.talk.options and not name else ""
            print(f"  {each:<20}{json.dumps(values[each], ensure_ascii=False)}{mark}")

    def _set(self, name: str, value: str) -> None:
        if name not in PARAMS:
            raise RequestError(f"there is no parameter {name}; known: {', '.join(PARAMS)}")
        options: dict[str, Any] = {key: kept for key, kept in self.talk.options.items() if key != name}
        if value not in ("", "-"):
            options[name] = (value,) if name == "stop" else _number(name, value)
        elif value == "":
            return
        shared.checked(**options)
        self.talk.options = cast("Options", options)

    def facts(self, _: str) -> None:
        """/facts: what the last answer cost"""
        print(self.talk.facts())

    def save(self, file: str) -> None:
        """/save FILE: write the conversation as JSON"""
        path = _path(file, "/save")
        self.talk.conversation.save(path, self.talk.loading.model)
        print(f"saved {len(self.talk.conversation.turns)} turns to {path}")

    def load(self, file: str) -> None:
        """/load FILE: go on with a saved conversation"""
        self.talk.conversation = Conversation.load(_path(file, "/load"))
        print(f"loaded {len(self.talk.conversation.turns)} turns")

    def exit(self, _: str) -> None:
        """/exit: end the chat, as Ctrl-D does"""
        self._leaving = True

    def _read(self) -> str | None:
        """What is typed next, of one line or several; None at the end."""
        interrupted = False
        while True:
            try:
                return self._lines()
            except EOFError:
                print()
                return None
            except KeyboardInterrupt:
                print()
                if interrupted:
                    return None
                interrupted = True
                terminal.note("(Ctrl-C again or Ctrl-D ends the chat)")

    def _lines(self) -> str:
        line = _line(PROMPT)
        if line.lstrip().startswith(QUOTES):
            lines = [line.lstrip().removeprefix(QUOTES)]
            while not lines[-1].rstrip().endswith(QUOTES):
                lines.append(_line(MORE))
            lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
            return "\n".join(lines).strip("\n")
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1].removesuffix("\\")
            lines.append(_line(MORE))
        return "\n".join(lines)

    def _edit_lines(self) -> None:
        """Editing, recall and completion of commands by readline, where the system has it."""
        with suppress(ImportError):
            import readline

            readline.set_completer(self._completion)
            readline.set_completer_delims(" ")
            readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")

    def _completion(self, text: str, state: int) -> str | None:
        fitting = [command for command in self.commands if text.startswith("/") and command.startswith(text)]
        return fitting[state] if state < len(fitting) else None


def _line(prompt: str) -> str:
    """A line from the terminal; its prompt stays out of a stdout that goes to a file."""
    if sys.stdout.isatty():
        return input(prompt)
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")


def _number(name: str, text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise RequestError(f"{name} = {text} is not a number") from None


def _path(text: str, command: str) -> Path:
    if not text:
        raise RequestError(f"{command} needs the name of a file")
    return Path(text).expanduser()
