"""What every benchmark shares: options, interleaved rounds, facts and limits of the machine, the table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar

Measured = TypeVar("Measured")

HERE = Path(__file__).resolve().parent
# For every process of a benchmark: nothing is fetched, nothing is said beside the answer.
QUIETLY = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
BUSY = 0.15  # cores kept busy by other programs from which on figures are not to be trusted


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says."""

    rounds: int
    threads: int
    json: bool
    peer: bool
    model: Path | None


def options(question: str | None, *, rounds: int, peer: str = "") -> Options:
    """The options of a benchmark; `peer` tells what --peer adds, where a benchmark has it."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--rounds", type=int, default=rounds, help="interleaved rounds (default: %(default)s)")
    cores = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
    parser.add_argument("--threads", type=int, default=cores, help="threads of every run (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print every sample as JSON instead of the table")
    parser.add_argument("--model", type=Path, default=os.environ.get("HEADWAY_SMOLLM2"), help="a GGUF file to use")
    if peer:
        parser.add_argument("--peer", action="store_true", help=peer)
    given = parser.parse_args()
    if given.rounds < 1 or given.threads < 1:
        parser.error("--rounds and --threads are at least 1")
    os.environ.update(QUIETLY, OMP_NUM_THREADS=str(given.threads))
    return Options(
        rounds=given.rounds,
        threads=given.threads,
        json=given.json,
        peer=getattr(given, "peer", False),
        model=given.model,
    )


def model_file(chosen: Options) -> Path:
    """SmolLM2 135M as GGUF: what --model or HEADWAY_SMOLLM2 names, else the one of the shelf."""
    from headway.checkpoint import shelf

    return chosen.model or shelf.get("smollm2")


def seconds(run: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleaved(runs: Mapping[str, Callable[[], Measured]], rounds: int) -> dict[str, list[Measured]]:
    """What every run measures in every round; the order turns round by round, so that drift meets all alike."""
    for run in runs.values():
        run()  # the first of its kind finds cold caches
    samples: dict[str, list[Measured]] = {name: [] for name in runs}
    for number in range(rounds):
        names = list(runs)
        for name in names if number % 2 == 0 else reversed(names):
            samples[name].append(runs[name]())
    return samples


# Fresh processes


def python(*arguments: str, threads: int | None = None) -> subprocess.CompletedProcess[str]:
    """A whole Python process with these arguments, and what it printed; `threads` other than the benchmark's."""
    more = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    command, environment = [sys.executable, *arguments], {**os.environ, **more}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"python {' '.join(arguments)} failed:\n{done.stderr}")
    return done


def process(*arguments: str) -> float:
    """Seconds of a whole Python process."""
    return seconds(lambda: python(*arguments))


def task(name: str, *arguments: str, threads: int | None = None) -> dict[str, float]:
    """What a task of _tasks.py measures in a fresh process."""
    done = python(str(HERE / "_tasks.py"), name, *arguments, threads=threads)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


# The machine


@dataclass(frozen=True)
class Limits:
    """What no program on this machine exceeds, measured by _tasks.py with the threads of the benchmark."""

    read: float  # bytes a second from memory
    multiply: float  # float32 operations a second of a large matrix product

    @classmethod
    def measured(cls, threads: int | None = None) -> Limits:
        """The best of several tries, in a fresh process."""
        found = task("limits", threads=threads)
        return cls(found["read"], found["multiply"])

    def __str__(self) -> str:
        return f"reads {self.read / 1e9:.1f} GB/s, multiplies {self.multiply / 1e9:.0f} GFLOP/s in fp32"


