"""How much of a prompt is in the cache, and how much with what tiers hold.

A prefix of n tokens can be reused if each group still has the blocks that the query at position n
may read: all of them, or only those under its window. So a hit is one number for all groups, and a
windowed model hits although most of its window blocks are long gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from holdover.cache.blocks import TOKEN_BYTES, Block, Entry
from holdover.cache.prefix import PrefixIndex, common_tokens
from holdover.cache.tiers.base import Record
from holdover.spec.residency import BlockRanges, Residency, step_blocks


@dataclass(frozen=True, slots=True)
class Match:
    """`n_tokens` can be reused: whole blocks shared as they are (`chain`), the rest copied.

    `keys` are the root's and those of the chain's blocks; `tail` is where the rest stands.
    """

    n_tokens: int
    chain: tuple[Entry | None, ...]
    keys: tuple[bytes, ...]
    tail: Entry | None
    version: int


@dataclass(frozen=True, slots=True)
class Reach:
    """`n_tokens` can be reused once `records` are loaded beside `blocks`, which are there."""

    n_tokens: int
    blocks: tuple[Block, ...]
    records: tuple[Record, ...]  # in the order of their tokens


class Stored(Protocol):
    """What tiers hold."""

    def holds(self, key: bytes, group: int) -> bool: ...

    def runs(self, parent: bytes) -> Iterable[Record]:
        """Of all groups, right after `parent`."""


@dataclass(frozen=True, slots=True)
class _Walk:
    """The full blocks of a prompt: entries, keys, and how many of them each group lacks so far."""

    chain: list[Entry | None]
    keys: list[bytes]  # the root's first
    missing: list[list[int]]


class Matcher:
    """Finds matches; changes nothing."""

    def __init__(
        self, index: PrefixIndex, residencies: tuple[Residency, ...], block_tokens: int
    ) -> None:
        self._index = index
        self._residencies = residencies
        self._block_tokens = block_tokens

    def longest(self, tokens: bytes, tenant: str, version: int, tails: bool = True) -> Match:
        """The longest reusable prefix of `tokens`; of whole blocks only without `tails`."""
        if all(self._reads_all(len(tokens) // TOKEN_BYTES)):
            keys, chain = self._index.whole_chain(tenant, tokens)
            walk = _Walk(chain, keys, [[0] * len(keys) for _ in self._residencies])
        else:
            walk = self._walk(tokens, tenant, lambda entry, key, g: _block(entry, g) is not None)
        for n_full in range(len(walk.chain), -1, -1):
            rest = self._run(tokens, n_full)
            candidates = self._index.partial(walk.keys[n_full], rest) if tails else []
            for n_tail, tail in [*candidates, (0, None)]:
                has = [_block(tail, g) is not None for g in range(len(self._residencies))]
                n_tokens = self._n_tokens(n_full, n_tail)
                if self._is_resident(n_tokens, walk.missing, has):
                    until = tuple(walk.keys[: n_full + 1])
                    return Match(n_tokens, tuple(walk.chain[:n_full]), until, tail, version)
        raise AssertionError("the empty prefix is always resident")

    def reach(self, tokens: bytes, tenant: str, stored: Stored) -> Reach:
        """The longest prefix that the arena and `stored` hold between them."""
        walk = self._walk(
            tokens, tenant, lambda entry, key, g: bool(_block(entry, g)) or stored.holds(key, g)
        )
        for n_full in range(len(walk.chain), -1, -1):
            rest, parent = self._run(tokens, n_full), walk.keys[n_full]
            for n_tail, places in [*self._tails(parent, rest, stored), (0, {})]:
                n_tokens = self._n_tokens(n_full, n_tail)
                has = [g in places for g in range(len(self._residencies))]
                if self._is_resident(n_tokens, walk.missing, has):
                    return self._reached(n_tokens, n_full, tokens, walk, places)
        raise AssertionError("the empty prefix is always resident")

    def live(self, group: int, n_tokens: int) -> BlockRanges:
        """The blocks that a sequence of `n_tokens` reads from here on."""
        return step_blocks(self._residencies[group], n_tokens, n_tokens, self._block_tokens)

    def _run(self, tokens: bytes, index: int) -> bytes:
        """What of `tokens` lies in the block of that number."""
        start = index * self._index.run_bytes
        return tokens[start : start + self._index.run_bytes]

    def _n_tokens(self, n_full: int, n_tail: int) -> int:
        # A whole block in common is the chain's business, which has rejected it.
        return n_full * self._block_tokens + min(n_tail, self._block_tokens - 1)

    def _tails(
        self, parent: bytes, rest: bytes, stored: Stored
    ) -> list[tuple[int, dict[int, Block | Record]]]:
        """Runs after `parent` that begin like `rest`, the longest in common first: how many tokens
        they have in common with it, and where each group has its block."""
        runs: dict[bytes, dict[int, Block | Record]] = {}
        for record in stored.runs(parent):
            runs.setdefault(record.tokens, {}).setdefault(record.group, record)
        for _, entry in self._index.partial(parent, rest):
            places = runs.setdefault(entry.tokens, {})
            for group, block in enumerate(entry.blocks):
                if block is not None:
                    places[group] = block
        found = [(common_tokens(run, rest), places) for run, places in runs.items()]
        return sorted((f for f in found if f[0]), key=lambda f: f[0], reverse=True)

    def _reached(
        self,
        n_tokens: int,
        n_full: int,
        tokens: bytes,
        walk: _Walk,
        tail: dict[int, Block | Record],
    ) -> Reach:
        blocks: list[Block] = []
        records: list[Record] = []
        live = [self.live(group, n_tokens) for group in range(len(self._residencies))]
        for index in range(n_full):
            run = self._run(tokens, index)
            for group, ranges in enumerate(live):
                block = _block(walk.chain[index], group)
                if index in ranges and block is not None:
                    blocks.append(block)
                elif index in ranges:
                    start_tokens = index * self._block_tokens
                    key, parent = walk.keys[index + 1], walk.keys[index]
                    records.append(Record(key, parent, run, group, start_tokens))
        for group, place in tail.items():
            if n_full in live[group] and isinstance(place, Block):
                blocks.append(place)
            elif n_full in live[group] and isinstance(place, Record):
                records.append(replace(place, start_tokens=n_full * self._block_tokens))
        return Reach(n_tokens, tuple(blocks), tuple(records))

    def _walk(
        self, tokens: bytes, tenant: str, has: Callable[[Entry | None, bytes, int], bool]
    ) -> _Walk:
        reads_all = self._reads_all(len(tokens) // TOKEN_BYTES)
        n_groups = len(self._residencies)
        walk = _Walk([], [self._index.root(tenant)], [[0] for _ in range(n_groups)])
        for key, entry in self._index.chain(tenant, tokens):
            lacks = [not has(entry, key, g) for g in range(n_groups)]
            if any(lack and needed for lack, needed in zip(lacks, reads_all, strict=True)):
                break  # nothing longer can hit
            walk.chain.append(entry)
            walk.keys.append(key)
            for counts, lack in zip(walk.missing, lacks, strict=True):
                counts.append(counts[-1] + lack)
        return walk

    def _reads_all(self, n_tokens: int) -> list[bool]:
        """Of each group, whether the query after so many tokens reads them all: then nothing after
        a gap is of use."""
        return [residency.first_visible(n_tokens) == 0 for residency in self._residencies]

    def _is_resident(
        self, n_tokens: int, missing: Sequence[Sequence[int]], has_tail: Sequence[bool]
    ) -> bool:
        """Whether every group has what a query at position `n_tokens` reads, sinks included."""
        n_full = n_tokens // self._block_tokens
        for group, counts in enumerate(missing):
            live = self.live(group, n_tokens)
            stop = min(live.stop, n_full)
            start = min(live.start, stop)
            if counts[stop] != counts[start] or counts[min(live.sink_stop, stop)]:
                return False
            if n_tokens % self._block_tokens and n_full in live and not has_tail[group]:
                return False
        return True


def _block(entry: Entry | None, group: int) -> Block | None:
    return None if entry is None else entry.blocks[group]
