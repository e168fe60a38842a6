"""What a model is: frozen values, standard library only, readable as JSON both ways."""

from headway.spec.check import check
from headway.spec.codec import dumps, from_json, loads, to_json
from headway.spec.mixers import Attention, FeedForward, Mixer
from headway.spec.model import Branch, LayerSpec, ModelSpec, StackSpec, Step, Tie
from headway.spec.parts import ACTIVATIONS, Activation, HeadNorm, Init, LayerScale, Norm
from headway.spec.position import (
    Alibi,
    Bias,
    BucketBias,
    DynamicScaling,
    GivenScaling,
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Mask,
    Rope,
    Scaling,
    SinusoidalPositions,
    YarnScaling,
)
from headway.spec.stems import Head, LMHead, Stem, TokenStem

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "Alibi",
    "Attention",
    "Bias",
    "Branch",
    "BucketBias",
    "DynamicScaling",
    "FeedForward",
    "GivenScaling",
    "Head",
    "HeadNorm",
    "Init",
    "LMHead",
    "LayerScale",
    "LayerSpec",
    "LearnedPositions",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "Mask",
    "Mixer",
    "ModelSpec",
    "Norm",
    "Rope",
    "Scaling",
    "SinusoidalPositions",
    "StackSpec",
    "Stem",
    "Step",
    "Tie",
    "TokenStem",
    "YarnScaling",
    "check",
    "dumps",
    "from_json",
    "loads",
    "to_json",
]
