"""`headway chat`: one question, a file of them, or a conversation at the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from headway.cli import options as shared
from headway.cli import terminal
from headway.cli.conversation import Conversation
from headway.cli.facts import Clock
from headway.errors import HeadwayError, RequestError

if TYPE_CHECKING:
    from headway.cli.loading import Opened
    from headway.generate import Event
    from headway.model import Options


def command(
    model: shared.ModelRef,
    prompt: Annotated[str | None, Option(metavar="TEXT", help="The first question.")] = None,
    system: Annotated[
        str | None, Option(metavar="TEXT", help="What the model is told before the conversation.")
    ] = None,
    max_tokens: shared.MaxTokens = None,
    temperature: shared.Temperature = None,
    top_k: shared.TopK = None,
    top_p: shared.TopP = None,
    min_p: shared.MinP = None,
    seed: shared.Seed = None,
    stop: shared.Stop = None,
    json: shared.Json = False,
    dtype: shared.Dtype = "auto",
    device: shared.Device = "cpu",
    engine: shared.Engine = "auto",
    cache: shared.Cache = "auto",
) -> None:
    """Talk with a model; answers are streamed.

    At a terminal the conversation goes on until Ctrl-D; /help lists what else can be typed, Ctrl-C stops an answer.
    Elsewhere --prompt is the only question, or without it every line of stdin is one. With --json each answer is a
    line of JSON. What is not given of the choices is what the model's own files say, and else greedy, so that the
    same question has the same answer.
    """
    question = None if prompt is None else terminal.argument("--prompt", prompt)
    told = "" if system is None else terminal.argument("--system", system)

    from headway.cli.loading import open_model

    opened = open_model(
        model, dtype=dtype, device=device, engine=shared.engine_name(engine), cache=cache,
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
        stop=shared.texts(stop),
    )  # fmt: skip
    asked = opened.options
    interactive = terminal.is_interactive() and not json
    talk = Talk(opened, Conversation(told), asked, interactive)
    if interactive:
        from headway.cli.dialogue import Dialogue

        Dialogue(talk).run(question)
        return
    questions = 0
    for each in terminal.stdin_lines() if question is None else [question]:
        questions += 1
        answer = talk.ask(each, quiet=json)
        if json:
            terminal.print_json({"question": each, **answer, "facts": talk.data()}, lines=True)
        else:
            terminal.note(talk.facts())
    if not questions:
        raise RequestError("nothing was asked: stdin is empty, and there is no --prompt TEXT")


class Talk:
    """A model in a conversation."""

    def __init__(self, opened: Opened, conversation: Conversation, options: Options, interactive: bool) -> None:
        self.model, self.loading, self.interactive = opened.model, opened.loading, interactive
        self.conversation, self.options = conversation, options
        self.answers = 0  # each draws with a seed of its own, or a second try would draw the first answer again
        self.clock: Clock | None = None

    def ask(self, question: str, *, quiet: bool = False) -> dict[str, Any]:
        """Put a question and write the answer as it comes; what fails leaves the conversation as it was.

        `quiet` writes nothing. Where somebody types, Ctrl-C ends the answer, of which the beginning counts.
        """
        self.conversation.say("user", question)
        said: list[str] = []
        finish: str | None = None
        try:
            for event in self._events():
                said.append(event.text)
                finish = event.finish
                if not quiet:
                    terminal.write(event.text)
        except KeyboardInterrupt:
            if not self.interactive:
                raise
            finish = "interrupted"
        except HeadwayError:
            self.conversation.undo()
            raise
        text = "".join(said)
        if not quiet and not text.endswith("\n"):
            terminal.write("\n")
        if finish == "interrupted" and not text:
            self.conversation.undo()
        else:
            self.conversation.say("assistant", text)
        self._remark(finish)
        return {"answer": text, "finish": finish}

    def _events(self) -> Iterator[Event]:
        options = self.options.copy()
        options["seed"] = options.get("seed", 0) + self.answers
        request = self.model.request(self.conversation.messages, **options)
        context = self.model.spec.decoder.context
        if len(request.prompt) >= context:
            way = "/undo takes the last turn back, /clear all" if self.interactive else "start a new one"
            raise RequestError(
                f"the conversation has {len(request.prompt)} tokens, but the context of {context} tokens holds it "
                f"and the answer; {way}"
            )
        self.answers += 1
        self.clock = Clock()
        return self.clock.watch(self.model.engine.run([request]))

    def _remark(self, finish: str | None) -> None:
        """Say why an answer is not whole."""
        if finish == "interrupted":
            terminal.note("(stopped)")
        if finish == "length" and self.clock is not None:
            full = sum(self.clock.prompt_tokens.values()) + self.clock.tokens >= self.model.spec.decoder.context
            why = "the context is full; start afresh" if full else "a higher max_tokens lets an answer go on"
            terminal.note(f"(cut after {self.clock.tokens} tokens: {why})")

    def facts(self) -> str:
        """What the last answer cost, in one line."""
        return " | ".join([self.loading.line(), *([self.clock.line()] if self.clock else [])])

    def data(self) -> dict[str, Any]:
        """What the last answer cost, for programs."""
        return {**self.loading.data(), **(self.clock.data() if self.clock else {})}
