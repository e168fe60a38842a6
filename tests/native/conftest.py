"""The library, a pool, and instruction sets to run on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headway.native import library as native
from headway.native.library import Library, Pool
from tests import needs


@pytest.fixture(scope="session")
def library() -> Library:
    return needs.native()


@pytest.fixture(scope="session")
def pool(library: Library) -> Pool:
    return Pool(library, 2)


@pytest.fixture(params=loaded.paths if (loaded := native.load()) else ["scalar"])
def path(request: pytest.FixtureRequest, library: Library) -> Iterator[str]:
    """Runs the test on every instruction set that is usable here."""
    before = library.path
    library.set_path(request.param)
    yield library.path
    library.set_path(before)
