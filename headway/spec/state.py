"""What a mixer must remember between tokens, as data: the cache builds its slots from it."""

from __future__ import annotations

from dataclasses import dataclass

from headway.spec.mixers import Attention, Mixer
from headway.spec.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class KeyValueState:
    """Keys and values of past tokens; `window` keeps only the last so many, None keeps all."""

    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None

    @property
    def numbers(self) -> int:
        """Numbers kept for one token: K * (E_key + E_value)."""
        return self.kv_heads * (self.head_dim + self.value_dim)

    def tokens(self, length: int) -> int:
        """How many of `length` tokens are kept."""
        return length if self.window is None else min(length, self.window)


State = KeyValueState


def state_of(mixer: Mixer) -> State | None:
    """The state that `mixer` declares, or None when it sees one token at a time."""
    if not isinstance(mixer, Attention):
        return None
    return KeyValueState(
        kv_heads=mixer.kv_heads, head_dim=mixer.head_dim, value_dim=mixer.value_dim, window=mixer.mask.window
    )


def states(spec: ModelSpec) -> dict[str, State]:
    """The states of every mixer that has one, by the mixer's path."""
    found: dict[str, State] = {}
    for stack in spec.stacks:
        for index, layer in enumerate(stack.layers):
            for branch in layer.branches:
                state = state_of(branch.mixer)
                if state is not None:
                    found[f"stacks.{stack.name}.layers.{index}.{branch.name}"] = state
    return found
