"""From requests to answers: sampling, stopping, batches, beams, scores."""

from headway.generate.beam import search
from headway.generate.defaults import Defaults, defaults
from headway.generate.engine import Engine
from headway.generate.request import Beams, Completion, Event, Finish, Limits, Request, Sampling, TokenLogprob, join
from headway.generate.sampling import Known
from headway.generate.score import Score, score

__all__ = [
    "Beams",
    "Completion",
    "Defaults",
    "Engine",
    "Event",
    "Finish",
    "Known",
    "Limits",
    "Request",
    "Sampling",
    "Score",
    "TokenLogprob",
    "defaults",
    "join",
    "score",
    "search",
]
