"""What this machine has, asked of the system itself: processors, memory, and how much of either may be used."""

from __future__ import annotations

import math
import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Flags that change which arithmetic is fast, in the order in which people ask for them.
FLAGS = (
    *(
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512_vnni",
        "avx_vnni",
        "avx512_bf16",
        "avx512_fp16",
        "amx_bf16",
        "amx_int8",
    ),
    *("asimd", "asimddp", "fphp", "i8mm", "bf16", "sve", "sve2"),
)
CONTROL = Path("/sys/fs/cgroup")  # where Linux keeps the limits of a container, in either version
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


@dataclass(frozen=True)
class Memory:
    """Bytes; 0 is unknown. `limit` is the control group's, 0 where there is none."""

    total: int
    available: int
    limit: int


def processor() -> str:
    """The processor's name."""
    name = _field("/proc/cpuinfo", "model name") or _sysctl("machdep.cpu.brand_string")
    return name or platform.processor() or platform.machine()


def flags() -> tuple[str, ...]:
    """Those of FLAGS that the processor has."""
    listed = _field("/proc/cpuinfo", "flags") or _field("/proc/cpuinfo", "Features")
    known = set(listed.split())
    if platform.system() == "Darwin":
        found = {"asimddp": "FEAT_DotProd", "i8mm": "FEAT_I8MM", "bf16": "FEAT_BF16"}
        known = {flag for flag, name in found.items() if _sysctl(f"hw.optional.arm.{name}") == "1"}
    return tuple(flag for flag in FLAGS if flag in known)


def allowed_cores() -> int:
    """Cores that this process may run on."""
    if platform.system() == "Linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def core_limit() -> float:
    """How many cores' worth of time the control group grants; infinity where it does not count."""
    with suppress(OSError, ValueError):
        quota, period = (CONTROL / "cpu.max").read_text().split()
        return int(quota) / int(period) if quota != "max" else math.inf
    with suppress(OSError, ValueError):
        group = CONTROL / "cpu"
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf


def usable_cores() -> int:
    """Threads that can run at the same time here: more of them would only wait for each other."""
    return max(1, math.ceil(min(allowed_cores(), core_limit())))


def wait_politely() -> None:
    """Let a waiting thread fall asleep soon; to be called before torch is imported, the user's own setting counts.

    By default it spins for milliseconds, and where other processes want the same cores that costs tenfold. This
    short a spin costs less than a tenth where they do not.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def memory() -> Memory:
    """What is there and what is free, as the system and the control group count it."""
    total, available = _kibibytes("MemTotal"), _kibibytes("MemAvailable")
    if not total:
        total = int(_sysctl("hw.memsize") or 0)
    limit, used = (
        _first_number("memory.max", "memory/memory.limit_in_bytes"),
        _first_number("memory.current", "memory/memory.usage_in_bytes"),
    )
    if not limit or (total and limit >= total):
        return Memory(total, available, 0)
    free = limit - used
    return Memory(total, min(available, free) if available else free, limit)


def peak_memory() -> int:
    """The most bytes of memory that this process has had at once; 0 where the system does not say."""
    if platform.system() == "Windows":
        return 0
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if platform.system() == "Darwin" else most * 1024


def _field(file: str, name: str) -> str:
    """The value of the first `name : value` line of a file of /proc."""
    with suppress(OSError):
        for line in Path(file).read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def _kibibytes(name: str) -> int:
    value = _field("/proc/meminfo", name).removesuffix(" kB")
    return int(value) * 1024 if value.isdecimal() else 0


def _first_number(*names: str) -> int:
    for name in names:
        with suppress(OSError, ValueError):
            return int((CONTROL / name).read_text())
    return 0


def _sysctl(name: str) -> str:
    """A value of macOS."""
    if platform.system() != "Darwin":
        return ""
    import subprocess

    done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
    return done.stdout.strip()
