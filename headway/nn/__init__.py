"""Modules with parameters, built from a spec: every mixer has one forward, `mixer(x, frame)`."""

from headway.nn.build import build, empty
from headway.nn.frame import Frame
from headway.nn.taps import Record, Replace, Taps
from headway.nn.transformer import Transformer

__all__ = ["Frame", "Record", "Replace", "Taps", "Transformer", "build", "empty"]
