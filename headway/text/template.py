"""Chat templates: sandboxed Jinja with what published templates expect, and errors that say what they say."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

from headway.errors import TemplateError

if TYPE_CHECKING:
    import jinja2

_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
_TEXT_PARTS: Final = ("text", "input_text", "output_text")
_UNFINISHED: Final = "\U0010fffd"


class _FailedError(TemplateError):
    """A template that stumbled, as opposed to one that refused in its own words."""


class ChatTemplate:
    """One template, or several by name ('default', 'tool_use').

    What a template may use: `messages tools documents add_generation_prompt bos_token eos_token` and every other named
    special token, `raise_exception`, `strftime_now`, the filter `tojson` (no HTML escapes), `{% break %}` and
    `{% continue %}`, `{% generation %}` (which changes nothing). It runs in Jinja's immutable sandbox on plain data.
    """

    def __init__(self, source: str | Mapping[str, str]) -> None:
        self.sources: dict[str, str] = {"default": source} if isinstance(source, str) else dict(source)
        if not self.sources:
            raise TemplateError("chat_template: an empty list; give at least one template")

    def source(self, tools: bool = False) -> str:
        """The template's text: 'tool_use' when there are tools and it exists, else 'default'."""
        if tools and "tool_use" in self.sources:
            return self.sources["tool_use"]
        if "default" in self.sources:
            return self.sources["default"]
        if len(self.sources) == 1:
            return next(iter(self.sources.values()))
        raise TemplateError(f"chat_template: no template is called 'default'; there are {sorted(self.sources)}")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The text of a conversation.

        Args:
            messages: mappings with `role` and `content`: a string, a list of parts, or nothing at all on a turn that
                only calls tools. Where a template takes strings only, text parts are joined with a newline.
            tools: JSON schemas of the functions that the model may call.
            add_generation_prompt: end with the beginning of an answer.
            continue_final_message: leave the last message open, so that the model goes on with it.
            variables: more names for the template; they win over the special tokens.

        Raises:
            TemplateError: the template refuses the messages (with its own words), does not compile, tries to leave
                the sandbox, or a message is malformed.
        """
        if continue_final_message and add_generation_prompt:
            raise TemplateError("continue_final_message: not together with add_generation_prompt; choose one")
        template = _compiled(self.source(tools is not None))
        chat = _conversation(messages)
        if continue_final_message:
            chat[-1] = _left_open(chat[-1])
        given = {
            "messages": chat,
            "tools": _tools(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **plain(variables),
        }
        text = _render(template, given)
        return _cut_at_mark(text) if continue_final_message else text


def plain(value: Any) -> Any:
    """The value in JSON's own types, so that a template finds no methods to call on what it is given."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):
        return plain(dump())
    return f"<{type(value).__name__}>"


def _conversation(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise TemplateError(f"messages: {type(messages).__name__}; give a list of mappings with role and content")
    if not messages:
        raise TemplateError("messages: an empty list; give at least one message")
    return [_message(plain(message), at) for at, message in enumerate(messages)]


def _message(message: Any, at: int) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise TemplateError(f"messages[{at}]: {_shown(message)}; give a mapping with role and content")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise TemplateError(f"messages[{at}].role: {_shown(role)}; give a role such as 'user'")
    if not (content is None or isinstance(content, (str, list))):
        raise TemplateError(f"messages[{at}].content: {_shown(content)}; give a string or a list of parts")
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, (str, dict)):
            raise TemplateError(f"messages[{at}].content: {_shown(part)}; give parts with a type, or strings")
        if isinstance(part, dict) and part.get("type") in _TEXT_PARTS and _part_text(part) is None:
            raise TemplateError(f"messages[{at}].content: {_shown(part)}; a part of this type needs a string as 'text'")
    # A key with None is what APIs send for "nothing here"; templates expect the key to be absent.
    message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, _REASONING[0]: reasoning}


def _tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise TemplateError(f"tools: {type(tools).__name__}; give a list of JSON schemas")
    for at, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise TemplateError(f"tools[{at}]: {type(tool).__name__}; give the function's JSON schema")
    return [plain(tool) for tool in tools]


def _render(template: jinja2.Template, given: dict[str, Any]) -> str:
    """Render as given; where that fails or garbles what the template does not know, in the next plainer form."""
    refusal: TemplateError | None = None
    for chat in _plainer_and_plainer(given["messages"]):
        try:
            text = _run(template, {**given, "messages": chat})
        except TemplateError as error:
            refusal = error
            continue
        refusal = None
        if not _garbled(text, chat):
            break
    if isinstance(refusal, _FailedError) or (refusal is None and _garbled(text, chat)):
        _refuse_other_parts(chat)
    if refusal is not None:
        raise refusal
    return text


