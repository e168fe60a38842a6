"""From files to a running model and back: finds the family, reads the spec, fills what runs, reports what it did."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from headway.loader.report import Loaded, Progress, Report, UnusedWeights, dtype_name
from headway.loader.tape import NoTapeError, load_tape
from headway.source import Match, Source, match, open_source

if TYPE_CHECKING:
    from headway.loader.dtypes import DTYPES, parse_dtype
    from headway.loader.modules import load_network
    from headway.loader.save import config_of, save_network

__all__ = [
    "DTYPES",
    "Loaded",
    "Match",
    "NoTapeError",
    "Progress",
    "Report",
    "Source",
    "UnusedWeights",
    "config_of",
    "dtype_name",
    "load_network",
    "load_tape",
    "match",
    "open_source",
    "parse_dtype",
    "save_network",
]

# What needs torch, and the part that it is in.
LATER = {
    "DTYPES": "dtypes",
    "parse_dtype": "dtypes",
    "load_network": "modules",
    "config_of": "save",
    "save_network": "save",
}

if not TYPE_CHECKING:  # a checker that saw this function would take any name for a public one

    def __getattr__(name: str) -> object:
        if name not in LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{LATER[name]}"), name)
        return value
