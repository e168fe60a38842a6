"""How fast is headway's tape beside other engines, with the same weights, bits, prompts and threads?"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from _common import HERE, QUIETLY, Figure, Goal, Limits, Others, at_rest, facts, interleaved, markdown, put, table
from _peers import PYTHON, Contender, Files, LeftOutError, Worker, absence, cores, cpus, surroundings, versions

from headway.spec.count import flops_per_token

FORMS = {
    "4-bit": {
        "headway": ("Q4_0", "Q4_1"),
        "llama.cpp": ("Q4_0", "Q4_1"),
        "ONNX Runtime": ("int4",),
    },
    "8-bit": {
        "headway": ("Q8_0",),
        "llama.cpp": ("Q8_0",),
        "CTranslate2": ("int8",),
    },
    "fp32": {
        "headway": ("F32",),
        "llama.cpp": ("F32",),
        "ONNX Runtime": ("fp32",),
        "CTranslate2": ("float32",),
        "transformers": ("float32",),
    },
}
QUESTIONS = ("decode", "prefill", "batch", "start", "memory", "long", "busy")
TOGETHER = ("decode", "prefill", "batch")  # those that ask every engine

PROMPT, NEW, ROWS, LONG, FULL = 64, 64, 8, 512, 4096
QUESTION = "What is the capital of France?"
SHARE = Goal("limit", "at least", 0.7)
READY = Goal("value", "at most", 1.0)
BUSY = Goal("ratio", "at least", 0.8)
CACHE = Goal("ratio", "at most", 1.2)

Samples = dict[str, list[float]]  # by contender, a figure a round
Remark = Callable[[str, str], str]  # of one of our contenders beside a peer


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What the command line says."""

    rounds: int
    threads: tuple[int, ...]
    bits: tuple[str, ...]
    only: tuple[str, ...]
    json: Path | None
    page: Path | None
    model: Path | None


