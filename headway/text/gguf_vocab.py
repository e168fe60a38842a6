"""A GGUF file's vocabulary as a tokenizer of the tokenizers library: the four kinds that files carry."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from headway.errors import TokenizerError
from headway.text.pieces import BYTE_TOKEN, SPACE
from headway.text.pre_tokenizers import Cut, cut_named
from headway.text.wrapping import wrapping

if TYPE_CHECKING:
    import tokenizers

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
_NO_ID: Final = 0xFFFFFFFF
_FILLER: Final = re.compile(r"\[PAD\d+\]")
_T5_BLANKS: Final = 100

_NAMES: Final = {
    "bos_token": ("bos_token_id",),
    "eos_token": ("eos_token_id",),
    "unk_token": ("unknown_token_id",),
    "pad_token": ("padding_token_id",),
    "cls_token": ("cls_token_id",),
    "sep_token": ("seperator_token_id", "separator_token_id"),
    "mask_token": ("mask_token_id",),
}
_MORE_ENDS: Final = ("eot_token_id", "eom_token_id")


@dataclass
class Vocabulary:
    """What a file says about its tokenizer: special tokens by name, more end tokens, chat templates."""

    core: tokenizers.Tokenizer
    special: dict[str, str]
    ends: tuple[int, ...] = ()
    templates: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    known_ids: Collection[int] | None = None


def read_vocabulary(metadata: Mapping[str, Any], pre: str | None = None) -> Vocabulary:
    """The tokenizer of GGUF metadata (the plain mapping of keys to values).

    Args:
        metadata: `tokenizer.ggml.*`, `tokenizer.chat_template*` and `general.architecture` are read.
        pre: the pre-tokenizer's name, for a file in which `tokenizer.ggml.pre` is missing or wrong.

    Raises:
        TokenizerError: a kind or pre-tokenizer that is not known, or a field that is missing or does not fit.
    """
    file = _File(metadata, pre)
    kind = file.text("model")
    if kind not in _KINDS:
        raise TokenizerError(
            f"tokenizer.ggml.model: {kind!r} cannot be read; known: {', '.join(_KINDS)}; use the model's tokenizer.json"
        )
    core, around = _KINDS[kind](file)
    _add_tokens(core, file)
    core.post_processor = around.processor(file.tokens)
    return Vocabulary(core, file.special(), file.more_ends(), _templates(metadata), around.config(), file.known_ids())


class _File:
    """The fields `tokenizer.ggml.*`, checked as they are read."""

    def __init__(self, metadata: Mapping[str, Any], pre: str | None) -> None:
        self._metadata = metadata
        self._pre = pre
        self.tokens = self._tokens()
        types = self._numbers("token_type", np.int64)
        self.types = self._guessed_types() if types is None else types
        self._mark_control()
        # Converters fill gaps of the vocabulary with such names: no text makes them and they mean nothing.
        self.known = np.array([bool(token) for token in self.tokens])
        self.known[[at for at in np.flatnonzero(self.types == _UNUSED) if _FILLER.fullmatch(self.tokens[at])]] = False
        self.defaults: dict[str, int] = {}
        self.marked = False  # user-defined tokens are found after spaces have become marks

    def get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise TokenizerError(f"tokenizer.ggml.{key}: {'missing' if value is None else _brief(value)}; give a name")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool | int):
            raise TokenizerError(f"tokenizer.ggml.{key}: {_brief(value)} is neither true nor false")
        return bool(value)

    def cut(self) -> Cut:
        named = self._pre or (None if self.get("pre") is None else self.text("pre"))
        architecture = self._metadata.get("general.architecture")
        return cut_named(named, architecture if isinstance(architecture, str) else None)

    def scores(self) -> np.ndarray:
        scores = self._numbers("scores", np.float64)
        if scores is None:
            raise TokenizerError(
                f"tokenizer.ggml.scores: missing, but a vocabulary of kind {self.get('model')!r} needs it"
            )
        return scores

    def merges(self) -> list[tuple[str, str]]:
        merges = self._list("merges")
        if merges is None:
            raise TokenizerError(
                f"tokenizer.ggml.merges: missing, but a vocabulary of kind {self.get('model')!r} needs it"
            )
        with suppress(TypeError):
            found = [(left, right) for left, _, right in map(str.partition, merges, repeat(" ")) if left and right]
            if len(found) == len(merges):
                return found
        return [_pair(merge, at) for at, merge in enumerate(merges)]  # which says what is wrong

    def charsmap(self) -> bytes:
        value = np.asarray([] if (listed := self._list("precompiled_charsmap")) is None else listed)
        if value.size and value.dtype.kind not in "iu":
            raise TokenizerError("tokenizer.ggml.precompiled_charsmap: not a list of bytes")
        return value.astype(np.uint8).tobytes()

    def vocabulary(self) -> dict[str, int]:
        """Every known token and its id."""
        known = self.known.tolist()  # faster to look into
        vocabulary = {token: at for at, token in enumerate(self.tokens) if known[at]}
        if len(vocabulary) != int(self.known.sum()):
            self._refuse_repeated()
        return vocabulary

    def known_ids(self) -> Collection[int]:
        """A range where every id means something, as is usual."""
        gaps = {at for at, token in enumerate(self.tokens) if token[:4] == "[PAD" and token == f"[PAD{at}]"}
        if not gaps and self.known.all():
            return range(len(self.tokens))
        return frozenset(np.flatnonzero(self.known).tolist()) - gaps

    def ids(self, *types: int) -> list[int]:
        return [at for at in np.flatnonzero(np.isin(self.types, types)).tolist() if self.known[at]]

    def named(self, name: str) -> int | None:
        """The id of a named special token, with the format's default for files that leave it out."""
        for key in _NAMES[name]:
            if (at := self._id(key)) is not None:
                return at
        at = self.defaults.get(name)
        return at if at is not None and at < len(self.tokens) and self.types[at] in (_CONTROL, _UNKNOWN) else None

    def special(self) -> dict[str, str]:
        return {name: self.tokens[at] for name in _NAMES if (at := self.named(name)) is not None}

    def more_ends(self) -> tuple[int, ...]:
        return tuple(at for key in _MORE_ENDS if (at := self._id(key)) is not None)

    def _mark_control(self) -> None:
        """Tokens that begin or end a text are control tokens whatever their type says; others if users defined them."""
        ends = {"bos_token_id", "eos_token_id", *_MORE_ENDS}
        for key in {*(key for keys in _NAMES.values() for key in keys), *_MORE_ENDS} - {"unknown_token_id"}:
            at = self.get(key)
            if isinstance(at, int) and 0 <= at < len(self.tokens) and (key in ends or self.types[at] == _USER):
                self.types[at] = _CONTROL

    def _id(self, key: str) -> int | None:
        """The id at `key`; None where the file names none."""
        at = self.get(key)
        if at is None:
            return None
        if isinstance(at, bool) or not isinstance(at, int):
            raise TokenizerError(f"tokenizer.ggml.{key}: {_brief(at)} is not the id of a token")
        if at in (-1, _NO_ID):
            return None
        if not 0 <= at < len(self.tokens):
            raise TokenizerError(f"tokenizer.ggml.{key}: {at} is outside the vocabulary of {len(self.tokens)} tokens")
        return at

    def _list(self, key: str) -> Any:
        values = self.get(key)
        if values is None or isinstance(values, list | tuple) or (isinstance(values, np.ndarray) and values.ndim == 1):
            return values
        raise TokenizerError(f"tokenizer.ggml.{key}: {_brief(values)} is not a list")

    def _tokens(self) -> list[str]:
        tokens = self._list("tokens")
        if tokens is None or len(tokens) == 0:
            raise TokenizerError("tokenizer.ggml.tokens: missing; this file holds no vocabulary")
        if not all(isinstance(token, str) for token in tokens):
            raise TokenizerError("tokenizer.ggml.tokens: not a list of strings")
        return list(tokens)

    def _numbers(self, key: str, dtype: type) -> np.ndarray | None:
        values = self._list(key)
        if values is None:
            return None
        try:
            with np.errstate(invalid="ignore"):  # NaN among whole numbers
                numbers: np.ndarray = np.asarray(values).astype(dtype)
        except (TypeError, ValueError, OverflowError):
            raise TokenizerError(f"tokenizer.ggml.{key}: not a list of numbers") from None
        if numbers.shape != (len(self.tokens),):
            raise TokenizerError(f"tokenizer.ggml.{key}: {numbers.size} values for {len(self.tokens)} tokens")
        return numbers

    def _guessed_types(self) -> np.ndarray:
        types = np.full(len(self.tokens), _NORMAL)
        types[[at for at, token in enumerate(self.tokens) if BYTE_TOKEN.fullmatch(token)]] = _BYTE
        if isinstance(unknown := self.get("unknown_token_id"), int) and 0 <= unknown < len(types):
            types[unknown] = _UNKNOWN
        return types

    def _refuse_repeated(self) -> NoReturn:
        seen: dict[str, int] = {}
        for at, token in enumerate(self.tokens):
            if self.known[at] and seen.setdefault(token, at) != at:
                raise TokenizerError(f"tokenizer.ggml.tokens: {token!r} is there twice, as {seen[token]} and as {at}")
        raise AssertionError("every token is there once")


