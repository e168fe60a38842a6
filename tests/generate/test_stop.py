"""Stop strings: found however the text is cut, never shown, nothing lost."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.generate import Completion, Engine, Request
from headway.generate.request import join
from headway.generate.stop import StopStrings
from tests.generate.scripted import Pieces, scripted

END = 9
PIECES = {1: "Hel", 2: "lo wor", 3: "ld!", END: "</s>", 4: "o w", 5: "\n"}


def answer(stop: tuple[str, ...]) -> Completion:
    prompt = (4, 3)
    engine = Engine(scripted([1, 2, 3, END], prompt=len(prompt)), Pieces(PIECES))
    request = Request(prompt=prompt, max_tokens=8, stop=stop, end_ids=(END,))
    events = list(engine.run([request]))
    (streamed,) = join(events)
    (whole,) = engine.complete([request])
    assert streamed == whole
    assert "".join(event.text for event in events) == whole.text
    assert not any(text in whole.text for text in stop)
    assert [event.finish for event in events[:-1]] == [None] * (len(events) - 1)
    assert [event.completion_tokens for event in events] == list(range(1, len(events) + 1))
    return whole


@pytest.mark.case("C10")
@pytest.mark.parametrize(
    ("stop", "text", "stopped_by", "tokens"),
    [
        (("o w",), "Hell", "o w", 2),
        (("ld!zzz",), "Hello world!", END, 4),
        (("\n", "lo"), "Hel", "lo", 2),
        (("!",), "Hello world", "!", 3),
        (("wor", "world"), "Hello ", "wor", 2),
        (("Hello world!",), "", "Hello world!", 3),
        (("</s>",), "Hello world!", END, 4),
        ((), "Hello world!", END, 4),
    ],
)
def test_text_ends_before_the_stop_string(stop: tuple[str, ...], text: str, stopped_by: str | int, tokens: int) -> None:
    got = answer(stop)
    assert (got.text, got.finish, got.stopped_by, got.completion_tokens) == (text, "stop", stopped_by, tokens)


@pytest.mark.case("C10")
def test_a_stop_string_in_the_prompt_alone_has_no_effect() -> None:
    assert answer(("o wld!",)).text == "Hello world!"
    # The end of the prompt and the start of the answer make no stop string together.
    assert answer(("!Hel",)).text == "Hello world!"


@pytest.mark.case("C10")
def test_what_was_held_back_comes_out_at_the_token_limit() -> None:
    engine = Engine(scripted([1, 2, 3], prompt=1), Pieces(PIECES))
    events = list(engine.run([Request(prompt=(4,), max_tokens=2, stop=("world",))]))
    assert [(event.text, event.finish) for event in events] == [("Hel", None), ("lo wor", "length")]


@pytest.mark.case("C10")
def test_half_a_character_can_still_complete_a_stop_string() -> None:
    pieces = Pieces({1: "a", 2: "b~", 3: "c"})
    engine = Engine(scripted([1, 2, 3], prompt=1), pieces)
    (late,) = engine.complete([Request(prompt=(1,), max_tokens=2, stop=("b",))])
    assert (late.text, late.finish, late.stopped_by) == ("a", "stop", "b")
    (flushed,) = engine.complete([Request(prompt=(1,), max_tokens=2)])
    assert (flushed.text, flushed.finish) == ("ab", "length")


@pytest.mark.case("C10")
@pytest.mark.parametrize("cuts", [[], [1], [2], [3], [1, 2, 3]])
def test_the_match_that_is_complete_first_wins(cuts: list[int]) -> None:
    assert pushed("abcd", cuts, ["abcd", "bc"]) == ("a", "bc")
    assert pushed("abcd", cuts, ["bcd", "abcd", "d"]) == ("", "abcd")


def pushed(text: str, cuts: list[int], stops: list[str]) -> tuple[str, str | None]:
    found = StopStrings(stops)
    edges = [0, *sorted(cuts), len(text)]
    shown = "".join(found.push(text[start:end]) for start, end in itertools.pairwise(edges))
    return shown + found.finish(), found.matched


@pytest.mark.case("C10")
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_how_a_text_is_cut_never_matters(data: st.DataObject) -> None:
    text = data.draw(st.text(alphabet="abc", max_size=12))
    stops = data.draw(st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    whole, matched = pushed(text, [], stops)
    assert pushed(text, cuts, stops) == (whole, matched)
    assert text.startswith(whole)
    assert not any(stop in whole for stop in stops)
    assert (matched is None) == (whole == text)
    if matched is not None:
        assert text[len(whole) :].startswith(matched)
