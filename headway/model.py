"""The public face: load or build a model, then ask it for logits, text, explanations, or a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cached_property
from numbers import Integral
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeGuard, TypeVar, Unpack, cast, get_args

from array_api_compat import is_torch_array

from headway.checkpoint.resolve import resolve
from headway.errors import DataError, RequestError
from headway.generate import (
    Beams,
    Completion,
    Defaults,
    Engine,
    Event,
    Request,
    Sampling,
    Score,
    defaults,
    score,
    search,
)
from headway.loader import Loaded, NoTapeError, Progress, Report, load_tape
from headway.native import library
from headway.spec.count import parameters
from headway.spec.model import ModelSpec
from headway.tape import Program
from headway.text.tokenizer import Tokenizer, load_tokenizer

# torch is imported by what needs it, when it is asked for: a tape answers without.
if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from headway.batch import Batch, Output
    from headway.explain import Explanation, Worked
    from headway.nn.taps import Taps
    from headway.nn.transformer import Keep, Transformer
    from headway.quant import Recipe
    from headway.source import Source

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Ids: TypeAlias = "Sequence[int] | Sequence[Sequence[int]] | Tensor"
Prompt: TypeAlias = "str | Sequence[int] | Messages | Tensor"
Chosen = TypeVar("Chosen", Sampling, Beams)
EngineName = Literal["auto", "tape", "modules"]
ENGINES: tuple[str, ...] = get_args(EngineName)


class Options(TypedDict, total=False):
    """What a generation may be told; see `headway.generate.Sampling`, `Beams` and `Request` for each."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    penalise_prompt: bool
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram: int
    logit_bias: tuple[tuple[int, float], ...]
    stop: str | Sequence[str]
    end_ids: tuple[int, ...]
    ignore_end: bool
    logprobs: bool
    top_logprobs: int
    n: int
    seed: int
    beams: int
    length_penalty: float
    early_stopping: bool | Literal["never"]