def choices(arguments: Sequence[str] | None = None) -> Chosen:
    """The options; a wrong one is one line and exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default: %(default)s)")
    several = "1,2" if len(cores()) > 1 else "1"
    parser.add_argument(
        "--threads", default=several, help="threads of every engine, one run each (default: %(default)s)"
    )
    parser.add_argument("--bits", default=",".join(FORMS), help="which weights (default: %(default)s)")
    parser.add_argument("--only", default=",".join(QUESTIONS), help="which questions (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there as well")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="put the table into a page, at its mark <!-- peers -->"
    )
    parser.add_argument("--model", type=Path, default=os.environ.get("HEADWAY_SMOLLM2"), help="a GGUF file to use")
    given = parser.parse_args(arguments)
    for name, known in (("bits", tuple(FORMS)), ("only", QUESTIONS)):
        for value in getattr(given, name).split(","):
            if value not in known:
                parser.error(f"--{name} {value}: it is one or more of {','.join(known)}")
    threads = given.threads.split(",")
    if given.rounds < 1 or not all(number.isdecimal() and int(number) for number in threads):
        parser.error("--rounds and --threads are at least 1")
    return Chosen(
        rounds=given.rounds,
        threads=tuple(int(number) for number in threads),
        bits=tuple(given.bits.split(",")),
        only=tuple(given.only.split(",")),
        json=given.json,
        page=given.page,
        model=given.model,
    )


@dataclass
class Bench:
    """What all questions share, and what they have found so far."""

    chosen: Chosen
    files: Files
    text: list[int]  # token ids of an English text, as many as any question needs
    limits: Mapping[int, Limits]
    figures: list[Figure] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    answers: dict[str, list[int]] = field(default_factory=dict)  # what each contender made of the first prompt

    def prompt(self, length: int, skip: int = 0) -> list[int]:
        """So many ids of the text."""
        return self.text[skip : skip + length]

    @contextmanager
    def workers(self, contenders: Sequence[Contender], threads: int) -> Iterator[dict[Contender, Worker]]:
        """A process for each that can take part; the others are noted with the reason."""
        with ExitStack() as stack:
            there: dict[Contender, Worker] = {}
            for contender in contenders:
                try:
                    there[contender] = Worker(contender, self.files.path(contender), threads)
                except LeftOutError as error:
                    self.leave_out(contender, error)
                else:
                    stack.callback(there[contender].close)
            yield there

    def leave_out(self, contender: Contender, error: LeftOutError) -> None:
        """Say once why a contender takes no part."""
        if str(contender) not in self.left_out:
            self.left_out[str(contender)] = str(error)
            print(f"{contender} left out: {error}", file=sys.stderr)


# Every engine on the same question


def decode(worker: Worker, bench: Bench) -> dict[str, float]:
    """Tokens a second of one answer, the prompt and the first token taken out."""
    found = worker.ask(prompts=[bench.prompt(PROMPT)], new=NEW)
    bench.answers[str(worker.contender)] = found["ids"][0]
    return {"decode": (NEW - 1) / (found["total"] - found["first"])}


def prefill(worker: Worker, bench: Bench) -> dict[str, float]:
    """Tokens of a prompt a second until the first token of the answer."""
    return {"prefill": LONG / worker.ask(prompts=[bench.prompt(LONG)], new=1)["total"]}


def batch(worker: Worker, bench: Bench) -> dict[str, float]:
    """New tokens a second of all answers together: with their prompts, and the prompts and first tokens taken out."""
    prompts = [bench.prompt(PROMPT, skip=PROMPT * row) for row in range(ROWS)]
    first, whole = (worker.ask(prompts=prompts, new=new)["total"] for new in (1, NEW))
    return {"batch": ROWS * NEW / whole, "batch decode": ROWS * (NEW - 1) / (whole - first)}


RUNS: Mapping[str, Callable[[Worker, Bench], dict[str, float]]] = {"decode": decode, "prefill": prefill, "batch": batch}


def together(bench: Bench, bits: str, threads: int) -> None:
    """The questions that every engine is asked, for one width of the weights."""
    contenders = [Contender(engine, form) for engine, forms in FORMS[bits].items() for form in forms]
    questions = [question for question in TOGETHER if question in bench.chosen.only]
    if not questions:
        return
    with bench.workers(contenders, threads) as workers:
        for question in questions:
            if question == "batch" and threads != max(bench.chosen.threads):
                continue
            print(f"{question}, {bits}, {counted(threads)} ...", file=sys.stderr)
            runs = {str(contender): partial(RUNS[question], worker, bench) for contender, worker in workers.items()}
            rounds = interleaved(runs, bench.chosen.rounds)
            for what in next(iter(rounds.values()))[0]:
                samples = {name: [found[what] for found in of_it] for name, of_it in rounds.items()}
                remark = {"decode": partial(agreement, bench.answers), "prefill": partial(first_tokens, samples)}
                bench.figures += compared(
                    what,
                    bits,
                    threads,
                    samples,
                    limit=partial(limit, bench, what, threads),
                    remark=remark.get(what, lambda *_: ""),
                )


def agreement(answers: Mapping[str, Sequence[int]], mine: str, theirs: str) -> str:
    """Whether both gave the same ids, and if not, after how many they part."""
    pairs = list(zip(answers[mine], answers[theirs], strict=True))
    same = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
    return "same ids" if same is None else f"ids part after {same}"


def first_tokens(samples: Samples, mine: str, theirs: str) -> str:
    """How long both take to the first token of the answer to the long prompt."""
    ours, peers = (LONG / median(samples[name]) for name in (mine, theirs))
    return f"first token after {ours:.2f} s, theirs {peers:.2f} s"


def compared(
    what: str,
    bits: str,
    threads: int,
    samples: Samples,
    *,
    limit: Callable[[str], float | None] = lambda _: None,
    remark: Remark = lambda *_: "",
) -> list[Figure]:
    """Our forms beside the best peer, then beside each other one; `limit` is that of one of our forms."""
    mine = {name: found for name, found in samples.items() if name.startswith("headway ")}
    theirs = {name: found for name, found in samples.items() if name not in mine}
    ranked = sorted(theirs, key=lambda name: median(theirs[name]), reverse=True)
    figures = []
    for name, found in mine.items():
        form = name.removeprefix("headway ")
        row = partial(Figure, unit="tokens/s", ours=found)
        title = f"{what}, {form}, {counted(threads)}"
        bound = limit(form)
        if bound is not None or not ranked:
            share = SHARE if what == "decode" and bits == "4-bit" else None
            figures.append(row(what=title, limit=bound, goal=share, remark="" if ranked else "no peer is here"))
        for place, peer in enumerate(ranked):
            said = ", ".join(filter(None, ("the best peer" if place == 0 else "", remark(name, peer))))
            least = goal(what, bits, threads, form, peer, best=place == 0)
            figures.append(row(what=title, beside=theirs[peer], yardstick=peer, goal=least, remark=said))
    return figures


def goal(what: str, bits: str, threads: int, form: str, peer: str, *, best: bool) -> Goal | None:
    """What is asked of a ratio; None where nothing is."""
    least: float | None = None
    if what == "decode" and bits == "4-bit":
        if best and form == "Q4_0":
            least = 1.4 if threads == 1 else 1.8
        elif form == "Q4_1" and peer == "llama.cpp Q4_1":
            least = 2.0
    elif what == "decode" and bits == "8-bit":
        least = 1.6 if peer == "llama.cpp Q8_0" else None
    elif best:
        least = {"decode": 1.15, "prefill": 1.3, "batch": 2.5, "batch decode": 2.5}[what]
    return None if least is None else Goal("ratio", "at least", least)


def limit(bench: Bench, what: str, threads: int, form: str) -> float | None:
    """Tokens a second that the machine allows: all weights read for each one, or all float32 products made."""
    try:
        path = bench.files.gguf(form)
    except LeftOutError:
        return None
    if what == "decode":
        return bench.limits[threads].read / weights(path)
    if what == "prefill" and form == "F32":
        from headway.checkpoint.store import open_store
        from headway.source import open_source

        spec = open_source(path, open_store(path)).spec
        head = 2 * spec.heads[0].vocab * spec.decoder.width
        operations = LONG * (flops_per_token(spec, LONG // 2) - head) + head
        return LONG * bench.limits[threads].multiply / operations
    return None


def weights(path: Path) -> int:
    """Bytes that a token reads: every tensor, but of an input embedding with its own output one row."""
    from headway.checkpoint.store import open_store

    store = open_store(path)
    sizes = {name: store.entry(name).nbytes for name in store}
    apart = "output.weight" in sizes
    return sum(size for name, size in sizes.items() if not (apart and name == "token_embd.weight"))


# Fresh processes


FIRST = """
import sys
from llama_cpp import Llama
model = Llama(sys.argv[1], n_threads=int(sys.argv[2]), n_threads_batch=int(sys.argv[2]), verbose=False)
print(model.create_completion(sys.argv[3], max_tokens=1, temperature=0.0)["choices"][0]["text"], flush=True)
"""


def start(bench: Bench) -> None:
    """From the start of a process to the first letter of its answer, the file in the page cache."""
    threads = max(bench.chosen.threads)
    path = bench.files.source
    ours = [sys.executable, "-m", "headway", "generate", str(path), QUESTION, "--engine", "tape", "--max-tokens"]
    commands = {"as it is": [*ours, "1"], "in the template": [*ours, "1", "--chat"]}
    if reason := absence("llama.cpp"):
        bench.leave_out(Contender("llama.cpp", "start"), LeftOutError(reason))
    else:
        commands["llama.cpp"] = [str(PYTHON), "-c", FIRST, str(path), str(threads), QUESTION]
    print(f"start, {counted(threads)} ...", file=sys.stderr)
    runs = {name: partial(first_letter, command, threads) for name, command in commands.items()}
    samples = interleaved(runs, bench.chosen.rounds)
    beside = {"beside": samples["llama.cpp"], "yardstick": "llama.cpp"} if "llama.cpp" in samples else {}
    for name in list(commands)[:2]:
        what = f"start to first token, prompt {name}"
        bench.figures.append(Figure(what=what, unit="s", ours=samples[name], goal=READY, **beside))


def first_letter(command: Sequence[str], threads: int) -> float:
    """Seconds until a process says the first thing."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=surroundings(threads), bufsize=0
    )
    assert process.stdout is not None
    letter = process.stdout.read(1)
    taken = time.perf_counter() - begun
    _, said = process.communicate()
    if process.returncode or not letter:
        raise SystemExit(f"{command[0]} failed:\n{said.decode(errors='replace')}")
    return taken