def _plainer_and_plainer(chat: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The conversation, then with lists of text as strings, arguments parsed, and an empty string for no content."""
    yield chat
    for simpler in (_joined_text, _parsed_arguments, _filled_content):
        changed = [simpler(message) for message in chat]
        if changed != chat:
            chat = changed
            yield chat


def _joined_text(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list) or any(_part_text(part) is None for part in content):
        return message
    return {**message, "content": "\n".join(_part_text(part) or "" for part in content)}


def _parsed_arguments(message: dict[str, Any]) -> dict[str, Any]:
    if not any(True for _ in _argument_strings(message)):
        return message
    calls = [_parsed_call(call) for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def _parsed_call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return {**call, "function": _parsed_call(call["function"])}
    try:
        arguments = json.loads(call["arguments"])
    except (KeyError, TypeError, ValueError):
        return call
    return {**call, "arguments": arguments} if isinstance(arguments, dict) else call


def _filled_content(message: dict[str, Any]) -> dict[str, Any]:
    return message if "content" in message else {**message, "content": ""}


def _garbled(text: str, chat: list[dict[str, Any]]) -> bool:
    """Whether a list was printed as Python writes it or left out, or a JSON string was quoted a second time."""
    for message in chat:
        if any(json.dumps(arguments, ensure_ascii=False) in text for arguments in _argument_strings(message)):
            return True
        content = message.get("content")
        if isinstance(content, list):
            texts = [_part_text(part) or "" for part in content]
            if str(content) in text or any(part.strip() not in text for part in texts):
                return True
    return False


def _refuse_other_parts(chat: list[dict[str, Any]]) -> None:
    """Parts other than text are what a template could not take, if there are any."""
    for at, message in enumerate(chat):
        content = message.get("content")
        parts = [part for part in content if _part_text(part) is None] if isinstance(content, list) else []
        if parts:
            kinds = ", ".join(sorted({str(part.get("type")) for part in parts}))
            raise TemplateError(
                f"messages[{at}].content: parts of type {kinds}, but this chat template takes text only"
            )


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    text = part.get("text")
    return text if isinstance(text, str) and part.get("type", "text") in _TEXT_PARTS else None


def _argument_strings(message: dict[str, Any]) -> Iterator[str]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            function = call["function"] if isinstance(call.get("function"), dict) else call
            if isinstance(function.get("arguments"), str):
                yield function["arguments"]


def _left_open(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        content = _joined_text(message)["content"]
    if not isinstance(content, str):
        raise TemplateError("continue_final_message: the last message has no text to go on with")
    return {**message, "content": content + _UNFINISHED}


def _cut_at_mark(text: str) -> str:
    if _UNFINISHED not in text:
        raise TemplateError("continue_final_message: the chat template leaves out the last message")
    return text[: text.rindex(_UNFINISHED)]


def _run(template: jinja2.Template, given: dict[str, Any]) -> str:
    import jinja2

    try:
        return template.render(**given)
    except _refusal() as error:
        raise TemplateError(f"the chat template refuses the messages: {_one_line(error)}") from None
    except jinja2.exceptions.SecurityError as error:
        raise _FailedError(f"the chat template may not do that: {_one_line(error)}") from None
    except Exception as error:  # noqa: BLE001  a template is code from a model's folder: whatever it raises is its fault
        raise _FailedError(f"the chat template fails: {type(error).__name__}: {_one_line(error)}") from None


@lru_cache(maxsize=64)
def _compiled(source: str) -> jinja2.Template:
    import jinja2

    try:
        return _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"chat_template, line {error.lineno}: {_one_line(error)}") from None
    except RecursionError:
        raise TemplateError("chat_template: nested too deeply") from None


@lru_cache(maxsize=1)
def _refusal() -> type[jinja2.TemplateError]:
    import jinja2

    class Refusal(jinja2.TemplateError):
        """What a template raises through raise_exception."""

    return Refusal


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    import jinja2
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Lets `{% generation %}` stand round an answer; what it encloses is rendered as it is."""

        tags = {"generation"}  # noqa: RUF012  as Jinja declares it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    class Names(jinja2.utils.Namespace):
        """`namespace()`, without the attributes through which a template could reach Python's internals."""

        def __init__(*args: Any, **attributes: Any) -> None:
            self, *rest = args
            for name in dict(*rest, **attributes):
                _refuse_private(name)
            jinja2.utils.Namespace.__init__(self, *rest, **attributes)

        def __setitem__(self, name: str, value: Any) -> None:
            _refuse_private(name)
            super().__setitem__(name, value)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "namespace": Names,
        "dict": _new_dict,
    }
    return environment


def _refuse_private(name: Any) -> None:
    import jinja2

    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace has no attribute {name!r}")


def _new_dict(*args: Any, **items: Any) -> dict[Any, Any]:
    return dict(*args, **items)


def _raise_exception(message: Any) -> NoReturn:
    raise _refusal()(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005  templates print the user's own date


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