class Model:
    """A network with its tokenizer and what its files say beside the weights.

    `spec` is what the model is, `runner` what answers (modules, or a program of native calls), `network` the torch
    modules, `tokenizer` None when there is no vocabulary, `report` what loading found (None for a model built here).
    """

    def __init__(
        self,
        runner: Transformer | Program,
        tokenizer: Tokenizer | None = None,
        *,
        modules: Callable[[], Transformer] | None = None,
        config: Mapping[str, Any] | None = None,
        generation_config: Mapping[str, Any] | None = None,
        report: Report | None = None,
    ) -> None:
        """`modules` makes the modules of a model on a tape, when somebody asks for them."""
        self.runner = runner
        self._modules = modules
        self.tokenizer = tokenizer
        self.config = dict(config or {})
        self.generation_config = dict(generation_config or {})
        self.report = report

    @property
    def spec(self) -> ModelSpec:
        """What the model is, as data."""
        return self.runner.spec

    def __repr__(self) -> str:
        size, spec = parameters(self.spec), self.spec
        return f"<headway.Model {spec.name}: {size:,} parameters, {type(self.runner).__name__} on {self.device}>"

    @property
    def device(self) -> str:
        """Where it computes."""
        return "cpu" if isinstance(self.runner, Program) else str(self.runner.device)

    @property
    def network(self) -> Transformer:
        """The model as modules: to look inside or change.

        Those of a model on a tape are loaded now, and answer from now on, since a change to them must show.
        """
        if isinstance(self.runner, Program):
            self.runner = self._beside
            self.__dict__.pop("engine", None)
            if self.report is not None:
                self.report = replace(self.report, engine="modules", note="asked for as modules")
        return self.runner

    @cached_property
    def _beside(self) -> Transformer:
        """Modules to read from, beside a tape that goes on answering."""
        if not isinstance(self.runner, Program):
            return self.runner
        if self._modules is None:
            raise RequestError('this model runs on a tape without modules; load it with engine="modules"')
        return self._modules()

    def logits(self, ids: Ids, *, tap: Taps | None = None) -> Tensor:
        """Float32 logits [B, T, V] of token ids: one list, lists of any lengths, or a tensor [T] or [B, T].

        Places past the end of a shorter row hold NaN, so that nobody mistakes them for an answer.
        """
        output, padding = self._output(ids, "all", tap)
        return cast("Tensor", output.logits).masked_fill(padding, float("nan"))

    def hidden(self, ids: Ids, *, tap: Taps | None = None) -> Tensor:
        """Hidden states [B, T, D] after the last norm, in the model's dtype; NaN past the end of a shorter row."""
        output, padding = self._output(ids, "none", tap)
        return output.hidden[self.spec.decoder.name].masked_fill(padding, float("nan"))

    def _output(self, ids: Ids, keep: Keep, tap: Taps | None) -> tuple[Output, Tensor]:
        """What the model makes of whole rows, and where [B, T, 1] they are padding; a tap looks into the modules."""
        import torch

        from headway.fast import TapeNetwork

        batch = self._batch(ids)
        with torch.inference_mode():
            if tap is not None:
                output = self._beside(batch, keep=keep, tap=tap)
            else:
                runner = self.runner
                output = (TapeNetwork(runner) if isinstance(runner, Program) else runner)(batch, keep=keep)
            return output, (batch.segments == 0)[..., None]

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Completion:
        """The answer to one prompt: a text, token ids, or messages for the chat template.

        Options are those of `Options`; what is not given comes from the model's own files, else it is greedy.
        With `beams` above 1 it is the best answer of a beam search. RequestError for a value out of range.
        """
        if options.get("n", 1) != 1:
            raise RequestError(f"n = {options['n']} gives several answers; ask generate_all([prompt], n=...) for them")
        return self.generate_all([prompt], **options)[0]

    def generate_all(self, prompts: Sequence[Prompt], **options: Unpack[Options]) -> list[Completion]:
        """Answers to all prompts, computed together: `n` for each, in the order of the prompts."""
        _refuse_one_text(prompts)
        beams = self._chosen(self.defaults.beams, options)
        if beams.beams > 1:
            options.setdefault("temperature", 0.0)  # a beam search does not sample, whatever the files prefer
        requests = [self.request(prompt, **options) for prompt in prompts]
        return search(self.engine, requests, beams) if beams.beams > 1 else self.engine.complete(requests)

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Iterator[Event]:
        """The answer as it comes, an Event a token; the texts of the events, joined, are the answer."""
        if self._chosen(self.defaults.beams, options).beams > 1:
            raise RequestError("beams above 1 cannot be streamed: a beam search knows its answer at the end")
        return self.engine.run([self.request(prompt, **options)])

    def chat(self, messages: str | Messages, **options: Unpack[Options]) -> Completion:
        """The answer to a conversation: messages with "role" and "content", or one question."""
        said: Messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return self.generate(said, **options)

    def score(self, texts: Sequence[Prompt], *, top: int = 0) -> list[Score]:
        """The log-probability of every token after the first of each text, with the `top` likeliest beside it."""
        _refuse_one_text(texts)
        if not 0 <= top <= self.spec.heads[0].vocab:
            raise RequestError(f"top = {top} must be from 0 to {self.spec.heads[0].vocab}, the size of the vocabulary")
        return score(self.engine, [self.ids(text) for text in texts], top=top)

    def explain(self, text: Prompt, *, top: int = 5) -> Explanation:
        """What happens at the last token: where each layer looks, and what it would say (the logit lens)."""
        from headway.explain import explain

        return explain(self._beside, self.ids(text), tokenizer=self.tokenizer, top=top)

    def worked_example(self, text: Prompt, *, layer: int = 0, head: int = 0) -> Worked:
        """One attention head step by step on this model's numbers, plain Python beside the network."""
        from headway.explain import worked_example

        return worked_example(self._beside, self.ids(text), layer=layer, head=head, tokenizer=self.tokenizer)

    def attentions(self, ids: Ids) -> dict[str, Tensor]:
        """Attention weights [B, H, T, T] of every attention by its path; padding holds 0."""
        from headway.explain import attentions

        return attentions(self._beside, self._batch(ids), keep="none").weights

    def request(self, prompt: Prompt, **options: Unpack[Options]) -> Request:
        """What `generate` asks the engine for, with every value resolved."""
        known = {field.name for kind in (Sampling, Beams, Request) for field in fields(kind)} - {"prompt", "sampling"}
        for name in options:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
                raise RequestError(f"{name} is not an option of a generation; {hint}")
        if "stop" in options:
            stop = options["stop"]
            options["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
        given = {name: value for name, value in options.items() if name in {field.name for field in fields(Request)}}
        sampling = self._chosen(self.defaults.sampling, options)
        return self.defaults.request(self.ids(prompt), sampling=sampling, **given)

    def ids(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt in any accepted form, with exactly one start token where the model wants one."""
        if prompt is None or isinstance(prompt, bytes | Mapping):
            raise RequestError(
                f"a prompt is a text, a list of token ids, or a list of messages; got {type(prompt).__name__}"
            )
        if isinstance(prompt, str):
            return self._vocabulary().prompt(prompt)
        if is_conversation(prompt):
            return self._vocabulary().chat(prompt)
        return as_rows(cast("Ids", prompt))[0] if len(prompt) else []

    def _vocabulary(self) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError("this model has no tokenizer: give token ids, or load a folder with tokenizer.json")
        return self.tokenizer

    @cached_property
    def engine(self) -> Engine:
        """What runs this model's requests."""
        return Engine(self.runner, self.tokenizer)

    @cached_property
    def defaults(self) -> Defaults:
        """What a request is where its user says nothing, from the model's files."""
        # A base model made for chat later names an end of text only; its template knows the end of a turn.
        ends = () if self.tokenizer is None else (*self.tokenizer.eos_ids, *self.tokenizer.turn_end_ids)
        return defaults(self.generation_config, self.config, ends)

    def _chosen(self, values: Chosen, options: Mapping[str, Any]) -> Chosen:
        """`values` with the given options in place."""
        names = {field.name for field in fields(values)}
        return replace(values, **{name: value for name, value in options.items() if name in names})

    def save(self, folder: str | Path, *, max_shard_bytes: int = 5_000_000_000, overwrite: bool = False) -> None:
        """Write a folder that the standard tools open: config, weights as safetensors, tokenizer.

        A folder that exists and is not empty is refused unless `overwrite`; it appears whole or not at all.
        """
        from headway.loader import save_network

        save_network(
            self._beside,
            Path(folder),
            config=self.config,
            generation_config=self.generation_config,
            extras=self.tokenizer.save if self.tokenizer is not None else None,
            max_shard_bytes=max_shard_bytes,
            overwrite=overwrite,
        )

    def _batch(self, ids: Ids) -> Batch:
        from headway.batch import Batch

        rows = as_rows(ids)
        vocab, context = self.spec.decoder.stem.vocab, self.spec.decoder.context
        for number, row in enumerate(rows):
            if not row:
                raise DataError(f"row {number} of the token ids is empty; a row needs at least one token")
            if len(row) > context:
                raise DataError(f"row {number} has {len(row)} tokens, but the model's context is {context}; shorten it")
            bad = next((token for token in row if not 0 <= token < vocab), None)
            if bad is not None:
                raise DataError(f"row {number} holds token id {bad}; this model's ids are 0 to {vocab - 1}")
        return Batch.of(rows, device=self.device)


def _refuse_one_text(texts: object) -> None:
    """RequestError for one text where a list of texts is asked for: its letters are no prompts."""
    if texts is None or isinstance(texts, str | bytes | Mapping):
        raise RequestError(f"a list of prompts is needed, as [prompt]; got {type(texts).__name__}")


def is_conversation(prompt: Sequence[int] | Messages | Tensor) -> TypeGuard[Messages]:
    """Whether a prompt is a list of messages, each with "role" and "content"."""
    return not is_torch_array(prompt) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def as_rows(ids: Ids) -> list[list[int]]:
    """Token ids in any accepted form as a list of rows."""
    if is_torch_array(ids):
        if ids.ndim not in (1, 2) or ids.is_floating_point():
            raise DataError(f"token ids as a tensor are whole numbers [T] or [B, T]; got {ids.dtype} {list(ids.shape)}")
        ids = ids.tolist()
    if ids is None or isinstance(ids, str | bytes | int | Mapping):
        raise DataError(f"token ids are a list of whole numbers, or a list of such lists; got {type(ids).__name__}")
    rows: list[Any] = list(ids)
    if not rows:
        raise DataError("no token ids were given; a model needs at least one token")
    if all(isinstance(row, Integral) for row in rows):
        rows = [rows]
    try:
        return [[index(token) for token in row] for row in rows]
    except (TypeError, ValueError):
        raise DataError("token ids are a list of whole numbers, or a list of such lists") from None


def load(
    ref: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    engine: EngineName = "auto",
    quantize: str | Recipe | None = None,
    cache: str = "auto",
    progress: Progress | None = None,
) -> Model:
    """Load a model: a folder, a .gguf or .safetensors file, a name on the shelf ("smollm2"), a hub id ("owner/name").

    dtype "auto" keeps what the file holds. `engine="auto"` runs the whole model on a CPU as a tape of native calls on
    its packed weights, where one can be, and the report says why where it cannot; on quantised weights a tape rounds
    the inputs of products to 8 bits, and with dtype "float32" it does not. `engine="modules"` is PyTorch: quantised
    tensors become float32, which holds them exactly. `quantize` rounds matrices to a format ("int8", "int4", "q4_k":
    see `headway.quant.FORMATS`): a tape runs them packed; modules hold what came of it as floats, and the report says
    so. `cache` is what a tape keeps keys and values in (float32, float16, bfloat16, int8); "auto" is float32 beside
    float32 weights, else float16. CheckpointError or SpecError names the file, the field and the way out.
    """
    if engine not in ENGINES:
        raise RequestError(f"engine = {engine} is not one of {', '.join(ENGINES)}")
    path, recipe = resolve(str(ref)), _recipe(quantize, dtype)
    wish = _Wish(path=path, dtype=dtype, device=device, recipe=recipe, cache=cache, progress=progress)
    note = library.slow() if engine == "auto" else ""
    elsewhere = engine == "auto" and not wish.on_cpu
    if engine != "modules" and not note and not elsewhere:
        try:
            return wish.on_tape()
        except NoTapeError as error:
            if engine == "tape":
                raise
            note = str(error)
    if cache != "auto":
        why = note or ("they were asked for" if engine == "modules" else f"on {device}")
        raise RequestError(f"cache = {cache} needs a tape, and modules serve here ({why}); leave cache out")
    loaded = wish.as_modules()
    note = "; ".join(filter(None, (note, loaded.report.note)))
    return _model(loaded, find_tokenizer(path), report=replace(loaded.report, note=note))


@dataclass(frozen=True, kw_only=True)
class _Wish:
    """What is to be loaded, and how."""

    path: Path
    dtype: object
    device: object
    recipe: Recipe | None
    cache: str
    progress: Progress | None

    @property
    def on_cpu(self) -> bool:
        return str(self.device).partition(":")[0] == "cpu"

    def on_tape(self) -> Model:
        if not self.on_cpu:
            check_device(self.device)
            raise NoTapeError(f"a tape runs on the CPU, not on {self.device}")
        loaded = load_tape(
            self.path,
            dtype=self.dtype,
            quantize=self.recipe,
            cache=self.cache,
            meanwhile=_vocabulary,
            progress=self.progress,
        )
        return _model(loaded, loaded.beside, modules=lambda: self.as_modules().network)

    def as_modules(self) -> Loaded[Transformer]:
        from headway.loader import load_network

        dtype, device = cast("str", self.dtype), check_device(self.device)
        return load_network(self.path, dtype=dtype, device=device, quantize=self.recipe, progress=self.progress)


def _recipe(quantize: str | Recipe | None, dtype: object) -> Recipe | None:
    """What is asked for, by a format's name or in full; RequestError where `dtype` says something else."""
    if quantize is None:
        return None
    from headway.quant import Recipe

    if dtype != "auto":
        raise RequestError(f"quantize = {quantize} and dtype = {dtype} both say what weights become; give one of them")
    return Recipe(to=quantize) if isinstance(quantize, str) else quantize


def _vocabulary(source: Source) -> Tokenizer | None:
    """The tokenizer of opened files, with what is dear to find out about it."""
    gguf = source.store.format == "gguf"
    tokenizer = Tokenizer.from_gguf(source.store.metadata) if gguf else find_tokenizer(source.path)
    if tokenizer is not None:
        _ = tokenizer.known_ids, tokenizer.turn_end_ids
    return tokenizer


def _model(loaded: Loaded[Any], tokenizer: Tokenizer | None, **more: Any) -> Model:
    given = {"report": loaded.report, **more}
    return Model(loaded.network, tokenizer, config=loaded.config, generation_config=loaded.generation_config, **given)


def check_device(device: object) -> torch.device:
    """The device of that name; RequestError unless tensors can be made on it."""
    import torch

    try:
        return torch.empty(0, device=cast("str", device)).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch raises each of them, by backend
        reason = str(error).partition("\n")[0]
        raise RequestError(
            f'device = {device} is not to be had here ({reason}); try cpu, or see what "headway doctor" lists'
        ) from None


def find_tokenizer(path: Path) -> Tokenizer | None:
    """The tokenizer beside or inside a checkpoint, or None when there is none."""
    if path.suffix == ".gguf":
        return load_tokenizer(path)
    folder = path if path.is_dir() else path.parent
    return load_tokenizer(folder) if (folder / "tokenizer.json").exists() else None


def build(
    spec: ModelSpec,
    *,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    tokenizer: Tokenizer | None = None,
) -> Model:
    """A model of `spec` with fresh weights; the same seed gives the same weights on every device."""
    from headway.loader import parse_dtype
    from headway.nn.build import build as build_network

    return Model(build_network(spec, seed=seed, dtype=parse_dtype(dtype), device=device), tokenizer)
