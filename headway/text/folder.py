"""What the files of a model folder say about its tokenizer: tokenizer.json, its config, chat templates, older files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway.checkpoint.pickles import holds_pickle
from headway.errors import TokenizerError
from headway.text.special import FLAGS
from headway.text.wrapping import wrapping

if TYPE_CHECKING:
    import tokenizers

_NAMES: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_core(path: Path, config: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """The library's tokenizer, completed by a tokenizer_config.json, and the special tokens by name.

    Names that the config leaves out are taken from what the file puts round a text.
    """
    core = _open(path)
    named = _special_names(config)
    special = {name: text for name, text in _wrapping_names(core).items() if text not in named.values()} | named
    _add_declared(core, config, special)
    _wrap_as_declared(core, config, special)
    if "unk_token" not in special and isinstance(unknown := getattr(core.model, "unk_token", None), str):
        special["unk_token"] = unknown
    return core, special


def read_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, with what older releases kept in files of their own."""
    config = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
    added = _read_json(folder / "added_tokens.json")
    config.setdefault("added_tokens_decoder", {str(at): {"content": text} for text, at in added.items()})
    return config


def _open(path: Path) -> tokenizers.Tokenizer:
    import tokenizers

    if not path.is_file():
        raise TokenizerError(f"{path}: no such file; a model folder needs a tokenizer.json")
    if holds_pickle(path):
        raise TokenizerError(f"{path}: is a pickle, which holds code that runs when opened; give a tokenizer.json")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  the library raises Exception itself
        reason = " ".join(str(error).split())
        raise TokenizerError(f"{path}: not a tokenizer.json that can be read ({reason[:200]})") from None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path}: not readable as JSON ({' '.join(str(error).split())[:200]})") from None
    if not isinstance(found, dict):
        raise TokenizerError(f"{path}: a {type(found).__name__}, expected an object")
    return found


def _content(token: Any) -> str | None:
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _special_names(config: Mapping[str, Any]) -> dict[str, str]:
    extra = config.get("extra_special_tokens")
    named = {name: config.get(name) for name in _NAMES} | (dict(extra) if isinstance(extra, Mapping) else {})
    found = {name: _content(token) for name, token in named.items() if name.endswith("_token")}
    return {name: token for name, token in found.items() if token is not None}


def _wrapping_names(core: tokenizers.Tokenizer) -> dict[str, str]:
    found = core.encode("", add_special_tokens=True)
    names = {}
    if len(found.tokens) >= 1:
        state = core.post_processor.__getstate__() if core.post_processor else b"{}"
        order = _single_template(json.loads(state))
        if order and order[0] != "A":
            names["bos_token"] = order[0]
        if order and order[-1] != "A":
            names["eos_token"] = order[-1]
    return names


def _single_template(state: Mapping[str, Any]) -> list[str]:
    if state.get("type") == "Sequence":
        return next((order for step in state["processors"] if (order := _single_template(step))), [])
    if state.get("type") != "TemplateProcessing":
        return []
    return [next(iter(step.values()))["id"] for step in state["single"]]


def _add_declared(core: tokenizers.Tokenizer, config: Mapping[str, Any], special: Mapping[str, str]) -> None:
    """Added tokens that the config knows and tokenizer.json does not, or knows with other flags."""
    from tokenizers import AddedToken as LibraryToken

    present = {(at, token.content): token for at, token in core.get_added_tokens_decoder().items()}
    declared = config.get("added_tokens_decoder") or {}
    try:
        listed = sorted((int(at), token) for at, token in declared.items())
    except (AttributeError, TypeError, ValueError):
        raise TokenizerError("tokenizer_config.json, added_tokens_decoder: not a mapping of ids to tokens") from None
    for at, token in listed:
        if (text := _content(token)) is None:
            continue
        flags = {flag: bool(token[flag]) for flag in FLAGS if flag in token}
        known = present.get((at, text))
        if known is None or any(getattr(known, flag) != value for flag, value in flags.items()):
            core.add_tokens([LibraryToken(text, **flags)])
    _make_special(core, special)
    names = {token.content for token in core.get_added_tokens_decoder().values()}
    more = [
        _content(token)
        for key in ("additional_special_tokens", "extra_special_tokens")
        for token in _listed(config, key)
    ]
    missing = [text for text in dict.fromkeys((*special.values(), *more)) if text and text not in names]
    core.add_special_tokens([LibraryToken(text, special=True, normalized=False) for text in missing])


def _make_special(core: tokenizers.Tokenizer, special: Mapping[str, str]) -> None:
    """Added tokens that have a name, such as the end of a turn, are control tokens whatever their flag says."""
    from tokenizers import AddedToken as LibraryToken

    for token in list(core.get_added_tokens_decoder().values()):
        if token.content in special.values() and not token.special:
            flags = {flag: getattr(token, flag) for flag in FLAGS[:4]}
            core.add_special_tokens([LibraryToken(token.content, special=True, **flags)])


def _listed(config: Mapping[str, Any], key: str) -> list[Any]:
    value = config.get(key)
    return value if isinstance(value, list) else []


def _wrap_as_declared(core: tokenizers.Tokenizer, config: Mapping[str, Any], special: Mapping[str, str]) -> None:
    """add_bos_token and add_eos_token of a config decide over the file's post-processor, as in `transformers`."""
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    start, end = (
        (special[name], at)
        if config.get(f"add_{name}") and name in special and (at := core.token_to_id(special[name])) is not None
        else None
        for name in ("bos_token", "eos_token")
    )
    core.post_processor = wrapping(start, end)


def template_sources(value: Any, where: Path) -> dict[str, str] | None:
    """The chat_template of a config: a text, or a list of named texts."""
    if value is None:
        return None
    if isinstance(value, str):
        return {"default": value}
    try:
        pairs = value.items() if isinstance(value, Mapping) else [(item["name"], item["template"]) for item in value]
        return {str(name): str(text) for name, text in pairs}
    except (KeyError, TypeError):
        raise TokenizerError(f"{where}, chat_template: neither a text nor a list of named texts") from None


def read_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str] | None:
    """The chat templates of a folder by name: files of their own win over the config."""
    sources = template_sources(config.get("chat_template"), folder / "tokenizer_config.json") or {}
    if not sources:
        old = _read_json(folder / "chat_template.json").get("chat_template")
        sources = template_sources(old, folder / "chat_template.json") or {}
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[path.stem] = _read_text(path)
    if (path := folder / "chat_template.jinja").is_file():
        sources["default"] = _read_text(path)
    return sources or None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path}: not readable as text ({error})") from None
