"""`headway explain`: where a model looks and what each layer would say; one head worked by hand."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from headway.cli import options as shared
from headway.cli import terminal
from headway.errors import RequestError

if TYPE_CHECKING:
    from headway.explain import Explanation, Language, Worked

LAYERS: dict[Language, dict[str, str]] = {
    "en": {
        "title": "At the last token, {token}, layer by layer",
        "layer": "layer",
        "looks": "looks at",
        "says": "would say",
        "next": "Next token",
        "note": "looks at: the mean attention of the layer's heads; @ is the position. would say: the vector behind "
        "that layer (-: before the first), put through the model's last norm and head at once: the logit lens.",
    },
    "zh": {
        "title": "最后一个词元 {token}，逐层来看",
        "layer": "层",
        "looks": "看哪里",
        "says": "会说什么",
        "next": "下一个词元",
        "note": "看哪里：该层各头注意力的平均，@ 后是位置。会说什么：把该层之后（-：第一层之前）的向量"
        "直接交给模型最后的归一化和输出头，即 logit lens。",
    },
}


def command(
    model: shared.ModelRef,
    text: Annotated[str, Argument(metavar="TEXT", help="The text to explain; - reads stdin.", show_default=False)],
    worked: Annotated[bool, Option("--worked", help="Work through one attention head, step by step.")] = False,
    layer: Annotated[int, Option(metavar="N", help="The layer of --worked, from 0.")] = 0,
    head: Annotated[int, Option(metavar="M", help="The query head of --worked, from 0.")] = 0,
    branch: Annotated[str, Option(metavar="NAME", help="The attention, in a layer that has several.")] = "",
    digits: Annotated[int, Option(metavar="N", min=0, max=12, help="Decimals in the tables of --worked.")] = 3,
    top: Annotated[int, Option(metavar="K", min=1, help="Tokens listed for each layer, without --worked.")] = 3,
    lang: Annotated[str, Option(metavar="LANG", help="Language of the words: en or zh.")] = "en",
    json: shared.Json = False,
    dtype: shared.Dtype = "float32",
    device: shared.Device = "cpu",
) -> None:
    """Work through one attention head on a model's own numbers.

    With --worked, plain Python repeats every step of one head from the model's weights, and the network's own numbers
    stand beside it; the exit code is 1 if they do not agree. Without it, a line for each layer says where the last
    token looks, and what the model would say if it stopped there.
    """
    language = spoken(lang)
    if text == "-":
        text = terminal.read_stdin().removesuffix("\n").removesuffix("\r")
    text = terminal.not_empty("TEXT", text)

    from headway.cli.loading import open_model

    loaded = open_model(model, dtype=dtype, device=device, engine="modules").model
    ids, context = loaded.ids(text), loaded.spec.decoder.context
    if len(ids) > context:
        raise RequestError(f"TEXT has {len(ids)} tokens, but the model's context is {context}; shorten it")
    from headway.explain import explain, worked_example

    if not worked:
        found = explain(loaded.network, ids, tokenizer=loaded.tokenizer, top=top)
        if json:
            terminal.print_json(asdict(found))
        else:
            show_layers(found, language)
        return
    example = worked_example(loaded.network, ids, layer=layer, head=head, branch=branch, tokenizer=loaded.tokenizer)
    if json:
        terminal.print_json(data(example, language))
    else:
        from headway.cli.example import Page

        Page(example, language, digits).show(model)
    if not example.agrees:
        raise Exit(1)


def spoken(lang: str) -> Language:
    """The language of that name; RequestError for one that headway does not speak here."""
    match lang:
        case "en" | "zh":
            return lang
        case _:
            raise RequestError(f"--lang {lang} is not a language of these pages; give en or zh")


def data(worked: Worked, language: Language) -> dict[str, Any]:
    """A worked example for programs; minus infinity, which JSON has not, is null."""
    from headway.explain import explain_step

    return {
        "tokens": [asdict(token) for token in worked.tokens],
        "layer": worked.layer,
        "branch": worked.branch,
        "head": worked.head,
        "kv_head": worked.kv_head,
        "heads": worked.mixer.heads,
        "kv_heads": worked.mixer.kv_heads,
        "scale": worked.mixer.scale,
        "dtype": worked.dtype,
        "backend": worked.backend,
        "steps": [
            {
                "step": step.key,
                **asdict(explain_step(worked, step.key, language)),
                "python": finite(step.exact),
                "network": None if step.fast is None else finite(step.fast),
                "difference": step.difference,
            }
            for step in worked.steps
        ],
        "difference": worked.difference,
        "tolerance": worked.tolerance,
        "agrees": worked.agrees,
    }


def finite(rows: list[list[float]]) -> list[list[float | None]]:
    """The same numbers, with None for what is not finite."""
    return [[value if math.isfinite(value) else None for value in row] for row in rows]


def show_layers(found: Explanation, language: Language) -> None:
    """A line for each layer, and the likeliest next tokens."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from headway.cli.example import screen

    say, console = LAYERS[language], screen()
    names = [token.text for token in found.tokens]
    console.print(Text(say["title"].format(token=names[-1]), style="bold"))
    table = Table(say["layer"], say["looks"], say["says"], box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.columns[0].justify = "right"
    table.add_row("-", "", shares([(each.text, each.probability) for each in found.embedding_says]))
    for view in found.layers:
        looks = shares([(f"{names[look.position]}@{look.position}", look.weight) for look in view.looks])
        says = shares([(each.text, each.probability) for each in view.says])
        table.add_row(str(view.layer), looks, says)
    console.print(table)
    console.print(Text(f"\n{say['next']}", style="bold"))
    for each in found.candidates:
        console.print(f"  {each.probability:7.2%}  {each.text}", soft_wrap=True)
    console.print(Text(f"\n{say['note']}", style="dim"))


def shares(pairs: list[tuple[str, float]]) -> str:
    """Names with their shares: cat 41%, mat 12%."""
    return "  ".join(f"{name} {share:.0%}" for name, share in pairs)
