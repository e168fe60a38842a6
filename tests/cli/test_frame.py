"""What holds for every verb: help without torch, one line for a mistake, quiet pipes."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from headway import cli
from headway.cli import main, terminal
from headway.errors import DataError
from tests.cli.conftest import Run

HEAVY = ("torch", "numpy", "transformers", "tokenizers", "huggingface_hub", "rich", "pydantic")


def modules_after(code: str) -> set[str]:
    """The modules that a fresh interpreter holds once it has run `code`."""
    tail = "\nimport sys, json\nprint('MODULES' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.partition("MODULES")[2]))


def test_table_says_of_each_verb_what_its_own_help_begins_with() -> None:
    for verb, line in cli.VERBS.items():
        assert (cli.command_of(verb).__doc__ or "").splitlines()[0] == line


def test_overview_fits_eighty_columns() -> None:
    assert max(map(len, cli.overview().splitlines())) <= 80


def test_overview_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {verb} " in shown for verb in cli.VERBS)
    assert main([]) == 0
    assert capsys.readouterr().out == shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headway ")


def test_overview_and_package_import_nothing_heavy() -> None:
    assert not {*HEAVY, "typer"} & modules_after("import headway\nfrom headway.cli import main\nmain(['--help'])")


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_of_a_verb_imports_nothing_heavy(verb: str) -> None:
    assert not set(HEAVY) & modules_after(f"from headway.cli import main\nassert main(['{verb}', '--help']) == 0")


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_of_a_verb_lists_its_options(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "-h"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: headway {verb} ")
    assert "--json" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["genrate"], "there is no verb genrate; did you mean generate?"),
        (["--frobnicate"], "there is no option --frobnicate here"),
        (["models", "--frobnicate"], "No such option: --frobnicate"),
        (["models", "extra"], "unexpected extra argument"),
        (["inspect"], "Missing argument 'MODEL'"),
        (["generate", "m", "p", "--max-tokens", "many"], "got 'many'"),
        (["generate", "m", "p", "--max-tokens"], "--max-tokens"),
        (["generate", "m", "one", "two"], "unexpected extra argument"),
    ],
)
def test_misuse_is_one_line_that_points_to_help(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert output.err.startswith("headway: ")
    assert said in output.err
    assert "--help" in output.err


def stand_in(monkeypatch: pytest.MonkeyPatch, error: BaseException | None, warning: str = "") -> None:
    """Let the verb `models` do this instead of its own job."""

    def command() -> None:
        if warning:
            warnings.warn(warning, UserWarning, stacklevel=1)
        if error is not None:
            raise error

    monkeypatch.setattr(cli, "command_of", lambda verb: command)


def test_error_of_many_lines_is_printed_as_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, DataError("first\n  second\tthird"))
    assert main(["models"]) == 2
    assert capsys.readouterr().err == "headway: first second third\n"


def test_interruption_exits_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(monkeypatch, KeyboardInterrupt())
    assert main(["models"]) == 130
    assert capsys.readouterr().err == "headway: interrupted\n"


def test_error_that_is_no_users_mistake_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["models"])


def test_warning_is_one_line_and_only_while_the_verb_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, None, warning="two\nlines")
    before = warnings.showwarning
    assert main(["models"]) == 0
    assert capsys.readouterr().err == "headway: warning: two lines\n"
    assert warnings.showwarning is before


def test_reader_that_leaves_early_hears_no_complaint() -> None:
    code = "import sys\nfrom headway.cli import main\nsys.exit(main(['models', '--json']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    complaint = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert complaint == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_full_disk_is_one_line() -> None:
    command = f'"{sys.executable}" -m headway models > /dev/full'
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (2, b"headway: output: No space left on device\n")


def test_closed_stdout_is_no_crash() -> None:
    command = f'"{sys.executable}" -m headway models >&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


BARE = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "latin-1"}])
def test_messages_are_utf8_whatever_the_locale(environment: dict[str, str], shell: Run) -> None:
    done = shell("inspect", "没有/什么/都", **environment)
    assert done.returncode == 2
    assert "没有" in done.stderr


def test_texts_are_utf8_in_and_out_whatever_the_locale(tiny: Path, shell: Run) -> None:
    options = ("--chat", "--system", "简短", "--max-tokens", 2, "--json")
    plain, bare = (json.loads(shell("generate", tiny, "你好 🙂", *options, **env).stdout) for env in ({}, BARE))
    assert bare["answers"] == plain["answers"]
    assert plain["answers"][0]["prompt"] == "你好 🙂"


def test_shell_completion_knows_the_verbs(shell: Run) -> None:
    done = shell(_HEADWAY_COMPLETE="complete_bash", COMP_WORDS="headway gen", COMP_CWORD="1")
    assert done.stdout.split() == ["generate"]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (98_362_432, "98.4 MB"), (999_960_000, "1 GB")]
)
def test_sizes_are_short(count: int, text: str) -> None:
    assert terminal.size(count) == text


def test_columns_keep_to_a_given_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    terminal.pairs([("short", "word " * 30), ("a longer label", "x")])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 50
    assert lines[1].startswith(" " * 16 + "word")


def test_plain_progress_speaks_only_of_slow_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    lines = terminal.Lines("loading m")
    lines(10, 100)
    clock[0] = terminal.PATIENCE + 1
    lines(50, 100)
    lines(60, 100)
    assert capsys.readouterr().err == "loading m: 50 B of 100 B\n"
