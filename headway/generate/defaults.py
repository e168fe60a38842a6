"""What a request is where its user says nothing: read once from the files of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.errors import CheckpointError, RequestError
from headway.generate.check import whole
from headway.generate.request import Beams, Request, Sampling

MAX_TOKENS = 512  # of an answer, where the model's files state no `max_new_tokens`

# Our field for each key of generation_config.json; the others have no part in sampling here.
SAMPLED = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "typical_p": "typical_p"}
ALWAYS = {"repetition_penalty": "repetition_penalty", "no_repeat_ngram_size": "no_repeat_ngram"}
BEAMS = {"num_beams": "beams", "length_penalty": "length_penalty", "early_stopping": "early_stopping"}


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Resolved values; a caller replaces those that the user gives (`dataclasses.replace`)."""

    sampling: Sampling = field(default_factory=Sampling)
    beams: Beams = field(default_factory=Beams)
    max_tokens: int = MAX_TOKENS
    end_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        whole("max_new_tokens", self.max_tokens, low=1)

    def request(self, prompt: Iterable[int], **given: Any) -> Request:
        """A request for `prompt` with these values, save those that are given."""
        kept = {"max_tokens": self.max_tokens, "sampling": self.sampling, "end_ids": self.end_ids}
        return Request(prompt=tuple(prompt), **{**kept, **given})


def defaults(
    generation_config: Mapping[str, Any], config: Mapping[str, Any], tokenizer_ends: Iterable[int] = ()
) -> Defaults:
    """The defaults of a model, from generation_config.json, config.json (either may be empty) and its tokenizer.

    Ids that end an answer are the union of all three. Of the rest generation_config.json wins over
    config.json, where old files keep them. Sampling is on only where `do_sample` is true, since a
    temperature beside `do_sample: false` is without effect in the files' own tool.
    CheckpointError for a value that cannot be.
    """
    old = {key: value for key, value in config.items() if key in {*SAMPLED, *ALWAYS, *BEAMS, "do_sample"}}
    merged = {**_stated(old), **_stated(generation_config)}
    names = {**ALWAYS, **SAMPLED} if merged.get("do_sample") is True else ALWAYS
    chosen: dict[str, Any] = {ours: merged[key] for key, ours in names.items() if key in merged}
    if merged.get("do_sample") is True:
        chosen.setdefault("temperature", 1.0)
    ends = {
        *end_ids("generation_config.json", generation_config),
        *end_ids("config.json", config),
        *tokenizer_ends,
    }
    try:
        return Defaults(
            sampling=Sampling(**chosen),
            beams=Beams(**{ours: merged[key] for key, ours in BEAMS.items() if key in merged}),
            max_tokens=merged.get("max_new_tokens", MAX_TOKENS),
            end_ids=tuple(sorted(ends)),
        )
    except RequestError as error:
        raise CheckpointError(f"generation_config.json: {error}") from None


def end_ids(file: str, config: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids at `eos_token_id`: a number, a list of numbers, null or absent. CheckpointError for anything else."""
    value = config.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise CheckpointError(f"{file}: eos_token_id = {value!r} must be a token id or a list of token ids")
    return tuple(ids)


def _stated(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if value is not None}
