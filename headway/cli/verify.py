"""`headway verify`: two models, or one in every way of computing, beside each other layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from headway.cli import options as shared
from headway.cli import terminal
from headway.errors import RequestError

if TYPE_CHECKING:
    from headway.evaluate import Comparison
    from headway.model import Model

# English, code and Chinese, of different lengths.
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "def area(r):\n    return 3.14159 * r ** 2\n",
    "床前明月光，疑是地上霜。",
)


def command(
    model: shared.ModelRef,
    other: Annotated[
        str | None, Argument(metavar="OTHER", help="The model to compare it with.", show_default=False)
    ] = None,
    text: Annotated[
        list[str] | None, Option(metavar="TEXT", help="A text to compute; may be given several times.")
    ] = None,
    file: Annotated[Path | None, Option(metavar="FILE", help="Texts to compute, one a line, or a .jsonl.")] = None,
    tolerance: Annotated[
        float | None,
        Option(
            metavar="X",
            min=0,
            help="The largest difference that passes, as a share of a token's largest value (or of 1, if that is "
            "less). Without it 0.0001; for float16 0.01, for bfloat16 0.06.",
        ),
    ] = None,
    json: shared.Json = False,
    dtype: shared.Dtype = "auto",
    device: shared.Device = "cpu",
) -> None:
    """Compare two models on the same inputs, layer by layer.

    With one MODEL, the same texts are computed alone, batched, padded, packed, cached, in chunks and with the formula
    written out, which must all agree. The exit code is 0 when everything agrees and 1 when something differs.
    """
    if text and file:
        raise RequestError("give --text or --file, not both")
    if tolerance == 0:
        raise RequestError("--tolerance 0 leaves no room for rounding; give a positive number")
    from headway.cli.generate import read_file

    texts = read_file(file) if file else [terminal.not_empty("--text", each) for each in text or TEXTS]
    from headway.cli.loading import open_model
    from headway.evaluate import check_alone, compare

    one = open_model(model, dtype=dtype, device=device, engine="modules").model
    two = open_model(other, dtype=dtype, device=device, engine="modules").model if other is not None else None
    rows = encode(one, texts, given=bool(text or file))
    if two is None:
        found = list(check_alone(one.network, rows, tolerance=tolerance or 0.0))
        report = alone_report(model, found, rows)
        tokens_agree = True
    else:
        tokens_agree = same_tokens(one, two, texts)
        found = [compare(one.network, two.network, rows, tolerance=tolerance or 0.0)]
        report = pair_report(model, str(other), found[0], rows, tokens_agree)
    agrees = tokens_agree and all(each.agrees for each in found)
    if json:
        terminal.print_json(data(found, tokens_agree, agrees))
    else:
        for line in report:
            print(line)
    if not agrees:
        raise Exit(1)


def encode(model: Model, texts: Sequence[str], *, given: bool) -> list[list[int]]:
    """The token ids of the texts; of a model without a tokenizer sample ids, unless texts were asked for."""
    from headway.evaluate import sample_rows

    if model.tokenizer is None and not given:
        return sample_rows(model.spec)
    rows = [model.ids(each) for each in texts]
    # The built-in texts must not fail on a model with a short context: their beginnings will do.
    return rows if given else [row[: model.spec.decoder.context] for row in rows]


def same_tokens(one: Model, two: Model, texts: Sequence[str]) -> bool:
    """Whether both tokenizers read the texts alike; where one has none, the ids of the other serve both."""
    if one.tokenizer is None or two.tokenizer is None:
        return True
    return all(one.ids(text) == two.ids(text) for text in texts)


def data(found: Sequence[Comparison], tokens_agree: bool, agrees: bool) -> dict[str, Any]:
    """Comparisons for programs."""
    return {
        "agrees": agrees,
        "tokens_agree": tokens_agree,
        "comparisons": [
            {**asdict(each), "agrees": each.agrees, "first": each.first.site if each.first else None} for each in found
        ],
    }


def pair_report(
    one: str, other: str, found: Comparison, rows: Sequence[Sequence[int]], tokens_agree: bool
) -> list[str]:
    """Two models, a line for each site, and which is the first to differ."""
    lines = [f"{one} beside {other}, {given(rows)}", ""]
    width = max(len(gap.site) for gap in found.gaps)
    lines.append(f"{'':<{width}}  {'difference':>10}  {'relative':>8}")
    lines += [
        f"{gap.site:<{width}}  {gap.difference:>10.1e}  {gap.relative:>8.1e}{'' if gap.agrees else '  differs'}"
        for gap in found.gaps
    ]
    lines.append("")
    if not tokens_agree:
        lines.append("The two tokenizers read the texts differently; the ids are the first model's.")
    lines.append(f"The same token is likeliest at {found.same_choice} of {found.places} places.")
    lines.append(verdict(found))
    return lines


def alone_report(name: str, found: Sequence[Comparison], rows: Sequence[Sequence[int]]) -> list[str]:
    """One model, a line for each way to compute."""
    from headway.evaluate import CHECKS

    lines = [f"{name} against itself, {given(rows)}", "Each text alone, without a cache, is the measure.", ""]
    width = max(len(check.name) for check in CHECKS)
    lines.append(f"{'':<{width}}  {'difference':>10}  {'relative':>8}  {'widest at':<31}  first to differ")
    for each in found:
        wide, first = each.widest, each.first
        lines.append(
            f"{each.name:<{width}}  {wide.difference:>10.1e}  {wide.relative:>8.1e}  {wide.site:<31}  "
            f"{first.site if first else '-'}"
        )
    lines += ["", *(f"{check.name:<{width}}  {check.what}" for check in CHECKS), ""]
    if all(each.agrees for each in found):
        lines.append(f"All agree, within {found[0].tolerance:g} of a token's largest value.")
    else:
        lines += [f"{each.name}: {verdict(each)}" for each in found if not each.agrees]
    return lines


def given(rows: Sequence[Sequence[int]]) -> str:
    """How much was computed."""
    return f"{len(rows)} text{'s' if len(rows) > 1 else ''} of {', '.join(str(len(row)) for row in rows)} tokens"


def verdict(found: Comparison) -> str:
    """One line: they agree, or where they begin to differ."""
    first = found.first
    if first is None:
        return f"They agree, within {found.tolerance:g} of a token's largest value."
    share = f"{first.relative:.1e} of a token's largest value, where {found.tolerance:g} would pass"
    return f"They differ first at {first.site}: {share}."