def memory(bench: Bench) -> None:
    """The most memory of a process that opens a GGUF file and answers once."""
    threads = max(bench.chosen.threads)
    for bits in bench.chosen.bits:
        for form in FORMS[bits]["headway"]:
            mine, theirs = Contender("headway", form), Contender("llama.cpp", form)
            print(f"memory, {form} ...", file=sys.stderr)
            runs = {}
            for contender in (mine, theirs):
                try:
                    bench.files.path(contender)
                except LeftOutError as error:
                    bench.leave_out(contender, error)
                else:
                    runs[contender.engine] = partial(peak, bench, contender, threads)
            if "headway" not in runs:
                continue
            samples = interleaved(runs, min(bench.chosen.rounds, 3))
            peaks = {name: [found[0] / 1e6 for found in of_it] for name, of_it in samples.items()}
            size, cached = bench.files.gguf(form).stat().st_size, samples["headway"][0][1]
            bench.figures.append(
                Figure(
                    what=f"peak memory, {form}, file of {size / 1e6:.0f} MB",
                    unit="MB",
                    ours=peaks["headway"],
                    beside=peaks.get("llama.cpp", ()),
                    yardstick="llama.cpp",
                    goal=Goal("value", "at most", (1.2 * size + cached) / 1e6 + 80),
                )
            )


