"""Glass: attention weights, the worked example, what each layer would say, and the cost of a run."""

from headway.explain.attention import Attentions, attention_paths, attentions
from headway.explain.lens import Candidate, Explanation, LayerView, Look, explain
from headway.explain.plan import CacheKind, Held, Measured, Outline, Plan, measure, outline_of, plan
from headway.explain.tokens import Token, label, readable
from headway.explain.words import LANGUAGES, Language, Words, explain_step
from headway.explain.worked import Worked, WorkedStep, worked_example

__all__ = [
    "LANGUAGES",
    "Attentions",
    "CacheKind",
    "Candidate",
    "Explanation",
    "Held",
    "Language",
    "LayerView",
    "Look",
    "Measured",
    "Outline",
    "Plan",
    "Token",
    "Words",
    "Worked",
    "WorkedStep",
    "attention_paths",
    "attentions",
    "explain",
    "explain_step",
    "label",
    "measure",
    "outline_of",
    "plan",
    "readable",
    "worked_example",
]
