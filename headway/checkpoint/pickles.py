"""Files that hold code: known by their content, named, and never opened."""

from __future__ import annotations

import os
import pickletools
import re
import zipfile
from pathlib import Path

from headway.checkpoint.files import naming, shown
from headway.errors import CheckpointError

# Endings that frameworks give to pickles; beside safetensors or GGUF they are passed over.
ENDINGS = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".pyt", ".dill")

# Binary protocols open with PROTO and a number; older ones with an operation that begins a container or names a class.
_BINARY = re.compile(rb"\x80[\x01-\x05]")
_OPENINGS = ("MARK", "GLOBAL", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE")


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
        if _BINARY.match(head):
            return True
        file.seek(-min(1, len(head)), os.SEEK_END)
        return file.read() == b"." and _reads_as_operations(head)


def _reads_as_operations(head: bytes) -> bool:
    """True when the bytes are operations of the pickle machine (listed here, not carried out)."""
    names: list[str] = []
    try:
        names.extend(operation.name for operation, _, _ in pickletools.genops(head))
    except (ValueError, IndexError):  # the end of `head`, or no pickle
        if len(names) < 4:
            return False
    return bool(names) and names[0] in _OPENINGS


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
