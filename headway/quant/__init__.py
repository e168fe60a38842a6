"""Weights in fewer bits: formats as data, plans over a spec, rounding, and files of the result; no torch."""

from headway.quant.formats import FORMATS, Format, format_of
from headway.quant.recipe import Plan, Recipe, plan
from headway.quant.rounding import Rounded, Rounding, plain
from headway.quant.write import Written, write

__all__ = [
    "FORMATS",
    "Format",
    "Plan",
    "Recipe",
    "Rounded",
    "Rounding",
    "Written",
    "format_of",
    "plain",
    "plan",
    "write",
]
