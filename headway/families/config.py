"""A config.json or GGUF metadata read field by field: every refusal names file, field, value and way out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.errors import CheckpointError
from headway.spec.parts import Activation

REQUIRED: Any = object()

# Beyond these no model has gone, and a spec lists its layers one by one.
MOST_LAYERS = 4096
MOST = 2**31 - 1

ACTIVATION_NAMES: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "gelu_quick",
    "silu": "silu",
    "swish": "silu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
}


@dataclass(frozen=True)
class Config:
    """Fields of `data`, an object in `file` that lies under `at` ("" is the top, "rope_scaling." a nested one).

    A `default` stands for an absent field and for null, unless `null` gives null a value of its own.
    """

    data: Mapping[str, Any]
    file: str = "config.json"
    at: str = ""

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.data.get(name) is not None

    def get(self, name: str, default: Any = REQUIRED, null: Any = REQUIRED) -> Any:
        """The field's value as it stands."""
        value = self.data.get(name)
        if value is not None:
            return value
        if name in self.data and null is not REQUIRED:
            return null
        if default is REQUIRED:
            raise CheckpointError(f"{self.file}: {self.at}{name} is missing, and this kind of model needs it")
        return default

    def whole(
        self, name: str, default: Any = REQUIRED, *, null: Any = REQUIRED, least: int = 1, most: int = MOST
    ) -> int:
        """A whole number from `least` to `most`."""
        value = self.get(name, default, null)
        if isinstance(value, float | np.floating) and float(value).is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
            raise self.refuse(name, value, f"must be a whole number from {least} to {most}")
        return int(value)

    def number(
        self,
        name: str,
        default: Any = REQUIRED,
        *,
        null: Any = REQUIRED,
        above: float = -math.inf,
        least: float = -math.inf,
    ) -> float:
        """A finite number above `above` and not below `least`."""
        value = self.get(name, default, null)
        number = _finite(value)
        if number is None or not number > above or number < least:
            bound = f" above {above:g}" if above > -math.inf else f", {least:g} or more" if least > -math.inf else ""
            raise self.refuse(name, value, f"must be a finite number{bound}")
        return number

    def fraction(self, name: str, default: Any = REQUIRED) -> float:
        """A number from 0 up to and without 1."""
        value = self.number(name, default)
        if not 0 <= value < 1:
            raise self.refuse(name, value, "must be at least 0 and below 1")
        return value

    def flag(self, name: str, default: Any = REQUIRED) -> bool:
        """True or false."""
        value = self.get(name, default)
        if not isinstance(value, bool | np.bool_):
            raise self.refuse(name, value, "must be true or false")
        return bool(value)

    def text(self, name: str, default: Any = REQUIRED) -> str:
        """A string."""
        value = self.get(name, default)
        if not isinstance(value, str):
            raise self.refuse(name, value, "must be a string")
        return value

    def activation(self, name: str, default: Any = REQUIRED) -> Activation:
        """An activation under any of its published names."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in ACTIVATION_NAMES:
            raise self.refuse(name, value, f"is not a known activation: {', '.join(ACTIVATION_NAMES)}")
        return ACTIVATION_NAMES[value]

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of finite numbers."""
        value = self.get(name)
        numbers = [_finite(item) for item in value] if isinstance(value, list | tuple | np.ndarray) else [None]
        found = tuple(number for number in numbers if number is not None)
        if len(found) != len(numbers):
            raise self.refuse(name, value, "must be a list of finite numbers")
        return found

    def window(self, name: str, default: int | None = None) -> int | None:
        """Visible keys of a sliding window; 0 and null are no window."""
        return self.whole(name, default or 0, null=0, least=0) or None

    def section(self, name: str) -> Config:
        """A nested object as a Config of its own; an absent one is empty."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise self.refuse(name, value, "must be an object")
        return Config(value, self.file, f"{self.at}{name}.")

    def under(self, prefix: str) -> Config:
        """The fields whose names begin with `prefix`, read without it (GGUF's "llama.")."""
        inside = {name.removeprefix(prefix): value for name, value in self.data.items() if name.startswith(prefix)}
        return Config(inside, self.file, f"{self.at}{prefix}")

    def refuse(self, name: str, value: Any, rule: str) -> CheckpointError:
        """The error for a field with an impossible value."""
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return CheckpointError(f"{self.file}: {self.at}{name} = {shown} {rule}")


def _finite(value: Any) -> float | None:
    """`value` as a finite float, or None when it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
