"""Text to token ids and back, chats to prompts: one object for a folder, a tokenizer.json and a GGUF vocabulary."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway.errors import DataError, TemplateError, TokenizerError
from headway.text.folder import read_config, read_core, read_templates, template_sources
from headway.text.gguf_vocab import read_vocabulary
from headway.text.pieces import SPACE, joining
from headway.text.special import FLAGS, AddedToken, ControlTokens, Shield, map_strings, strings
from headway.text.stream import ByteStream, StreamDecoder, WindowStream
from headway.text.template import ChatTemplate, plain
from headway.text.views import blind, changed

if TYPE_CHECKING:
    import tokenizers

_PROBE: Final = "\U0010fffc"


def load_tokenizer(ref: str | Path) -> Tokenizer:
    """The tokenizer of a folder, a tokenizer.json or a GGUF file (one with a vocabulary and no weights included).

    Raises TokenizerError, or CheckpointError for a GGUF file whose header cannot be read.
    """
    path = Path(ref)
    if path.is_dir():
        return Tokenizer.from_folder(path)
    if not path.is_file():
        raise TokenizerError(f"{path}: no such file or folder; give a folder, a tokenizer.json or a .gguf file")
    with path.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    if is_gguf or path.suffix == ".gguf":
        from headway.checkpoint.gguf import read_gguf

        return Tokenizer.from_gguf(read_gguf(path).metadata)
    return Tokenizer.from_folder(path.parent, path.name)


class Tokenizer:
    """Encodes, decodes, streams, and turns chats into prompts.

    Two promises hold on every path:
    - text from a user never becomes a control token unless `parse_special=True` asks for it, and what a user writes
      in a chat stays ordinary text while the control tokens that the template writes are tokens;
    - `prompt` and `chat` begin with exactly one start token where the tokenizer adds one or the template writes it.

    A tokenizer may be shared by threads: nothing in it changes after it is built.

    Attributes:
        bos_id, pad_id, unk_id: ids of the named special tokens, or None.
        eos_ids: the end tokens that the tokenizer's own files name.
        adds_bos: whether `encode(add_special=True)`, and so `prompt`, puts a start token before a text.
        control_ids: ids of all special tokens; decoding leaves them out unless asked not to.
    """

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        special: Mapping[str, str],
        ends: Iterable[int] = (),
        templates: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        known_ids: Collection[int] | None = None,
    ) -> None:
        """`core` is complete (added tokens, post-processor); `special` maps names such as 'bos_token' to tokens.

        `known_ids` are asked of the core unless they are known already.
        """
        if known_ids is not None:
            self.known_ids = known_ids
        core.no_truncation()
        core.no_padding()
        self._core = core
        self._special = dict(special)
        self._config = dict(config or {})
        self._template = ChatTemplate(templates) if templates else None
        self._added = {at: _added(at, token) for at, token in core.get_added_tokens_decoder().items()}
        self._control = ControlTokens(self._added.values())
        self._joining = joining(core.decoder)
        self._spelled: dict[int, bytes] = {}
        self.control_ids = frozenset(at for at, token in self._added.items() if token.special)
        self.bos_id, self.pad_id, self.unk_id = (self._named(name) for name in ("bos_token", "pad_token", "unk_token"))
        eos = self._named("eos_token")
        self.eos_ids = tuple(dict.fromkeys((*(() if eos is None else (eos,)), *ends)))
        self.adds_bos = self.bos_id is not None and self._first_added() == self.bos_id

    # --- where it comes from

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        config: Mapping[str, Any] | None = None,
        templates: str | Mapping[str, str] | None = None,
    ) -> Tokenizer:
        """A tokenizer.json, with the contents of a tokenizer_config.json and chat templates where there are any.

        Start and end tokens that the config does not name are those that the file's post-processor puts round a text.
        """
        path = Path(path)
        config = dict(config or {})
        core, special = read_core(path, config)
        if templates is None:
            templates = template_sources(config.get("chat_template"), path)
        sources = {"default": templates} if isinstance(templates, str) else templates
        return cls(core, special, templates=sources, config=config)

    @classmethod
    def from_folder(cls, folder: str | Path, name: str = "tokenizer.json") -> Tokenizer:
        """A model folder: tokenizer.json, tokenizer_config.json, chat templates, and the files of older releases."""
        folder = Path(folder)
        if not folder.is_dir():
            raise TokenizerError(f"{folder}: no such folder")
        config = read_config(folder)
        return cls.from_file(folder / name, config, read_templates(folder, config))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], pre: str | None = None) -> Tokenizer:
        """The vocabulary in GGUF metadata (a plain mapping); `pre` replaces `tokenizer.ggml.pre`."""
        found = read_vocabulary(metadata, pre)
        return cls(found.core, found.special, found.ends, found.templates, found.config, found.known_ids)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and chat_template.jinja, as `transformers` opens them."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        left_out = ("chat_template", "auto_map", "name_or_path", "tokenizer_file", "special_tokens_map_file")
        config = {key: value for key, value in self._config.items() if key not in left_out}
        config |= {**self._special, "tokenizer_class": "PreTrainedTokenizerFast"}
        config.setdefault("clean_up_tokenization_spaces", False)
        (folder / "tokenizer.json").write_text(self._core.to_str(pretty=True), encoding="utf-8")
        text = json.dumps(config, ensure_ascii=False, indent=2, sort_keys=True)
        (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
        for name, source in (self._template.sources if self._template else {}).items():
            path = folder / "chat_template.jinja"
            if name != "default":
                path = folder / "additional_chat_templates" / f"{name}.jinja"
                path.parent.mkdir(exist_ok=True)
            path.write_text(source, encoding="utf-8")

    # --- what is in it

    @cached_property
    def known_ids(self) -> Collection[int]:
        """The ids that mean something; others, such as rows that pad a model's head, decode to the empty string."""
        vocabulary = self._core.get_vocab(with_added_tokens=True)
        gaps = [at for token, at in vocabulary.items() if token[:4] == "[PAD" and _fills_gap(token, at)]
        return frozenset(vocabulary.values()).difference(gaps)

    @cached_property
    def vocab_size(self) -> int:
        """The number of rows that ids may reach: the highest known id and one."""
        return max(self.known_ids) + 1

    @property
    def chat_template(self) -> str | None:
        """The text of the chat template, or None."""
        return self._template.source() if self._template else None

    @cached_property
    def turn_end_ids(self) -> tuple[int, ...]:
        """The token that the chat template writes after an answer: where a chat stops, whatever the files name."""
        if self._template is None:
            return ()
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
        try:
            text = self.render(turns, add_generation_prompt=False)
        except TemplateError:
            return ()
        return self._control.first(text.rpartition(_PROBE)[2])

    def id_of(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it, or None."""
        return self._core.token_to_id(token)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for, control tokens as they are written; b'' for an id that is not known."""
        if token not in self._spelled:
            self._spelled[token] = self._spell(token)
        return self._spelled[token]

    def token_text(self, token: int) -> str:
        """A token as text; where its bytes are a part of a character, U+FFFD stands for them."""
        return self.token_bytes(token).decode("utf-8", errors="replace")

    def __repr__(self) -> str:
        kind = type(self._core.model).__name__
        return f"Tokenizer({kind}, {self._core.get_vocab_size()} tokens, {len(self.control_ids)} control tokens)"

    # --- text to ids

    def encode(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """The ids of a text.

        Args:
            text: any text.
            add_special: put round it what the tokenizer's own files say (a start token, [CLS] and [SEP], an end token).
            parse_special: text that spells a control token becomes that token; otherwise it stays ordinary text.
        """
        return self._encode(text, add_special, parse_special)[0]

    def encode_batch(
        self, texts: Sequence[str], add_special: bool = False, parse_special: bool = False
    ) -> list[list[int]]:
        """The ids of several texts, encoded in parallel."""
        for at, text in enumerate(texts):
            _check_text(text, f"texts[{at}]")
        core = self._core if parse_special else self._ordinary
        found = core.encode_batch_fast(list(texts), add_special_tokens=add_special)
        if parse_special or all(self.control_ids.isdisjoint(item.ids) for item in found):
            return [item.ids for item in found]
        return [self.encode(text, add_special) for text in texts]

    def encode_with_offsets(
        self, text: str, add_special: bool = False, parse_special: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids, and for each the characters of `text` it covers as (start, end); (0, 0) for what was added."""
        return self._encode(text, add_special, parse_special)

    def prompt(self, text: str, parse_special: bool = False) -> list[int]:
        """The ids of a raw prompt: one start token where the tokenizer adds one, and never an end token.

        A start token that the user typed counts only with `parse_special=True`, and is then not doubled; without it
        the typed text is ordinary text after the start token.
        """
        return self._one_start(self.encode(text, parse_special=parse_special))

    # --- chats

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The text that the chat template makes of a conversation; see `ChatTemplate.render`."""
        text, shield = self._rendered(messages, tools, add_generation_prompt, continue_final_message, variables)
        return shield.restore(text) if shield else text

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> list[int]:
        """The prompt of a conversation.

        What the template writes is encoded with its control tokens as tokens; whatever came in through messages, tools
        and variables stays ordinary text. The ids begin with exactly one start token if the tokenizer adds one or the
        template writes it.

        Raises:
            TemplateError: there is no template, it refuses the messages, or a message is malformed.
        """
        text, shield = self._rendered(messages, tools, add_generation_prompt, continue_final_message, variables)
        _check_text(text, "the rendered chat")
        if not shield:
            ids = self._encode(text, add_special=False, parse_special=True)[0]
            # A normalizer, or the vocabulary itself, may see a control token where its text does not stand.
            if self._count(ids) == self._count(self._control.cut(text)):
                return self._one_start(ids)
        return self._one_start(self._encode_cut(text, shield))

    # --- ids to text

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of ids: control tokens are left out unless `skip_special=False`; unknown ids are the empty string.

        Bytes that are no character become U+FFFD. Nothing is tidied up: spaces come out as the ids have them, but for
        the one that SentencePiece vocabularies put before a text.
        """
        if isinstance(ids, (str, bytes)):
            raise DataError(f"ids: {type(ids).__name__}; give token ids")
        ids = [int(token) for token in ids]
        if self._joining is None:
            return self._core.decode(
                [at for at in ids if self._token(at) is not None], skip_special_tokens=skip_special
            )
        hidden = self.control_ids if skip_special else frozenset[int]()
        stream = ByteStream(self.token_bytes, self._joining.leading)
        text = [stream.push(at) for at in ids if at not in hidden]
        return "".join(text) + stream.finish()

    def stream(self, prompt_ids: Sequence[int] = ()) -> StreamDecoder:
        """A decoder for ids that come one by one, after `prompt_ids`: a continuation keeps its leading space."""
        shown = (at for at in reversed(prompt_ids) if at not in self.control_ids and self._token(at) is not None)
        if self._joining is None:
            return WindowStream(self.decode, [*islice(shown, WindowStream.CONTEXT)][::-1])
        begins = next(shown, None) is None
        return ByteStream(self._visible_bytes, self._joining.leading if begins else 0)

    # --- inside

    def _named(self, name: str) -> int | None:
        token = self._special.get(name)
        return None if token is None else self._core.token_to_id(token)

    def _first_added(self) -> int | None:
        found = self._core.encode("", add_special_tokens=True)
        return found.ids[0] if found.ids and found.special_tokens_mask[0] else None

    def _token(self, token: int) -> str | None:
        text = self._core.id_to_token(token) if 0 <= token < 1 << 32 else None
        return None if text is None or _fills_gap(text, token) else text

    def _spell(self, token: int) -> bytes:
        text = self._token(token)
        if text is None:
            return b""
        if self._joining is None:
            return text.encode()
        if token in self._added:
            return text.encode() if self._added[token].special else self._joining.spell_added(text)
        return self._joining.spell(text)

    def _visible_bytes(self, token: int) -> bytes:
        return b"" if token in self.control_ids else self.token_bytes(token)

    @cached_property
    def _ordinary(self) -> tokenizers.Tokenizer:
        """The same tokenizer, blind to control tokens."""
        return blind(self._core, self._added)

    @cached_property
    def _going_on(self) -> tokenizers.Tokenizer:
        """`_ordinary` for text that is not the beginning, where some put a space before the beginning only."""
        core = blind(self._core, self._added)
        core.pre_tokenizer = changed(core.pre_tokenizer, ("prepend_scheme", "first", "never"))
        return core

    @cached_property
    def _bare(self) -> tokenizers.Tokenizer:
        """`_ordinary` without a space put before anything."""
        core = blind(self._core, self._added)
        core.normalizer = changed(core.normalizer, ("prepend", SPACE, ""))
        never = [("prepend_scheme", scheme, "never") for scheme in ("first", "always")]
        core.pre_tokenizer = changed(core.pre_tokenizer, *never, ("add_prefix_space", True, False))
        return core

    def _encode(self, text: str, add_special: bool, parse_special: bool) -> tuple[list[int], list[tuple[int, int]]]:
        _check_text(text, "text")
        core = self._core if parse_special else self._ordinary
        found = core.encode(text, add_special_tokens=add_special)
        if parse_special or self.control_ids.isdisjoint(found.ids):
            return found.ids, found.offsets
        return self._without_control(text, found)

    def _without_control(self, text: str, found: tokenizers.Encoding) -> tuple[list[int], list[tuple[int, int]]]:
        """Where the vocabulary itself makes a control token of ordinary text, that text is encoded sign by sign."""
        ids, offsets = [], []
        for at, (start, end), added in zip(found.ids, found.offsets, found.special_tokens_mask, strict=True):
            unknown = at == self.unk_id and text[start:end].strip() != self._added[at].text
            if at not in self.control_ids or added or unknown:
                ids.append(at)
                offsets.append((start, end))
                continue
            for place in range(start, end):
                signs = [sign for sign in self._bare.encode(text[place]).ids if sign not in self.control_ids]
                if not signs and self.unk_id is not None:
                    signs = [self.unk_id]
                ids += signs
                offsets += [(place, place + 1)] * len(signs)
        return ids, offsets

    def _one_start(self, ids: list[int]) -> list[int]:
        if self.bos_id is None:
            return ids
        count = next((at for at, token in enumerate(ids) if token != self.bos_id), len(ids))
        if count:
            return ids[count - 1 :]
        return [self.bos_id, *ids] if self.adds_bos else ids

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, Any],
    ) -> tuple[str, Shield | None]:
        """The rendered text, with a shield if stand-ins stand in it for control tokens that were typed."""
        template = self._template
        if template is None:
            raise TemplateError("this tokenizer has no chat template; give a raw prompt, or add chat_template.jinja")
        messages, tools, variables = _plain_input(messages), _plain_input(tools), _plain_input(dict(variables))

        def render(change: Any = None) -> str:
            given = (messages, tools, variables)
            chat, schemas, more = given if change is None else (map_strings(item, change) for item in given)
            return template.render(
                chat, schemas, add_generation_prompt, continue_final_message, **{**self._special, **more}
            )

        typed = list(strings((messages, tools, variables)))
        found = any(map(self._control.typed.search, typed))
        open_end = any(map(self._control.open_end, typed))
        if not found and not open_end:
            return render(), None
        shield = Shield(self._control, "".join((*typed, *(template.sources.values()))))
        text = render(shield.hide) if found else render()
        if open_end:
            # Two strings that a template puts side by side could spell a control token together.
            closed = Shield(self._control, "".join((*typed, *(template.sources.values()))))
            other = render(lambda string: closed.hide(string, open_end=True))
            if self._typed_count(text) != self._typed_count(other):
                return other, closed
        return text, shield or None

    def _typed_count(self, text: str) -> int:
        return sum(1 for _ in self._control.typed.finditer(text))

    def _count(self, pieces: Iterable[int | str]) -> int:
        return sum(piece in self.control_ids and piece != self.unk_id for piece in pieces)

    def _encode_cut(self, text: str, shield: Shield | None) -> list[int]:
        """The control tokens in a rendered text as ids, everything between them as ordinary text."""
        ids: list[int] = []
        for at, piece in enumerate(self._control.cut(text)):
            if isinstance(piece, int):
                ids.append(piece)
                continue
            piece = shield.restore(piece) if shield else piece
            core = self._going_on if at else self._ordinary
            found = core.encode(piece, add_special_tokens=False)
            ids += found.ids if self.control_ids.isdisjoint(found.ids) else self._without_control(piece, found)[0]
        return ids


def _plain_input(value: Any) -> Any:
    """Messages as plain data; what is no list at all is left for the template's checks to refuse."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return plain(value) if isinstance(value, dict) else value


def _fills_gap(token: str, at: int) -> bool:
    """Whether a converter put this name, made of its own id, where the vocabulary has no token."""
    return token.startswith("[PAD") and token == f"[PAD{at}]"


def _check_text(text: Any, name: str) -> None:
    if not isinstance(text, str):
        raise DataError(f"{name}: {type(text).__name__}; give a string")
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        at = next(place for place, char in enumerate(text) if "\ud800" <= char <= "\udfff")
        raise DataError(f"{name}: half of a surrogate pair at character {at}; give valid Unicode")


def _added(at: int, token: Any) -> AddedToken:
    return AddedToken(at, token.content, *(getattr(token, flag) for flag in ("special", *FLAGS[:4])))
