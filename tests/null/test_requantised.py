"""Tiers side by side, one of which gives back blocks that are not quite what it was given."""

from __future__ import annotations

import time

import numpy as np

from holdover.cache.arena import HostArena
from holdover.cache.costs import Costs
from holdover.cache.ends import PromptEnds
from holdover.cache.manager import CacheManager
from holdover.cache.mover import REFUSED_REST_S, Mover
from holdover.cache.unused import clear_unused
from holdover.codecs.base import uniform
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full
from holdover.spec.sparse import BOUNDS, Sparse

from .machine_tier import MachineTier

BLOCK_TOKENS = 4
PROMPT = list(range(100, 118))  # four blocks, and two tokens more
N_BLOCKS = 5


class Cache:
    def __init__(
        self, *tiers: MachineTier, codec: str = "fp32", ends: PromptEnds | None = None
    ) -> None:
        layers = (LayerSpec(attention_planes(1, 8), Full()),) * 2
        self.layout = CacheLayout.of(CacheSpec.of(layers, BLOCK_TOKENS), uniform(codec))
        self.arena = HostArena(self.layout.sectors_for([64]) * self.layout.sector_bytes)
        self.tiers = tiers
        mover = Mover(self.layout, tiers, Costs())
        self.manager = CacheManager(self.layout, self.arena, mover=mover, ends=ends)

    def compute(self, tokens: list[int], evicts: bool = True) -> bool:
        """To the end, then down to the tiers; whether it was exact."""
        manager = self.manager
        lift = manager.lift(tokens, manager.match(tokens))
        while lift is not None and not lift.ended:
            for tier in self.tiers:
                tier.end_loads(99)
            manager.poll()
        match = manager.match(tokens)
        sequence = manager.admit(tokens, match, len(tokens) - match.n_tokens)
        assert sequence is not None
        explained = manager.explain(sequence, tokens, lift)
        assert explained.requantised_tokens == sequence.requantised_tokens
        manager.commit(sequence, tokens[sequence.n_tokens :])
        manager.release(sequence)
        if evicts:
            manager.evict()
        manager.check()
        return sequence.is_exact


def tokens_held(tier: MachineTier) -> set[int]:
    return {int(t) for record in tier.held for t in np.frombuffer(record.tokens, "<i4")}


def test_what_came_back_requantised_reaches_no_exact_tier() -> None:
    coarse, exact = MachineTier("coarse", "int4"), MachineTier("exact")
    cache = Cache(coarse, exact)
    exact.takes_stores = False
    assert cache.compute(PROMPT)
    exact.takes_stores = True
    more = [*PROMPT, *range(200, 210)]
    assert not cache.compute(more, evicts=False)
    assert not cache.compute([*more, 300])  # from the arena, of what was computed after such
    assert not exact.held, "rows that are not exact in a tier that gives exact ones"
    assert tokens_held(coarse) == {*more, 300}


def test_what_is_computed_again_takes_the_place_of_what_came_back() -> None:
    coarse = MachineTier("coarse", "int4")
    cache = Cache(coarse)
    cache.compute(PROMPT)
    manager = cache.manager
    sequence = manager.admit(PROMPT, manager.match(PROMPT), len(PROMPT))  # begins without a lift
    assert sequence is not None
    cache.compute([*PROMPT[:17], 7], evicts=False)  # meanwhile it came back
    assert manager.match([*PROMPT, 1]).n_tokens >= 16
    manager.commit(sequence, PROMPT)
    manager.release(sequence)
    assert cache.compute([*PROMPT, 1])
    cache.manager.check()


def test_what_an_exact_tier_has_is_exact() -> None:
    exact, coarse = MachineTier("exact"), MachineTier("coarse", "int4")
    cache = Cache(exact, coarse)
    assert cache.compute(PROMPT)
    assert cache.compute([*PROMPT, 1])
    [explained] = [cache.manager.match([*PROMPT, 1, 2]).n_tokens]
    assert explained == 0


def test_a_tier_that_refuses_holds_up_no_other() -> None:
    slow, fast = MachineTier("slow"), MachineTier("fast")
    slow.takes_stores = False
    cache = Cache(slow, fast)
    cache.compute(PROMPT, evicts=False)
    cache.manager.poll()
    assert len(fast.held) == N_BLOCKS
    cache.manager.evict()
    assert cache.manager.lost_blocks == 0, "one tier has them"
    assert len(slow.held) == 0
    slow.takes_stores = True
    time.sleep(REFUSED_REST_S)
    fast.held.clear()
    slow.takes_stores = fast.takes_stores = False
    cache.compute(list(range(500, 508)))
    assert cache.manager.lost_blocks == 2


def test_two_prompts_share_the_loads_of_their_prefix() -> None:
    tier = MachineTier()
    cache = Cache(tier)
    cache.compute(PROMPT)
    manager = cache.manager
    first = manager.lift([*PROMPT, 1], manager.match([*PROMPT, 1]))
    second = manager.lift([*PROMPT, 2], manager.match([*PROMPT, 2]))
    assert first is not None
    assert second is not None
    assert len(tier.loads) == N_BLOCKS, "a block was asked for twice"
    held = manager.held_bytes
    manager.drop(first)  # its client went: the other's blocks come all the same
    assert manager.held_bytes == held
    manager.check()
    tier.end_loads(99)
    manager.poll()
    assert second.ended
    assert second.problem is None
    assert manager.match([*PROMPT, 2]).n_tokens == len(PROMPT)
    manager.check()


def test_a_pin_reaches_every_tier_and_what_is_stored_later() -> None:
    tier = MachineTier()
    cache = Cache(tier)
    tier.takes_stores = False
    cache.compute(PROMPT, evicts=False)
    until_s = time.monotonic() + 100
    cache.manager.pin(PROMPT, "", until_s)
    assert set(tier.pins.values()) == {until_s}
    assert len(tier.pins) == N_BLOCKS


def test_a_tails_unused_rows_leave_the_arena_as_zeros() -> None:
    for codec in ("fp32", "bf16", "int8", "int4"):
        tier = MachineTier()
        cache = Cache(tier, codec=codec)
        cache.arena.bytes.fill_(0xAA)  # of others, before
        cache.compute(PROMPT, evicts=False)
        cache.manager.poll()
        layout = cache.layout.blocks[0]
        for record, block in tier.held.items():
            expected = bytearray(b"\xaa" * layout.nbytes)
            clear_unused(layout, memoryview(expected), len(record.tokens) // 4)
            assert block == expected
        [tail] = [block for record, block in tier.held.items() if len(record.tokens) == 8]
        payload = sum(byte == 0xAA for byte in tail)
        assert payload == layout.logical_bytes(2), codec


def test_bounds_leave_the_arena_with_full_blocks_only() -> None:
    layers = (LayerSpec(attention_planes(1, 8), Full()),)
    spec = CacheSpec.of(layers, BLOCK_TOKENS, Sparse(2, dense_layers=0))
    layout = CacheLayout.of(spec, uniform("bf16")).blocks[0]
    for n_tokens in (2, BLOCK_TOKENS):
        block = bytearray(b"\xaa" * layout.nbytes)  # of others, before
        clear_unused(layout, memoryview(block), n_tokens)
        kept = layout.bounds_nbytes if n_tokens == BLOCK_TOKENS else 0
        [placed] = layout.fields_of(0, BOUNDS)
        bounds = block[placed.offset : placed.offset + placed.field.nbytes]
        assert sum(byte == 0xAA for byte in bounds) == kept
