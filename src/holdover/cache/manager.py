"""The only door to the cache: match, admit, reserve, commit, release.

The scheduler asks before a step, `commit` is the only change after it. "No room" is a return value
and leaves everything held as it was; a broken rule raises. Never sees a model or a request.

With tiers, a sequence whose prefix lies there gets a lift first: the scheduler asks for one with
`lift`, goes on with others, and admits the sequence when `poll` says that the lift has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from holdover.cache.arena import Arena
from holdover.cache.blocks import TOKEN_BYTES, Block
from holdover.cache.costs import Costs
from holdover.cache.ends import PromptEnds
from holdover.cache.evictions import Evictions
from holdover.cache.explain import Reuse, explained
from holdover.cache.keeping import Keeper, Kept
from holdover.cache.lifting import Lift, Lifts
from holdover.cache.matching import Match, Matcher
from holdover.cache.mover import Mover
from holdover.cache.prefix import PrefixIndex, token_bytes, token_view
from holdover.cache.room import Room
from holdover.cache.sequence import Reused, SequenceCache, requantised_tokens
from holdover.cache.tiers.base import TierStats
from holdover.spec.ends import EndLayout
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import BlockRanges, step_blocks
from holdover.units import ceil_div


class CacheManager:
    """Single-threaded; called by the engine's thread only."""

    def __init__(
        self,
        layout: CacheLayout,
        arena: Arena,
        *,
        eviction: str = "lru",
        seed: bytes = b"",
        mover: Mover | None = None,
        salt: bytes = b"",
        share_prefixes: bool = False,
        whole_tokens: int | None = None,
        ends: PromptEnds | None = None,
    ) -> None:
        """`seed` is what keys and values follow from; `salt` keeps tenants apart on every tier,
        unless they share prefixes. With `whole_tokens` each sequence holds blocks for so many from
        its start to its end, as servers did before paging."""
        self.layout = layout
        self._block_tokens = layout.spec.block_tokens
        self._residencies = tuple(group.residency for group in layout.spec.groups)
        self._evictions = Evictions()
        self._index = PrefixIndex(
            seed + layout.fingerprint, self._block_tokens, len(layout.blocks), self._evictions,
            salt, share_prefixes,
        )  # fmt: skip
        self._matcher = Matcher(self._index, self._residencies, self._block_tokens)
        self._room = Room(layout, arena, eviction, self._on_evict, self._on_move)
        self._whole_tokens = whole_tokens
        self._mover = mover or Mover(layout, (), Costs())
        self._mover.bind(self._index.record, self._room.view)
        self._lifts = Lifts(self._room, self._index, self._mover, self._fits)
        none_kept = EndLayout.of(0, 0, 0)
        self.ends = PromptEnds(none_kept, self._block_tokens) if ends is None else ends
        self._keeper = Keeper(
            layout, self._index, self._room, self._matcher, self._mover, self.ends
        )
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
        owner: str = "",
    ) -> SequenceCache | None:
        """Start a sequence on a match, with room to compute `n_tokens` more; None if no room.

        The sequence's `n_tokens` is what was reused: the match's, or only its whole blocks where
        there is no room for a partly filled block and its copy. With a `promise`, blocks per group
        that it will come to hold, there must be room for that beside what others were promised.
        """
        if match.version != self._version:
            match = self.match(tokens, tenant)
        self._evictions.owner, self._evictions.tenant = owner, tenant
        sequence = self._try_admit(match, n_tokens, tenant, promise)
        if sequence is None and match.tail is not None:
            usable = token_bytes(tokens[:-1])
            match = self._matcher.longest(usable, tenant, self._version, tails=False)
            sequence = self._try_admit(match, n_tokens, tenant, promise)
        if sequence is None and not promise and self._drop_a_lift():
            return self.admit(tokens, match, n_tokens, tenant, owner=owner)
        if sequence is not None:
            sequence.tokens += token_view(tokens[: match.n_tokens])
            sequence.n_tokens = match.n_tokens
            sequence.owner = owner
        return sequence

    def reserve(self, sequence: SequenceCache, n_tokens: int) -> bool:
        """Room to compute `n_tokens` more than are committed: all of it, or False and nothing."""
        stop = ceil_div(sequence.n_tokens + n_tokens, self._block_tokens)
        n_new = [max(0, stop - len(table.blocks)) for table in sequence.tables]
        if not any(n_new):
            return True
        while not self._room.has_room(n_new):
            if not self._drop_a_lift():
                return False
        self._evictions.owner, self._evictions.tenant = sequence.owner, sequence.tenant
        self._extend(sequence, n_new)
        return True

    # ---- tiers ----------------------------------------------------------------------------------

    def lift(
        self, tokens: Sequence[int], match: Match, tenant: str = "", promise: Sequence[int] = ()
    ) -> Lift | None:
        """Begin to load what tiers hold of a prefix beyond `match`.

        None where they hold no more, or where there is no room for it and for `promise` beside
        what others were promised. Where computing it is predicted to be as fast it has ended.
        """
        if not self._mover.has_tiers or match.n_tokens >= len(tokens) - 1:
            return None
        reach = self._matcher.reach(token_bytes(tokens[:-1]), tenant, self._mover)
        if reach.n_tokens <= match.n_tokens or not reach.records:
            return None
        n_saved = reach.n_tokens - match.n_tokens
        decision = self._mover.decide(reach.records, n_saved, self._lifts.is_coming())
        if not decision.pays:
            return Lift(reach.n_tokens, match.n_tokens, decision, ended=True)
        self._version += 1
        return self._lifts.begin(reach, match.n_tokens, promise, decision)

    def drop(self, lift: Lift) -> None:
        """End a lift before its time; what has come stays cached."""
        self._version += 1
        self._lifts.drop(lift)

    @property
    def weighs_loads(self) -> bool:
        """Whether `observe` is of use."""
        return self._mover.has_tiers

    def observe(self, n_tokens: int, step_s: float) -> None:
        """A step took so long: what loads are compared with."""
        self._mover.costs.observe(n_tokens, step_s)

    def close(self, wait_s: float) -> None:
        """Give tiers what waits for them, for at most `wait_s`, and end them."""
        self._mover.close(wait_s)

    def poll(self) -> None:
        """Take what tiers have ready and give them what waits for them; to be called each step."""
        if self._lifts.poll():
            self._version += 1

    @property
    def rest_s(self) -> float | None:
        """After how long `poll` has more to do when no sequence computes; None: never."""
        return self._mover.rest_s

    # ---- after a step -------------------------------------------------------------------------

    def commit(self, sequence: SequenceCache, tokens: Sequence[int]) -> None:
        """The rows of `tokens` were written: publish full blocks, let go of dead ones."""
        assert not sequence.released, "commit to a released sequence"
        self._version += 1
        first_new = sequence.n_tokens // self._block_tokens
        sequence.tokens += token_view(tokens)
        sequence.n_tokens += len(tokens)
        n_full = sequence.n_tokens // self._block_tokens
        for index in range(first_new, n_full):
            key = self._publish(sequence, index, self._block_tokens)
            assert key is not None, "a full run has a key"
            sequence.keys.append(key)
        if self._whole_tokens is not None:
            return  # nothing is let go of before the end
        n_blocks = ceil_div(sequence.n_tokens, self._block_tokens)
        for group, table in enumerate(sequence.tables):
            assert len(table.blocks) >= n_blocks, "commit past what was reserved"
            first_visible = self._residencies[group].first_visible(sequence.n_tokens)
            if first_visible // self._block_tokens <= table.start:
                continue  # nothing died: most steps, so they are kept cheap
            live = self._step_blocks(group, sequence.n_tokens, sequence.n_tokens)
            indices = range(max(table.start, live.sink_stop), live.start)
            dead = [table.clear(index) for index in indices]
            self._room.unref([block for block in dead if block is not None])
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
        if n_tail and not self._is_kept(sequence, n_full):
            self._publish(sequence, n_full, n_tail)
        columns = list(zip_longest(*(table.blocks for table in sequence.tables)))
        columns.reverse()  # tails are evicted before what they stand on
        left = [block for column in columns for block in column if block is not None]
        self._room.unref(left)
        for table in sequence.tables:
            table.blocks.clear()
        if self._mover.has_tiers:
            for block in reversed(left):  # and stored after it
                self._mover.offer(block)

    def evict(self, n_blocks: int | None = None) -> int:
        """Drop cached blocks, all or the first `n_blocks` to go; returns how many went."""
        self._version += 1
        n_evicted = 0
        while n_blocks is None or n_evicted < n_blocks:
            victim = self._room.victim()
            if victim is None:
                break
            self._room.evict(victim)
            n_evicted += 1
        return n_evicted

    # ---- conversations that no one computes ----------------------------------------------------

    def kept(self, tokens: Sequence[int], tenant: str = "") -> Kept:
        """Where a conversation lies, and how much of it can be reused."""
        return self._keeper.kept(token_bytes(tokens), tenant)

    def pin(self, tokens: Sequence[int], tenant: str, until_s: float) -> None:
        """Evict others' blocks before a conversation's until then (time.monotonic()); 0 ends it.

        Soft: its blocks go as well, to a tier, when nothing else is left to go.
        """
        self._keeper.pin(token_bytes(tokens), tenant, until_s)

    def forget(self, tokens: Sequence[int], tenant: str = "", keep_tokens: int = 0) -> int:
        """Remove a conversation from the arena and from every tier, but for what another one goes
        on from, and its first `keep_tokens`; returns how many blocks went."""
        self._version += 1
        return self._keeper.forget(token_bytes(tokens), tenant, keep_tokens)

    # ---- to look at ---------------------------------------------------------------------------

    def block_table(self, sequence: SequenceCache, group: int) -> NDArray[np.int32]:
        """Block numbers of one group, -1 where dead; a view that the next change invalidates."""
        return sequence.tables[group].numbers

    def explain(self, sequence: SequenceCache, tokens: Sequence[int], lift: Lift | None) -> Reuse:
        """Of a sequence just admitted with `tokens`: what was reused, and why no more.

        `lift` is the one it waited for.
        """

        def runs(parent: bytes) -> list[bytes]:
            in_tiers = [record.tokens for record in self._mover.runs(parent)]
            return self._index.runs(parent) + in_tiers

        return explained(sequence, tokens, lift, self._evictions, runs, self._block_tokens)

    def tier_stats(self) -> dict[str, TierStats]:
        return self._mover.stats()

    @property
    def declined_loads(self) -> int:
        return self._mover.declined_loads

    @property
    def lost_blocks(self) -> int:
        return self._mover.lost_blocks

    @property
    def held_bytes(self) -> int:
        """Bytes of blocks that sequences use, each block once."""
        return self._room.held_bytes

    @property
    def cached_bytes(self) -> int:
        """Bytes of blocks kept only for reuse."""
        return self._room.cached_bytes

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
                assert table.n_held == len(expected) - expected.count(-1), "miscounted"
                live = self._step_blocks(group, sequence.n_tokens, sequence.n_tokens)
                for index, block in enumerate(table.blocks):
                    needed = index in live or index >= live.stop
                    needed = needed or self._whole_tokens is not None
                    assert (block is not None) == needed, f"block {index} held against the rule"
                    if block is not None:
                        assert block.group == group, "a block in another group's table"
                        refs[block] = refs.get(block, 0) + 1
        self._lifts.count(refs)
        self._index.check(self._room.check(refs))

    # ---- within -------------------------------------------------------------------------------

    def _drop_a_lift(self) -> bool:
        """Make room for who computes, at the cost of who waits; False when no one does."""
        self._version += 1
        return self._lifts.drop_latest()

    def _step_blocks(self, group: int, start: int, stop: int) -> BlockRanges:
        return step_blocks(self._residencies[group], start, stop, self._block_tokens)

    def _try_admit(
        self, match: Match, n_tokens: int, tenant: str, promise: Sequence[int]
    ) -> SequenceCache | None:
        stop = self._whole_tokens or match.n_tokens + n_tokens
        found = [self._reused(match, group) for group in range(len(self._residencies))]
        n_new = [ceil_div(stop, self._block_tokens) - len(match.chain)] * len(found)
        if not self._can_admit(found, n_new, promise):
            return None
        for reused in found:
            self._room.ref(reused.pinned)
        tables = [reused.table() for reused in found]
        sequence = SequenceCache(tenant, bytearray(), list(match.keys), tables, tuple(promise))
        if self._mover.requantises:
            n_requantised = requantised_tokens(found, match.n_tokens, self._block_tokens)
            sequence.requantised_tokens = n_requantised
        self._sequences[sequence] = None  # before room is made: packing renumbers its tables too
        self._extend(sequence, n_new)
        for reused, table in zip(found, tables, strict=True):
            target = table.blocks[len(match.chain)] if reused.tail is not None else None
            if reused.tail is not None and target is not None:
                self._room.copy(reused.tail, target)
                self._room.unref([reused.tail])
        return sequence

    def _reused(self, match: Match, group: int) -> Reused:
        """One group's blocks of a match, of which only live ones are taken."""
        live = self._step_blocks(group, match.n_tokens, match.n_tokens)
        n_full = len(match.chain)
        blocks: list[Block | None] = [None] * n_full
        for few in (slice(live.sink_stop), slice(live.start, live.stop)):
            blocks[few] = [e.blocks[group] if e else None for e in match.chain[few]]
        tail = match.tail.blocks[group] if match.tail and n_full in live else None
        return Reused.of(blocks, tail, min(live.start, n_full))

    def _can_admit(
        self, found: Sequence[Reused], n_new: Sequence[int], promise: Sequence[int]
    ) -> bool:
        n_revived = [len([b for b in reused.pinned if not b.refs]) for reused in found]
        n_shared = [len(reused.blocks) - reused.blocks.count(None) for reused in found]
        return self._fits(n_new, n_revived, n_shared, promise)

    def _fits(
        self,
        n_new: Sequence[int],
        n_revived: Sequence[int],
        n_shared: Sequence[int],
        promise: Sequence[int],
    ) -> bool:
        """Whether there is room for new blocks, and for the promise beside those of others."""
        if not self._room.has_room([a + b for a, b in zip(n_new, n_revived, strict=True)]):
            return False
        if not promise:
            return True
        n_to_come = [max(0, p - n) for p, n in zip(promise, n_shared, strict=True)]
        claims = zip(n_to_come, n_revived, self._outstanding(), strict=True)
        return self._room.has_room([sum(claim) for claim in claims])

    def _outstanding(self) -> list[int]:
        """Blocks per group that running sequences were promised and do not hold yet."""
        outstanding = [0] * len(self._residencies)
        for sequence in self._sequences:
            for group, n_promised in enumerate(sequence.promise):
                outstanding[group] += max(0, n_promised - sequence.tables[group].n_held)
        for lift in self._lifts.under_way:
            for group, n_to_come in enumerate(lift.n_to_come):
                outstanding[group] += n_to_come
        return outstanding

    def _extend(self, sequence: SequenceCache, n_new: Sequence[int]) -> None:
        self._version += 1
        for group, (table, n) in enumerate(zip(sequence.tables, n_new, strict=True)):
            if n:
                table.extend(self._room.allocate(group, n))

    def _is_kept(self, sequence: SequenceCache, n_full: int) -> bool:
        """Whether its tail begins a run that is kept, as that of a prompt that came again."""
        tail = bytes(sequence.tokens[n_full * self._index.run_bytes :])
        return self._index.contains(sequence.keys[n_full], tail, sequence.is_exact)

    def _publish(self, sequence: SequenceCache, index: int, n_tokens: int) -> bytes | None:
        start = index * self._block_tokens * TOKEN_BYTES
        run = bytes(sequence.tokens[start : start + n_tokens * TOKEN_BYTES])
        parent = sequence.keys[index]
        blocks = [table.blocks[index] for table in sequence.tables]
        for block in blocks:
            if block is not None and block.entry is None:
                block.is_exact = sequence.is_exact
        if self._mover.requantises:
            for block in self._index.outdone(parent, run, blocks):
                self._index.withdraw(block)
                if not block.refs:
                    self._room.drop(block)
        key = self._index.publish(parent, run, blocks, index * self._block_tokens)
        for block in self._index.superseded(parent, run):
            if not block.refs and (sequence.is_exact or not block.is_exact):
                self._index.withdraw(block)
                self._room.drop(block)
        return key

    def _on_evict(self, block: Block) -> None:
        self._mover.evicting(block)
        assert block.entry is not None, "not published"
        self._evictions.note(block.entry)
        self._index.withdraw(block)
        self.evicted_blocks += 1

    def _on_move(self, group: int, old: int, new: int) -> None:
        for sequence in self._sequences:
            sequence.tables[group].renumber(old, new)
