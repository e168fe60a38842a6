"""Files that hold code: known by their content, named, and never opened."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from headway.checkpoint.files import naming, shown
from headway.errors import CheckpointError

# Endings that frameworks give to pickles; beside safetensors or GGUF they are passed over.
ENDINGS = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".pyt", ".dill")

# Binary protocols open with PROTO and a number; the text protocol opens with MARK or GLOBAL and ends with a full stop.
_BINARY = re.compile(rb"\x80[\x01-\x05]")
_TEXT = re.compile(rb"(?:c[\w.]+\r?\n[\w.]+\r?\n|\((?:[dlt][p0-9]|c[\w.]+\n|[SVIi]))")


def holds_pickle(path: Path) -> bool:
    """True when the file's content is a pickle, bare or in a zip archive or tar as torch writes them."""
    with naming(path), open(path, "rb") as file:
        head = file.read(512)
        if head[8:9] == b"{" and not any(head[4:8]):
            return False  # the length of a safetensors header can look like a protocol number
        if head.startswith(b"PK") and zipfile.is_zipfile(file):
            return _zip_holds_pickle(path)
        if head[257:262] == b"ustar":  # torch before 0.1.10; numpy and joblib never write tar
            return True
        if _TEXT.match(head):
            file.seek(-min(4, file.seek(0, 2)), 2)
            return file.read().rstrip().endswith(b".")
    return bool(_BINARY.match(head))


def _zip_holds_pickle(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError):
        return False
    return any(name.endswith((".pkl", ".pickle")) for name in names)


def refuse_pickle(path: Path) -> None:
    """CheckpointError when `path` is a pickle: reading one can run any code that its author put in.

    Call it before a file of unknown make (weights, optimizer or random state, vocabulary) is read by anything.
    """
    if holds_pickle(path):
        raise refusal(path)


def refusal(path: Path) -> CheckpointError:
    """The error for a file that is a pickle."""
    return CheckpointError(
        f"{shown(path)}: is a pickle, which holds code that runs when it is opened, so headway never opens one; "
        f"convert it to safetensors first (transformers: save_pretrained), or take a model that has model.safetensors"
    )
