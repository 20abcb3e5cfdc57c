"""Which blocks of the arena are in use, and room for more.

A block is free, held (in as many tables as it has references), or cached: kept only for reuse, and
evicted when its room is wanted. Room is exact: cached blocks can go and a group's blocks can be
packed into fewer sectors, so blocks fit if and only if `layout.sectors_for(held + new) <=
n_sectors`. The planner uses the same function.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from holdover.cache.arena import Arena
from holdover.cache.blocks import Block
from holdover.cache.eviction.base import EvictionPolicy
from holdover.cache.sectors import SectorPool
from holdover.registry import load_plugin
from holdover.spec.layout import CacheLayout
from holdover.units import exact_div

SWEEP_S = 1.0  # between two looks for pins that have ended


class Room:
    """`on_evict(block)` is called while a block that goes is still whole; `on_move(group, old,
    new)` after a block was given another number."""

    def __init__(
        self,
        layout: CacheLayout,
        arena: Arena,
        eviction: str,
        on_evict: Callable[[Block], None],
        on_move: Callable[[int, int, int], None],
    ) -> None:
        self._layout = layout
        self._arena = arena
        self._n_sectors = exact_div(arena.nbytes, layout.sector_bytes)
        self._pool = SectorPool(layout, self._n_sectors)
        policy = load_plugin("holdover.cache.eviction", eviction)
        self._cached: EvictionPolicy = policy.create()
        self._pinned: EvictionPolicy = policy.create()  # who goes last
        self._blocks: list[dict[int, Block]] = [{} for _ in layout.blocks]
        self._swept_s = 0.0
        self._n_held = [0] * len(layout.blocks)
        self._on_evict = on_evict
        self._on_move = on_move

    @property
    def held_bytes(self) -> int:
        """Bytes of blocks with references, each block once."""
        return self._layout.held_bytes(self._n_held)

    @property
    def cached_bytes(self) -> int:
        """Bytes of blocks kept only for reuse."""
        used = self._layout.held_bytes([len(blocks) for blocks in self._blocks])
        return used - self.held_bytes

    def has_room(self, n_new: Sequence[int]) -> bool:
        """Whether so many more blocks of each group can be held."""
        wanted = [held + new for held, new in zip(self._n_held, n_new, strict=True)]
        return self._layout.sectors_for(wanted) <= self._n_sectors

    def allocate(self, group: int, n_blocks: int) -> list[Block]:
        """Blocks with one reference, for which there is room; evicts and packs as needed."""
        allocated: list[Block] = []
        blocks, take = self._blocks[group], self._pool.take
        self._n_held[group] += n_blocks
        for _ in range(n_blocks):
            while (number := take(group)) is None:
                if not self._pack_a_sector():
                    victim = self.victim()
                    assert victim is not None, "room was promised and is not there"
                    self.evict(victim)
            blocks[number] = block = Block(group, number, 1)
            allocated.append(block)
        return allocated

    def ref(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if not block.refs:
                self._n_held[block.group] += 1
                self._policy_of(block).remove(block)
            block.refs += 1

    def unref(self, blocks: Iterable[Block]) -> None:
        """In this order they are let go of, and evicted."""
        for block in blocks:
            block.refs -= 1
            if block.refs:
                continue
            self._n_held[block.group] -= 1
            if block.entry is None:
                self._free(block)
            else:
                self._policy_of(block).add(block)

    def pin(self, block: Block, until_s: float) -> None:
        """Let it go after all that is not pinned, until then (time.monotonic())."""
        if not block.refs:
            self._policy_of(block).remove(block)
        block.pinned_until_s = until_s
        if not block.refs:
            self._policy_of(block).add(block)

    def victim(self) -> Block | None:
        """The cached block that would go first."""
        if len(self._pinned) and time.monotonic() > self._swept_s + SWEEP_S:
            self._swept_s = time.monotonic()
            for block in [b for b in self._pinned if b.pinned_until_s <= self._swept_s]:
                self.pin(block, 0)
        return self._cached.victim() or self._pinned.victim()

    def evict(self, block: Block) -> None:
        """Free a cached block for others to use."""
        self._on_evict(block)
        self.drop(block)

    def drop(self, block: Block) -> None:
        """Free a cached block that is of no more use."""
        self._policy_of(block).remove(block)
        self._free(block)

    def copy(self, source: Block, target: Block) -> None:
        assert source.group == target.group, "a copy between groups"
        self._copy(source.group, source.number, target.number)

    def view(self, block: Block) -> memoryview:
        """The block's bytes, until the next change of any block."""
        return self._arena.view(
            self._layout.block_offset(block.group, block.number),
            self._layout.blocks[block.group].nbytes,
        )

    def check(self, refs: dict[Block, int]) -> set[Block]:
        """Assert every invariant, given who is referred to how often; returns all blocks."""
        cached = {*self._cached, *self._pinned}
        assert not set(self._cached) & set(self._pinned), "pinned and not"
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
        return everything

    def _policy_of(self, block: Block) -> EvictionPolicy:
        return self._pinned if block.pinned_until_s else self._cached

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
                self._on_move(group, old, new)
            return True
        return False

    def _copy(self, group: int, source: int, target: int) -> None:
        self._arena.copy(
            self._layout.block_offset(group, source),
            self._layout.block_offset(group, target),
            self._layout.blocks[group].nbytes,
        )

    def _free(self, block: Block) -> None:
        del self._blocks[block.group][block.number]
        self._pool.give(block.group, block.number)