@dataclass(frozen=True)
class _Wrapping:
    """Which special tokens stand round a text; `separates` when the second of two texts has no start of its own."""

    start: int | None
    end: int | None
    separates: bool = False

    def processor(self, tokens: Sequence[str]) -> Any:
        start, end = (None if at is None else (tokens[at], at) for at in (self.start, self.end))
        return wrapping(start, end, self.separates)

    def config(self) -> dict[str, Any]:
        if self.separates:
            return {}
        return {"add_bos_token": self.start is not None, "add_eos_token": self.end is not None}


def _starts_and_ends(file: _File, start: bool, end: bool) -> _Wrapping:
    return _Wrapping(
        start=file.named("bos_token") if file.flag("add_bos_token", start) else None,
        end=file.named("eos_token") if file.flag("add_eos_token", end) else None,
    )


def _starts_and_separates(file: _File) -> _Wrapping:
    start, end = file.named("cls_token"), file.named("sep_token")
    return _Wrapping(
        start=file.named("bos_token") if start is None else start,
        end=file.named("eos_token") if end is None else end,
        separates=True,
    )


def _byte_level(file: _File) -> tuple[tokenizers.Tokenizer, _Wrapping]:
    import tokenizers

    cut = file.cut()
    core = tokenizers.Tokenizer(_bpe(file.vocabulary(), file.merges(), ignore_merges=cut.whole))
    core.normalizer = tokenizers.normalizers.NFC() if cut.normalizer == "NFC" else None
    core.pre_tokenizer = cut.build()
    core.decoder = tokenizers.decoders.ByteLevel()
    wraps = file.flag("add_sep_token", cut.wraps)
    return core, _starts_and_separates(file) if wraps else _starts_and_ends(file, cut.starts, end=False)


