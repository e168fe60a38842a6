"""Writes constraints.txt: the version of everything that headway and its extras bring along."""

import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "constraints.txt"
HEADER = """# The versions that headway is tested with: pip install -c constraints.txt -e .
# Written by `make pins`. The CUDA packages of some PyTorch builds are pinned by those builds themselves.
"""


def direct() -> list[Requirement]:
    """What pyproject.toml asks for: to build, to run, and with each extra."""
    extras = [line for lines in _settings()["project"]["optional-dependencies"].values() for line in lines]
    return base() + [Requirement(line) for line in [*_settings()["build-system"]["requires"], *extras]]


def base() -> list[Requirement]:
    """What every install needs."""
    return [Requirement(line) for line in _settings()["project"]["dependencies"]]


def _settings() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def closure(requirements: list[Requirement]) -> set[str]:
    """The names of `requirements` and of all that they require here, except what torch pins itself."""
    found: set[str] = set()
    waiting = list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in found:
            found.add(name)
            waiting.extend(required(requirement))
    return found


def required(requirement: Requirement) -> Iterator[Requirement]:
    """What an installed distribution asks for in this environment."""
    extras = ["", *requirement.extras]
    for inner in map(Requirement, distribution(requirement.name).requires or []):
        pinned_by_torch = requirement.name == "torch" and "==" in {part.operator for part in inner.specifier}
        applies = inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras)
        if applies and not pinned_by_torch:
            yield inner


def pinned() -> dict[str, str]:
    """Name and version of each line of constraints.txt."""
    lines = PINS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def text() -> str:
    """The whole of constraints.txt; versions are public ones, so that any build of a release fits."""
    lines = [f"{name}=={Version(version(name)).public}" for name in sorted(closure(direct()))]
    return HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    try:
        PINS.write_text(text(), encoding="utf-8")
    except PackageNotFoundError as error:
        raise SystemExit(f"{error.name} is not installed; run make test first") from None
    print(f"{PINS.name}: {len(pinned())} versions")
