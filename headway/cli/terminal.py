"""The terminal: UTF-8 always, progress for eyes, JSON for programs, one line for every mistake."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, TextIO

from headway.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[int, int], None]  # bytes done, bytes in all

PATIENCE = 5.0  # seconds between two plain lines of progress


def prepare() -> None:
    """UTF-8 on all three streams whatever the locale says, and warnings as single lines."""
    if sys.stdout is None:  # closed by the caller: `>&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the end
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace" if stream is sys.stderr else "strict")
    warnings.showwarning = _show_warning


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    say(f"headway: warning: {one_line(str(message))}")


def say(line: str) -> None:
    """A line on stderr, where notes, facts and mistakes go; nobody may be listening there."""
    with suppress(OSError, AttributeError):
        print(line, file=sys.stderr, flush=True)


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
    """`data` as the JSON on stdout; with `lines` it takes one line."""
    write(json.dumps(data, ensure_ascii=False, indent=None if lines else 2) + "\n")


def read_stdin() -> str:
    """All of stdin; DataError when it is not UTF-8."""
    with utf8("stdin"):
        return sys.stdin.read()


@contextmanager
def utf8(name: str) -> Iterator[None]:
    """Bytes that are no UTF-8 become a DataError that says where."""
    try:
        yield
    except UnicodeDecodeError as error:
        place = f"byte 0x{error.object[error.start]:02x} at place {error.start}"
        raise DataError(f"{name} is not UTF-8 text ({place}); convert it first") from None


def console() -> Console:
    """A rich console on stdout; without a terminal lines are as long as what they hold."""
    from rich.console import Console

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 10_000
    return Console(width=wide, highlight=False, soft_wrap=False)


@contextmanager
def progress(label: str) -> Iterator[Progress]:
    """A bar on a terminal that goes when the work is done, now and then a plain line elsewhere; both on stderr."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield Lines(label)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class Lines:
    """Progress where nobody watches: silent for work that is soon done."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._spoke = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done < total and now - self._spoke >= PATIENCE:
            say(f"{self.label}: {size(done)} of {size(total)}")
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
