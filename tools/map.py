"""Writes docs/map.md: every module with its one-line docstring, from the ground up."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "headway"
MAP = ROOT / "docs" / "map.md"
HEADER = """# Map of the code

Every module in one line, from the ground up: what stands lower is imported by what stands above it, never the reverse.
Written by `make docs` from the modules' docstrings; a test holds it equal to them.

"""


def text() -> str:
    """The whole of docs/map.md."""
    return HEADER + "\n".join(lines(PACKAGE, layer_order())) + "\n"


def lines(folder: Path, order: dict[str, int], depth: int = 0) -> Iterator[str]:
    """One list item for each module under `folder`; a package's own line stands before its modules."""
    files = [path for path in folder.glob("*.py") if path.name != "__init__.py" or depth == 0]
    packages = [path.parent for path in folder.glob("*/__init__.py")]
    for child in sorted(files + packages, key=lambda child: (order.get(child.stem, len(order)), child.stem)):
        source = child / "__init__.py" if child in packages else child
        label = f"{child.name}/" if child in packages else child.name
        target = f"../{source.relative_to(ROOT).as_posix()}"
        yield f"{'  ' * depth}- [`{label}`]({target}): {as_markdown(docstring(source))}"
        if child in packages:
            yield from lines(child, {}, depth + 1)


def layer_order() -> dict[str, int]:
    """Top-level modules in the order of the import contract, lowest first."""
    contract = next(c for c in settings()["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    names = [name for layer in reversed(contract["layers"]) for name in re.findall(r"\w+", layer)]
    return {name: place for place, name in enumerate(names)}


def settings() -> dict[str, Any]:
    """The whole of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def docstring(path: Path) -> str:
    """The docstring of the module at `path`, unread by Python; empty when there is none."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or ""


def as_markdown(line: str) -> str:
    """`line` with the signs that Markdown would take for its own escaped, except between backticks."""
    return re.sub(r"`[^`]*`|[*_<\[]", lambda found: found[0] if found[0][0] == "`" else f"\\{found[0]}", line)


if __name__ == "__main__":
    MAP.write_text(text(), encoding="utf-8")
    print(f"{MAP.relative_to(ROOT)}: {len(text().splitlines())} lines")
