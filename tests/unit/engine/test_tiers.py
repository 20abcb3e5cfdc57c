"""Conversations that do not fit in the arena, with tiers below it: every answer as if they did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .conftest import GREEDY, Loaded, Serve, Served

PARAMS = replace(GREEDY, max_tokens=6, ignore_eos=True)
ARENA_BYTES = 1 << 17
N_USERS = 6
TEXT = "Once there was a librarian who counted every page of every book she lent, and the pages "
PROMPTS = [f"{i}: {TEXT * 2}" for i in range(N_USERS)]


def turns(served: Served, n: int = 2) -> list[list[tuple[int, ...]]]:
    """Each user's answers, turn by turn, all users in turn, whole histories resent."""
    histories = [tuple(served.tokenizer.encode(prompt)) for prompt in PROMPTS]
    answers: list[list[tuple[int, ...]]] = [[] for _ in PROMPTS]
    for _ in range(n):
        for user, history in enumerate(histories):
            tokens = tuple(served.ask(history, PARAMS).answer().tokens)
            answers[user].append(tokens)
            histories[user] = (*history, *tokens, *served.tokenizer.encode(" And then?"))
    return answers


@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_what_the_arena_lost_comes_back_from_ram(tiny: Loaded, serve: Serve, codec: str) -> None:
    roomy = serve(tiny, 8 << 20, codec=codec)
    tight = serve(tiny, ARENA_BYTES, codec=codec, tiers=["ram:8MiB"])
    assert turns(tight, 3) == turns(roomy, 3)
    stats, roomy_stats = tight.engine.stats(), roomy.engine.stats()
    assert stats.evicted_blocks > 0
    assert stats.cached_tokens == roomy_stats.cached_tokens
