"""How long does a model take to load, and how much memory on the way? Every time in a fresh process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from _common import Figure, Goal, Limits, Options, at_rest, interleaved, model_file, options, process, show, task
from _engines import DTYPES, saved

FROM_GGUF = "import sys, headway; headway.load(sys.argv[1])"
PEER_FROM_GGUF = """
import os, sys
from transformers import AutoModelForCausalLM
folder, file = os.path.split(sys.argv[1])
AutoModelForCausalLM.from_pretrained(folder, gguf_file=file)
"""
READY = Goal("value", "at most", 4.0)
TIME = Goal("ratio", "at most", 2.0)
MEMORY = Goal("ratio", "at most", 1.15)


def main() -> None:
    chosen = options(__doc__, rounds=5, peer="load with transformers too (from GGUF that is over 30 s a round)")
    others, limits = at_rest(), Limits.measured()
    with saved(chosen, *DTYPES) as folders:
        figures = from_gguf(model_file(chosen), weights(folders[0]).stat().st_size, limits, chosen)
        for folder in folders:
            figures += from_safetensors(folder, limits, chosen)
    show(__doc__, figures, chosen, others, limits)


def weights(folder: Path) -> Path:
    """The one file of safetensors in it."""
    return folder / "model.safetensors"


def from_gguf(file: Path, unpacked: int, limits: Limits, chosen: Options) -> list[Figure]:
    """Whole processes: the interpreter starts, imports, loads and ends. `unpacked` is the model's size in float32."""
    size = file.stat().st_size
    programs = {"headway": ["-c", FROM_GGUF, str(file)], "import torch": ["-c", "import torch"]}
    if chosen.peer:
        programs["transformers"] = ["-c", PEER_FROM_GGUF, str(file)]
    runs = {name: partial(process, *program) for name, program in programs.items()}
    samples = interleaved(runs, chosen.rounds)
    return [
        Figure(
            what=f"whole process, GGUF of {size / 1e6:.0f} MB",
            unit="s",
            ours=samples["headway"],
            beside=samples[yardstick],
            yardstick=yardstick,
            limit=(size + unpacked) / limits.read,
            goal=READY,
        )
        for yardstick in programs
        if yardstick != "headway"
    ]


def from_safetensors(folder: Path, limits: Limits, chosen: Options) -> list[Figure]:
    """After the imports: what the file holds, then the folder with its tokenizer, beside a plain read of the file."""
    file = weights(folder)
    size = file.stat().st_size
    places = {"network": folder, "load": folder, "read": file}
    if chosen.peer:
        places["transformers"] = folder
    runs = {name: partial(task, name, str(place)) for name, place in places.items()}
    samples = interleaved(runs, chosen.rounds)
    times = {name: [sample["seconds"] for sample in of_it] for name, of_it in samples.items()}
    peaks = {name: [sample["peak"] / 1e6 for sample in of_it] for name, of_it in samples.items()}
    # A byte is read from the page cache and written to its tensor.
    time = partial(Figure, unit="s", limit=2 * size / limits.read)
    memory = partial(Figure, unit="MB", limit=size / 1e6)
    read = times["read"]
    sizes = [size / 1e6] * chosen.rounds
    name = f"{folder.name} safetensors of {size / 1e6:.0f} MB"
    figures = [
        time(what=name, ours=times["network"], beside=read, yardstick="plain read", goal=TIME),
        memory(what="  peak memory", ours=peaks["network"], beside=sizes, yardstick="file", goal=MEMORY),
        time(what="  with its tokenizer", ours=times["load"], beside=read, yardstick="plain read", goal=TIME),
        memory(what="  peak memory", ours=peaks["load"], beside=sizes, yardstick="file", goal=MEMORY),
    ]
    if chosen.peer:
        peer = "transformers, no tokenizer"
        figures += [
            time(what="  time", ours=times["network"], beside=times["transformers"], yardstick=peer),
            memory(what="  peak memory", ours=peaks["network"], beside=peaks["transformers"], yardstick=peer),
        ]
    return figures


if __name__ == "__main__":
    main()
