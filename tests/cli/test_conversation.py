"""A conversation as data: what is kept, taken back, saved, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli.conversation import Conversation
from headway.errors import DataError


def talk() -> Conversation:
    conversation = Conversation("be brief")
    for role, text in (("user", "one"), ("assistant", "1"), ("user", "你好"), ("assistant", "2")):
        conversation.say(role, text)
    return conversation


def test_messages_begin_with_the_system_if_there_is_one() -> None:
    assert talk().messages[0] == {"role": "system", "content": "be brief"}
    assert Conversation().messages == []


def test_undo_takes_a_question_with_its_answer() -> None:
    conversation = talk()
    assert conversation.undo() == "你好"
    assert [turn["content"] for turn in conversation.turns] == ["one", "1"]
    assert conversation.undo() == "one"
    assert conversation.undo() is None


def test_saved_conversation_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    talk().save(file, "m")
    assert Conversation.load(file) == talk()
    Conversation("other").save(file, "m")
    assert Conversation.load(file) == Conversation("other")
    assert [path.name for path in tmp_path.iterdir()] == ["talk.json"]


def test_list_of_messages_is_a_conversation(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    file.write_text(json.dumps(talk().messages), encoding="utf-8")
    assert Conversation.load(file) == talk()


def test_file_that_is_no_conversation_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "thesis.txt"
    file.write_text("the work of years", encoding="utf-8")
    with pytest.raises(DataError, match=r"thesis\.txt: not JSON"):
        talk().save(file, "m")
    assert file.read_text(encoding="utf-8") == "the work of years"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("\xff", "not JSON"),
        ('{"messages": 3}', "holds no conversation"),
        ('[{"role": "user"}]', "holds no conversation"),
        ('[{"role": "user", "content": "x"}]', "its roles are user;"),
        ('[{"role": "assistant", "content": "x"}]', "its roles are assistant;"),
    ],
)
def test_broken_conversation_names_the_file(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=said):
        Conversation.load(file)


def test_missing_folder_is_a_mistake_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be written"):
        talk().save(tmp_path / "nowhere" / "talk.json", "m")