def peak(bench: Bench, contender: Contender, threads: int) -> tuple[float, float]:
    """Bytes of a whole process at its largest, and of its cache."""
    worker = Worker(contender, bench.files.path(contender), threads, PROMPT + NEW)
    most = worker.ask(prompts=[bench.prompt(PROMPT)], new=NEW)["peak"]
    cached = worker.ask(cache=PROMPT + NEW)["bytes"] or 0
    worker.close()
    return most, cached


# headway alone


def long(bench: Bench) -> None:
    """What a token costs after a long past, beside the same after a short one and the bytes between them."""
    short, new = 16, 33
    for threads in bench.chosen.threads:
        with bench.workers([Contender("headway", "Q4_1")], threads) as workers:
            for worker in workers.values():
                print(f"long, {counted(threads)} ...", file=sys.stderr)
                runs = {past: partial(step, worker, bench.prompt(past), new) for past in (short, FULL)}
                samples = interleaved({str(past): run for past, run in runs.items()}, min(bench.chosen.rounds, 3))
                more = worker.ask(cache=FULL)["bytes"] - worker.ask(cache=short)["bytes"]
                bench.figures += longer(samples[str(short)], samples[str(FULL)], more, bench.limits[threads], threads)


def step(worker: Worker, prompt: list[int], new: int) -> float:
    """Seconds of one token after the prompt."""
    found = worker.ask(prompts=[prompt], new=new)
    return (found["total"] - found["first"]) / (new - 1)


def longer(short: Sequence[float], full: Sequence[float], more: int, limits: Limits, threads: int) -> list[Figure]:
    """A token with `more` bytes of past: the whole of it, and what it costs above one with a short past."""
    bytes_alone = more / limits.read
    row = partial(Figure, unit="ms", goal=CACHE)
    remark = f"{more / 1e6:.0f} MB more of cache"
    return [
        row(
            what=f"a token at {FULL:,} cached, {counted(threads)}",
            ours=[1e3 * seconds for seconds in full],
            beside=[1e3 * (seconds + bytes_alone) for seconds in short],
            yardstick="short past + bytes",
            remark=remark,
        ),
        row(
            what="  what it costs more than at 16",
            ours=[1e3 * (after - before) for before, after in zip(short, full, strict=True)],
            beside=[1e3 * bytes_alone] * len(full),
            yardstick="bytes alone",
            remark=remark,
        ),
    ]


