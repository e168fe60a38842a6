"""How fast do eight answers to uneven prompts grow, prompts included? Beside transformers with left padding."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from _common import Figure, Goal, Limits, Options, at_rest, interleaved, options, seconds, show
from _engines import Generate, Prompts, Work, agreement, ours, prompt, saved, theirs

import headway
from headway.model import EngineName

ENGINES: tuple[EngineName, ...] = ("modules", "tape")
LENGTHS = (9, 96, 17, 64, 33, 12, 80, 48)
NEW = 64


def main() -> None:
    chosen = options(__doc__, rounds=5)
    others, limits = at_rest(), Limits.measured()
    with saved(chosen, "fp32") as [folder]:
        figures = [figure(folder, engine, limits, chosen) for engine in ENGINES]
    show(__doc__, figures, chosen, others, limits)


def figure(folder: Path, engine: EngineName, limits: Limits, chosen: Options) -> Figure:
    """Both sides on the same prompts."""
    model = headway.load(folder, dtype="fp32", engine=engine)
    prompts = [prompt(model, length, skip=700 * row) for row, length in enumerate(LENGTHS)]
    engines = {"ours": ours(model), "theirs": theirs(folder, "fp32")}
    runs = {name: partial(speed, generate, prompts) for name, generate in engines.items()}
    samples = interleaved(runs, chosen.rounds)
    same = agreement(*(generate(prompts, NEW) for generate in engines.values()))
    work = Work(model, limits)
    least = work.prefill(LENGTHS) + (NEW - 1) * work.step([length + NEW // 2 for length in LENGTHS])
    return Figure(
        what=f"{len(prompts)} at once, fp32, {engine}",
        unit="tokens/s",
        ours=samples["ours"],
        beside=samples["theirs"],
        yardstick="transformers",
        limit=NEW * len(prompts) / least,
        goal=Goal("ratio", "at least", 1.5),
        remark=same,
    )


def speed(generate: Generate, prompts: Prompts) -> float:
    """New tokens a second, of all answers together."""
    return NEW * len(prompts) / seconds(lambda: generate(prompts, NEW))


if __name__ == "__main__":
    main()
