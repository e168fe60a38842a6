"""The C structs of `source/headway.h`, field by field; a test holds their sizes equal."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum


class Format(IntEnum):
    """Element formats of matrices and caches: GGUF's numbers, headway's own from 100."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30
    I8 = 100
    I4 = 101


class Activation(IntEnum):
    """Activations by their name in the spec, in upper case."""

    RELU = 0
    GELU = 1
    GELU_TANH = 2
    GELU_QUICK = 3
    SILU = 4
    SIGMOID = 5
    TANH = 6


class Op(IntEnum):
    """What a step of a tape does."""

    LINEAR = 0
    RMS_NORM = 1
    LAYER_NORM = 2
    ROTARY = 3
    KEEP = 4
    ATTENTION = 5
    ACTIVATION = 6
    COMBINE = 7
    SOFTCAP = 8
    EMBED = 9
    GATHER = 10
    TOP = 11


TARGETS = 4


class MatrixStruct(ctypes.Structure):
    _fields_ = (
        ("format", c_int32),
        ("packed", c_int32),
        ("rows", c_int64),
        ("cols", c_int64),
        ("stride", c_int64),
        ("group", c_int32),
        ("has_zeros", c_int32),
        ("data", c_void_p),
        ("scales", c_void_p),
        ("zeros", c_void_p),
    )


class Target(ctypes.Structure):
    _fields_ = (("matrix", POINTER(MatrixStruct)), ("bias", c_void_p), ("y", c_void_p), ("y_stride", c_int64))


class LinearArgs(ctypes.Structure):
    _fields_ = (
        ("n", c_void_p),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("targets", c_int32),
        ("accumulate", c_int32),
        ("scale", c_float),
        ("target", Target * TARGETS),
        ("work", c_void_p),
    )


class NormArgs(ctypes.Structure):
    _fields_ = (
        ("n", c_void_p),
        ("x", c_void_p),
        ("y", c_void_p),
        ("x_stride", c_int64),
        ("y_stride", c_int64),
        ("width", c_int64),
        ("per", c_int32),
        ("eps", c_float),
        ("offset", c_float),
        ("weight", c_void_p),
        ("bias", c_void_p),
    )


class RotaryArgs(ctypes.Structure):
    _fields_ = (
        ("n", c_void_p),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("heads", c_int32),
        ("head_dim", c_int32),
        ("dim", c_int32),
        ("interleaved", c_int32),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("positions", c_void_p),
        ("table_rows", c_int64),
    )


class CacheStruct(ctypes.Structure):
    _fields_ = (
        ("k", c_void_p),
        ("v", c_void_p),
        ("format", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("value_dim", c_int32),
        ("room", c_int64),
        ("k_row", c_int64),
        ("k_head", c_int64),
        ("v_row", c_int64),
        ("v_head", c_int64),
        ("rows", c_int64),
        ("k_scale", c_void_p),
        ("v_scale", c_void_p),
    )


class KeepArgs(ctypes.Structure):
    _fields_ = (
        ("n", c_void_p),
        ("cache", POINTER(CacheStruct)),
        ("k", c_void_p),
        ("v", c_void_p),
        ("k_stride", c_int64),
        ("v_stride", c_int64),
        ("rows", c_void_p),
        ("positions", c_void_p),
    )


class AttentionArgs(ctypes.Structure):
    _fields_ = (
        ("n", c_void_p),
        ("q", c_void_p),
        ("y", c_void_p),
        ("q_stride", c_int64),
        ("y_stride", c_int64),
        ("cache", POINTER(CacheStruct)),
        ("fresh_k", c_void_p),
        ("fresh_v", c_void_p),
        ("fresh_k_stride", c_int64),
        ("fresh_v_stride", c_int64),
        ("first", c_void_p),
        ("rows", c_void_p),
        ("positions", c_void_p),
        ("lengths", c_void_p),
        ("heads", c_int32),
        ("causal", c_int32),
        ("before", c_int64),
        ("after", c_int64),
        ("scale", c_float),
        ("softcap", c_float),
        ("sinks", c_void_p),
        ("bias", c_void_p),
        ("bias_head", c_int64),
        ("bias_token", c_int64),
        ("slopes", c_void_p),
        ("work", c_void_p),
    )


class ActivationArgs(ctypes.Structure):
    _fields_ = (
        ("n", c_void_p),
        ("x", c_void_p),
        ("gate", c_void_p),
        ("y", c_void_p),
        ("x_stride", c_int64),
        ("gate_stride", c_int64),
        ("y_stride", c_int64),
        ("width", c_int64),
        ("kind", c_int32),
    )


class CombineArgs(ctypes.Structure):
    _fields_ = (
        ("n", c_void_p),
        ("a", c_void_p),
        ("b", c_void_p),
        ("vector", c_void_p),
        ("y", c_void_p),
        ("a_stride", c_int64),
        ("b_stride", c_int64),
        ("y_stride", c_int64),
        ("width", c_int64),
        ("a_scale", c_float),
        ("b_scale", c_float),
    )


class SoftcapArgs(ctypes.Structure):
    _fields_ = (
        ("n", c_void_p),
        ("x", c_void_p),
        ("y", c_void_p),
        ("x_stride", c_int64),
        ("y_stride", c_int64),
        ("width", c_int64),
        ("cap", c_float),
    )


class EmbedArgs(ctypes.Structure):
    _fields_ = (
        ("n", c_void_p),
        ("matrix", POINTER(MatrixStruct)),
        ("ids", c_void_p),
        ("y", c_void_p),
        ("y_stride", c_int64),
        ("scale", c_float),
        ("accumulate", c_int32),
    )


class GatherArgs(ctypes.Structure):
    _fields_ = (
        ("n", c_void_p),
        ("x", c_void_p),
        ("index", c_void_p),
        ("y", c_void_p),
        ("x_stride", c_int64),
        ("y_stride", c_int64),
        ("width", c_int64),
    )


class TopArgs(ctypes.Structure):
    _fields_ = (
        ("n", c_void_p),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("width", c_int64),
        ("k", c_int32),
        ("ids", c_void_p),
        ("values", c_void_p),
    )


class StepStruct(ctypes.Structure):
    _fields_ = (("op", c_int32), ("skip", c_int32), ("args", c_void_p))


ARGS: dict[Op, type[ctypes.Structure]] = {
    Op.LINEAR: LinearArgs,
    Op.RMS_NORM: NormArgs,
    Op.LAYER_NORM: NormArgs,
    Op.ROTARY: RotaryArgs,
    Op.KEEP: KeepArgs,
    Op.ATTENTION: AttentionArgs,
    Op.ACTIVATION: ActivationArgs,
    Op.COMBINE: CombineArgs,
    Op.SOFTCAP: SoftcapArgs,
    Op.EMBED: EmbedArgs,
    Op.GATHER: GatherArgs,
    Op.TOP: TopArgs,
}
