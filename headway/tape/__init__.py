"""A model as a flat list of native calls, prepared once from its spec and run whole for every step; no torch."""

from headway.tape.cache import TapeCache
from headway.tape.lower import missing
from headway.tape.obstacle import obstacle
from headway.tape.program import Program
from headway.tape.weights import Weights

__all__ = ["Program", "TapeCache", "Weights", "missing", "obstacle"]
