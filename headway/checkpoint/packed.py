"""Folders of integer weights (compressed-tensors): every packed matrix as one tensor of a Store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headway.checkpoint.dtypes import Floats
from headway.checkpoint.files import Entry, Store, shown
from headway.checkpoint.integers import Integers, eight_bits, four_bits, whole_row
from headway.errors import CheckpointError

METHOD = "compressed-tensors"
# What entries of packed matrices have for a dtype.
INT8, INT4 = "INT8", "INT4"
_PARTS = ("weight_scale", "weight_packed", "weight_shape", "weight_zero_point", "weight_g_idx")


@dataclass(frozen=True)
class _Scheme:
    bits: int
    group: int  # 0: the whole row
    symmetric: bool


class PackedStore(Store):
    """A safetensors store in which `*.weight` may be integers with scales; other tensors are as they were."""

    def __init__(self, inner: Store, config: Mapping[str, Any], file: str) -> None:
        """`config` is `quantization_config` of the config.json at `file`; CheckpointError when it cannot be read."""
        self._inner = inner
        self._packed: dict[str, _Scheme] = {}
        schemes = _schemes(config, file)
        names = set(inner.names)
        entries = []
        for entry in inner.values():
            module, _, last = entry.name.rpartition(".")
            if last == "weight_packed" or (last == "weight" and f"{module}.weight_scale" in names):
                entries.append(self._matrix(module, entry, schemes))
            elif last not in _PARTS:
                entries.append(entry)
        super().__init__(inner.path, entries, inner.metadata, {})

    @property
    def format(self) -> str:
        """'safetensors'."""
        return self._inner.format

    def packed(self, name: str) -> Integers | None:
        """The integers of a packed matrix; None for a tensor that is not one."""
        scheme = self._packed.get(name)
        if scheme is None:
            return None
        module, place = name.rpartition(".")[0], f"{shown(self.path)}: {shown(name)}"
        scales = self._part(f"{module}.weight_scale")
        if scheme.bits == 8:
            return eight_bits(place, self._inner.read(name), scales)
        zeros = None if scheme.symmetric else self._inner.read(f"{module}.weight_zero_point")
        rows, cols = self.entry(name).shape
        packed = self._inner.read(f"{module}.weight_packed")
        return four_bits(place, (rows, cols), packed, scales.astype(np.float16), zeros, scheme.group)

    def read(self, name: str) -> np.ndarray:
        """As `Store.read`; of a packed matrix its codes."""
        found = self.packed(name)
        return self._inner.read(name) if found is None else found.codes

    def read_into(self, name: str, buffer: Any) -> None:
        """As `Store.read_into`, for tensors that are not packed."""
        self._inner.read_into(name, buffer)

    def floats(self, name: str, out: Floats | None = None) -> Floats:
        """As `Store.floats`; a packed matrix dequantised."""
        found = self.packed(name)
        if found is None:
            return self._inner.floats(name, out)
        values = found.floats()
        if out is None:
            return values
        np.copyto(out.reshape(values.shape), values)
        return out

    def release(self, name: str) -> None:
        """As `Store.release`."""
        for part in self._parts(name):
            self._inner.release(part)

    def close(self) -> None:
        """As `Store.close`."""
        self._inner.close()

    def _parts(self, name: str) -> list[str]:
        if name not in self._packed:
            return [name]
        module = name.rpartition(".")[0]
        return [part for part in (name, *(f"{module}.{each}" for each in _PARTS)) if part in self._inner]

    def _part(self, name: str) -> Floats:
        return self._inner.floats(name)

    def _matrix(self, module: str, entry: Entry, schemes: list[_Scheme]) -> Entry:
        """One entry for a packed matrix, whose bytes are those of all its parts."""
        name, place = f"{module}.weight", f"{shown(self._inner.path)}: {shown(module)}"
        bits = 4 if entry.name.endswith("weight_packed") else 8
        if bits == 8 and (entry.dtype != "I8" or len(entry.shape) != 2):
            raise CheckpointError(f"{place}.weight has scales beside it but is {entry.dtype} {list(entry.shape)}")
        shape = entry.shape if bits == 8 else self._shape(place, module, entry)
        need = ["weight_scale"]
        scheme = self._scheme(place, module, bits, shape, schemes)
        need += [] if scheme.symmetric else ["weight_zero_point"]
        if missing := [part for part in need if f"{module}.{part}" not in self._inner]:
            raise CheckpointError(f"{place}.{missing[0]} is not there; fetch the checkpoint again")
        for part, dtypes in (("weight_packed", ("I32",)), ("weight_zero_point", ("I32",))):
            there = self._inner.get(f"{module}.{part}")
            if there is not None and there.dtype not in dtypes:
                raise CheckpointError(f"{place}.{part} is {there.dtype}, not I32")
        self._packed[name] = scheme
        size = sum(self._inner.entry(part).nbytes for part in self._parts(name))
        return replace(entry, name=name, shape=shape, dtype=INT8 if bits == 8 else INT4, nbytes=size)

    def _shape(self, place: str, module: str, entry: Entry) -> tuple[int, ...]:
        there = self._inner.get(f"{module}.weight_shape")
        if there is None or there.shape != (2,) or there.dtype not in ("I32", "I64"):
            raise CheckpointError(f"{place}.weight_shape must be two whole numbers beside weight_packed")
        rows, cols = (int(size) for size in self._inner.read(f"{module}.weight_shape"))
        if len(entry.shape) != 2 or entry.shape[0] != rows or not 0 < cols <= 8 * entry.shape[1]:
            raise CheckpointError(f"{place}: weight_shape is {[rows, cols]}, weight_packed {list(entry.shape)}")
        return rows, cols

    def _scheme(self, place: str, module: str, bits: int, shape: tuple[int, ...], schemes: list[_Scheme]) -> _Scheme:
        """The scheme of one matrix: that of its bits, and where there are several the one that its scales fit."""
        groups = self._inner.entry(f"{module}.weight_scale").shape[-1] if f"{module}.weight_scale" in self._inner else 0
        zeros = f"{module}.weight_zero_point" in self._inner
        for scheme in schemes:
            group = scheme.group or whole_row(shape[1])
            if scheme.bits == bits and scheme.symmetric != zeros and groups in (-(-shape[1] // group), 0):
                return scheme
        raise CheckpointError(f"{place}: {bits} bits with {groups} scales a row are in no group of quantization_config")


def _schemes(config: Mapping[str, Any], file: str) -> list[_Scheme]:
    """The kinds of integers that a quantization_config speaks of; CheckpointError for what cannot be read."""
    place = f"{file}: quantization_config"
    method = config.get("quant_method")
    if method != METHOD:
        raise CheckpointError(f"{place}.quant_method = {method!r} cannot be read; load the unquantised model")
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise CheckpointError(f"{place}.config_groups must name at least one group")
    return [_scheme(group, f"{place}.config_groups.{shown(name)}") for name, group in groups.items()]


def _scheme(group: Any, place: str) -> _Scheme:
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise CheckpointError(f"{place}.weights must say how weights are kept")
    if group.get("input_activations"):
        raise CheckpointError(f"{place}.input_activations cannot be read; only weights may be quantised")
    bits, strategy, size = weights.get("num_bits"), weights.get("strategy"), weights.get("group_size")
    symmetric = weights.get("symmetric", True)
    known = weights.get("type", "int") == "int" and (bits, strategy) in ((8, "channel"), (4, "channel"), (4, "group"))
    if not known or weights.get("actorder"):
        raise CheckpointError(
            f"{place}.weights: {shown(bits)} bits, {shown(strategy)} {shown(size)} cannot be read; "
            f"8 bits a channel, and 4 bits a channel or group, can"
        )
    if bits == 8 and symmetric is not True:
        raise CheckpointError(f"{place}.weights.symmetric = {shown(symmetric)} cannot be read with 8 bits")
    if strategy == "channel":
        return _Scheme(8 if bits == 8 else 4, 0, bool(symmetric))
    if type(size) is not int or size not in (32, 64, 96, 128):
        raise CheckpointError(f"{place}.weights.group_size = {shown(size)} is not one of 32, 64, 96, 128")
    return _Scheme(4, size, bool(symmetric))
