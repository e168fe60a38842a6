"""Whether a model can run natively on this machine, and if not, why."""

from __future__ import annotations

from headway.native import library
from headway.spec.model import ModelSpec
from headway.tape.lower import missing


def obstacle(spec: ModelSpec) -> str:
    """One line why `spec` cannot run on a tape here; empty when it can."""
    if library.load() is None:
        return library.reason()
    lacks = missing(spec)
    more = f" and {len(lacks) - 1} more" if len(lacks) > 1 else ""
    return f"no native form for {lacks[0]}{more}" if lacks else ""
