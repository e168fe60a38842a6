"""How many threads can truly run at once: physical cores, less what affinity, control groups and the user forbid."""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
GROUPS = Path("/sys/fs/cgroup")


def usable() -> int:
    """Threads for one pool: one for each physical core that this process may use, at least one.

    OMP_NUM_THREADS is the most, and so is torch's own number where torch is loaded.
    """
    return max(1, math.floor(min(_physical(_allowed()), _quota(), _wished()) + 0.5))


def _wished() -> float:
    """What the user allows; infinity where nothing is said."""
    torch = sys.modules.get("torch")
    most = math.inf if torch is None else torch.get_num_threads()
    with suppress(ValueError):
        most = min(most, int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0]))
    return most


def _allowed() -> set[int]:
    allowed = getattr(os, "sched_getaffinity", None)
    return allowed(0) if allowed else set(range(os.cpu_count() or 1))


def _physical(cpus: set[int]) -> int:
    """Physical cores among logical `cpus`: siblings of one core count once."""
    cores = set()
    for cpu in cpus:
        core = str(cpu)
        with suppress(OSError):
            core = (CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        cores.add(core)
    return len(cores)


def _quota() -> float:
    """Cores' worth of time that the control group grants; infinity where it does not count."""
    with suppress(OSError, ValueError):
        quota, period = (GROUPS / "cpu.max").read_text().split()
        return int(quota) / int(period) if quota != "max" else math.inf
    with suppress(OSError, ValueError):
        quota, period = ((GROUPS / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf
