"""How the past is kept: one clock for all layers, slots that each mixer's state asks for."""

from headway.cache.cache import Cache
from headway.cache.slots import ContiguousSlot, Keys, Slot, WindowSlot
from headway.cache.step import Step

__all__ = ["Cache", "ContiguousSlot", "Keys", "Slot", "Step", "WindowSlot"]
