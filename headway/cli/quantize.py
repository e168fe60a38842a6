"""`headway quantize`: weights, the cache or both in fewer bits, and the proof of what that does to the answers."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from headway.cli import options as shared
from headway.cli import terminal
from headway.errors import DataError, RequestError

if TYPE_CHECKING:
    from headway.evaluate.drift import Answers, Drift
    from headway.model import Model
    from headway.quant import Plan, Recipe, Written
    from headway.source import Source

TURNS = 3  # times that both models decode in turn; the median counts
PROMPT, DECODED = 32, 64  # tokens of such a turn


def command(
    model: shared.ModelRef,
    to: Annotated[
        str | None,
        Option(
            metavar="FORMAT",
            help="q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k (a GGUF file), int8, int4 (a folder of safetensors), "
            "float16 or bfloat16 (either).",
        ),
    ] = None,
    out: Annotated[
        Path | None, Option(metavar="PATH", help="What to write: a name that ends in .gguf, or else a folder.")
    ] = None,
    group: Annotated[int | None, Option(metavar="N", help="int4: columns with one scale: 32, 64, 128, -1 all.")] = None,
    symmetric: Annotated[
        bool | None,
        Option("--symmetric/--asymmetric", help="int4: zero in the middle (usual), or where each group needs it."),
    ] = None,
    tables: Annotated[
        str, Option(metavar="FORMAT", help="Embeddings and heads; at least 8 bits if this is not given.")
    ] = "",
    cache: Annotated[str, Option(metavar="FORMAT", help="Prove keys and values in int8 too, or alone.")] = "",
    text: Annotated[
        Path | None, Option(metavar="FILE", help="The text of the proof; without it one of ours, English and Chinese.")
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace what is there already.")] = False,
    json: shared.Json = False,
) -> None:
    """Write a model in fewer bits, and prove what that does to it.

    The proof sets both models beside each other on one text: perplexity, how far the distributions of the next token
    are apart, how often the likeliest token is the same, sizes and speed. A cache in int8 (--cache) is chosen when a
    model runs, so nothing is written for it.
    """
    if to is None and not cache:
        raise RequestError("nothing to do: give --to FORMAT, or --cache int8")
    if cache not in ("", "int8"):
        raise RequestError(f"--cache {cache} is not int8, the one format of a cache that can be proved")
    if to is None and (out is not None or group is not None or symmetric is not None or tables):
        raise RequestError("--out, --group, --symmetric, --asymmetric and --tables need --to FORMAT")
    words = read(text)
    from headway.checkpoint.resolve import resolve

    path = resolve(model)
    recipe = None if to is None else recipe_of(to, group, symmetric, tables)
    made = None if recipe is None else convert(model, path, recipe, out, overwrite)
    found = prove(path, made.written.path if made else path, words, cache=bool(cache))
    if json:
        terminal.print_json(data(model, recipe, made, found))
        return
    for line in report(model, recipe, made, found, own=text is None):
        print(line)


def read(file: Path | None) -> str:
    """The text of the proof."""
    from headway.evaluate.drift import SAMPLE

    file = file or SAMPLE
    try:
        with terminal.utf8(str(file)):
            return terminal.not_empty(str(file), file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from None


def recipe_of(to: str, group: int | None, symmetric: bool | None, tables: str) -> Recipe:
    """What was asked for; RequestError for options that do not go together."""
    from headway.quant import Recipe

    recipe = Recipe(to=to, tables=tables, **{} if group is None else {"group": group}, symmetric=symmetric is not False)
    if recipe.format.name != "int4" and (group is not None or symmetric is not None):
        raise RequestError(f"--group, --symmetric and --asymmetric are for int4; {recipe.format.name} has its own")
    return recipe


# Writing


@dataclass(frozen=True)
class Made:
    """A file or folder that was written."""

    plan: Plan
    written: Written
    seconds: float


def convert(ref: str, path: Path, recipe: Recipe, out: Path | None, overwrite: bool) -> Made:
    """Write the model at `path`, which the user calls `ref`, as `recipe` says."""
    from headway.checkpoint.store import open_store
    from headway.quant import plan, write
    from headway.quant.write import check_target
    from headway.source import open_source

    with open_store(path) as store:
        source = open_source(path, store)
        planned = plan(source.spec, recipe)
        target = out or default_target(ref, path, source, recipe)
        check_target(source, planned, target, overwrite=overwrite)
        began = time.perf_counter()
        with terminal.progress(f"rounding to {recipe.format.name}") as progress:
            written = write(
                source, planned, target, extras=tokenizer_files(path), overwrite=overwrite, progress=progress
            )
    return Made(planned, written, time.perf_counter() - began)


def tokenizer_files(path: Path) -> Callable[[Path], None]:
    """What writes the tokenizer of the model at `path` to a folder, if there is one."""

    def write(folder: Path) -> None:
        from headway.model import find_tokenizer

        tokenizer = find_tokenizer(path)
        if tokenizer is not None:
            tokenizer.save(folder)

    return write


def default_target(ref: str, path: Path, source: Source, recipe: Recipe) -> Path:
    """In the current folder: the model's name, without the format that it had, and the new one's."""
    stem = path.stem if path.is_file() else Path(ref).resolve().name
    stem = re.sub(r"[.-]([IQ]+\d\w*|[BF]+\d+)$", "", stem, flags=re.IGNORECASE)
    into_gguf = recipe.format.gguf and source.store.format == "gguf"
    return Path(f"{stem}-{recipe.format.name}" + (".gguf" if into_gguf else ""))


# The proof


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two models."""

    file_bytes: int
    bits: float  # of a weight in the file
    memory_bytes: int  # of weights
    cache_bytes: float  # of keys and values, a token
    engine: str
    held: str  # types in memory
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Both models on one text."""

    drift: Drift
    sides: tuple[Side, Side]
    cache: bool
    notes: tuple[str, ...]


def prove(path: Path, other: Path, words: str, *, cache: bool) -> Proof:
    """The model at `path` beside the one at `other`; with `cache` the latter keeps keys and values in int8."""
    from headway.evaluate.drift import drift, rows_of

    one = loaded(path)
    two = loaded(other, "int8" if cache else "auto") if cache or other != path else one
    ids = one.ids(words)
    rows = rows_of(ids, one.spec.decoder.context)
    with terminal.progress("comparing answers", lambda count: f"{count:,.0f} tokens") as progress:
        found = drift(answers(one), answers(two), rows, progress)
    speeds = decode_speeds(one, two, ids)
    return Proof(
        drift=found,
        sides=(side(path, one, speeds[0]), side(other, two, speeds[1])),
        cache=cache,
        notes=notes(one, two),
    )


def loaded(path: Path, cache: str = "auto") -> Model:
    """The model at `path` on a tape, or as modules where there can be none."""
    from headway.cli.loading import use_cores
    from headway.model import load

    with terminal.progress(f"loading {path.name}") as progress:
        model = load(path, cache=cache, progress=progress)
    if model.report is not None and model.report.engine == "modules":
        use_cores()
    return model


def answers(model: Model) -> Answers:
    """What a model answers, whatever runs it."""
    from headway.evaluate.drift import of_modules, of_program
    from headway.tape import Program

    return of_program(model.runner) if isinstance(model.runner, Program) else of_modules(model.runner)


def decode_speeds(one: Model, two: Model, ids: Sequence[int]) -> tuple[float, float]:
    """Tokens a second of both, one answer at a time, in turn."""
    count = min(DECODED, one.spec.decoder.context - PROMPT)
    if count < 2:
        return 0.0, 0.0
    speeds = [(decode_speed(one, ids, count), decode_speed(two, ids, count)) for _ in range(TURNS)]
    return median(each[0] for each in speeds), median(each[1] for each in speeds)


def decode_speed(model: Model, ids: Sequence[int], count: int) -> float:
    """Tokens a second after the first."""
    options: dict[str, Any] = {"max_tokens": count, "temperature": 0.0, "repetition_penalty": 1.0, "ignore_end": True}
    times = [time.perf_counter() for _ in model.stream(list(ids[:PROMPT]), **options)]
    return (len(times) - 1) / (times[-1] - times[0])


def side(path: Path, model: Model, speed: float) -> Side:
    """What one model takes."""
    from headway.cli.facts import types

    found = model.report
    assert found is not None
    cache = model.runner.cache(1, min(256, model.spec.decoder.context))
    return Side(
        file_bytes=sum(each.stat().st_size for each in weight_files(path)),
        bits=8 * found.file_bytes / max(1, sum(found.file_dtypes.values())),
        memory_bytes=found.bytes,
        cache_bytes=cache.nbytes / cache.capacity,
        engine=found.engine,
        held=types(found.dtypes),
        tokens_per_second=speed,
    )


def weight_files(path: Path) -> list[Path]:
    """The files that hold the weights of the model at `path`."""
    from headway.checkpoint.store import open_store

    with open_store(path) as store:
        return sorted({entry.file for entry in store.values()})


def notes(one: Model, two: Model) -> tuple[str, ...]:
    """What the figures do not say."""
    found = []
    assert one.report is not None
    assert two.report is not None
    kinds = [name for name in Counter(one.report.file_dtypes) if name not in ("F32", "F16", "BF16", "F64")]
    if kinds:
        found.append(f"the original is rounded itself ({', '.join(kinds)}): what that cost it is not counted")
    if two.report.engine == "modules":
        found.append(f"both ran as modules, on what rounding left, as float32: {two.report.note}")
    return tuple(found)


# Saying it


def report(model: str, recipe: Recipe | None, made: Made | None, found: Proof, *, own: bool) -> list[str]:
    """For people."""
    what = " and ".join([recipe.describe()] if recipe else [])
    what += (", " if what else "") + "a cache in int8" if found.cache else ""
    lines = [f"{Path(model).name} in {what}" if recipe else f"{Path(model).name} with {what}"]
    if made is not None:
        size = terminal.size(made.written.nbytes)
        lines[0] += f": {made.written.path}, {size}, in {made.seconds:.1f} s"
        lines += [*made.written.notes, *odd_groups(made.written)]
    one, two = found.sides
    head = recipe.format.name if recipe else "int8 cache"
    rows = [
        ("file", terminal.size(one.file_bytes), terminal.size(two.file_bytes)),
        ("bits a weight", f"{one.bits:.2f}", f"{two.bits:.2f}"),
        ("weights in memory", terminal.size(one.memory_bytes), terminal.size(two.memory_bytes)),
        ("cache of a token", terminal.size(one.cache_bytes), terminal.size(two.cache_bytes)),
        ("perplexity", f"{found.drift.perplexity:.3f}", f"{found.drift.other_perplexity:.3f}"),
        ("decoding, tokens/s", f"{one.tokens_per_second:.1f}", f"{two.tokens_per_second:.1f}"),
    ]
    lines += ["", f"{'':<20}{'original':>12}{head:>12}"]
    lines += [f"{name:<20}{here:>12}{there:>12}" for name, here, there in rows]
    drift = found.drift
    spread = f"mean {drift.mean_divergence:.4f}, 99th percentile {drift.p99_divergence:.3f}"
    spread += f", most {drift.most_divergence:.3f}"
    source = "a text of ours, English and Chinese" if own else "the text"
    lines += [
        "",
        f"The next token's distribution, at {drift.tokens:,} places of {source}:",
        f"  KL(original || {head}), nats: {spread}",
        f"  the same token is likeliest at {100 * drift.same_choice:.1f}% of them",
        "",
        f"Both ran on {one.engine}." if one.engine == two.engine else f"They ran on {one.engine} and {two.engine}.",
        *(f"Note: {note}." for note in found.notes),
    ]
    return lines


def odd_groups(written: Written) -> list[str]:
    """A line on groups that are nothing but zeros, and one on those that became so."""
    lines = []
    for name, count in (
        ("empty_groups", "were all zeros and stay so"),
        ("lost_groups", "were too small and are 0 now"),
    ):
        there = [each for each in written.matrices if getattr(each, name)]
        if there:
            total = sum(getattr(each, name) for each in there)
            lines.append(
                f"{total} groups {count}, in {', '.join(each.path for each in there[:3])}" + ("..." * (len(there) > 3))
            )
    return lines


def data(model: str, recipe: Recipe | None, made: Made | None, found: Proof) -> dict[str, Any]:
    """For programs."""
    one, two = (asdict(each) for each in found.sides)
    return {
        "model": model,
        "recipe": asdict(recipe) if recipe else None,
        "cache": "int8" if found.cache else None,
        "written": None
        if made is None
        else {
            "path": str(made.written.path),
            "bytes": made.written.nbytes,
            "seconds": round(made.seconds, 3),
            "notes": list(made.written.notes),
            "exceptions": dict(made.plan.exceptions),
            "matrices": [asdict(each) for each in made.written.matrices],
        },
        "drift": asdict(found.drift),
        "original": one,
        "other": two,
        "notes": list(found.notes),
    }
