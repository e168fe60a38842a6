"""Where headway keeps what it fetches, and whether it may fetch at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def home() -> Path:
    """The folder of fetched models: HEADWAY_HOME, else XDG_CACHE_HOME/headway, else ~/.cache/headway."""
    if chosen := os.environ.get("HEADWAY_HOME"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "headway"


def offline() -> bool:
    """True when HEADWAY_OFFLINE says that the network must not be touched."""
    return os.environ.get("HEADWAY_OFFLINE", "").strip().lower() not in ("", "0", "false", "no", "off")


def note(line: str) -> None:
    """One line about progress, on stderr: stdout belongs to answers."""
    print(line, file=sys.stderr, flush=True)


def on_terminal() -> bool:
    """True when a progress bar can be drawn."""
    return sys.stderr.isatty()
