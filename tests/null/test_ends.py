"""Which prompts' ends are kept, found again, and never found by who must not."""

from __future__ import annotations

import numpy as np

from holdover.cache.ends import HiddenStates, PromptEnds
from holdover.cache.sequence import SequenceCache
from holdover.spec.ends import EndLayout

from .machine_tier import MachineTier
from .test_requantised import BLOCK_TOKENS, PROMPT, Cache

WIDTH = 3
PROMPTS = [PROMPT, PROMPT[:16], PROMPT[:17], [7], list(range(4))]


def row(value: float) -> HiddenStates:
    return np.full(WIDTH, value, np.float32)


def cache_with(n_kept: int, *tiers: MachineTier) -> Cache:
    return Cache(*tiers, ends=PromptEnds(EndLayout.of(n_kept, 1, WIDTH), BLOCK_TOKENS))


def entered(cache: Cache, tokens: list[int], tenant: str = "") -> SequenceCache:
    match = cache.manager.match(tokens, tenant)
    n_new = len(tokens) - match.n_tokens
    sequence = cache.manager.admit(tokens, match, n_new, tenant)
    assert sequence is not None
    return sequence


def computed(cache: Cache, tokens: list[int], end: HiddenStates, tenant: str = "") -> None:
    sequence = entered(cache, tokens, tenant)
    cache.manager.commit(sequence, tokens[sequence.n_tokens :])
    cache.manager.ends.keep(sequence, end)
    cache.manager.release(sequence)


def found(cache: Cache, tokens: list[int], tenant: str = "") -> float | None:
    sequence = entered(cache, tokens, tenant)
    end = cache.manager.ends.find(sequence, tokens)
    cache.manager.release(sequence)
    return None if end is None else float(end[0])


def test_each_prompt_has_its_own_end() -> None:
    cache = cache_with(8)
    for value, tokens in enumerate(PROMPTS):
        computed(cache, tokens, row(value))
    assert [found(cache, tokens) for tokens in PROMPTS] == [0, 1, 2, 3, 4]
    assert found(cache, PROMPT, "another") is None
    assert found(cache, [*PROMPT, 1]) is None
    assert found(cache, PROMPT[:15]) is None
    cache.manager.evict()
    assert [found(cache, tokens) for tokens in PROMPTS] == [None, None, None, 3, 4], "blocks went"


def test_those_used_last_are_kept() -> None:
    cache = cache_with(2)
    first, second, third = PROMPT, [*PROMPT[:4], 8], [9]
    for value, tokens in enumerate((first, second)):
        computed(cache, tokens, row(value))
    assert found(cache, first) == 0
    computed(cache, third, row(2))
    assert [found(cache, tokens) for tokens in (first, second, third)] == [0, None, 2]


def test_what_a_tier_requantised_neither_leaves_an_end_nor_takes_one() -> None:
    cache = cache_with(8, MachineTier("coarse", "int4"))
    computed(cache, PROMPT, row(1))
    cache.compute([*PROMPT, 1])  # down to the tier, and back for the next one
    assert not cache.compute([*PROMPT, 2], evicts=False)
    assert found(cache, PROMPT) is None
    computed(cache, [*PROMPT, 3], row(3))
    assert len(cache.manager.ends) == 1


def test_what_is_forgotten_leaves_no_end() -> None:
    cache = cache_with(8)
    computed(cache, PROMPT, row(1))
    computed(cache, [9], row(2))
    cache.manager.forget(PROMPT)
    assert len(cache.manager.ends) == 1
    assert (cache.manager.ends._rows != 1).all(), "the hidden state is still there"
    computed(cache, PROMPT, row(3))
    assert found(cache, PROMPT) == 3


def test_a_prompt_that_came_again_and_ended_at_once_is_kept_once() -> None:
    """Its last token was never computed: what it has of the last block is there already."""
    for prompt in (PROMPT, PROMPT[:17]):
        cache = cache_with(8)
        computed(cache, prompt, row(1))
        cached_bytes = cache.manager.cached_bytes
        assert found(cache, prompt) == 1
        assert cache.manager.cached_bytes == cached_bytes
