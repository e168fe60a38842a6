"""The terminal: UTF-8 always, progress for eyes, JSON for programs, one line for every mistake."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from headway.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

Progress = Callable[[int, int], None]  # done, in all: bytes, unless it says otherwise

# A line break in JSON is never inside a string, so these find structure only.
PLAIN_LIST, BREAK = re.compile(r"\[\n\s*([^\[\]{}]*?)\n\s*\]"), re.compile(r"\n\s*")

PATIENCE = 5.0  # seconds between two plain lines of progress


def use_utf8() -> None:
    """UTF-8 on all three streams, whatever the locale says."""
    if sys.stdout is None:  # closed by the caller: `>&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the end
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace" if stream is sys.stderr else "strict")


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """A warning is one line on stderr, as a mistake is."""

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        say(f"headway: warning: {one_line(str(message))}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def say(line: str) -> None:
    """A line on stderr, where notes, facts and mistakes go; nobody may be listening there."""
    with suppress(OSError, AttributeError):
        print(line, file=sys.stderr, flush=True)


def note(line: str) -> None:
    """A line of facts on stderr, dim where that can be seen."""
    faint = sys.stderr is not None and sys.stderr.isatty() and "NO_COLOR" not in os.environ
    say(f"\033[2m{line}\033[0m" if faint else line)


def not_empty(name: str, text: str) -> str:
    """`text`; DataError when it is empty, or holds bytes that were no UTF-8."""
    if not text:
        raise DataError(f"{name} is empty; give some text")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise DataError(f"{name} is not UTF-8 text; convert it first")
    return text


def argument(name: str, text: str) -> str:
    """A text from the command line, in UTF-8 even where the locale knows less; DataError when it is empty."""
    with suppress(UnicodeError):
        text = os.fsencode(text).decode("utf-8")
    return not_empty(name, text)


def one_line(text: str) -> str:
    """`text` with every run of white space as one space."""
    return " ".join(text.split())


def hang_up() -> None:
    """Nobody reads stdout any more: what is left in its buffer goes nowhere, without complaint."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write(text: str) -> None:
    """A piece of an answer, on stdout at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_json(data: Any, *, lines: bool = False) -> None:
    """`data` as the JSON on stdout, lists of plain values on one line each; with `lines` all of it takes one line."""
    text = json.dumps(data, ensure_ascii=False, indent=None if lines else 2)
    write(PLAIN_LIST.sub(lambda found: f"[{BREAK.sub(' ', found[1])}]", text) + "\n")


def read_stdin() -> str:
    """All of stdin; DataError when it is not UTF-8."""
    with utf8("stdin"):
        return sys.stdin.read() if sys.stdin else ""


def stdin_lines() -> Iterator[str]:
    """The lines of stdin that are not empty, as they come; DataError for one that is not UTF-8."""
    with utf8("stdin"):
        for line in sys.stdin or ():
            if line.strip():
                yield line.rstrip("\r\n")


def is_interactive() -> bool:
    """Whether somebody types at us."""
    return sys.stdin is not None and sys.stdin.isatty()


@contextmanager
def utf8(name: str) -> Iterator[None]:
    """Bytes that are no UTF-8 become a DataError that says where."""
    try:
        yield
    except UnicodeDecodeError as error:
        place = f"byte 0x{error.object[error.start]:02x} at place {error.start}"
        raise DataError(f"{name} is not UTF-8 text ({place}); convert it first") from None


def fits_screen() -> bool:
    """Whether output has a width to keep to: that of a terminal, or of COLUMNS."""
    return sys.stdout.isatty() or "COLUMNS" in os.environ


def console() -> Console:
    """A rich console on stdout; where no width is to be kept, lines are as long as what they hold."""
    from rich.console import Console

    return Console(width=None if fits_screen() else 10_000, highlight=False)


def draw(picture: Tree) -> None:
    """A rich picture on stdout, without blanks at the ends of lines where it is a file that they would end in."""
    screen = console()
    if screen.is_terminal:
        screen.print(picture)
        return
    with screen.capture() as drawn:
        screen.print(picture)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))


@contextmanager
def progress(label: str, shown: Callable[[float], str] | None = None) -> Iterator[Progress]:
    """A bar on a terminal that goes when the work is done, now and then a plain line elsewhere; both on stderr.

    `shown` says how much of the work a number is; without it they are bytes.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield Lines(label, shown)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    of = shown or size
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[amount]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None, amount="")
        yield lambda done, total: bar.update(task, completed=done, total=total, amount=f"{of(done)} of {of(total)}")


class Lines:
    """Progress where nobody watches: silent for work that is soon done."""

    def __init__(self, label: str, shown: Callable[[float], str] | None = None) -> None:
        self.label, self.shown = label, shown or size
        self._spoke: float | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._spoke is None:
            self._spoke = now
        if done < total and now - self._spoke >= PATIENCE:
            say(f"{self.label}: {self.shown(done)} of {self.shown(total)}")
            self._spoke = now


def size(count: float) -> str:
    """Bytes for people, in powers of ten as disks and downloads are sold: 98.4 MB."""
    return _scaled(count, (" B", " kB", " MB", " GB", " TB"))


def amount(count: float) -> str:
    """A large number for people: 134.5M."""
    return _scaled(count, ("", "K", "M", "B", "T"))


def _scaled(count: float, units: tuple[str, ...]) -> str:
    power = 0
    while count >= 999.95 and power < len(units) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.1f}".removesuffix(".0") + units[power]


def pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Labels and values on stdout, values under each other; on a terminal a long value goes on below its beginning."""
    from shutil import get_terminal_size
    from textwrap import wrap

    listed = list(rows)
    indent = max(len(label) for label, _ in listed) + 2
    width = max(40, get_terminal_size().columns) if fits_screen() else sys.maxsize
    for label, value in listed:
        lines = wrap(value, width - indent, break_long_words=False, break_on_hyphens=False) or [""]
        print(f"{label:<{indent}}{lines[0]}")
        for line in lines[1:]:
            print(" " * indent + line)
