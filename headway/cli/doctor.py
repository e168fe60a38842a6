"""`headway doctor`: what this machine has, what headway makes of it, and what is missing."""

from __future__ import annotations

import math
import os
import platform
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

from headway import __version__
from headway.cli import machine, terminal
from headway.cli.options import Json

LIBRARIES = ("torch", "numpy", "tokenizers", "huggingface_hub", "jinja2", "typer", "rich")
# One line of a distribution's metadata: 'openai>=2.0; extra == "serve"'.
REQUIREMENT = re.compile(r"""(?P<package>[\w.-]+).*;.*\bextra\s*==\s*["'](?P<extra>[\w.-]+)""")
Section = dict[str, Any]


def command(json: Json = False) -> None:
    """Show what this machine has, and what headway makes of it.

    Ends with exit code 1 when something that every verb needs does not work here.
    """
    problems: list[str] = []
    report: dict[str, Any] = {
        "python": python(),
        "libraries": libraries(),
        "processor": processor(),
        "memory": memory(),
    }
    torch_report = tried("torch", torch_build, problems)
    if torch_report is not None:
        report["torch"] = torch_report
        report["devices"] = tried("devices", devices, problems) or []
        report["headway"] = tried("headway", choices, problems) or {}
        report["a tiny model"] = tried("a tiny model", self_test, problems) or {}
    report["folders"] = tried("folders", folders, problems) or {}
    if report["folders"] and not report["folders"]["writable"]:
        problems.append(
            f"{report['folders']['models']} is not a folder that files can be kept in; set HEADWAY_HOME to one that is"
        )
    report["extras"] = extras()
    report["problems"] = problems
    if json:
        terminal.print_json(report)
    else:
        show(report)
    if problems:
        raise typer.Exit(1)


def tried(name: str, look: Callable[[], Any], problems: list[str]) -> Any:
    """What `look` finds; when it fails that is a finding too."""
    try:
        return look()
    except Exception as error:  # noqa: BLE001 - a doctor reports every failure
        problems.append(f"{name}: {type(error).__name__}: {terminal.one_line(str(error))}")
        return None


def python() -> Section:
    """The interpreter and the system."""
    return {
        "version": platform.python_version(),
        "executable": sys.executable,
        "system": platform.platform(),
        "environment": "virtual" if sys.prefix != sys.base_prefix else "system",
    }


def libraries() -> Section:
    """Versions of what headway stands on; None for what is not installed."""
    return {"headway": __version__, **{name: installed(name) for name in LIBRARIES}}


def installed(name: str) -> str | None:
    """The version of a distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def processor() -> Section:
    """Cores that are there, may be used and are granted, and the flags that make arithmetic fast."""
    limit = machine.core_limit()
    return {
        "name": machine.processor(),
        "cores": os.cpu_count(),
        "allowed": machine.allowed_cores(),
        "limit": None if math.isinf(limit) else limit,
        "usable": machine.usable_cores(),
        "flags": list(machine.flags()),
        "bfloat16": bool(machine.BF16_FLAGS & set(machine.flags())),
    }


def memory() -> Section:
    """Bytes of memory."""
    found = machine.memory()
    return {"total": found.total, "available": found.available, "limit": found.limit or None}


def torch_build() -> Section:
    """How torch was built, and what it uses."""
    import torch

    from headway.cli.loading import use_cores

    use_cores()
    return {
        "version": torch.__version__,
        "build": f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU",
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "mkl": torch.backends.mkl.is_available(),
        "onednn": torch.backends.mkldnn.is_available(),
        "threads": torch.get_num_threads(),
    }


def devices() -> list[Section]:
    """Where headway can compute: the names that --device takes."""
    import torch

    found: list[Section] = [{"device": "cpu", "name": machine.processor(), "bfloat16": processor()["bfloat16"]}]
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        card = torch.cuda.get_device_properties(index)
        bfloat16 = torch.cuda.get_device_capability(index) >= (8, 0)
        found.append({"device": f"cuda:{index}", "name": card.name, "memory": card.total_memory, "bfloat16": bfloat16})
    if torch.backends.mps.is_available():
        found.append({"device": "mps", "name": "Apple GPU", "bfloat16": True})
    return found


def choices() -> Section:
    """What headway does here unless it is told otherwise."""
    from headway.ops.attention import BACKENDS

    return {
        "device": "cpu",
        "dtype": "as the file has it; as modules, quantised GGUF becomes float32",
        "native": native(),
        "attention": list(BACKENDS),
        "threads": torch_build()["threads"],
    }


def native() -> Section:
    """The library that runs a model as a tape of native calls; without it everything runs as modules."""
    from headway.native import cores, library

    found = library.load()
    if found is None:
        return {"path": None, "reason": library.reason()}
    return {"path": found.path, "paths": list(found.paths), "file": str(found.file), "threads": cores.usable()}


def self_test() -> Section:
    """A model of a few thousand parameters is built and answers."""
    import time

    from headway import families
    from headway.families.kit import Config
    from headway.generate import Engine, Request
    from headway.nn.build import build

    began = time.perf_counter()
    family = families.by_name("llama")
    spec = family.read(Config(next(iter(family.tiny.values()))))
    answer = Engine(build(spec, seed=0)).complete([Request(prompt=(1, 2, 3), max_tokens=4)])[0]
    return {"answers": len(answer.tokens) == 4, "seconds": round(time.perf_counter() - began, 3)}


def folders() -> Section:
    """Where models are kept, and whether the network may be asked for more."""
    from huggingface_hub import constants, is_offline_mode

    from headway.checkpoint.place import home, offline

    return {
        "models": str(home()),
        "writable": writable(home()),
        "hub cache": str(constants.HF_HUB_CACHE),
        "offline": offline(),
        "hub offline": is_offline_mode(),
    }


def writable(folder: Path) -> bool:
    """Whether files could be made in `folder`, there or yet to be made; nothing is written."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def extras() -> list[Section]:
    """The optional parts of the installation: what each lacks, and the line that adds it."""
    try:
        wanted = metadata.requires("headway") or []
    except metadata.PackageNotFoundError:
        return []
    named: dict[str, list[str]] = {}
    for line in wanted:
        if found := REQUIREMENT.match(line):
            named.setdefault(found["extra"], []).append(found["package"])
    return [
        {
            "extra": extra,
            "missing": [package for package in packages if installed(package) is None],
            "install": f'pip install "headway[{extra}]"',
        }
        for extra, packages in named.items()
    ]


