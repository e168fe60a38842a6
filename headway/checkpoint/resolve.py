"""From what a user types to files on this machine: a path, a name on the shelf, or a hub id."""

from __future__ import annotations

import os
from pathlib import Path

from headway.checkpoint import hub, shelf
from headway.checkpoint.files import naming, shown
from headway.checkpoint.pickles import ENDINGS
from headway.errors import CheckpointError

_FILES = (".gguf", ".safetensors", ".json", *ENDINGS)


def resolve(ref: str | Path, progress: bool = True) -> Path:
    """The folder or file that `ref` stands for, fetched when it has to be.

    In this order: a path that exists, a name on the shelf, a hub id `owner/name[:variant][@revision]`.
    CheckpointError tells the ways when it is none of them; a reference that can only be a path is never looked up.
    """
    text = str(ref)
    if not text.strip() or "\0" in text:
        raise CheckpointError(f"model {text!r}: an empty name; give {_ways()}")
    path = Path(text).expanduser()
    if _exists(path):
        return path
    if isinstance(ref, Path) or _must_be_path(text):
        gone = f" (a link to {shown(os.readlink(path))}, which is gone)" if path.is_symlink() else ""
        raise CheckpointError(f"{shown(path)}: no such file or folder{gone}; give {_ways()}")
    if text in shelf.SHELF:
        return shelf.get(text, progress=progress)
    if hub.parse(text):
        return hub.fetch(text, progress=progress)
    raise CheckpointError(f"{shown(text)}: no such model{shelf.suggestion(text)}; give {_ways()}")


def _exists(path: Path) -> bool:
    if len(path.name) > 255:  # longer than a name can be: an error of the system, not an answer
        return False
    with naming(path):
        return path.exists()


def _must_be_path(text: str) -> bool:
    return (
        text.startswith((".", "~", "/", os.sep))
        or Path(text).is_absolute()
        or text.count("/") > 1
        or (os.sep != "/" and os.sep in text)
        or text.lower().endswith(_FILES)
    )


def _ways() -> str:
    shelved = ", ".join(shelf.SHELF)
    return f"a folder, a .gguf or .safetensors file, a name on the shelf ({shelved}), or owner/name of the hub"
