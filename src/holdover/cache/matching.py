"""How much of a prompt is in the cache.

A prefix of n tokens can be reused if each group still has the blocks that the query at position n
may read: all of them, or only those under its window. So a hit is one number for all groups, and a
windowed model hits although most of its window blocks are long gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdover.cache.blocks import Entry
from holdover.cache.prefix import TOKEN_BYTES, PrefixIndex
from holdover.spec.residency import Residency, step_blocks


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
        chain, keys, missing = self._walk(tokens, tenant)
        for n_full in range(len(chain), -1, -1):
            rest = tokens[n_full * self._block_tokens * TOKEN_BYTES :]
            candidates = self._index.partial(keys[n_full], rest) if tails else []
            for n_tail, tail in [*candidates, (0, None)]:
                # A whole block in common is the chain's business, which has rejected it.
                n_tokens = n_full * self._block_tokens + min(n_tail, self._block_tokens - 1)
                if self._is_resident(n_tokens, missing, tail):
                    parents = tuple(keys[: n_full + 1])
                    return Match(n_tokens, tuple(chain[:n_full]), parents, tail, version)
        raise AssertionError("the empty prefix is always resident")

    def _walk(
        self, tokens: bytes, tenant: str
    ) -> tuple[list[Entry | None], list[bytes], list[list[int]]]:
        """Entries and keys of the full blocks, and how many of them each group lacks so far."""
        n_tokens = len(tokens) // TOKEN_BYTES
        reads_all = [residency.first_visible(n_tokens) == 0 for residency in self._residencies]
        chain: list[Entry | None] = []
        keys = [self._index.root(tenant)]
        missing: list[list[int]] = [[0] for _ in self._residencies]
        for key, entry in self._index.chain(tenant, tokens):
            lacks = [entry is None or entry.blocks[g] is None for g in range(len(missing))]
            if any(lack and needed for lack, needed in zip(lacks, reads_all, strict=True)):
                break  # nothing longer can hit
            chain.append(entry)
            keys.append(key)
            for counts, lack in zip(missing, lacks, strict=True):
                counts.append(counts[-1] + lack)
        return chain, keys, missing

    def _is_resident(
        self, n_tokens: int, missing: Sequence[Sequence[int]], tail: Entry | None
    ) -> bool:
        """Whether every group has what a query at position `n_tokens` reads, sinks included."""
        n_full = n_tokens // self._block_tokens
        for group, (counts, residency) in enumerate(zip(missing, self._residencies, strict=True)):
            live = step_blocks(residency, n_tokens, n_tokens, self._block_tokens)
            stop = min(live.stop, n_full)
            start = min(live.start, stop)
            if counts[stop] != counts[start] or counts[min(live.sink_stop, stop)]:
                return False
            needs_tail = n_tokens % self._block_tokens and n_full in live
            if needs_tail and (tail is None or tail.blocks[group] is None):
                return False
        return True
