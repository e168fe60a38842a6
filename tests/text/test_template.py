"""Chat templates: what they may use, what they refuse, and what they are given."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

import pytest

from headway.errors import HeadwayError, TemplateError
from headway.text import ChatTemplate, Tokenizer
from tests.text.templates import CHATML, CHATS, GEMMA, GENERATION, LLAMA2, LLAMA3, MISTRAL, QWEN, TEMPLATES, TOOLS
from tests.text.vocabularies import byte_level, sentencepiece

USER = [{"role": "user", "content": "Hi"}]
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}

ALTERNATES = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('Unknown role ' + m.role) }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)


@pytest.mark.case("C12")
@pytest.mark.parametrize(
    ("template", "roles", "words"),
    [
        (ALTERNATES, ["user", "user"], "roles must alternate"),
        (ALTERNATES, ["system", "user"], "roles must alternate"),
        (ALTERNATES, ["assistant"], "roles must alternate"),
        (NO_SYSTEM, ["system", "user"], "System role not supported"),
        (NO_SYSTEM, ["foo"], "Unknown role foo"),
        (LLAMA2, ["user", "user"], "Conversation roles must alternate"),
        (MISTRAL, ["foo"], "roles must alternate"),
        (GEMMA, ["user", "user"], "Conversation roles must alternate"),
    ],
)
def test_a_refusal_carries_the_templates_own_words(template: str, roles: list[str], words: str) -> None:
    tokenizer = Tokenizer.from_gguf({**byte_level(), "tokenizer.chat_template": template})
    messages = [{"role": role, "content": "a"} for role in roles]
    for call in (tokenizer.chat, tokenizer.render):
        with pytest.raises(TemplateError, match=words) as error:
            call(messages)
        assert isinstance(error.value, HeadwayError)
        assert "\n" not in str(error.value)
    assert tokenizer.chat(USER)


@pytest.mark.case("C12")
@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "an empty list"),
        ("hello", "messages: str"),
        ({"role": "user"}, "messages: dict"),
        (None, "messages: NoneType"),
        (["hello"], r"messages\[0\]: 'hello'"),
        ([*USER, {"content": "a"}], r"messages\[1\].role: None"),
        ([{"role": 3, "content": "a"}], r"messages\[0\].role: 3"),
        ([{"role": "", "content": "a"}], r"messages\[0\].role: ''"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content: 3"),
        ([{"role": "user", "content": {"text": "a"}}], r"messages\[0\].content"),
        ([{"role": "user", "content": [3]}], r"messages\[0\].content: 3"),
        ([{"role": "user", "content": [{"type": "text"}]}], "needs a string as 'text'"),
        ([[{"role": "user", "content": "a"}]], r"messages\[0\]: \["),
    ],
)
def test_malformed_messages_are_named(messages: Any, words: str) -> None:
    for template in TEMPLATES.values():
        with pytest.raises(TemplateError, match=words) as error:
            ChatTemplate(template).render(messages)
        assert "\n" not in str(error.value)


@pytest.mark.case("C12")
@pytest.mark.parametrize("tools", ["get_weather", {"name": "x"}, [3], [lambda city: city]])
def test_malformed_tools_are_named(tools: Any) -> None:
    with pytest.raises(TemplateError, match="tools"):
        ChatTemplate(QWEN).render(USER, tools=tools)


@pytest.mark.case("C12")
@pytest.mark.parametrize("template", [CHATML, LLAMA2, LLAMA3, MISTRAL, GEMMA, QWEN, ALTERNATES])
def test_text_parts_render_as_the_string(template: str) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert ChatTemplate(template).render(parts, **NAMES) == ChatTemplate(template).render(USER, **NAMES)


@pytest.mark.case("C12")
def test_several_text_parts_are_lines_where_a_template_takes_strings_only() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
    assert "one\ntwo" in ChatTemplate(CHATML).render(parts)
    assert "onetwo" in ChatTemplate(GEMMA).render(parts)


@pytest.mark.case("C12")
def test_parts_that_are_no_text_are_refused_where_a_template_takes_text_only() -> None:
    image = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}]
    assert "<start_of_image>What is it?" in ChatTemplate(GEMMA).render(image)
    with pytest.raises(TemplateError, match="type image, but this chat template takes text only"):
        ChatTemplate(ALTERNATES).render(image)
    with pytest.raises(TemplateError, match="type image, but this chat template takes text only"):
        ChatTemplate(CHATML).render(image)


@pytest.mark.case("C12")
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, {"role": "assistant"}])
def test_a_turn_without_content_says_nothing(template: str, message: dict[str, Any]) -> None:
    call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    text = ChatTemplate(TEMPLATES[template]).render([*USER, {**message, "tool_calls": [call]}], **NAMES)
    assert "None" not in text
    if template in ("qwen", "llama3", "mistral"):
        assert '{"city": "Rome"}' in text


@pytest.mark.case("C12")
@pytest.mark.parametrize("template", [QWEN, LLAMA3, MISTRAL])
def test_arguments_as_a_json_string_are_not_quoted_a_second_time(template: str) -> None:
    call = {"type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    text = ChatTemplate(template).render([*USER, {"role": "assistant", "content": None, "tool_calls": [call]}], **NAMES)
    assert '{"city": "Rome"}' in text
    assert "\\" not in text


@pytest.mark.case("C12")
@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['sys'] }}",
        "{{ strftime_now.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{{ lipsum.__globals__['os'] }}",
        "{{ dict.__base__.__subclasses__() }}",
        "{{ (messages | map(attribute='__class__') | first).__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages[0].clear() }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(__class__=1) }}",
        "{% set x = '{0.__class__.__mro__}'.format(messages) %}{{ x }}",
        "{{ '%s' | format(range(10 ** 9) | list) }}",
    ],
)
def test_the_sandbox_holds(template: str) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    try:
        text = ChatTemplate(template).render(messages)
    except TemplateError as error:
        assert "\n" not in str(error)
    else:
        assert not any(word in text for word in ("class '", "module", "function", "built-in"))
    assert messages == USER


def test_templates_see_plain_data_only() -> None:
    class Loud(str):
        __slots__ = ()

        def shout(self) -> str:
            return "leaked"

    @dataclasses.dataclass
    class Message:
        role: str
        content: str

    chat = [Message("user", Loud("Hi"))]
    assert ChatTemplate("{{ messages[0].content.shout() }}").render is not None
    with pytest.raises(TemplateError):
        ChatTemplate("{{ messages[0].content.shout() }}").render(chat)  # type: ignore[arg-type]
    assert ChatTemplate("{{ messages[0].content }}").render(chat) == "Hi"  # type: ignore[arg-type]
    assert ChatTemplate("{{ thing }}").render(USER, thing=object()) == "<object>"


@pytest.mark.parametrize("template", ["{% for %}", "{{ a", "{% if x %}", "{% nothing %}", "{{ 'a' | no_such_filter }}"])
def test_a_template_that_does_not_compile_names_its_line(template: str) -> None:
    with pytest.raises(TemplateError, match="line 2") as error:
        ChatTemplate("\n" + template).render(USER)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ nothing.more }}", "{{ messages[7].role }}"])
def test_a_template_that_fails_says_why_in_one_line(template: str) -> None:
    with pytest.raises(TemplateError, match="chat template fails") as error:
        ChatTemplate(template).render(USER)
    assert "\n" not in str(error.value)


def test_tojson_escapes_no_html_and_keeps_characters_and_order() -> None:
    value = {"b": "<é世'&>", "a": [1, None, True]}
    assert ChatTemplate("{{ v | tojson }}").render(USER, v=value) == '{"b": "<é世\'&>", "a": [1, null, true]}'
    assert ChatTemplate("{{ v | tojson(indent=2) }}").render(USER, v={"a": 1}) == '{\n  "a": 1\n}'


def test_blocks_leave_no_blank_lines_and_loops_can_be_left() -> None:
    stop = "    {% if m.role == 'stop' %}\n    {% break %}\n    {% endif %}\n"
    template = "{% for m in messages %}\n" + stop + "{{ m.content }}\n{% endfor %}"
    chat = [*USER, {"role": "stop", "content": "x"}, *USER]
    assert ChatTemplate(template).render(chat) == "Hi\n"


def test_generation_marks_change_nothing() -> None:
    chat = [*USER, {"role": "note", "content": "x"}, {"role": "assistant", "content": "Yes"}]
    assert ChatTemplate(GENERATION).render(chat, **NAMES) == "<|user|>Hi<|assistant|>Yes</s><|assistant|>"


def test_the_date_is_todays_unless_given() -> None:
    template = ChatTemplate(LLAMA3)
    assert datetime.now().strftime("%Y") in template.render(USER, **NAMES)  # noqa: DTZ005
    assert "Today Date: 1 Jan 2001" in template.render(USER, date_string="1 Jan 2001", **NAMES)


def test_named_special_tokens_reach_the_template() -> None:
    template = "{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ pad_token is defined }}"
    tokenizer = Tokenizer.from_gguf({**sentencepiece(), "tokenizer.chat_template": template})
    assert tokenizer.render(USER) == "<s>|</s>|<unk>|False"
    assert tokenizer.render(USER, eos_token="X") == "<s>|X|<unk>|False"


def test_a_last_message_can_be_left_open() -> None:
    chat = [*USER, {"role": "assistant", "content": "Once upon"}]
    options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    assert ChatTemplate(CHATML).render(chat, **options).endswith("<|im_start|>assistant\nOnce upon")
    with pytest.raises(TemplateError, match="not together"):
        ChatTemplate(CHATML).render(chat, continue_final_message=True)
    with pytest.raises(TemplateError, match="no text"):
        ChatTemplate(CHATML).render([{"role": "assistant"}], **options)
    with pytest.raises(TemplateError, match="leaves out"):
        ChatTemplate("nothing").render(chat, **options)


def test_a_tokenizer_without_a_template_says_so() -> None:
    with pytest.raises(TemplateError, match="no chat template"):
        Tokenizer.from_gguf(sentencepiece()).chat(USER)


def test_the_given_messages_are_not_changed() -> None:
    chat = [dict(message) for message in CHATS["tool call"]]
    for template in TEMPLATES.values():
        try:
            ChatTemplate(template).render(chat, tools=TOOLS, **NAMES)
        except TemplateError:
            continue
    assert chat == CHATS["tool call"]
