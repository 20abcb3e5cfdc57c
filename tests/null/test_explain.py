"""Each reason for which a prompt is not reused further, brought about."""

from __future__ import annotations

import pytest

from holdover.cache.arena import NullArena
from holdover.cache.costs import Costs
from holdover.cache.explain import Reuse
from holdover.cache.manager import CacheManager
from holdover.cache.mover import Mover
from holdover.codecs.base import uniform
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full

from .machine_tier import MachineTier

PROMPT = list(range(100, 122))  # five blocks of four tokens, and two more


class Cache:
    def __init__(self, n_blocks: int = 64) -> None:
        layers = (LayerSpec(attention_planes(1, 8), Full()),)
        self.layout = CacheLayout.of(CacheSpec.of(layers, 4), uniform("fp32"))
        arena = NullArena(self.layout.sectors_for([n_blocks]) * self.layout.sector_bytes)
        self.tier = MachineTier(block_bytes=[block.nbytes for block in self.layout.blocks])
        self.manager = CacheManager(
            self.layout, arena, mover=Mover(self.layout, [self.tier], Costs())
        )

    def ask(
        self, tokens: list[int], tenant: str = "", owner: str = "", *, lifts: bool = True
    ) -> Reuse:
        """Compute a prompt to its end; how it was reused."""
        manager = self.manager
        match = manager.match(tokens, tenant)
        lift = manager.lift(tokens, match, tenant) if lifts else None
        while lift is not None and not lift.ended:
            self.tier.end_loads(99)
            manager.poll()
        match = manager.match(tokens, tenant)
        n_new = len(tokens) - match.n_tokens
        sequence = manager.admit(tokens, match, n_new, tenant, owner=owner)
        assert sequence is not None
        reuse = manager.explain(sequence, tokens, lift)
        assert reuse.reused_tokens == sequence.n_tokens
        assert sum(reuse.from_tiers.values()) == reuse.reused_tokens
        manager.commit(sequence, tokens[sequence.n_tokens :])
        manager.release(sequence)
        manager.poll()
        return reuse


def test_nothing_all_new_and_differs() -> None:
    cache = Cache()
    assert cache.ask(PROMPT).reason == "nothing"
    again = cache.ask(PROMPT)
    assert (again.reason, again.reused_tokens) == ("all", len(PROMPT) - 1)
    longer = cache.ask([*PROMPT, 7, 7])
    assert (longer.reason, longer.reused_tokens) == ("new", len(PROMPT))
    other = cache.ask([*PROMPT[:14], 9, *PROMPT[15:]])
    assert (other.reason, other.position) == ("differs", 14)
    assert (other.kept_token, other.prompt_token) == (PROMPT[14], 9)
    first = cache.ask([9, *PROMPT[1:]])
    assert (first.reason, first.position, first.kept_token) == ("differs", 0, PROMPT[0])


@pytest.mark.parametrize("lost_on_tier", [False, True])
def test_evicted_says_when_and_for_whom(lost_on_tier: bool) -> None:
    cache = Cache(n_blocks=8)
    cache.ask(PROMPT, owner="old")
    cache.ask(list(range(24)), owner="greedy")
    if lost_on_tier:
        cache.tier.held.clear()
        found = cache.ask(PROMPT)
        assert found.reason == "evicted"
        assert found.eviction is not None
        assert found.eviction.owner == "greedy"
        assert found.eviction.at_s > 0
    else:
        found = cache.ask(PROMPT)
        assert (found.reason, found.reused_tokens) == ("all", len(PROMPT) - 1)
        assert found.from_tiers["machine"] > 0


def test_another_tenant_is_not_named() -> None:
    cache = Cache(n_blocks=8)
    cache.ask(PROMPT, "a", owner="of a")
    cache.ask(list(range(24)), "b", owner="of b")
    cache.tier.held.clear()
    found = cache.ask(PROMPT, "a")
    assert found.reason == "evicted"
    assert found.eviction is not None
    assert found.eviction.owner is None
    assert cache.ask(PROMPT, "c").reason == "nothing"


def test_a_load_that_was_not_made_or_failed() -> None:
    cache = Cache()
    cache.ask(PROMPT)
    cache.manager.evict()
    cache.manager.observe(n_tokens=100, step_s=1e-3)
    cache.tier.rate = 1.0
    found = cache.ask(PROMPT)
    assert found.reason == "slower"
    assert found.decision is not None
    assert found.decision.load_s > found.decision.compute_s > 0

    cache = Cache()
    cache.ask(PROMPT)
    cache.manager.evict()
    match = cache.manager.match(PROMPT)
    lift = cache.manager.lift(PROMPT, match)
    assert lift is not None
    cache.tier.end_loads(2)
    cache.tier.end_loads(99, fails=True)
    cache.manager.poll()
    sequence = cache.manager.admit(PROMPT, cache.manager.match(PROMPT), 1)
    assert sequence is not None
    failed = cache.manager.explain(sequence, PROMPT, lift)
    assert (failed.reason, failed.reused_tokens, failed.problem) == ("failed", 8, "lost")
    assert failed.from_tiers == {"arena": 0, "machine": 8}
