"""Something else done while weights are read: a vocabulary takes as long, and needs another core."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Found = TypeVar("Found")

TURN = 0.0005  # seconds of Python between two looks at who waits: about as long as a native call that packs a matrix


@contextmanager
def beside(work: Callable[[], Found]) -> Iterator[Future[Found]]:
    """`work` in a thread of its own; it has ended when the block has."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN)
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="headway") as thread:
            yield thread.submit(work)
    finally:
        sys.setswitchinterval(before)
