"""What the tests of the tape share."""

from __future__ import annotations

import pytest
import torch

from tests import needs


@pytest.fixture(autouse=True, scope="session")
def _native():
    needs.native()


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield
