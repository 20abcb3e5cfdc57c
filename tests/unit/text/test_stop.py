"""Stop strings against brute force over whole texts, however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdover.errors import RequestError
from holdover.text import StopMatcher

LETTERS = st.text("abc", max_size=12)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


def brute_force(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The shortest beginning of the text that ends in a stop string, and the longest such."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


@settings(max_examples=600, deadline=None)
@given(st.lists(LETTERS, max_size=6), STOPS)
def test_equals_brute_force(pieces: list[str], stops: list[str]) -> None:
    expected, expected_stop = brute_force("".join(pieces), stops)
    matcher = StopMatcher(stops)
    emitted, stopped, seen = "", None, ""
    for piece in pieces:
        text, stopped = matcher.push(piece)
        emitted += text
        seen += piece
        assert expected.startswith(emitted), "a character of the stop string got out"
        if stopped is None:
            held = seen[len(emitted) :]
            assert held == "" or any(stop.startswith(held) for stop in stops), "held for nothing"
    emitted += matcher.flush()
    assert (emitted, stopped) == (expected, expected_stop)


def test_after_a_stop_nothing_more_comes() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("text E") == ("text ", None)
    assert matcher.push("ND more") == ("", "END")
    assert matcher.push("again") == ("", "END")
    assert matcher.flush() == ""


def test_held_text_comes_out_in_the_end() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("bye\n\nUse") == ("bye", None)
    assert matcher.flush() == "\n\nUse"


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="at least one character") as caught:
        StopMatcher(["", "x"])
    assert caught.value.field == "stop"
