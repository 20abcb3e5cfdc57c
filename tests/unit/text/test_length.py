"""The bound never exceeds the truth and refuses at once; long texts let other threads run."""

from __future__ import annotations

import threading
import time

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers

from holdover.errors import RequestError
from holdover.text import Tokenizer
from holdover.text.length import LengthBound

MEGABYTE = "The quick brown fox jumps over the lazy dog. " * 23_000


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300), st.integers(1, 200))
def test_the_bound_holds(tokenizer: Tokenizer, text: str, times: int) -> None:
    for long in (text * times, text[:2] * times * 20):
        n = len(tokenizer.encode(long, add_special_tokens=False))
        assert tokenizer._length.least_tokens(long) <= n


@pytest.mark.parametrize("char", ["\U000fffff", "\U0010ffff", " ", "\n", "#", "a", "\u1112"])
def test_the_bound_holds_for_runs(tokenizer: Tokenizer, char: str) -> None:
    for n in (1000, 20_000):
        n_tokens = len(tokenizer.encode(char * n, add_special_tokens=False))
        assert tokenizer._length.least_tokens(char * n) <= n_tokens


def test_a_normalizer_that_makes_text_shorter() -> None:
    vocab = {char: i for i, char in enumerate(tokenizers.pre_tokenizers.ByteLevel.alphabet())}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = {c: b for b, c in enumerate(vocab)}
    backend.normalizer = normalizers.NFC()
    jamo = "\u1112\u1161\u11ab" * 500  # nine bytes become three
    n = len(backend.encode(jamo).ids)
    assert n == 1500
    assert 0 < LengthBound(backend, True, alphabet).least_tokens(jamo) <= n
    backend.normalizer = normalizers.Strip()
    assert LengthBound(backend, True, alphabet).least_tokens(" " * 1000) == 0
    backend.normalizer = None  # type: ignore[assignment]
    assert LengthBound(backend, True, alphabet).least_tokens("x" * 1000) == 1000
    backend.add_special_tokens([AddedToken("<x>", lstrip=True)])
    assert LengthBound(backend, True, alphabet).least_tokens(" " * 1000) == 0


def test_what_cannot_fit_is_refused_at_once(tokenizer: Tokenizer) -> None:
    tokenizer._length.least_tokens(MEGABYTE)  # the longest token is known from then on
    start_s = time.process_time()
    with pytest.raises(RequestError) as caught:
        tokenizer.encode(MEGABYTE, max_context_tokens=2048)
    assert time.process_time() - start_s < 0.1
    error = caught.value
    assert (error.field, error.code) == ("prompt", "context_length_exceeded")
    assert "at least" in error.reason
    assert "up to 2047 would fit" in error.reason
    assert tokenizer.encode("x" * 500, max_context_tokens=2048)


def test_other_threads_run_while_a_long_text_is_tokenized(tokenizer: Tokenizer) -> None:
    """Python's lock was held for more than a second, and every stream stood still."""
    done = threading.Event()
    gaps_s = []

    def watch() -> None:
        last_s = time.perf_counter()
        while not done.is_set():
            time.sleep(0.001)
            now_s = time.perf_counter()
            gaps_s.append(now_s - last_s)
            last_s = now_s

    watcher = threading.Thread(target=watch)
    watcher.start()
    start_s = time.perf_counter()
    tokenizer.encode(MEGABYTE)
    whole_s = time.perf_counter() - start_s
    done.set()
    watcher.join()
    assert max(gaps_s) < max(0.1, whole_s / 3)
