"""`headway plan`: what a run will take before it is started, and the real tensors' bytes beside it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from headway.cli import options as shared
from headway.cli import terminal

if TYPE_CHECKING:
    from headway.explain import CacheKind, Measured, Plan
    from headway.explain.ledger import Peak

BITS = {"float32": 32, "bfloat16": 16, "float16": 16}
Row = tuple[str, str, int, int | None]  # what, how it is counted, predicted bytes, measured bytes


def command(
    model: shared.ModelRef,
    tokens: Annotated[
        int | None, Option(metavar="N", min=1, help="Tokens of a sequence; its whole context if not given.")
    ] = None,
    batch: Annotated[int, Option(metavar="B", min=1, help="Sequences at the same time; every beam is one.")] = 1,
    dtype: shared.Dtype = "auto",
    cache_dtype: Annotated[
        str, Option(metavar="TYPE", help="Count the cache in this type; auto is the model's.")
    ] = "auto",
    measure: Annotated[bool, Option("--measure", help="Load the model and count its real tensors too.")] = False,
    json: shared.Json = False,
) -> None:
    """Predict weights, cache, activations and operations of a run.

    Nothing but headers is read, and of a hub model nothing but its config is fetched; with --measure the model is
    loaded, and the exit code is 1 where weights or cache are not as predicted.
    """
    path = place(model, whole=measure)

    from headway import explain

    found = explain.outline_of(path, dtype)
    planned = explain.plan(
        found.spec,
        dtype=found.dtypes,
        tokens=tokens or 0,
        batch=batch,
        cache_dtype=cache_dtype,
        file_bytes=found.file_bytes,
    )
    real: Measured | None = None
    if measure:
        from headway.cli.loading import open_model

        real = explain.measure(open_model(model, dtype=dtype, engine="modules").model.network, planned)
    if json:
        terminal.print_json(data(planned, real))
    else:
        show(model, planned, real)
    if real and (real.weight_bytes, real.cache_bytes) != (planned.weight_bytes, planned.cache_bytes):
        raise Exit(1)


def place(ref: str, *, whole: bool) -> Path:
    """Where the model lies; of a hub model that is not needed `whole`, a folder with its config.json will do."""
    from headway.checkpoint import hub
    from headway.checkpoint.resolve import resolve
    from headway.checkpoint.shelf import SHELF

    if whole or Path(ref).expanduser().exists() or ref in SHELF or (hub_id := hub.parse(ref)) is None or hub_id.file:
        return resolve(ref)
    config = hub_config(hub_id.repo, hub_id.revision)
    return config.parent if config else resolve(ref)  # which says in one line what is wrong


def hub_config(repo: str, revision: str | None) -> Path | None:
    """The config.json of a hub model, from the cache or fetched; None where it cannot be had."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    from headway.checkpoint.place import offline

    try:
        return Path(hf_hub_download(repo, "config.json", revision=revision, local_files_only=offline()))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError):
        return None


def data(planned: Plan, real: Measured | None) -> dict[str, Any]:
    """A plan for programs: bytes and operations as whole numbers."""
    found = {
        **asdict(planned),
        "parameters": planned.parameters,
        "cache_bytes_per_token": planned.cache_bytes_per_token,
        "activation_bytes": planned.activation_bytes,
        "total_bytes": planned.total_bytes,
    }
    return found if real is None else {**found, "measured": asdict(real)}


def show(name: str, planned: Plan, real: Measured | None) -> None:
    """A plan for people: a line of bytes for each kind of memory, and below it how they are counted."""
    from rich.text import Text

    from headway.cli.example import screen

    console = screen()
    run = f"{many(planned.batch, 'sequence')} of {many(planned.tokens, 'token')}"
    title = f"{name}: {run} (context {planned.context})"
    console.print(Text(title, style="bold"), soft_wrap=True)
    heads = f"{'':<22}{'predicted':>20}{'':>11}" + (f"{'measured':>22}" if real else "")
    console.print(Text(heads.rstrip(), style="dim"), soft_wrap=True)
    for what, how, predicted, measured in rows(planned, real):
        line = Text(f"{what:<22}", style="bold")
        line.append(f"{bytes_of(predicted):>20}{binary(predicted):>11}", style="not bold")
        if measured is not None:
            same = measured == predicted
            line.append(f"{('= ' if same else '') + bytes_of(measured):>22}", style="green" if same else "yellow")
        console.print(line, soft_wrap=True)
        for part in Text(how, style="dim").wrap(console, console.width - 4):
            part.rstrip()
            console.print(Text("    ") + part, soft_wrap=True)
    console.print()
    for note in notes(planned):
        for part in Text(note).wrap(console, console.width):
            part.rstrip()
            console.print(part, soft_wrap=True)


