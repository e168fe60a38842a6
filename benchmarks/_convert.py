"""Files for the peers, made by their own tools: python _convert.py gguf|ctranslate2 FROM TO FORM."""

from __future__ import annotations

import ctypes
import sys


def gguf(source: str, target: str, form: str) -> None:
    """A GGUF file with every matrix in one form: F32, Q4_0, Q4_1 or Q8_0."""
    import llama_cpp as c

    names = {"F32": "ALL_F32", "Q4_0": "MOSTLY_Q4_0", "Q4_1": "MOSTLY_Q4_1", "Q8_0": "MOSTLY_Q8_0"}
    params = c.llama_model_quantize_default_params()
    params.ftype = getattr(c, f"LLAMA_FTYPE_{names[form]}")
    params.allow_requantize = params.pure = True
    if c.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)):
        raise SystemExit(f"llama.cpp cannot write {form}")


def ctranslate2(source: str, target: str, form: str) -> None:
    """A folder of CTranslate2 in float32 or int8."""
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(source).convert(target, quantization=form)


if __name__ == "__main__":
    {"gguf": gguf, "ctranslate2": ctranslate2}[sys.argv[1]](*sys.argv[2:])