def _sentencepiece_bpe(file: _File) -> tuple[tokenizers.Tokenizer, _Wrapping]:
    import tokenizers
    from tokenizers import decoders, normalizers

    file.defaults = {"unk_token": 0, "bos_token": 1, "eos_token": 2}
    merges = file.merges() if file.get("merges") is not None else _merges_of_scores(file)
    prefix = file.flag("add_space_prefix", default=True)
    core = tokenizers.Tokenizer(_bpe(_spelled(file, prefix), merges, **_unknown(file)))
    steps = _unicode_and_spaces(file, collapse=False)
    if prefix:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    core.normalizer = normalizers.Sequence(steps)
    joined = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    core.decoder = decoders.Sequence([*joined, decoders.Strip(" ", 1, 0)] if prefix else joined)
    return core, _starts_and_ends(file, start=True, end=False)


def _raw_bpe(file: _File) -> tuple[tokenizers.Tokenizer, _Wrapping]:
    import tokenizers
    from tokenizers import decoders, normalizers

    core = tokenizers.Tokenizer(_bpe(_spelled(file, prefix=False), file.merges(), **_unknown(file)))
    core.normalizer = normalizers.Replace(" ", SPACE)
    core.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return core, _starts_and_ends(file, start=True, end=False)


def _unigram(file: _File) -> tuple[tokenizers.Tokenizer, _Wrapping]:
    import tokenizers
    from tokenizers import decoders, models, normalizers
    from tokenizers import pre_tokenizers as library

    file.defaults = {"pad_token": 0, "eos_token": 1, "unk_token": 2}
    _name_blanks(file)
    unknown = file.named("unk_token")
    vocabulary = list(zip(file.tokens, file.scores().tolist(), strict=True))
    model = models.Unigram(vocabulary, unk_id=unknown, byte_fallback=_has_bytes(file))
    core = tokenizers.Tokenizer(model)
    core.normalizer = normalizers.Sequence(_unicode_and_spaces(file, collapse=True))
    scheme = "always" if file.flag("add_space_prefix", default=True) else "never"
    core.pre_tokenizer = library.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=True)
    decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=True)
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoder]) if _has_bytes(file) else decoder
    return core, _starts_and_ends(file, start=False, end=True)


def _wordpiece(file: _File) -> tuple[tokenizers.Tokenizer, _Wrapping]:
    import tokenizers
    from tokenizers import decoders, models, normalizers
    from tokenizers import pre_tokenizers as library

    file.defaults = {"pad_token": 0, "unk_token": 100, "cls_token": 101, "sep_token": 102, "mask_token": 103}
    file.tokens = [_continued(token) for token in file.tokens]
    unknown = file.named("unk_token")
    if unknown is None:
        raise TokenizerError("tokenizer.ggml.unknown_token_id: missing, but a vocabulary of kind 'bert' needs it")
    # Older files do not say it: a vocabulary with capital letters is of a cased model.
    cased = any(token != token.lower() for at, token in enumerate(file.tokens) if file.types[at] == _NORMAL)
    lowercase = file.flag("normalizer.lowercase", default=not cased)
    core = tokenizers.Tokenizer(models.WordPiece(file.vocabulary(), unk_token=file.tokens[unknown]))
    core.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=file.flag("normalizer.strip_accents", default=lowercase)
    )
    core.pre_tokenizer = library.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    return core, _starts_and_separates(file)


