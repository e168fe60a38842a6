"""Specs to JSON and back: the type's name travels in "is", and nothing but specs and plain values is accepted."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from headway.errors import SpecError
from headway.spec import mixers, model, parts, position, stems

_MODULES = (position, parts, mixers, stems, model)
TYPES: dict[str, type] = {
    name: value
    for module in _MODULES
    for name, value in vars(module).items()
    if isinstance(value, type) and dataclasses.is_dataclass(value)
}


def to_json(spec: Any) -> Any:
    """A spec as plain dictionaries, lists, numbers and strings."""
    if dataclasses.is_dataclass(spec) and not isinstance(spec, type):
        fields = {f.name: to_json(getattr(spec, f.name)) for f in dataclasses.fields(spec)}
        return {"is": type(spec).__name__, **fields}
    if isinstance(spec, tuple):
        return [to_json(item) for item in spec]
    return spec


def from_json(data: Any, path: str = "spec") -> Any:
    """The spec that `to_json` wrote; SpecError names the place of an unknown type, field or missing value."""
    if isinstance(data, list):
        return tuple(from_json(item, f"{path}[{index}]") for index, item in enumerate(data))
    if not isinstance(data, dict):
        return data
    kind = TYPES.get(data.get("is", ""))
    if kind is None:
        raise SpecError(f"{path}.is = {data.get('is')!r} is not a kind of spec; known: {', '.join(sorted(TYPES))}")
    known = {field.name: field for field in dataclasses.fields(kind)}
    given = {name: from_json(value, f"{path}.{name}") for name, value in data.items() if name != "is"}
    if unknown := sorted(given.keys() - known.keys()):
        raise SpecError(f"{path}.{unknown[0]} is not a field of {kind.__name__}; known: {', '.join(known)}")
    needed = (
        n for n, f in known.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    )
    if missing := [name for name in needed if name not in given]:
        raise SpecError(f"{path}.{missing[0]} is missing; a {kind.__name__} needs it")
    return kind(**given)


def dumps(spec: Any) -> str:
    """`to_json` as text, indented for reading and diffing."""
    return json.dumps(to_json(spec), indent=2, ensure_ascii=False)


def loads(text: str) -> Any:
    """The spec in `text`; SpecError when it is not JSON or not a spec."""
    try:
        return from_json(json.loads(text))
    except json.JSONDecodeError as error:
        raise SpecError(f"not a spec: {error}") from None