class Others:
    """How many cores other programs keep busy, from /proc/stat; None where the system has no such file."""

    def __init__(self) -> None:
        self._start = self._now()

    def cores(self) -> float | None:
        """Since this was made, without what this process and its finished children used."""
        if self._start is None or (now := self._now()) is None:
            return None
        busy, own, wall = (after - before for after, before in zip(now, self._start, strict=True))
        return max(0.0, busy - own) / wall

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        try:
            fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        except OSError:
            return None
        user, nice, system, _idle, _wait, interrupts, soft, stolen = fields[:8]
        busy = (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return busy, sum(usage.ru_utime + usage.ru_stime for usage in own), time.perf_counter()


def at_rest(patience: float = 20.0) -> Others:
    """Wait for other programs to rest, but not for ever, and watch them from then on."""
    deadline = time.perf_counter() + patience
    for attempt in count():
        others = Others()
        time.sleep(1.0)
        kept = others.cores()
        if kept is None or kept < BUSY:
            return Others()
        if attempt == 0:
            print(f"other programs keep {kept:.1f} cores busy; waiting for them ...", file=sys.stderr)
        if time.perf_counter() > deadline:
            break
    return Others()


def facts(threads: int, others: Others) -> dict[str, Any]:
    """What one has to know of the machine to read the figures."""
    kept = others.cores()
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "load": round(os.getloadavg()[0], 2),
        "others": None if kept is None else round(kept, 2),
        "quiet": kept is None or kept < BUSY,
        "python": platform.python_version(),
        **{name: _version(name) for name in ("headway", "torch", "transformers")},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# The answer


@dataclass(frozen=True)
class Goal:
    """What a figure should come to: its median, that of its ratios to the yardstick, or its share of the limit."""

    of: Literal["value", "ratio", "limit"]
    sign: Literal["at least", "at most"]
    bound: float

    def met(self, figure: Figure) -> bool:
        """Whether it does."""
        found = figure.of_limit if self.of == "limit" else median(figure.ours if self.of == "value" else figure.ratios)
        assert found is not None
        return found >= self.bound if self.sign == "at least" else found <= self.bound


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured thing: ours, what it is held against in the same rounds, and what the machine would allow."""

    what: str
    unit: str  # "tokens/s" is better when higher, all others when lower
    ours: Sequence[float]
    beside: Sequence[float] = ()
    yardstick: str = ""
    limit: float | None = None
    goal: Goal | None = None
    remark: str = ""

    @property
    def ratios(self) -> list[float]:
        """Ours over the yardstick, round by round."""
        return [ours / beside for ours, beside in zip(self.ours, self.beside, strict=True)]

    @property
    def of_limit(self) -> float | None:
        """How near the median comes to the limit; 1 is there."""
        if self.limit is None:
            return None
        share = median(self.ours) / self.limit
        return share if self.unit.endswith("/s") else 1 / share

    def as_row(self) -> tuple[str, ...]:
        """The cells under `COLUMNS`."""
        ratio = spread = goal = limit = ""
        if self.beside:
            ratio = f"{median(self.ratios):.2f}x"
            spread = f"{min(self.ratios):.2f}-{max(self.ratios):.2f}x"
        else:
            spread = f"{number(min(self.ours))}-{number(max(self.ours))}"
        if self.goal is not None:
            bound = {"value": "{:.4g}", "ratio": "{:g}x", "limit": "{:.0%} of the limit"}[self.goal.of]
            bound = bound.format(self.goal.bound)
            goal = f"{self.goal.sign} {bound}: {'met' if self.goal.met(self) else 'MISSED'}"
        if self.limit is not None:
            limit = f"{number(self.limit)} ({self.of_limit:.0%})"
        beside = f"{number(median(self.beside))} {self.yardstick}" if self.beside else ""
        return self.what, self.unit, number(median(self.ours)), beside, ratio, spread, goal, limit, self.remark

    def as_json(self) -> dict[str, Any]:
        """Everything, every sample included."""
        return {
            "what": self.what,
            "unit": self.unit,
            "median": median(self.ours),
            "ours": list(self.ours),
            "yardstick": self.yardstick or None,
            "beside": list(self.beside),
            "ratio": median(self.ratios) if self.beside else None,
            "ratios": self.ratios if self.beside else [],
            "limit": self.limit,
            "of_limit": self.of_limit,
            "goal": None if self.goal is None else {**vars(self.goal), "met": self.goal.met(self)},
            "remark": self.remark or None,
        }


COLUMNS = ("", "unit", "headway", "beside", "ratio", "spread", "goal", "limit (reached)", "")


def number(value: float) -> str:
    """Three digits, or all digits of a larger whole part."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(figures: Sequence[Figure]) -> str:
    """A line a figure below the heads of the columns; columns in which nothing stands are left out."""
    rows = [COLUMNS, *(figure.as_row() for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def markdown(figures: Sequence[Figure]) -> str:
    """The same table for a page."""
    rows = [figure.as_row() for figure in figures]
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows]
    return "\n".join(f"| {' | '.join(cell.strip() for cell in line)} |" for line in lines)


def put(page: Path, mark: str, text: str) -> None:
    """Write `text` between <!-- mark --> and the next <!-- end --> of a page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- {mark} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not end:
        raise SystemExit(f"{page}: has no place <!-- {mark} --> ... <!-- end -->")
    page.write_text(f"{before}{begin}{text}\n{end}{after}", encoding="utf-8")


def show(
    question: str | None, figures: Sequence[Figure], chosen: Options, others: Others, limits: Limits | None = None
) -> None:
    """Print the table, or JSON."""
    machine = facts(chosen.threads, others)
    if chosen.json:
        about = None if limits is None else vars(limits)
        answer = {"question": question, "machine": machine, "limits": about, "rounds": chosen.rounds}
        print(json.dumps({**answer, "figures": [figure.as_json() for figure in figures]}, indent=2))
        return
    print(question)
    print(table(figures))
    print(
        f"medians of {chosen.rounds} interleaved rounds, {machine['threads']} threads; {machine['processor']}, ", end=""
    )
    print(", ".join(f"{name} {machine[name]}" for name in ("torch", "transformers", "headway") if machine[name]))
    if limits is not None:
        print(f"this machine {limits}")
    if not machine["quiet"]:
        print(f"NOT QUIET: other programs kept {machine['others']} cores busy, so these figures are not to be trusted")
