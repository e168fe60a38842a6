"""What the tests of the tape share."""

from __future__ import annotations

import pytest
import torch

from headway.native import library

if library.load() is None:
    pytest.skip(f"no native library: {library.reason()}", allow_module_level=True)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield
