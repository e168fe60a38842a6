"""One way to open weights: the format is told by what is there, and what holds code is refused."""

from __future__ import annotations

from pathlib import Path

from headway.checkpoint import gguf, safetensors
from headway.checkpoint.files import Entry, Store, naming, shown
from headway.checkpoint.pickles import ENDINGS, holds_pickle, refusal
from headway.errors import CheckpointError

__all__ = ["Entry", "Store", "open_store"]


def open_store(path: Path | str) -> Store:
    """The tensors of a folder (model.safetensors, shards with their index, or one GGUF), or of a single file.

    Where a safe format lies beside a pickle, the safe one is opened; a pickle alone is a CheckpointError, and so is
    everything that is missing, cut or not what its header says. No tensor is read yet.
    """
    path = Path(path)
    with naming(path):
        if not path.exists():
            raise CheckpointError(f"{shown(path)}: no such file or folder")
        folder = path.is_dir()
    return _open_folder(path) if folder else _open_file(path)


def _open_folder(folder: Path) -> Store:
    with naming(folder):
        files = sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".") and not entry.is_dir())
    names = {file.name for file in files}
    if safetensors.SINGLE in names:
        return safetensors.read_safetensors(folder / safetensors.SINGLE)
    if safetensors.INDEX in names:
        return safetensors.read_sharded(folder / safetensors.INDEX)
    if any(safetensors.SHARD.fullmatch(name) for name in names):
        raise CheckpointError(f"{shown(folder)}: holds shards but no {safetensors.INDEX}; fetch it or copy it here")
    # Parts of one split model count once, by the first.
    found = [file for file in files if file.suffix == ".gguf" and gguf.part_number(file) in (None, 1)]
    found += [file for file in files if file.suffix == ".safetensors"]
    if len(found) == 1:
        return _open_file(found[0])
    if found:
        raise CheckpointError(
            f"{shown(folder)}: holds several weight files ({shown(', '.join(file.name for file in found))}); name one"
        )
    for file in files:
        if file.suffix in ENDINGS and holds_pickle(file):
            raise refusal(file)
    raise CheckpointError(
        f"{shown(folder)}: holds no weights (looked for {safetensors.SINGLE}, {safetensors.INDEX} and *.gguf)"
    )


def _open_file(path: Path) -> Store:
    """By content, not by name: a GGUF file begins with its mark, a pickle with its own."""
    with naming(path):
        if not path.is_file():
            raise CheckpointError(f"{shown(path)}: not a file")
        with open(path, "rb") as file:
            head = file.read(4)
    if path.name.endswith(".index.json"):
        return safetensors.read_sharded(path)
    if head == gguf.MAGIC or path.suffix == ".gguf":
        return gguf.read_gguf(path)
    if holds_pickle(path):
        raise refusal(path)
    return safetensors.read_safetensors(path)
