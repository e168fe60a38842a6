"""What every test may ask for: real models, skipped with the reason where they cannot be had."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from headway.checkpoint import shelf
from headway.errors import CheckpointError

# Whoever runs the tests in the background ignores Ctrl-C, and what we start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file: HEADWAY_SMOLLM2 says where it is, else the shelf fetches it."""
    if chosen := os.environ.get("HEADWAY_SMOLLM2"):
        path = Path(chosen)
        if not path.is_file():
            pytest.skip(f"HEADWAY_SMOLLM2={chosen} is not a file")
        return path
    try:
        return shelf.get("smollm2", progress=False)
    except CheckpointError as error:
        pytest.skip(str(error))
