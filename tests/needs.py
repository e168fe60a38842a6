"""What some tests need of a machine: they are left out where it cannot be had, and fail where it is broken."""

from __future__ import annotations

import os

import pytest

from headway.native import build, library
from headway.native.library import Library


def native() -> Library:
    """The native library; skips where there is no compiler or it is switched off, fails where it does not build."""
    loaded = library.load()
    if loaded is not None:
        return loaded
    try:
        build.compiler()
    except build.BuildError as error:
        pytest.skip(str(error))
    if "HEADWAY_NATIVE" in os.environ:
        pytest.skip(library.reason())
    pytest.fail(f"there is a compiler, but no native library: {library.reason()}")
