"""Refusals of a request's values: one line with the field, the value and what is allowed."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from headway.errors import RequestError


def number(field: str, value: Any, *, low: float, high: float = math.inf, open_low: bool = False) -> None:
    """Refuse what is no finite number between the two."""
    plain = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    inside = plain and (low < value if open_low else low <= value) and value <= high
    require(inside, field, value, f"must be {_reach(low, high, open_low)}")


def whole(field: str, value: Any, *, low: int | None = None, high: int | None = None) -> None:
    """Refuse what is no whole number between the two."""
    reach = "" if low is None else f", {low} or more" if high is None else f" from {low} to {high}"
    plain = isinstance(value, int) and not isinstance(value, bool)
    inside = plain and (low is None or value >= low) and (high is None or value <= high)
    require(inside, field, value, f"must be a whole number{reach}")


def flag(field: str, value: Any) -> None:
    """Refuse what is neither True nor False."""
    require(isinstance(value, bool), field, value, "must be True or False")


def ids(field: str, value: Any) -> None:
    """Refuse what is no tuple of whole numbers of 0 or more."""
    require(isinstance(value, tuple), field, value, "must be a tuple of token ids")
    wrong = [token for token in value if not isinstance(token, int) or isinstance(token, bool) or token < 0]
    for token in wrong:
        require(False, f"{field} id", token, "must be a whole number of 0 or more")


def pairs(field: str, value: Any) -> None:
    """Refuse what is no tuple of pairs."""
    require(isinstance(value, tuple), field, value, "must be a tuple of (id, bias) pairs")
    for pair in value:
        require(isinstance(pair, tuple) and len(pair) == 2, field, pair, "must be an (id, bias) pair")


def texts(field: str, value: Any) -> None:
    """Refuse what is no tuple of strings with something in them."""
    require(isinstance(value, tuple), field, value, "must be a tuple of strings")
    for text in value:
        require(isinstance(text, str) and text != "", field, text, "must be a string that is not empty")


def inside(field: str, tokens: Iterable[int], vocab: int) -> None:
    """Refuse an id that the vocabulary does not have."""
    for token in tokens:
        require(token < vocab, f"{field} id", token, f"must be in the vocabulary: below {vocab}")


def distinct(field: str, tokens: list[int]) -> None:
    """Refuse an id that is named twice."""
    twice = [token for token, times in Counter(tokens).items() if times > 1]
    for token in twice:
        require(False, f"{field} id", token, "appears more than once; give each id one bias")


def require(holds: bool, field: str, value: object, rule: str) -> None:
    """RequestError unless `holds`."""
    if not holds:
        raise RequestError(f"{field} = {repr(value)[:80]} {rule}")


def _reach(low: float, high: float, open_low: bool) -> str:
    if math.isfinite(high):
        return f"a number from {low:g} to {high:g}"
    if math.isfinite(low):
        return f"a number above {low:g}" if open_low else f"a number, {low:g} or more"
    return "a finite number"
