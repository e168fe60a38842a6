"""A command at a pseudo-terminal: type, wait for what should appear, press Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import headway

CTRL_C, CTRL_D = "\x03", "\x04"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """`headway ARGUMENTS` with stdin, stdout and stderr on one terminal."""

    def __init__(self, *arguments: object, patience: float = 60.0) -> None:
        self.patience, self.seen, self._at = patience, "", 0
        self._side, inside = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headway", *map(str, arguments)],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=_own_terminal,  # noqa: PLW1509 - the tests have one thread
            cwd=Path(headway.__file__).parent.parent,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
        )
        os.close(inside)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._side)

    def type(self, text: str) -> None:
        """Press the keys of `text`."""
        os.write(self._side, text.encode())

    def press(self, key: str) -> None:
        """A key that sends a signal, once the command waits for keys: Python may miss one that comes just before."""
        stat, asleep = Path(f"/proc/{self.process.pid}/stat"), 0
        while asleep < 5:
            time.sleep(0.05)
            waits = not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "S"
            asleep = asleep + 1 if waits else 0
        self.type(key)

    def expect(self, text: str) -> str:
        """Wait until `text` appears after what was expected before; what came in between, and `text`."""
        end = time.monotonic() + self.patience
        while (place := self.seen.find(text, self._at)) < 0:
            assert time.monotonic() < end, f"waited for {text!r}, saw {self.seen[self._at :]!r}"
            assert self._more(), f"ended or hung before {text!r}, saw {self.seen[self._at :]!r}"
        before, self._at = self._at, place + len(text)
        return self.seen[before : self._at]

    def end(self) -> int:
        """The exit code, once the command ends by itself; what it still shows can be expected after."""
        while self._more():
            pass
        return self.process.wait(timeout=self.patience)

    def _more(self) -> bool:
        if select.select([self._side], [], [], self.patience)[0]:
            try:
                piece = os.read(self._side, 65536)
            except OSError:  # the other side is closed
                return False
            self.seen += ESCAPES.sub("", piece.decode(errors="replace"))
            return bool(piece)
        return False


def _own_terminal() -> None:
    """Make the terminal the controlling one, or Ctrl-C would reach nobody."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