def busy(bench: Bench) -> None:
    """Two threads while another process keeps one of the two cores busy, beside one thread on the other core."""
    if len(cores()) < 2:
        print("busy is left out: this process may use one core", file=sys.stderr)
        return
    mine = Contender("headway", "Q4_1")
    with ExitStack() as stack:
        found: dict[str, Worker] = {}
        for threads in (1, 2):
            [worker] = stack.enter_context(bench.workers([mine], threads)).values()
            found[f"{threads}"] = worker
        print("busy ...", file=sys.stderr)
        stack.enter_context(spinning(cpus(2)[-1]))
        samples = interleaved(
            {name: partial(decode, worker, bench) for name, worker in found.items()}, bench.chosen.rounds
        )
    speeds = {name: [one["decode"] for one in of_it] for name, of_it in samples.items()}
    bench.figures.append(
        Figure(
            what="decode, Q4_1, 2 threads, a core busy",
            unit="tokens/s",
            ours=speeds["2"],
            beside=speeds["1"],
            yardstick="1 thread",
            goal=BUSY,
        )
    )


@contextmanager
def spinning(cpu: int) -> Iterator[None]:
    """Another process that does nothing but keep one core busy."""
    code = f"import os\nos.sched_setaffinity(0, [{cpu}])\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


# The whole


def counted(threads: int) -> str:
    """1 thread, 2 threads."""
    return f"{threads} thread{'s' * (threads > 1)}"


def report(bench: Bench, machine: Mapping[str, Any], layout: Callable[[Sequence[Figure]], str] = table) -> list[str]:
    """The table and what one has to know to read it, in parts."""
    parts = [layout(bench.figures)]
    parts += [f"left out: {name}: {reason}" for name, reason in bench.left_out.items()]
    others = ", ".join(f"{name} {number}" for name, number in machine["peers"].items())
    parts.append(f"medians of {bench.chosen.rounds} interleaved rounds; {machine['processor']}, {others}")
    parts += [f"this machine, {counted(threads)}: {limits}" for threads, limits in bench.limits.items()]
    if not machine["quiet"]:
        parts.append(
            f"NOT QUIET: other programs kept {machine['others']} cores busy, so these figures are not to be trusted"
        )
    return parts


def as_json(bench: Bench, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Everything, every sample included."""
    return {
        "question": __doc__,
        "machine": dict(machine),
        "limits": {threads: vars(limits) for threads, limits in bench.limits.items()},
        "rounds": bench.chosen.rounds,
        "left_out": bench.left_out,
        "figures": [figure.as_json() for figure in bench.figures],
    }


def measure(bench: Bench) -> None:
    """All questions that were chosen, one engine at work at a time."""
    for bits in bench.chosen.bits:
        for threads in bench.chosen.threads:
            together(bench, bits, threads)
    for question, ask in {"start": start, "memory": memory, "long": long, "busy": busy}.items():
        if question in bench.chosen.only:
            ask(bench)


def text_ids(source: Path) -> list[int]:
    """An English text as token ids, long enough for every question."""
    from headway.text.tokenizer import load_tokenizer

    english = (HERE.parent / "LICENSE").read_text(encoding="utf-8")
    ids = load_tokenizer(source).encode(english)
    return (ids * (FULL // len(ids) + 1))[:FULL]


def main() -> None:
    chosen = choices()
    os.environ.update(QUIETLY)
    from headway.checkpoint import shelf

    source = chosen.model or shelf.get("smollm2")
    others: Others = at_rest()
    limits = {threads: Limits.measured(threads) for threads in chosen.threads}
    bench = Bench(chosen, Files(source), text_ids(source), limits)
    measure(bench)
    machine = {**facts(max(chosen.threads), others), "peers": versions()}
    print(__doc__, *report(bench, machine), sep="\n")
    if chosen.page is not None:
        put(chosen.page, "peers", "\n\n".join(report(bench, machine, markdown)))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(as_json(bench, machine), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
