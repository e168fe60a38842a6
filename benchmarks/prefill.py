"""How long until the first token of an answer to 512 tokens? Beside transformers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median

from _common import Figure, Goal, Limits, Options, at_rest, interleaved, options, seconds, show
from _engines import Generate, Prompts, Work, agreement, ours, prompt, saved, theirs

import headway

PROMPT = 512
GOALS = {"fp32": Goal("ratio", "at least", 1.0), "bf16": None}


def main() -> None:
    chosen = options(__doc__, rounds=7)
    others, limits = at_rest(), Limits.measured()
    with saved(chosen, "fp32") as [folder]:
        figures = [figure(folder, dtype, limits, chosen) for dtype in GOALS]
    show(__doc__, figures, chosen, others, limits)


def figure(folder: Path, dtype: str, limits: Limits, chosen: Options) -> Figure:
    """Both engines in one dtype."""
    model = headway.load(folder, dtype=dtype)
    prompts = [prompt(model, PROMPT)]
    engines = {"ours": ours(model), "theirs": theirs(folder, dtype)}
    runs = {name: partial(speed, generate, prompts) for name, generate in engines.items()}
    samples = interleaved(runs, chosen.rounds)
    first = PROMPT / median(samples["ours"])
    same = agreement(*(generate(prompts, 1) for generate in engines.values()))
    return Figure(
        what=f"prefill, {dtype}",
        unit="tokens/s",
        ours=samples["ours"],
        beside=samples["theirs"],
        yardstick="transformers",
        limit=PROMPT / Work(model, limits).prefill([PROMPT]),
        goal=GOALS[dtype],
        remark=f"first token after {first:.2f} s, {same}",
    )


def speed(generate: Generate, prompts: Prompts) -> float:
    """Tokens of the prompt a second, until the first of the answer is there."""
    return PROMPT / seconds(lambda: generate(prompts, 1))


if __name__ == "__main__":
    main()
