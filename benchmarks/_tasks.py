"""What a benchmark measures inside a fresh process: python _tasks.py TASK [ARGUMENT...] prints JSON."""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path


def resident(field: str) -> int:
    """Bytes of this process in memory: "VmRSS" now, "VmHWM" at most so far."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # no /proc: the largest so far is all that is known
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


def measured(run: Callable[[], object]) -> dict[str, float]:
    """Seconds of `run` and how far memory rose meanwhile; what it returns lives until all is measured."""
    gc.collect()
    before, start = resident("VmRSS"), time.perf_counter()
    kept = run()
    taken = time.perf_counter() - start
    peak = resident("VmHWM") - before
    del kept
    return {"seconds": taken, "peak": peak}


def read(path: str) -> dict[str, float]:
    """A plain read of one file into fresh memory."""
    return measured(Path(path).read_bytes)


def load(path: str) -> dict[str, float]:
    """headway.load, after its imports."""
    from headway import load

    return measured(lambda: load(path))


def network(path: str) -> dict[str, float]:
    """The weights alone, without a tokenizer."""
    from headway.loader import load_network

    return measured(lambda: load_network(Path(path)))


def transformers(path: str) -> dict[str, float]:
    """The same folder in transformers, after its imports."""
    from transformers import AutoModelForCausalLM

    return measured(lambda: AutoModelForCausalLM.from_pretrained(path, dtype="auto"))


def limits() -> dict[str, float]:
    """The best of several reads of 512 MiB, and of several products of two matrices of 2,048 x 2,048."""
    import torch

    def best(run: Callable[[], object], tries: int = 7) -> float:
        run()
        return min(measured(run)["seconds"] for _ in range(tries))

    block = torch.ones(1 << 15, 1 << 12)
    row, square = torch.ones(1, 1 << 12), torch.rand(2048, 2048)
    fastest = min(best(block.amax), best(lambda: torch.nn.functional.linear(row, block)))
    return {"read": block.nbytes / fastest, "multiply": 2 * 2048**3 / best(lambda: square @ square)}


TASKS = {task.__name__: task for task in (read, load, network, transformers, limits)}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](*sys.argv[2:])))
