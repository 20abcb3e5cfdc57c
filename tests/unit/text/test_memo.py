"""A text in pieces has the ids of the whole text, and no tenant is faster for what another sent."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers

from holdover.text import Tokenizer
from holdover.text.guard import MARK
from holdover.text.memo import Memo, piece_ends

CONTROL = ("<|im_start|>", "<|im_end|>", "<|im_", "start|>", "<bos>", "<start_of_turn>", MARK)
TEXT = ("user", "\n", " ", "  ", "1", "42", "word", " word", ".", "é", "e\u0301", "日本", "😀")
ALPHABET = st.sampled_from(CONTROL + TEXT)


@settings(max_examples=150, deadline=None)
@given(st.lists(ALPHABET, max_size=12).map("".join))
def test_pieces_have_the_ids_of_the_whole(smollm2: Tokenizer, gemma3: Tokenizer, text: str) -> None:
    for tokenizer in (smollm2, gemma3):
        ends = tokenizer._piece_ends
        assert ends is not None, "both models' texts can be cut"
        pieces = [piece for piece in ends.split(text) if piece]
        ids = [i for piece in pieces for i in tokenizer.encode(piece, add_special_tokens=False)]
        assert ids == tokenizer.encode(text, add_special_tokens=False)


def test_a_chat_has_the_ids_of_its_text(smollm2: Tokenizer) -> None:
    tokenizer = replace(smollm2, _memo=Memo())
    messages = []
    for turn in range(4):
        messages.append({"role": "user", "content": f"turn {turn}: 1 + 1 = <|im_end|>?  "})
        for _ in range(2):
            ids = tokenizer.encode_chat(messages)
            assert ids == replace(smollm2, _memo=Memo()).encode_chat(messages)
        messages.append({"role": "assistant", "content": f"é {turn}"})
    plain = [{"role": "user", "content": "hi"}]
    assert tokenizer.encode_chat(plain) == tokenizer.encode(tokenizer.render_chat(plain))


class Spy:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: list[str]) -> list[list[int]]:
        self.asked += texts
        return [[len(text)] for text in texts]


def test_only_what_is_new_is_tokenized() -> None:
    memo, spy = Memo(), Spy()
    assert memo.ids_of("", ["a", "bb", "a"], spy) == [1, 2, 1]
    assert memo.ids_of("", ["a", "bb", "ccc"], spy) == [1, 2, 3]
    assert memo.ids_of("", [], spy) == []
    assert spy.asked == ["a", "bb", "ccc"]


def test_tenants_do_not_share() -> None:
    memo, spy = Memo(), Spy()
    for tenant in ("anna", "bert", "anna"):
        memo.ids_of(tenant, ["secret"], spy)
    assert spy.asked == ["secret", "secret"]


def test_it_stays_within_its_bytes_and_forgets_the_oldest() -> None:
    memo, spy = Memo(max_bytes=5000), Spy()
    for i in range(100):
        memo.ids_of("", [f"{i:03}", "kept"], spy)
        assert 0 < memo.n_bytes <= 5000
    assert spy.asked.count("kept") == 1
    memo.ids_of("", ["000"], spy)
    assert spy.asked.count("000") == 2
    memo.ids_of("", ["x" * 6000], spy)
    assert memo.n_bytes == 0, "one that is too large pushes all out, and itself"


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
def test_tokens_that_take_more_than_their_spelling_end_no_piece(flag: str) -> None:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.add_tokens([AddedToken("<a>", **{"normalized": False, flag: True})])
    assert piece_ends(backend) is None


def test_what_looks_at_the_start_of_a_text_allows_no_pieces() -> None:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.add_tokens([AddedToken("<a>", normalized=False)])
    assert piece_ends(backend) is not None
    for rule in (pre_tokenizers.Metaspace(), pre_tokenizers.ByteLevel(add_prefix_space=True)):
        backend.pre_tokenizer = rule
        assert piece_ends(backend) is None
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), rule])
        assert piece_ends(backend) is None
