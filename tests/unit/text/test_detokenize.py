"""Streamed text: the pieces add up, and no piece holds half a character."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdover.text import IncrementalDetokenizer, Tokenizer


def stream(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    return [*map(detokenizer.push, ids)]


# Uniform ids rarely hit the byte tokens where characters break: half of the draws are from there.
IDS = st.lists(st.one_of(st.integers(0, 49_151), st.integers(0, 600)), max_size=40)


@pytest.mark.parametrize("skip", [True, False])
@settings(max_examples=200, deadline=None)
@given(ids=IDS)
def test_pieces_add_up_to_the_whole(tokenizer: Tokenizer, skip: bool, ids: list[int]) -> None:
    pieces = stream(tokenizer, ids, skip_special_tokens=skip)
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    missing = whole.removeprefix("".join(pieces))
    assert "".join(pieces) + missing == whole
    assert missing in ("", "\ufffd"), "only what the last tokens begin and do not end"
    if missing:
        assert not tokenizer.token_bytes(ids[-1]).isascii() or skip


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_valid_text_is_never_broken(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.decode(ids)
    assume(whole == text)  # SmolLM2's vocabulary lacks some first bytes of rare planes
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == whole
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


def test_characters_come_with_their_last_byte(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("𐍈", add_special_tokens=False)
    assert len(ids) == 4
    assert stream(tokenizer, ids) == ["", "", "", "𐍈"]
    assert stream(tokenizer, ids[:3]) == ["", "", ""], "no U+FFFD for what is not complete"
    assert stream(tokenizer, [*ids[:2], *tokenizer.encode("a", add_special_tokens=False)]) == [
        "", "", "\ufffda",
    ]  # fmt: skip


def test_special_tokens(smollm2: Tokenizer) -> None:
    assert stream(smollm2, [1, 19556, 2]) == ["", "Hello", ""]
    shown = stream(smollm2, [19556, 2], skip_special_tokens=False)
    assert shown == ["Hello", "<|im_end|>"]
