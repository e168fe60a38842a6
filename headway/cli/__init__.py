"""The command line: one file per verb, imported only when its verb is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from headway import __version__
from headway.cli import terminal
from headway.errors import HeadwayError, RequestError

# A verb is one line here and the function `command` of headway/cli/VERB.py, written for typer; this line is
# the first of its docstring. Imports that cost time (torch, rich, the model) belong inside that function.
VERBS = {
    "chat": "Talk with a model; answers are streamed.",
    "generate": "Continue a text, or answer it, one prompt or a file of them.",
    "models": "List what can be loaded by name, and what each is for.",
    "inspect": "Draw a model as a tree, with its sizes, tokenizer and template.",
    "plan": "Predict weights, cache, activations and operations of a run.",
    "explain": "Work through one attention head on a model's own numbers.",
    "quantize": "Write a model in fewer bits, and prove what that does to it.",
    "verify": "Compare two models on the same inputs, layer by layer.",
    "doctor": "Show what this machine has, and what headway makes of it.",
}
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
COMPLETION = ("--install-completion", "--show-completion")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `headway ARGV...` and return its exit code: 1 a failed check, 2 a user's mistake, 130 an interruption."""
    terminal.use_utf8()
    try:
        with terminal.warnings_as_lines():
            code = run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except HeadwayError as error:
        return _stopped(2, terminal.one_line(str(error)))
    except KeyboardInterrupt:
        return _stopped(130, "interrupted")
    except BrokenPipeError:
        terminal.hang_up()
        return 141
    except OSError as error:  # a full disk, a file that may not be written
        if error.strerror is None:
            raise
        terminal.hang_up()
        return _stopped(2, f"{error.filename or 'output'}: {terminal.one_line(error.strerror)}")


def run(argv: list[str]) -> int:
    """What `main` does, with mistakes as errors."""
    if "_HEADWAY_COMPLETE" in os.environ or (argv and argv[0] in COMPLETION):
        return _complete(argv)
    if not argv or argv[0] in SETTINGS["help_option_names"]:
        print(overview())
        return 0
    if argv[0] == "--version":
        print(f"headway {__version__}")
        return 0
    if argv[0] not in VERBS:
        raise RequestError(_unknown(argv[0]))
    return _call(argv[0], argv[1:])


def overview() -> str:
    """`headway --help`, from the table alone."""
    verbs = "\n".join(f"  {verb:<10}{line}" for verb, line in VERBS.items())
    return f"""Usage: headway VERB [OPTIONS] ...

Every Transformer, one glass box.

Verbs:
{verbs}

Options:
  --version             Show the version.
  --install-completion  Complete verbs and options in this shell.
  --help                Show this page; "headway VERB --help" tells more.

A MODEL is a name that "headway models" lists, a folder, a .gguf or .safetensors
file, or a hub id (owner/name)."""


def command_of(verb: str) -> Callable[..., None]:
    """The verb's function."""
    return import_module(f"headway.cli.{verb}").command


def _call(verb: str, argv: list[str]) -> int:
    import typer

    from headway.cli.machine import wait_politely

    wait_politely()
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(context_settings=SETTINGS)(command_of(verb))
    command = typer.main.get_command(app)
    try:
        with command.make_context(f"headway {verb}", argv) as context:
            command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    except typer.TyperException as error:
        raise RequestError(_usage(error, verb)) from None
    return 0


def _usage(error: Exception, verb: str) -> str:
    from typer import TyperException

    assert isinstance(error, TyperException)
    message = terminal.one_line(error.format_message()).removesuffix(".")
    return f'{message}{_given(error)}; see "headway {verb} --help"'


def _given(error: Exception) -> str:
    """What the user gave, where typer's own message leaves it out."""
    from pydantic import ValidationError

    cause = error.__cause__
    return f", got {cause.errors()[0]['input']!r}" if isinstance(cause, ValidationError) else ""


def _unknown(word: str) -> str:
    from difflib import get_close_matches

    if word.startswith("-"):
        return f'there is no option {word} here; options follow the verb, and "headway --help" lists the verbs'
    near = get_close_matches(word, VERBS, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f'there is no verb {word}; {hint}"headway --help" lists them'


def _complete(argv: list[str]) -> int:
    """Shell completion is typer's own, over all verbs at once."""
    import typer

    app = typer.Typer(rich_markup_mode=None)
    for verb in VERBS:
        app.command(verb, context_settings=SETTINGS)(command_of(verb))
    try:
        app(argv, prog_name="headway")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


def _stopped(code: int, message: str) -> int:
    terminal.say(f"headway: {message}")
    return code
