"""Model folders written whole or not at all, and what such a folder may hold."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from headway.errors import CheckpointError

# What a saved model's folder may hold: anything else is somebody's own, and is never replaced.
SAVED = (
    "config.json", "generation_config.json", "*.safetensors", "model.safetensors.index.json", "tokenizer*.json",
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "vocab.json", "merges.txt",
    "tokenizer.model",
)  # fmt: skip


def stranger(folder: Path) -> str | None:
    """A name in `folder` that is no part of a saved model, or None."""
    held = sorted(path.name for path in folder.iterdir())
    return next((name for name in held if not any(fnmatchcase(name, pattern) for pattern in SAVED)), None)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which stands at `target` when the block ends well; else nothing has changed.

    CheckpointError where there can be none.
    """
    parent = target.absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=parent))
    except OSError as error:
        raise CheckpointError(f"{target}: cannot be made ({error.strerror}); choose another folder") from None
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        _swap(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """A JSON object as the HF tools write it."""
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _swap(partial: Path, target: Path) -> None:
    """Put the finished folder in place; an old one steps aside first and goes when the new one stands."""
    if not target.exists():
        os.replace(partial, target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=partial.parent))
    os.replace(target, aside / "old")
    try:
        os.replace(partial, target)
    except OSError:
        os.replace(aside / "old", target)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
