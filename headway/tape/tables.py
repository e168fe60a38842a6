"""What a step reads by position: rotary tables, learned and sinusoidal positions, distance biases."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headway.errors import RequestError
from headway.native.library import Library
from headway.native.matrix import Matrix
from headway.native.structs import AttentionArgs, EmbedArgs, Format, RotaryArgs
from headway.ops.tables import Floats, buckets, turns, waves
from headway.spec.position import BucketBias, LearnedPositions, Rope, SinusoidalPositions
from headway.tape.place import Inputs


@dataclass(frozen=True)
class Moment:
    """One native run: how many tokens, how long their rows get, and how long each token's whole row will be."""

    n: int
    longest: int  # positions of the step end below this
    capacity: int  # of the cache: tables are made this long at once
    horizons: Sequence[int]  # of each token


class Table(Protocol):
    """Something to make ready before a run."""

    def prepare(self, moment: Moment) -> None: ...


class RopeTable:
    """cos and sin of every position, for a rope whose table is the same at every length."""

    def __init__(self, rope: Rope, inputs: Inputs) -> None:
        self.rope, self.inputs, self.length = rope, inputs, 0
        self.users: list[RotaryArgs] = []

    def add(self, args: RotaryArgs) -> None:
        """Let `args` read this table."""
        args.positions = self.inputs.positions.ctypes.data
        self.users.append(args)

    def prepare(self, moment: Moment) -> None:
        if moment.longest <= self.length:
            return
        self.length = max(moment.longest, moment.capacity)
        self.cos, self.sin = turns(self.rope, 0, np.arange(self.length))
        for args in self.users:
            args.cos, args.sin, args.table_rows = self.cos.ctypes.data, self.sin.ctypes.data, self.length


class ChangingRopeTable:
    """cos and sin of the step's own tokens, for a rope whose table depends on how long the whole row will be."""

    def __init__(self, rope: Rope, inputs: Inputs) -> None:
        self.rope, self.inputs = rope, inputs
        tokens = len(inputs.ids)
        self.cos, self.sin = np.empty((2, tokens, rope.dim // 2), np.float32)

    def add(self, args: RotaryArgs) -> None:
        """Let `args` read this table."""
        args.positions, args.table_rows = self.inputs.order.ctypes.data, len(self.inputs.order)
        args.cos, args.sin = self.cos.ctypes.data, self.sin.ctypes.data

    def prepare(self, moment: Moment) -> None:
        horizons = np.asarray(moment.horizons)
        for horizon in set(moment.horizons):
            tokens = np.flatnonzero(horizons == horizon)
            self.cos[tokens], self.sin[tokens] = turns(self.rope, int(horizon), self.inputs.positions[tokens])


def rope_table(rope: Rope, inputs: Inputs) -> RopeTable | ChangingRopeTable:
    """The kind that `rope` needs."""
    return (RopeTable if rope.regime(1) == rope.regime(2**62) else ChangingRopeTable)(rope, inputs)


class LearnedTable:
    """Rows of a learned table: the ids are positions, moved by the offset."""

    def __init__(self, spec: LearnedPositions, args: EmbedArgs, inputs: Inputs) -> None:
        self.spec, self.inputs = spec, inputs
        self.ids = np.zeros(len(inputs.ids), np.int32)
        args.ids = self.ids.ctypes.data

    def prepare(self, moment: Moment) -> None:
        if moment.longest > self.spec.length:
            raise RequestError(f"{moment.longest} tokens are more than the model's {self.spec.length} positions")
        np.add(self.inputs.positions[: moment.n], self.spec.offset, out=self.ids[: moment.n])


class WaveTable:
    """Sines and cosines of every position, as a matrix whose rows are read."""

    def __init__(
        self, spec: SinusoidalPositions, width: int, args: EmbedArgs, inputs: Inputs, library: Library
    ) -> None:
        self.spec, self.width, self.args, self.library, self.length = spec, width, args, library, 0
        args.ids = inputs.positions.ctypes.data

    def prepare(self, moment: Moment) -> None:
        if moment.longest <= self.length:
            return
        self.length = max(moment.longest, moment.capacity)
        table = waves(self.spec, self.width, np.arange(self.length))
        self.matrix = Matrix(self.library, Format.F32, self.length, self.width, table)
        self.args.matrix = ctypes.pointer(self.matrix.struct)


class BiasTable:
    """A bias for every head, token and key of the step, from a learned number per distance bucket."""

    def __init__(self, spec: BucketBias, weight: Floats, inputs: Inputs) -> None:
        self.spec, self.weight, self.inputs = spec, weight, inputs
        self.users: list[AttentionArgs] = []

    def prepare(self, moment: Moment) -> None:
        keys = np.arange(moment.longest)
        distances = keys[None] - self.inputs.positions[: moment.n, None]
        by_distance = self.weight[buckets(self.spec, np.arange(-moment.longest, moment.longest + 1))]
        self.values = np.ascontiguousarray(by_distance[distances + moment.longest].transpose(2, 0, 1))
        for args in self.users:
            args.bias = self.values.ctypes.data
            args.bias_head, args.bias_token = moment.n * moment.longest, moment.longest
