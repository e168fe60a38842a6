"""`headway generate`: completions, streamed or in a batch."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from json import JSONDecodeError, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from headway.cli import options as shared
from headway.cli import terminal
from headway.errors import DataError, RequestError

if TYPE_CHECKING:
    from headway.generate import Completion, Event, Request
    from headway.model import Model, Options, Prompt


def command(
    model: shared.ModelRef,
    prompt: Annotated[
        str | None, Argument(metavar="PROMPT", help="The text to go on from; - reads stdin.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        Option(metavar="FILE", help='Many prompts: one a line, or .jsonl with lines like {"prompt": "..."}.'),
    ] = None,
    chat: Annotated[
        bool, Option("--chat/--raw", help="Put the prompt as a user of the chat template, or go on from it as it is.")
    ] = False,
    system: Annotated[str | None, Option(metavar="TEXT", help="The system message, with --chat.")] = None,
    max_tokens: shared.MaxTokens = None,
    temperature: shared.Temperature = None,
    top_k: shared.TopK = None,
    top_p: shared.TopP = None,
    min_p: shared.MinP = None,
    seed: shared.Seed = None,
    stop: shared.Stop = None,
    n: Annotated[int | None, Option("--n", metavar="N", help="Answers to each prompt.")] = None,
    num_beams: Annotated[int | None, Option(metavar="N", help="Search with N beams; --n best are given.")] = None,
    no_stream: Annotated[bool, Option("--no-stream", help="Print an answer when it is whole.")] = False,
    json: shared.Json = False,
    dtype: shared.Dtype = "auto",
    device: shared.Device = "cpu",
    engine: shared.Engine = "auto",
    cache: shared.Cache = "auto",
) -> None:
    """Continue a text, or answer it, one prompt or a file of them.

    What is not given is what the model's own files say, and else greedy. Answers go to stdout, a line of facts to
    stderr.
    """
    prompts = read_prompts(prompt, file)
    if system is not None and not chat:
        raise RequestError("--system needs --chat: a system message is part of a chat template")
    told = None if system is None else terminal.argument("--system", system)

    from headway.cli.facts import Clock
    from headway.cli.loading import open_model

    opened = open_model(
        model, dtype=dtype, device=device, engine=shared.engine_name(engine), cache=cache,
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
        stop=shared.texts(stop), n=n, beams=num_beams,
    )  # fmt: skip
    asked = opened.options
    puts = [put(text, chat, told) for text in prompts]
    clock, loaded = Clock(), opened.model
    if asked.get("beams", loaded.defaults.beams.beams) > 1:
        answers: Iterable[Completion] = clock.finished(loaded.generate_all(puts, **asked))
    else:
        events = clock.watch(loaded.engine.run(requests(loaded, puts, asked)))
        if len(puts) * asked.get("n", 1) == 1 and not (json or no_stream):
            stream(events)
            answers = ()
        else:
            answers = in_order(events, len(puts), asked.get("n", 1))
    if json:
        found = [data(answer, prompts) for answer in answers]
        terminal.print_json({"answers": found, "facts": {**opened.loading.data(), **clock.data()}})
        return
    for answer in answers:
        show(answer, prompts, alone=len(puts) * asked.get("n", 1) == 1)
    terminal.note(f"{opened.loading.line()} | {clock.line()}")


def read_prompts(prompt: str | None, file: Path | None) -> list[str]:
    """The prompts of a call, from its argument, a file or stdin; an empty one is refused."""
    if file is not None:
        if prompt is not None:
            raise RequestError("give a PROMPT or --file, not both")
        return read_file(file)
    if prompt is None and (sys.stdin is None or sys.stdin.isatty()):
        raise RequestError('nothing to go on from: give a PROMPT, "-" to read it from stdin, or --file FILE')
    if prompt is None or prompt == "-":
        return [terminal.not_empty("the prompt on stdin", terminal.read_stdin().removesuffix("\n").removesuffix("\r"))]
    return [terminal.argument("PROMPT", prompt)]


def read_file(file: Path) -> list[str]:
    """A prompt a line; empty lines are left out, and those of a .jsonl file are strings or objects with a prompt."""
    try:
        with terminal.utf8(str(file)):
            lines = file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise DataError(f"{file}: holds no prompts; write one a line")
    if file.suffix != ".jsonl":
        return [line for _, line in numbered]
    return [_json_prompt(file, number, line) for number, line in numbered]


def _json_prompt(file: Path, number: int, line: str) -> str:
    where = f"{file} line {number}"
    try:
        value = loads(line)
    except JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg})") from None
    text = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise DataError(f'{where}: neither a string nor an object with "prompt": "..."')
    return terminal.not_empty(where, text)


def put(text: str, chat: bool, system: str | None) -> Prompt:
    """A prompt as it is, or as a user's turn."""
    if not chat:
        return text
    turns = [{"role": "system", "content": system}] if system is not None else []
    return [*turns, {"role": "user", "content": text}]


def requests(model: Model, puts: Sequence[Prompt], asked: Options) -> list[Request]:
    """A request for every prompt; the RequestError of one among several says which."""
    made = []
    for number, each in enumerate(puts, 1):
        try:
            made.append(model.engine.limits.check(model.request(each, **asked)))
        except RequestError as error:
            raise RequestError(f"prompt {number} of {len(puts)}: {error}" if len(puts) > 1 else str(error)) from None
    return made


def stream(events: Iterable[Event]) -> None:
    """Write one answer as it comes, and end its last line."""
    last = ""
    for event in events:
        terminal.write(event.text)
        last = event.text or last
    if not last.endswith("\n"):
        terminal.write("\n")


def in_order(events: Iterable[Event], requests: int, n: int) -> Iterator[Completion]:
    """Answers by request and choice, each as soon as it and those before it are whole."""
    from headway.generate import join

    kept: dict[tuple[int, int], list[Event]] = {(r, c): [] for r in range(requests) for c in range(n)}
    waiting = deque(kept)
    for event in events:
        kept[event.request, event.choice].append(event)
        while waiting and kept[waiting[0]] and kept[waiting[0]][-1].finish:
            yield from join(kept.pop(waiting.popleft()))


def show(answer: Completion, prompts: Sequence[str], *, alone: bool) -> None:
    """A whole answer; with others it has a line above that says whose it is."""
    if not alone:
        start = terminal.one_line(prompts[answer.request])
        print(f"--- {answer.request + 1}.{answer.choice + 1}  {start if len(start) < 60 else start[:57] + '...'}")
    print(answer.text.removesuffix("\n"), flush=True)


def data(answer: Completion, prompts: Sequence[str]) -> dict[str, Any]:
    """A whole answer for programs."""
    return {
        "prompt": prompts[answer.request],
        "choice": answer.choice,
        "text": answer.text,
        "tokens": list(answer.tokens),
        "finish": answer.finish,
        "stopped_by": answer.stopped_by,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
    }