def show(report: dict[str, Any]) -> None:
    """The report as short lines under headings."""
    python, cpu, ram = report["python"], report["processor"], report["memory"]
    lines = [
        ("python", f"{python['version']}, {python['environment']} environment, {python['executable']}"),
        ("system", python["system"]),
        ("libraries", ", ".join(f"{name} {version or 'MISSING'}" for name, version in report["libraries"].items())),
        ("processor", f"{cpu['name']}: {_cores(cpu)}"),
        (
            "",
            f"flags {' '.join(cpu['flags']) or 'unknown'}; bfloat16 {'in hardware' if cpu['bfloat16'] else 'emulated'}",
        ),
        ("memory", _memory(ram)),
    ]
    if "torch" in report:
        torch = report["torch"]
        parts = [name for name, key in (("MKL", "mkl"), ("oneDNN", "onednn")) if torch[key]]
        lines.append(("torch", f"{torch['version']}, {torch['build']} build, {torch['vectors']}, {', '.join(parts)}"))
        lines += [("device", _device(device)) for device in report["devices"]]
        uses = report["headway"]
        if uses:
            lines.append(("headway", f"device {uses['device']}, {_threads(uses['threads'])}, dtype {uses['dtype']}"))
            lines.append(("", f"attention {' and '.join(uses['attention'])}"))
            lines.append(("native", _native(uses["native"])))
        if report["a tiny model"]:
            lines.append(("self-test", f"a tiny model answered in {report['a tiny model']['seconds']} s"))
    if report["folders"]:
        kept = report["folders"]
        network = "network off" if kept["offline"] else "network allowed"
        lines.append(("models", f"{kept['models']} ({'' if kept['writable'] else 'not '}writable), {network}"))
        lines.append(("hub cache", f"{kept['hub cache']}, {'offline' if kept['hub offline'] else 'online'}"))
    for extra in report["extras"]:
        lacks = f"lacks {', '.join(extra['missing'])}: {extra['install']}" if extra["missing"] else "complete"
        lines.append((f"extra {extra['extra']}", lacks))
    lines += [("PROBLEM", problem) for problem in report["problems"]]
    terminal.pairs(lines)
    print("\n" + ("Something that headway needs does not work here." if report["problems"] else "Everything works."))


def _cores(cpu: Section) -> str:
    said = f"{cpu['cores']} cores"
    said += f", {cpu['allowed']} allowed" if cpu["allowed"] != cpu["cores"] else ""
    return said + (f", time for {cpu['limit']:g} granted" if cpu["limit"] else "")


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _native(found: Section) -> str:
    if found["path"] is None:
        return f"none, models run as modules: {found['reason']}"
    return f"{found['path']} of {', '.join(found['paths'])}; {_threads(found['threads'])}; {found['file']}"


def _memory(ram: Section) -> str:
    if not ram["total"]:
        return "unknown"
    limit = f", of which this container may use {terminal.size(ram['limit'])}" if ram["limit"] else ""
    return f"{terminal.size(ram['total'])}{limit}, {terminal.size(ram['available'])} available"


def _device(device: Section) -> str:
    size = f", {terminal.size(device['memory'])}" if "memory" in device else ""
    return f"{device['device']}: {device['name']}{size}" + ("" if device["bfloat16"] else ", bfloat16 emulated")
