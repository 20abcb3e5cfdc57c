"""Conversations that idle: looked at, pinned, and removed from wherever they lie."""

from __future__ import annotations

import time

import pytest

from .test_explain import PROMPT, Cache

OTHER = list(range(500, 522))


def places(cache: Cache, tokens: list[int]) -> dict[str, int]:
    block_bytes = cache.layout.blocks[0].nbytes
    return {name: n // block_bytes for name, n in cache.manager.kept(tokens).bytes_in.items()}


def test_kept_says_where_and_how_much() -> None:
    cache = Cache()
    assert cache.manager.kept(PROMPT).bytes_in == {}
    cache.ask(PROMPT)
    kept = cache.manager.kept(PROMPT)
    assert kept.reusable_tokens == len(PROMPT)
    assert places(cache, PROMPT) == {"arena": 6, "machine": 6}
    cache.manager.evict(2)
    assert places(cache, PROMPT) == {"arena": 4, "machine": 6}
    assert cache.manager.kept(PROMPT).reusable_tokens == len(PROMPT)
    cache.tier.held.clear()
    assert cache.manager.kept(PROMPT).reusable_tokens == 16


def test_forget_leaves_nothing_anywhere() -> None:
    cache = Cache()
    cache.ask(PROMPT[:18])  # an earlier turn, with a tail of its own on the tier
    cache.ask(PROMPT)
    assert len(cache.tier.held) == 7
    cache.manager.forget(PROMPT)
    assert (cache.tier.held, cache.manager.cached_bytes) == ({}, 0)
    cache.manager.check()
    assert cache.ask(PROMPT).reason == "nothing"


@pytest.mark.parametrize("evicted", [False, True])
def test_forget_keeps_what_another_goes_on_from(evicted: bool) -> None:
    cache = Cache()
    branch = [*PROMPT[:14], *OTHER]
    cache.ask(PROMPT)
    cache.ask(branch)
    if evicted:
        cache.manager.evict()
    cache.manager.forget(PROMPT)
    cache.manager.check()
    assert cache.manager.kept(PROMPT).reusable_tokens == 14
    assert cache.manager.kept(branch).reusable_tokens == len(branch)


def test_forget_spares_the_beginning_that_it_is_told_to() -> None:
    """What another conversation needs whose own blocks are gone from everywhere."""
    cache = Cache()
    block_tokens = cache.layout.spec.block_tokens
    cache.ask(PROMPT)
    cache.manager.forget(PROMPT, "", 2 * block_tokens + 1)
    cache.manager.check()
    assert cache.manager.kept(PROMPT).reusable_tokens == 2 * block_tokens
    cache.manager.forget(PROMPT, "", 1)
    assert cache.manager.kept(PROMPT).reusable_tokens == 0


def test_forget_of_another_tenants_conversation_does_nothing() -> None:
    cache = Cache()
    cache.ask(PROMPT, "a")
    assert cache.manager.forget(PROMPT, "b") == 0
    assert cache.manager.kept(PROMPT, "a").reusable_tokens == len(PROMPT)


def test_forget_leaves_what_runs() -> None:
    cache = Cache()
    cache.ask(PROMPT)
    again = [*PROMPT, 1, 2, 3]
    running = cache.manager.admit(again, cache.manager.match(again), 3)
    assert running is not None
    cache.manager.forget(PROMPT)
    cache.manager.check()
    cache.manager.commit(running, again[running.n_tokens :])
    cache.manager.release(running)
    assert cache.manager.kept(again).reusable_tokens == len(again)


def test_a_pinned_conversation_is_the_last_to_go_and_never_in_the_way() -> None:
    cache = Cache(n_blocks=16)
    cache.ask(PROMPT)
    cache.manager.pin(PROMPT, "", time.monotonic() + 60)
    for i in range(6):
        cache.ask([1000 * (i + 1) + n for n in range(22)])
    assert places(cache, PROMPT)["arena"] == 6
    cache.ask(list(range(9000, 9062)))  # wants every block there is
    assert "arena" not in places(cache, PROMPT)
    assert cache.manager.kept(PROMPT).reusable_tokens == len(PROMPT)  # on the tier


@pytest.mark.parametrize("end", ["unpinned", "expired"])
def test_a_pin_ends(end: str) -> None:
    cache = Cache(n_blocks=16)
    cache.ask(PROMPT)
    cache.manager.pin(PROMPT, "", time.monotonic() + (60 if end == "unpinned" else -1))
    if end == "unpinned":
        cache.manager.pin(PROMPT, "", 0)
    for i in range(6):
        cache.ask([1000 * (i + 1) + n for n in range(22)])
    assert "arena" not in places(cache, PROMPT)
    cache.manager.check()
