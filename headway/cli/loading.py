"""Opens models for verbs: refuses what cannot be before time is spent, shows progress, and counts the seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.cli import terminal
from headway.cli.facts import Loading
from headway.cli.machine import usable_cores
from headway.cli.options import checked, warn_of_no_chance

if TYPE_CHECKING:
    from headway.model import EngineName, Model, Options


@dataclass(frozen=True)
class Opened:
    """A model that is ready, and what it took."""

    model: Model
    loading: Loading
    options: Options


def open_model(
    ref: str,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    engine: EngineName = "auto",
    cache: str = "auto",
    **options: Any,
) -> Opened:
    """Load `ref` with a bar on stderr; `options` are those of an answer, None where they were not given.

    RequestError for a device that is not here, or an option that no model could take, before time is spent.
    """
    from headway.checkpoint.resolve import resolve

    path = resolve(ref)
    with terminal.progress(f"loading {ref}") as progress:
        from headway.loader import dtype_name
        from headway.model import check_device, load

        if dtype != "auto":
            dtype_name(dtype)
        if device != "cpu":
            check_device(device)
        asked = checked(**options)
        if engine == "modules" or device != "cpu":
            use_cores()  # now, since the import of torch is no part of loading
        started, began = process_seconds(), time.perf_counter()
        model = load(path, dtype=dtype, device=device, engine=engine, cache=cache, progress=progress)
    assert model.report is not None
    if model.report.engine == "modules":
        use_cores()
    seconds = time.perf_counter() - began
    warn_of_no_chance(model, asked)
    return Opened(model, Loading(model=ref, report=model.report, start_seconds=started, load_seconds=seconds), asked)


def use_cores() -> None:
    """No more threads than may run at once: a container's share of time is less than the cores that torch counts."""
    import torch

    torch.set_num_threads(min(torch.get_num_threads(), usable_cores()))


def process_seconds() -> float:
    """Seconds since this process began."""
    return time.perf_counter() - STARTED


STARTED = time.perf_counter() - time.process_time()
