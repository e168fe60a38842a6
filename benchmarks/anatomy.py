"""Where does a token's time go? Every native call of one decoding step, by what it does, beside the memory's speed."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from _common import Limits, at_rest, facts, put
from _picture import Bar, bars

from headway.checkpoint import shelf
from headway.checkpoint.store import open_store
from headway.native.library import Pool, load
from headway.native.structs import Op
from headway.source import match, open_source
from headway.tape import Program, Weights
from headway.tape.program import Cost
from headway.tape.weights import of_source

TOKENS = 32  # steps of one round
KINDS = ("attention projections", "feed-forward", "head", "attention", "norms, rotary, rest", "Python between steps")


@dataclass(frozen=True)
class Anatomy:
    """Milliseconds of one token by kind, for so many threads."""

    threads: int
    milliseconds: dict[str, float]
    megabytes: float  # read of weights and cache

    @property
    def total(self) -> float:
        """Milliseconds of the whole step."""
        return sum(self.milliseconds.values())


def kind(cost: Cost) -> str:
    """What a call belongs to."""
    if cost.op is Op.LINEAR:
        if cost.label.startswith("heads."):
            return "head"
        return "feed-forward" if "feed_forward" in cost.label else "attention projections"
    return "attention" if cost.op in (Op.ATTENTION, Op.KEEP) else "norms, rotary, rest"


def program(path: Path, threads: int) -> Program:
    """The model at `path` on a tape."""
    library = load()
    if library is None:
        raise SystemExit("this benchmark needs the native library; see headway doctor")
    pool = Pool(library, threads)
    with open_store(path) as store:
        source = open_source(path, store)
        return Program(source.spec, Weights(source.spec, of_source(source, match(source)), library, pool), pool)


def anatomy(path: Path, threads: int, context: int, rounds: int) -> Anatomy:
    """The round of the median, of `rounds`."""
    model = program(path, threads)
    cache = model.cache(1, context + TOKENS)
    model.step([[7] * context], cache)
    found = []
    for _ in range(rounds + 1):  # the first finds cold caches
        cache.truncate([context])
        model.profile()
        began = time.perf_counter()
        for _ in range(TOKENS):
            model.step([[7]], cache)
        whole = (time.perf_counter() - began) * 1e3 / TOKENS
        parts = Counter[str]()
        for cost in model.profile():
            parts[kind(cost)] += cost.nanoseconds / 1e6 / TOKENS
        found.append({**parts, KINDS[-1]: max(0.0, whole - parts.total())})
    middle = sorted(found[1:], key=lambda parts: sum(parts.values()))[rounds // 2]
    kept = cache.nbytes * (context + TOKENS / 2) / cache.capacity
    return Anatomy(threads, middle, (model.weights.nbytes + kept) / 1e6)


def table(found: Sequence[Anatomy], limits: Limits) -> str:
    """A line a kind."""
    lines = ["".ljust(24) + "".join(f"{f'{one.threads} threads':>18}" for one in found)]
    for name in KINDS:
        spent = [one.milliseconds.get(name, 0.0) for one in found]
        cells = (f"{part:8.2f} ms {part / one.total:5.0%}" for part, one in zip(spent, found, strict=True))
        lines.append(name.ljust(24) + "".join(f"{cell:>18}" for cell in cells))
    lines.append("whole token".ljust(24) + "".join(f"{one.total:>15.2f} ms" for one in found))
    reads = (f"{one.megabytes / one.total:.1f} GB/s" for one in found)
    lines.append("reads".ljust(24) + "".join(f"{cell:>18}" for cell in reads))
    lines.append(f"this machine {limits}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a GGUF file or a folder (default: SmolLM2 135M)")
    parser.add_argument("--context", type=int, default=64, help="tokens in the cache (default: %(default)s)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="(default: 1 2)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--svg", type=Path, help="draw the answer to this file")
    parser.add_argument("--page", type=Path, help="put the table into a page, at its mark <!-- anatomy -->")
    given = parser.parse_args()
    path = given.model or shelf.get("smollm2")
    others, limits = at_rest(), Limits.measured()
    found = [anatomy(path, threads, given.context, given.rounds) for threads in given.threads]
    told = table(found, limits)
    print(told)
    if given.page:
        put(given.page, "anatomy", f"```text\n{told}\n```")
    if not (machine := facts(max(given.threads), others))["quiet"]:
        print(f"NOT QUIET: other programs kept {machine['others']} cores busy, so these figures are not to be trusted")
    if given.svg:
        read = median(one.megabytes for one in found) / limits.read * 1e9
        rows = [
            *(Bar(f"{one.threads} thread{'s' if one.threads > 1 else ''}", one.milliseconds) for one in found),
            Bar("reading memory alone", {"weights and cache": read}),
        ]
        title = f"One token of {path.name}, {given.context} tokens in the cache"
        given.svg.write_text(bars(title, "milliseconds", rows, (*KINDS, "weights and cache")), encoding="utf-8")


if __name__ == "__main__":
    main()
