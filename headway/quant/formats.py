"""Formats of weights as data: how many bits, what shares a scale, and where each can be kept."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from headway.errors import RequestError

GROUPS = (32, 64, 128, -1)  # columns that share a scale in int4; -1 is the whole row


@dataclass(frozen=True, kw_only=True)
class Format:
    """One way to keep a matrix; `code` is its name in GGUF files and in the native library."""

    name: str
    code: str
    bits: int  # of one number
    block: int  # numbers that share a scale; 0: a whole row; 1: no scale
    span: int = 1  # a row must be whole spans
    symmetric: bool = True  # without a zero or least value of its own
    scale: str = ""
    zero: str = ""
    bytes_per_weight: float  # scales included; int8's, one a row, are not
    gguf: bool = False
    safetensors: bool = False
    fallback: str = ""  # the format for rows that are not whole spans

    @property
    def floating(self) -> bool:
        """Whether it keeps plain floating-point numbers."""
        return self.block == 1


def _block(
    name: str, bits: int, size: int, *, span: int = 32, zero: str = "", fallback: str = "", scale: str = "float16"
) -> Format:
    return Format(
        name=name,
        code=name.upper(),
        bits=bits,
        block=16 if name == "q6_k" else 32,
        span=span,
        symmetric=not zero,
        scale=scale,
        zero=zero,
        bytes_per_weight=size / span,
        gguf=True,
        fallback=fallback,
    )


_SIX = "6 bits of a float16"

FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        _block("q4_0", 4, 18),
        _block("q4_1", 4, 20, zero="float16"),
        _block("q5_0", 5, 22),
        _block("q5_1", 5, 24, zero="float16"),
        _block("q8_0", 8, 34),
        _block("q4_k", 4, 144, span=256, zero=_SIX, fallback="q5_0", scale=_SIX),
        _block("q5_k", 5, 176, span=256, zero=_SIX, fallback="q5_1", scale=_SIX),
        _block("q6_k", 6, 210, span=256, fallback="q8_0", scale="8 bits of a float16"),
        Format(
            name="int8", code="I8", bits=8, block=0, scale="float32", bytes_per_weight=1.0, safetensors=True
        ),
        Format(
            name="int4", code="I4", bits=4, block=64, scale="float16", zero="4 bits, if asymmetric",
            bytes_per_weight=0.5 + 2 / 64, safetensors=True,
        ),
        Format(
            name="float16", code="F16", bits=16, block=1, bytes_per_weight=2.0, gguf=True, safetensors=True
        ),
        Format(
            name="bfloat16", code="BF16", bits=16, block=1, bytes_per_weight=2.0, gguf=True, safetensors=True
        ),
    )
}  # fmt: skip


def format_of(name: str) -> Format:
    """The format of that name; RequestError lists those that there are."""
    found = FORMATS.get(name.lower())
    if found is None:
        near = get_close_matches(name.lower(), FORMATS, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise RequestError(f"format {name} is not known; {hint}there are {', '.join(FORMATS)}")
    return found
