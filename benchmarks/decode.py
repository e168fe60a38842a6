"""How fast does one answer grow? Greedy, 64 tokens of prompt, the 63 tokens after the first, beside transformers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from _common import Figure, Goal, Limits, Options, at_rest, interleaved, options, seconds, show
from _engines import Generate, Prompts, Work, agreement, ours, prompt, saved, theirs

import headway
from headway.model import EngineName

PROMPT, NEW = 64, 64
ENGINES: tuple[EngineName, ...] = ("modules", "tape")
GOALS = {"fp32": Goal("ratio", "at least", 1.15), "bf16": Goal("ratio", "at least", 1.5)}


def main() -> None:
    chosen = options(__doc__, rounds=5)
    others, limits = at_rest(), Limits.measured()
    with saved(chosen, "fp32") as [folder]:
        figures = [figure(folder, dtype, engine, limits, chosen) for engine in ENGINES for dtype in GOALS]
    show(__doc__, figures, chosen, others, limits)


def figure(folder: Path, dtype: str, engine: EngineName, limits: Limits, chosen: Options) -> Figure:
    """Both sides in one dtype."""
    model = headway.load(folder, dtype=dtype, engine=engine)
    prompts = [prompt(model, PROMPT)]
    engines = {"ours": ours(model), "theirs": theirs(folder, dtype)}
    runs = {name: partial(speed, generate, prompts) for name, generate in engines.items()}
    samples = interleaved(runs, chosen.rounds)
    return Figure(
        what=f"decode, {dtype}, {engine}",
        unit="tokens/s",
        ours=samples["ours"],
        beside=samples["theirs"],
        yardstick="transformers",
        limit=1 / Work(model, limits).step([PROMPT + NEW // 2]),
        goal=GOALS[dtype],
        remark=agreement(*(generate(prompts, NEW) for generate in engines.values())),
    )


def speed(generate: Generate, prompts: Prompts) -> float:
    """Tokens a second, the prompt and the first token taken out."""
    first = seconds(lambda: generate(prompts, 1))
    return (NEW - 1) / (seconds(lambda: generate(prompts, NEW)) - first)


if __name__ == "__main__":
    main()
