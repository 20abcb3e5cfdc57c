"""A tier's promises to tenants, tried on the tier itself with a small cache of random rows.

One tenant's prompt is computed, sent down and dropped from the arena. Then the tenant must get the
very bytes back (close ones from a tier that requantises), and nobody else anything: another tenant,
another server's salt, other weights.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from holdover.cache.arena import HostArena
from holdover.cache.costs import Costs
from holdover.cache.manager import CacheManager
from holdover.cache.mover import Mover
from holdover.cache.sequence import SequenceCache
from holdover.cache.tiers.base import Tier
from holdover.cache.unused import clear_unused
from holdover.codecs.base import uniform
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full

BLOCK_TOKENS = 4
PROMPT = tuple(range(1, 4 * BLOCK_TOKENS + 3))  # full blocks, and one partly filled
WAIT_S = 10.0
CLOSE = 0.3  # of rows whose elements are 1 in their mean square


def small_layout() -> CacheLayout:
    layers = (LayerSpec(attention_planes(1, 16), Full()),)
    return CacheLayout.of(CacheSpec.of(layers, BLOCK_TOKENS), uniform("fp32"))


def problems_of(open_tier: Callable[[bytes], Tier]) -> list[str]:
    """What is wrong, in words; `open_tier(identity)` opens it for `small_layout`."""
    seed, salt = os.urandom(32), os.urandom(32)
    tier = open_tier(seed)
    try:
        owner = _Server(tier, seed, salt)
        rows = owner.compute(PROMPT, "tenant a")
        problems = []
        if not _same(owner.recall(PROMPT, "tenant a"), rows, tier.codec is None):
            problems.append("the tenant that stored a prompt did not get its bytes back")
        if owner.recall(PROMPT, "tenant b") is not None:
            problems.append("another tenant can read what a tenant stored")
        if _Server(tier, seed, os.urandom(32)).recall(PROMPT, "tenant a") is not None:
            problems.append("a server with another salt can read what a tenant stored")
        if _Server(tier, os.urandom(32), salt).recall(PROMPT, "tenant a") is not None:
            problems.append("other weights can read what was stored")
    finally:
        tier.close(WAIT_S)
    return problems


def _same(found: bytes | None, rows: bytes, exactly: bool) -> bool:
    if exactly or found is None:
        return found == rows
    a, b = (np.frombuffer(data, np.float32) for data in (found, rows))
    return bool(a.size == b.size and np.square(a - b).mean() < CLOSE**2)


class _Server:
    """A manager on a tier that others use as well."""

    def __init__(self, tier: Tier, seed: bytes, salt: bytes) -> None:
        self._layout = small_layout()
        self._arena = HostArena(self._layout.sectors_for([32]) * self._layout.sector_bytes)
        self._tier = tier
        mover = Mover(self._layout, [tier], Costs())
        self._manager = CacheManager(self._layout, self._arena, seed=seed, mover=mover, salt=salt)

    def compute(self, tokens: Sequence[int], tenant: str) -> bytes:
        """Random rows for a prompt, which end on the tier only; their bytes."""
        match = self._manager.match(tokens, tenant)
        sequence = self._manager.admit(tokens, match, len(tokens), tenant)
        assert sequence is not None, "the arena is large enough"
        rng = np.random.default_rng()
        for view in self._blocks(sequence):
            view[:] = rng.standard_normal(len(view) // 4, np.float32).tobytes()
        self._manager.commit(sequence, tokens)
        blocks = self._blocks(sequence)
        clear_unused(self._layout.blocks[0], blocks[-1], len(tokens) % BLOCK_TOKENS)
        rows = b"".join(blocks)
        self._manager.release(sequence)
        self._wait(lambda: self._tier.stats().blocks >= len(PROMPT) // BLOCK_TOKENS + 1)
        self._manager.evict()
        return rows

    def recall(self, tokens: Sequence[int], tenant: str) -> bytes | None:
        """What this server gets back of a prompt's blocks; None: nothing."""
        longer = (*tokens, 0)
        lift = self._manager.lift(longer, self._manager.match(longer, tenant), tenant)
        if lift is not None:
            self._wait(lambda: lift.ended)
        match = self._manager.match(longer, tenant)
        if not match.n_tokens:
            return None
        sequence = self._manager.admit(longer, match, 1, tenant)
        assert sequence is not None, "the arena is large enough"
        rows = b"".join(self._blocks(sequence))
        self._manager.release(sequence)
        self._manager.evict()
        return rows

    def _blocks(self, sequence: SequenceCache) -> list[memoryview]:
        numbers = self._manager.block_table(sequence, 0).tolist()
        n_bytes = self._layout.blocks[0].nbytes
        return [self._arena.view(self._layout.block_offset(0, n), n_bytes) for n in numbers]

    def _wait(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not is_so() and time.monotonic() < deadline_s:
            self._manager.poll()
            time.sleep(0.005)
