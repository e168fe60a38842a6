"""The arguments and options that several verbs share, so that they read the same everywhere."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Argument, Option

from headway.cli import terminal
from headway.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway.model import EngineName, Model, Options

ENGINE_NAMES = ("auto", "tape", "modules")

ModelRef = Annotated[
    str,
    Argument(metavar="MODEL", help='A name of "headway models", a folder, a file, or a hub id.', show_default=False),
]
Dtype = Annotated[
    str,
    Option(
        metavar="TYPE", help="Type of the weights in memory: auto, float32, bfloat16 or float16. auto keeps the file's."
    ),
]
Device = Annotated[str, Option(metavar="DEVICE", help="Where to compute: cpu, cuda, cuda:1, mps.")]
Engine = Annotated[
    str,
    Option(
        metavar="NAME",
        help="What runs the model: tape, native calls on packed weights; modules, PyTorch; auto, a tape if one can.",
    ),
]
Cache = Annotated[
    str, Option(metavar="TYPE", help="Type of keys and values on a tape: auto, float32, float16, bfloat16 or int8.")
]
Json = Annotated[bool, Option("--json", help="Print JSON on stdout, and nothing else there.")]

MaxTokens = Annotated[int | None, Option(metavar="N", help="Tokens of an answer at most.")]
Temperature = Annotated[
    float | None, Option(metavar="T", help="Divides the logits; 0 always takes the likeliest token.")
]
TopK = Annotated[int | None, Option(metavar="K", help="Choose among the K likeliest tokens; 0 is all.")]
TopP = Annotated[
    float | None, Option(metavar="P", help="Choose among the likeliest tokens that together reach probability P.")
]
MinP = Annotated[
    float | None, Option(metavar="P", help="Choose among tokens of at least P times the highest probability.")
]
Seed = Annotated[int | None, Option(metavar="N", help="The same seed draws the same answer; 0 if not given.")]
Stop = Annotated[
    list[str] | None, Option(metavar="TEXT", help="End the answer before this text; may be given several times.")
]


def texts(stop: list[str] | None) -> tuple[str, ...] | None:
    """Stop strings as they were meant."""
    return tuple(terminal.argument("--stop", text) for text in stop) if stop else None


def checked(**values: Any) -> Options:
    """What was given of these options; RequestError for a value that no model could take, before one is loaded."""
    from headway.generate import Beams, Request, Sampling

    given = {name: value for name, value in values.items() if value is not None}
    for kind, fixed in ((Sampling, {}), (Beams, {}), (Request, {"prompt": (0,), "max_tokens": 1})):
        kind(**{**fixed, **{field.name: given[field.name] for field in fields(kind) if field.name in given}})
    return cast("Options", given)


def warn_of_no_chance(model: Model, given: Mapping[str, Any]) -> None:
    """One line where options that shape a random choice were given, and there is none."""
    idle = [name for name in ("top_k", "top_p", "min_p", "seed") if name in given]
    if idle and "temperature" not in given and model.defaults.sampling.temperature == 0:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        terminal.note(f"headway: warning: {names} without --temperature: the likeliest token is always taken")


def engine_name(name: str) -> EngineName:
    """`name` if it is one of the engines; RequestError otherwise."""
    if name not in ENGINE_NAMES:
        raise RequestError(f"--engine {name} is not one of {', '.join(ENGINE_NAMES)}")
    return cast("EngineName", name)
