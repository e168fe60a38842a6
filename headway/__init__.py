"""Every Transformer, one glass box: the public names, each imported when it is first used."""

import sys

TYPE_CHECKING = False  # type checkers know the name; importing typing for it would cost more than the rest of this file
if TYPE_CHECKING:
    from headway.errors import (
        CheckpointError,
        DataError,
        HeadwayError,
        RequestError,
        SpecError,
        TemplateError,
        TokenizerError,
    )
    from headway.model import Model, build, load
    from headway.spec import (
        Alibi,
        Attention,
        Branch,
        BucketBias,
        DynamicScaling,
        FeedForward,
        GivenScaling,
        HeadNorm,
        Init,
        LayerScale,
        LayerSpec,
        LearnedPositions,
        LinearScaling,
        Llama3Scaling,
        LMHead,
        LongRopeScaling,
        Mask,
        ModelSpec,
        Norm,
        Rope,
        SinusoidalPositions,
        StackSpec,
        Step,
        Tie,
        TokenStem,
        YarnScaling,
    )
    from headway.text.tokenizer import Tokenizer, load_tokenizer

__version__ = "0.1.0"

__all__ = [
    "Alibi",
    "Attention",
    "Branch",
    "BucketBias",
    "CheckpointError",
    "DataError",
    "DynamicScaling",
    "FeedForward",
    "GivenScaling",
    "HeadNorm",
    "HeadwayError",
    "Init",
    "LMHead",
    "LayerScale",
    "LayerSpec",
    "LearnedPositions",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "Mask",
    "Model",
    "ModelSpec",
    "Norm",
    "RequestError",
    "Rope",
    "SinusoidalPositions",
    "SpecError",
    "StackSpec",
    "Step",
    "TemplateError",
    "Tie",
    "TokenStem",
    "Tokenizer",
    "TokenizerError",
    "YarnScaling",
    "build",
    "load",
    "load_tokenizer",
]


def _home(name: str) -> str:
    if name in ("Model", "build", "load"):
        return "headway.model"
    if name in ("Tokenizer", "load_tokenizer"):
        return "headway.text.tokenizer"
    return "headway.errors" if name.endswith("Error") else "headway.spec"


if not TYPE_CHECKING:  # a checker that saw this function would take any name for a public one

    def __getattr__(name: str) -> object:
        if name not in __all__:
            hint = "dir(headway) lists them; a part such as headway.spec is imported by its full name"
            raise AttributeError(f"headway has no public name {name!r}: {hint}", name=name, obj=sys.modules[__name__])
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_home(name)), name)
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__", *(name for name in globals() if name.startswith("__"))})
