"""A conversation as data: a system message and turns, saved as JSON that other tools read too."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from headway.errors import DataError

Message = dict[str, str]


@dataclass
class Conversation:
    """What was said: `turns` go user, assistant, user and so on."""

    system: str = ""
    turns: list[Message] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        """All of it, as a chat template takes it."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.turns]

    def say(self, role: str, text: str) -> None:
        """Add a turn."""
        self.turns.append({"role": role, "content": text})

    def undo(self) -> str | None:
        """Take the last question and its answer back; the question, or None when nothing was said."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return turn["content"]
        return None

    def save(self, file: Path, model: str) -> None:
        """Write it whole or not at all; DataError rather than replacing a file that is no conversation."""
        if file.exists():
            Conversation.load(file)
        text = json.dumps({"model": model, "messages": self.messages}, ensure_ascii=False, indent=2)
        partial = file.with_name(f".{file.name}.part")
        try:
            partial.write_text(text + "\n", encoding="utf-8")
            os.replace(partial, file)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise DataError(f"{file}: cannot be written ({error.strerror})") from None

    @classmethod
    def load(cls, file: Path) -> Conversation:
        """The conversation in a JSON file: a list of messages, or an object that holds one at "messages"."""
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror})") from None
        except ValueError:
            raise DataError(f"{file}: not JSON, so no conversation") from None
        messages = data.get("messages") if isinstance(data, dict) else data
        if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
            raise DataError(f'{file}: holds no conversation, a list of {{"role": "...", "content": "..."}}')
        said = [{"role": message["role"], "content": message["content"]} for message in messages]
        first = said[0]["content"] if said and said[0]["role"] == "system" else ""
        turns = said[1:] if said and said[0]["role"] == "system" else said
        roles = [turn["role"] for turn in turns]
        if roles != ["user", "assistant"] * (len(roles) // 2):
            raise DataError(
                f"{file}: its roles are {', '.join(roles)}; user and assistant take turns, and the last answers"
            )
        return cls(first, turns)


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)