def rows(planned: Plan, real: Measured | None) -> list[Row]:
    """A line for each kind of memory."""
    found: list[Row] = []
    for held in planned.weights:
        how = f"{held.parameters:,} parameters x {held.bytes // held.parameters} B ({held.dtype})"
        measured = real.weight_bytes if real and len(planned.weights) == 1 else None
        found.append(("weights", how, held.bytes, measured))
    if len(planned.weights) > 1:
        found.append(("weights", "together", planned.weight_bytes, real.weight_bytes if real else None))
    for kind in planned.cache:
        measured = real.cache_bytes if real and len(planned.cache) == 1 else None
        found.append(("cache", cache_formula(kind, planned), kind.bytes, measured))
    if len(planned.cache) > 1:
        found.append(("cache", "together", planned.cache_bytes, real.cache_bytes if real else None))
    last = min(planned.tokens, planned.chunk)
    for what, peak, measured_peak, new in (
        ("prefill", planned.prefill, real.prefill if real else None, last),
        ("decode", planned.decode, real.decode if real else None, 1),
    ):
        how = f"{planned.batch} x {many(new, 'token')} at a time; at the peak {largest(peak)}, ..."
        found.append((f"activations, {what}", how, peak.bytes, measured_peak.bytes if measured_peak else None))
    measured = real.weight_bytes + real.cache_bytes + max(real.prefill.bytes, real.decode.bytes) if real else None
    found.append(("together", "weights, cache, and the larger of the activations", planned.total_bytes, measured))
    return found


def cache_formula(kind: CacheKind, planned: Plan) -> str:
    """The cache's bytes as a product."""
    item = BITS[planned.cache_dtype] // 8
    numbers = f"2 x {kind.head_dim}" if kind.head_dim == kind.value_dim else f"({kind.head_dim} + {kind.value_dim})"
    window = "" if kind.window is None else f" (window {kind.window})"
    each = f"{many(len(kind.layers), 'layer')}{window} x {many(kind.kv_heads, 'key head')} x {numbers} x {item} B"
    times = f"{many(kind.kept_tokens, 'token')} x {many(planned.batch, 'sequence')}"
    return f"{each} = {kind.bytes_per_token:,} B a token; x {times}"


def many(number: int, noun: str) -> str:
    """1 layer, 2 layers."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def largest(peak: Peak) -> str:
    """The largest tensors of a peak: 3 x [1, 512, 1536] float32."""
    return ", ".join(f"{each.count} x {list(each.shape)} {each.dtype}" for each in peak.largest)


def notes(planned: Plan) -> list[str]:
    """What a table of bytes leaves out."""
    said = []
    if planned.file_bytes:
        bits = 8 * planned.file_bytes / planned.parameters
        size = f"{bytes_of(planned.file_bytes)} ({binary(planned.file_bytes)})"
        said.append(f"In the file the weights take {size}: {bits:.2f} bits each.")
    prompts, one = count(planned.prefill_flops), count(planned.decode_flops)
    said.append(f"Operations: {prompts} for the prompts, {one} for one more token of each sequence.")
    said.append("Not counted: the interpreter and its libraries, and what a kernel takes inside itself.")
    return said


def bytes_of(count: int) -> str:
    """Bytes to the last one: 47,185,920 B."""
    return f"{count:,} B"


def binary(count: float) -> str:
    """Bytes in powers of two: 45.0 MiB."""
    unit = 0
    while count >= 1023.95 and unit < 4:
        count, unit = count / 1024, unit + 1
    return f"{count:.1f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}" if unit else ""


def count(operations: int) -> str:
    """Operations in powers of ten, a multiplication and an addition being two: 253.8 GFLOP."""
    value, unit = float(operations), 0
    while value >= 999.95 and unit < 5:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {('', 'K', 'M', 'G', 'T', 'P')[unit]}FLOP"
