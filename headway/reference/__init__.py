"""The oracle: any model of a spec in plain Python lists, written to be read; slow, and independent of the rest."""

from headway.reference.arithmetic import cross_entropy, log_softmax, softmax
from headway.reference.attention import Attended, Heads, Surroundings, attend, attention_steps, place, project
from headway.reference.decode import greedy
from headway.reference.mixers import mix
from headway.reference.model import forward, hidden, worked, worked_from
from headway.reference.position import alibi_slopes, bucket, rope_frequencies, rotate, sinusoid, visible

__all__ = [
    "Attended",
    "Heads",
    "Surroundings",
    "alibi_slopes",
    "attend",
    "attention_steps",
    "bucket",
    "cross_entropy",
    "forward",
    "greedy",
    "hidden",
    "log_softmax",
    "mix",
    "place",
    "project",
    "rope_frequencies",
    "rotate",
    "sinusoid",
    "softmax",
    "visible",
    "worked",
    "worked_from",
]