_KINDS: Final[dict[str, Callable[[_File], tuple[tokenizers.Tokenizer, _Wrapping]]]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece_bpe,
    "gemma4": _raw_bpe,
    "t5": _unigram,
    "bert": _wordpiece,
}


def _bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> Any:
    from tokenizers import models

    try:
        return models.BPE(vocabulary, merges, **options)
    except Exception as error:  # noqa: BLE001  the library raises Exception itself
        raise TokenizerError(f"tokenizer.ggml.merges: {' '.join(str(error).split())}") from None


def _merges_of_scores(file: _File) -> list[tuple[str, str]]:
    """The merges of a SentencePiece BPE, best first: every way to put a piece together from two pieces.

    SentencePiece merges the two neighbours whose union has the highest score (sentencepiece, bpe_model.cc); a list of
    merges by falling score does the same. Pieces that may be made are the normal ones: control and byte pieces come
    from elsewhere, user-defined ones are found before.
    """
    scores = file.scores()
    order = np.argsort(-scores, kind="stable").tolist()
    allowed = (file.types == _NORMAL) & file.known
    words = [file.tokens[at] for at in order if allowed[at]]
    pieces = set(words)
    merges = []
    for word in words:
        for size in range(len(word) - 1, 0, -1):
            left = word[:size]
            if left in pieces and (right := word[size:]) in pieces:
                merges.append((left, right))
    return merges


def _spelled(file: _File, prefix: bool) -> dict[str, int]:
    """The vocabulary; user-defined tokens are spelled as they are looked for: after normalizing, or before."""
    file.marked = not prefix
    found, written = (" ", SPACE) if file.marked else (SPACE, " ")
    for at in file.ids(_USER):
        file.tokens[at] = file.tokens[at].replace(found, written)
    return file.vocabulary()


def _unknown(file: _File) -> dict[str, Any]:
    unknown = file.named("unk_token")
    token = None if unknown is None else file.tokens[unknown]
    return {"unk_token": token, "fuse_unk": True, "byte_fallback": _has_bytes(file)}


def _has_bytes(file: _File) -> bool:
    return len(file.ids(_BYTE)) == 256


def _unicode_and_spaces(file: _File, collapse: bool) -> list[Any]:
    from tokenizers import Regex, normalizers

    steps: list[Any] = []
    if charsmap := file.charsmap():
        try:
            steps.append(normalizers.Precompiled(charsmap))
        except Exception as error:  # noqa: BLE001  the library raises Exception itself
            raise TokenizerError(f"tokenizer.ggml.precompiled_charsmap: {' '.join(str(error).split())}") from None
    if file.flag("remove_extra_whitespaces", collapse):
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    return steps


def _name_blanks(file: _File) -> None:
    """T5's blanks <extra_id_0> to <extra_id_99>, which converters leave without a name: the last id is blank 0."""
    fillers = [at for at, token in enumerate(file.tokens) if _FILLER.fullmatch(token)]
    if len(fillers) < _T5_BLANKS or any(token.startswith("<extra_id_") for token in file.tokens):
        return
    for number, at in enumerate(reversed(fillers[:_T5_BLANKS])):
        file.tokens[at] = f"<extra_id_{number}>"
        file.types[at] = _CONTROL
        file.known[at] = True


def _continued(token: str) -> str:
    """A WordPiece token from the form that marks beginnings of words: '\u2581the' is 'the', 'ing' is '##ing'."""
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[1:] if token.startswith(SPACE) else f"##{token}"


def _add_tokens(core: tokenizers.Tokenizer, file: _File) -> None:
    from tokenizers import AddedToken

    special = file.ids(_CONTROL, _UNKNOWN)
    core.add_special_tokens([AddedToken(file.tokens[at], normalized=False, special=True) for at in special])
    user = [file.tokens[at] for at in file.ids(_USER)]
    core.add_tokens([AddedToken(token, normalized=file.marked and SPACE in token, special=False) for token in user])


def _brief(value: Any) -> str:
    shown = " ".join(repr(value).split())
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _pair(merge: Any, at: int) -> tuple[str, str]:
    left, space, right = merge.partition(" ") if isinstance(merge, str) else ("", "", "")
    if not space or not left or not right:
        raise TokenizerError(f"tokenizer.ggml.merges[{at}]: {merge!r}; a merge is two tokens with a space between")
    return left, right


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    key = "tokenizer.chat_template"
    named = {name.removeprefix(f"{key}."): text for name, text in metadata.items() if name.startswith(f"{key}.")}
    if isinstance(default := metadata.get(key), str):
        named["default"] = default
    return {name: text for name, text in named.items() if isinstance(text, str) and text}
