"""The only door to the cache: match, admit, reserve, commit, release.

The scheduler asks before a step, `commit` is the only change after it. "No room" is a return value
and leaves everything held as it was; a broken rule raises. Never sees a model or a request.

Room is exact: blocks that are only cached can be evicted and a group's blocks can be packed into
fewer sectors, so blocks fit if and only if `layout.sectors_for(held + new) <= n_sectors`. The
planner uses the same function.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from holdover.cache.arena import Arena
from holdover.cache.blocks import Block
from holdover.cache.eviction.base import EvictionPolicy
from holdover.cache.matching import Match, Matcher
from holdover.cache.prefix import TOKEN_BYTES, PrefixIndex, token_bytes
from holdover.cache.sectors import SectorPool
from holdover.cache.sequence import Reused, SequenceCache
from holdover.registry import load_plugin
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import BlockRanges, step_blocks
from holdover.units import ceil_div, exact_div


class CacheManager:
    """Single-threaded; called by the engine's thread only."""

    def __init__(
        self, layout: CacheLayout, arena: Arena, *, eviction: str = "lru", seed: bytes = b""
    ) -> None:
        self.layout = layout
        self._arena = arena
        self._n_sectors = exact_div(arena.nbytes, layout.sector_bytes)
        self._block_tokens = layout.spec.block_tokens
        self._residencies = tuple(group.residency for group in layout.spec.groups)
        self._pool = SectorPool(layout, self._n_sectors)
        self._index = PrefixIndex(seed + layout.fingerprint, self._block_tokens, len(layout.blocks))
        self._matcher = Matcher(self._index, self._residencies, self._block_tokens)
        policy_module = load_plugin("holdover.cache.eviction", eviction)
        self._cached: EvictionPolicy = policy_module.create()
        self._blocks: list[dict[int, Block]] = [{} for _ in layout.blocks]
        self._n_held = [0] * len(layout.blocks)
        self._sequences: dict[SequenceCache, None] = {}
        self._version = 0
        self.evicted_blocks = 0

    # ---- before a step ------------------------------------------------------------------------

    def match(self, tokens: Sequence[int], tenant: str = "") -> Match:
        """The longest reusable prefix that leaves at least one token to compute."""
        return self._matcher.longest(token_bytes(tokens[:-1]), tenant, self._version)

    def admit(
        self,
        tokens: Sequence[int],
        match: Match,
        n_tokens: int,
        tenant: str = "",
        *,
        promise: Sequence[int] = (),
    ) -> SequenceCache | None:
        """Start a sequence on a match, with room to compute `n_tokens` more; None if no room.

        The sequence's `n_tokens` is what was reused: the match's, or only its whole blocks where
        there is no room for a partly filled block and its copy. With a `promise`, blocks per group
        that it will come to hold, there must be room for that beside what others were promised.
        """
        if match.version != self._version:
            match = self.match(tokens, tenant)
        sequence = self._try_admit(match, match.n_tokens + n_tokens, tenant, promise)
        if sequence is None and match.tail is not None:
            usable = token_bytes(tokens[:-1])
            match = self._matcher.longest(usable, tenant, self._version, tails=False)
            sequence = self._try_admit(match, match.n_tokens + n_tokens, tenant, promise)
        if sequence is not None:
            sequence.tokens.extend(token_bytes(tokens[: match.n_tokens]))
            sequence.n_tokens = match.n_tokens
        return sequence

    def reserve(self, sequence: SequenceCache, n_tokens: int) -> bool:
        """Room to compute `n_tokens` more than are committed: all of it, or False and nothing."""
        stop = ceil_div(sequence.n_tokens + n_tokens, self._block_tokens)
        n_new = [max(0, stop - len(table.blocks)) for table in sequence.tables]
        if not any(n_new):
            return True
        if not self._has_room(n_new):
            return False
        self._extend(sequence, n_new)
        return True

    # ---- after a step -------------------------------------------------------------------------

    def commit(self, sequence: SequenceCache, tokens: Sequence[int]) -> None:
        """The rows of `tokens` were written: publish full blocks, let go of dead ones."""
        assert not sequence.released, "commit to a released sequence"
        self._version += 1
        first_new = sequence.n_tokens // self._block_tokens
        sequence.tokens.extend(token_bytes(tokens))
        sequence.n_tokens += len(tokens)
        n_full = sequence.n_tokens // self._block_tokens
        for index in range(first_new, n_full):
            key = self._publish(sequence, index, self._block_tokens)
            assert key is not None, "a full run has a key"
            sequence.keys.append(key)
        n_blocks = ceil_div(sequence.n_tokens, self._block_tokens)
        for group, table in enumerate(sequence.tables):
            assert len(table.blocks) >= n_blocks, "commit past what was reserved"
            first_visible = self._residencies[group].first_visible(sequence.n_tokens)
            if first_visible // self._block_tokens <= table.start:
                continue  # nothing died: most steps, so they are kept cheap
            live = self._step_blocks(group, sequence.n_tokens, sequence.n_tokens)
            for index in range(table.start, live.start):
                if index not in live:
                    self._unref(table.clear(index))
            table.start = live.start

    def release(self, sequence: SequenceCache) -> None:
        """Let go of everything; what was computed, the partly filled tail included, stays cached.

        Finished, cancelled and parked sequences alike: a parked one is matched again later.
        """
        assert not sequence.released, "released twice"
        self._version += 1
        sequence.released = True
        del self._sequences[sequence]
        n_full, n_tail = divmod(sequence.n_tokens, self._block_tokens)
        if n_tail:
            self._publish(sequence, n_full, n_tail)
        longest = max(len(table.blocks) for table in sequence.tables)
        for index in range(longest - 1, -1, -1):  # tails are evicted before what they stand on
            for table in sequence.tables:
                if index < len(table.blocks):
                    self._unref(table.clear(index))

    def evict(self, n_blocks: int | None = None) -> int:
        """Drop cached blocks, all or the first `n_blocks` to go; returns how many went."""
        self._version += 1
        n_evicted = 0
        while n_blocks is None or n_evicted < n_blocks:
            victim = self._cached.victim()
            if victim is None:
                break
            self._evict(victim)
            n_evicted += 1
        return n_evicted

    # ---- to look at ---------------------------------------------------------------------------

    def block_table(self, sequence: SequenceCache, group: int) -> NDArray[np.int32]:
        """Block numbers of one group, -1 where dead; a view that the next change invalidates."""
        return sequence.tables[group].numbers

    @property
    def held_bytes(self) -> int:
        """Bytes of blocks that sequences use, each block once."""
        return self.layout.held_bytes(self._n_held)

    @property
    def cached_bytes(self) -> int:
        """Bytes of blocks kept only for reuse."""
        used = self.layout.held_bytes([len(blocks) for blocks in self._blocks])
        return used - self.held_bytes

    @property
    def logical_bytes(self) -> int:
        """Bytes by the formula, summed over sequences; sharing can make it exceed what is held."""
        return sum(self.layout.logical_bytes(s.n_tokens) for s in self._sequences)

    def check(self) -> None:
        """Assert every invariant."""
        refs: dict[Block, int] = {}
        for sequence in self._sequences:
            assert len(sequence.tokens) == sequence.n_tokens * TOKEN_BYTES
            assert len(sequence.keys) == sequence.n_tokens // self._block_tokens + 1
            for group, table in enumerate(sequence.tables):
                expected = [-1 if b is None else b.number for b in table.blocks]
                assert table.numbers.tolist() == expected, "numbers and blocks disagree"
                live = self._step_blocks(group, sequence.n_tokens, sequence.n_tokens)
                for index, block in enumerate(table.blocks):
                    needed = index in live or index >= live.stop
                    assert (block is not None) == needed, f"block {index} held against the rule"
                    if block is not None:
                        assert block.group == group, "a block in another group's table"
                        refs[block] = refs.get(block, 0) + 1
        cached = set(self._cached)
        everything = {block for blocks in self._blocks for block in blocks.values()}
        assert cached | set(refs) == everything, "a block is neither held nor cached"
        assert not cached & set(refs), "a held block is up for eviction"
        for group, blocks in enumerate(self._blocks):
            assert all(n == b.number and b.group == group for n, b in blocks.items())
            assert self._n_held[group] == sum(b.group == group for b in refs)
        for block in everything:
            assert block.refs == refs.get(block, 0), "reference count is wrong"
            assert block.refs or block.entry is not None, "a cached block nobody can find"
        self._pool.check([set(blocks) for blocks in self._blocks])
        self._index.check(everything)

    # ---- within -------------------------------------------------------------------------------

    def _step_blocks(self, group: int, start: int, stop: int) -> BlockRanges:
        return step_blocks(self._residencies[group], start, stop, self._block_tokens)

    def _try_admit(
        self, match: Match, stop: int, tenant: str, promise: Sequence[int]
    ) -> SequenceCache | None:
        found = [self._reused(match, group) for group in range(len(self._residencies))]
        n_new = [ceil_div(stop, self._block_tokens) - len(match.chain)] * len(found)
        if not self._can_admit(found, n_new, promise):
            return None
        for reused in found:
            for block in reused.pinned:
                self._ref(block)
        tables = [reused.table() for reused in found]
        sequence = SequenceCache(tenant, bytearray(), list(match.keys), tables, tuple(promise))
        self._sequences[sequence] = None  # before room is made: packing renumbers its tables too
        self._extend(sequence, n_new)
        for group, (reused, table) in enumerate(zip(found, tables, strict=True)):
            target = table.blocks[len(match.chain)] if reused.tail is not None else None
            if reused.tail is not None and target is not None:
                self._copy(group, reused.tail.number, target.number)
                self._unref(reused.tail)
        return sequence

    def _reused(self, match: Match, group: int) -> Reused:
        """One group's blocks of a match, of which only live ones are taken."""
        live = self._step_blocks(group, match.n_tokens, match.n_tokens)
        n_full = len(match.chain)
        blocks = [e.blocks[group] if e and i in live else None for i, e in enumerate(match.chain)]
        tail = match.tail.blocks[group] if match.tail and n_full in live else None
        return Reused(blocks, tail, min(live.start, n_full))

    def _can_admit(
        self, found: Sequence[Reused], n_new: Sequence[int], promise: Sequence[int]
    ) -> bool:
        """Whether there is room for new blocks, and for the promise beside those of others."""
        n_revived = [len({b for b in reused.pinned if not b.refs}) for reused in found]
        if not self._has_room([a + b for a, b in zip(n_new, n_revived, strict=True)]):
            return False
        if not promise:
            return True
        n_shared = [sum(block is not None for block in reused.blocks) for reused in found]
        n_to_come = [max(0, p - n) for p, n in zip(promise, n_shared, strict=True)]
        claims = zip(n_to_come, n_revived, self._outstanding(), strict=True)
        return self._has_room([sum(claim) for claim in claims])

    def _outstanding(self) -> list[int]:
        """Blocks per group that running sequences were promised and do not hold yet."""
        outstanding = [0] * len(self._residencies)
        for sequence in self._sequences:
            for group, n_promised in enumerate(sequence.promise):
                outstanding[group] += max(0, n_promised - sequence.tables[group].n_held)
        return outstanding

    def _has_room(self, n_new: Sequence[int]) -> bool:
        wanted = [held + new for held, new in zip(self._n_held, n_new, strict=True)]
        return self.layout.sectors_for(wanted) <= self._n_sectors

    def _extend(self, sequence: SequenceCache, n_new: Sequence[int]) -> None:
        self._version += 1
        for group, (table, n) in enumerate(zip(sequence.tables, n_new, strict=True)):
            for _ in range(n):
                table.append(self._allocate(group))

    def _allocate(self, group: int) -> Block:
        """A free block, for which there is known to be room; evicts and packs as needed."""
        while (number := self._pool.take(group)) is None:
            if not self._pack_a_sector():
                victim = self._cached.victim()
                assert victim is not None, "room was promised and is not there"
                self._evict(victim)
        block = Block(group, number, refs=1)
        self._blocks[group][number] = block
        self._n_held[group] += 1
        return block

    def _pack_a_sector(self) -> bool:
        """Free a sector by moving one group's blocks together; nothing is lost by it."""
        for group, blocks in enumerate(self._blocks):
            moves = self._pool.vacate(group)
            if moves is None:
                continue
            for old, new in moves:
                self._copy(group, old, new)
                block = blocks.pop(old)
                block.number = new
                blocks[new] = block
                for sequence in self._sequences:
                    sequence.tables[group].renumber(old, new)
            return True
        return False

    def _copy(self, group: int, source: int, target: int) -> None:
        self._arena.copy(
            self.layout.block_offset(group, source),
            self.layout.block_offset(group, target),
            self.layout.blocks[group].nbytes,
        )

    def _publish(self, sequence: SequenceCache, index: int, n_tokens: int) -> bytes | None:
        start = index * self._block_tokens * TOKEN_BYTES
        run = bytes(sequence.tokens[start : start + n_tokens * TOKEN_BYTES])
        parent = sequence.keys[index]
        key = self._index.publish(parent, run, [table.blocks[index] for table in sequence.tables])
        for block in self._index.superseded(parent, run):
            if not block.refs:
                self._evict(block, count=False)
        return key

    def _ref(self, block: Block) -> None:
        if not block.refs:
            self._cached.remove(block)
            self._n_held[block.group] += 1
        block.refs += 1

    def _unref(self, block: Block | None) -> None:
        if block is None:
            return
        block.refs -= 1
        if not block.refs:
            self._n_held[block.group] -= 1
            if block.entry is None:
                self._free(block)
            else:
                self._cached.add(block)

    def _evict(self, block: Block, count: bool = True) -> None:
        self._cached.remove(block)
        self._index.withdraw(block)
        self._free(block)
        self.evicted_blocks += count

    def _free(self, block: Block) -> None:
        del self._blocks[block.group][block.number]
        self._pool.give(block.group, block.number)
