"""Which runs of tokens have KV in the arena, found by what precedes them.

A full block's key is blake2b(key of the block before, its token ids); the first block's parent is
the root key of its tenant, made from weights digest, layout fingerprint, tenant and a secret of the
server, without which nobody who reads a tier can tell whose a key is. Token ids are compared on
every hit, so not even a hash collision can give one prompt another's KV.

    tokens   | block 0 | block 1 | block 2 | tail ..|
    lookup     full runs, one after the other | what is kept after the last, longest common run

Only a new run is hashed: one that is kept is compared with the latest after the same key first, and
one that went lately has left its key behind.

The index holds no references and allocates nothing; the manager does both.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from holdover.cache.blocks import TOKEN_BYTES, Block, Entry
from holdover.cache.evictions import Evictions
from holdover.cache.tiers.base import KEY_BYTES, Record

# Children of one key that are compared, latest first. Only the block in which a widely shared
# prompt ends has more, and missing one there costs less than a block of prefill.
_MAX_CHILDREN_TRIED = 64


def token_view(tokens: Sequence[int]) -> memoryview:
    """As int32 bytes."""
    return np.ascontiguousarray(tokens, dtype="<i4").data


def token_bytes(tokens: Sequence[int]) -> bytes:
    return bytes(token_view(tokens))


def common_tokens(a: bytes, b: bytes) -> int:
    """Length in tokens of the common prefix of two runs."""
    if a[:TOKEN_BYTES] != b[:TOKEN_BYTES]:
        return 0  # most of those that are compared
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter // TOKEN_BYTES
    n_common, n_left = TOKEN_BYTES, shorter - TOKEN_BYTES  # they differ in what is left
    while n_left > 1:
        half = n_left // 2
        if a[n_common : n_common + half] == b[n_common : n_common + half]:
            n_common += half
            n_left -= half
        else:
            n_left = half
    return n_common // TOKEN_BYTES


class PrefixIndex:
    def __init__(
        self,
        seed: bytes,
        block_tokens: int,
        n_groups: int,
        evictions: Evictions,
        salt: bytes = b"",
        shared: bool = False,
    ) -> None:
        self._seed = seed
        self._evictions = evictions
        self._salt = salt
        self._shared = shared
        self.n_groups = n_groups
        self.run_bytes = block_tokens * TOKEN_BYTES
        self._collisions = itertools.count()
        self._by_key: dict[bytes, Entry] = {}
        self._latest: dict[bytes, Entry] = {}  # by parent; those before it by `older`

    def root(self, tenant: str) -> bytes:
        """The parent key of a tenant's first blocks; of everyone's where prefixes are shared."""
        named = "" if self._shared else tenant
        return self._hash(self._seed, b"tenant:" + self._salt + named.encode())

    def chain(self, tenant: str, tokens: bytes) -> Iterator[tuple[bytes, Entry | None]]:
        """Key and entry of every full block of `tokens`, first to last."""
        parent = self.root(tenant)
        for start in range(0, len(tokens) - self.run_bytes + 1, self.run_bytes):
            run = tokens[start : start + self.run_bytes]
            entry = self._after(parent, run)
            parent = self.key(parent, run) if entry is None or entry.key is None else entry.key
            yield parent, entry

    def whole_chain(self, tenant: str, tokens: bytes) -> tuple[list[bytes], list[Entry | None]]:
        """The keys, the root's first, and entries of the first full blocks that no group lacks."""
        keys = [self.root(tenant)]
        entries: list[Entry | None] = []
        for start in range(0, len(tokens) - self.run_bytes + 1, self.run_bytes):
            entry = self._after(keys[-1], tokens[start : start + self.run_bytes])
            if entry is None or entry.key is None or None in entry.blocks:
                break
            keys.append(entry.key)
            entries.append(entry)
        return keys, entries

    def record(self, block: Block) -> Record | None:
        """How tiers name a published block; None where a collision left it without a key."""
        entry = block.entry
        assert entry is not None, "the block is not published"
        if len(entry.parent) != KEY_BYTES:
            return None
        key = entry.key or self._hash(entry.parent, entry.tokens)
        return Record(key, entry.parent, entry.tokens, block.group, entry.start_tokens)

    def key(self, parent: bytes, run: bytes) -> bytes:
        gone = self._evictions.full(parent, run)
        return self._hash(parent, run) if gone is None or gone.key is None else gone.key

    def partial(self, parent: bytes, tokens: bytes) -> list[tuple[int, Entry]]:
        """Entries after `parent` that begin like `tokens`: (common tokens, entry), best first."""
        found = [(common_tokens(entry.tokens, tokens), entry) for entry in self._children(parent)]
        return sorted((f for f in found if f[0]), key=lambda f: f[0], reverse=True)

    def runs(self, parent: bytes) -> list[bytes]:
        """What is kept right after `parent`, the latest first."""
        return [entry.tokens for entry in self._children(parent)]

    def blocks(self, parent: bytes, run: bytes) -> list[Block]:
        """Those that hold `run` after `parent`."""
        entry = self._find(parent, run)
        return [] if entry is None else [b for b in entry.blocks if b is not None]

    def publish(
        self, parent: bytes, run: bytes, blocks: Sequence[Block | None], start_tokens: int = 0
    ) -> bytes | None:
        """Offer blocks that hold `run` after `parent`, which is `start_tokens` long; returns the
        key of a full run.

        A group that has a block for this run already keeps it; the offered one stays private.
        """
        entry = self._find(parent, run)
        if entry is None:
            entry = self._evictions.full(parent, run)
            if entry is None:
                key = self._hash(parent, run) if len(run) == self.run_bytes else None
                entry = Entry(parent, key, run, [None] * self.n_groups, start_tokens)
            if entry.key in self._by_key:
                # A collision: nobody will find what follows a key that is no digest and used once.
                return b"collision %d" % next(self._collisions)
            self._link(entry)
        for group, block in enumerate(blocks):
            if block is not None and block.entry is None and entry.blocks[group] is None:
                entry.blocks[group] = block
                block.entry = entry
        if not any(entry.blocks):
            self._forget(entry)
        return entry.key

    def outdone(self, parent: bytes, run: bytes, blocks: Sequence[Block | None]) -> list[Block]:
        """Blocks of `run` that are not exact, where `blocks` has one that is."""
        entry = self._find(parent, run)
        pairs = zip(entry.blocks, blocks, strict=True) if entry is not None else ()
        return [
            known
            for known, new in pairs
            if known is not None and not known.is_exact and new is not None and new.is_exact
        ]

    def contains(self, parent: bytes, run: bytes, exactly: bool) -> bool:
        """Whether a longer run that begins so is kept in all groups."""
        return any(
            len(entry.tokens) > len(run)
            and entry.tokens.startswith(run)
            and all(block is not None and block.is_exact >= exactly for block in entry.blocks)
            for entry in self._children(parent)
        )

    def superseded(self, parent: bytes, run: bytes) -> list[Block]:
        """Blocks of shorter tails that `run` contains: of no more use once `run` is published."""
        latest = self._latest.get(parent)
        if latest is None or (latest.older is None and len(latest.tokens) >= len(run)):
            return []
        return [
            block
            for entry in self._children(parent)
            if len(entry.tokens) < len(run) and run.startswith(entry.tokens)
            for block in entry.blocks
            if block is not None
        ]

    def withdraw(self, block: Block) -> None:
        """The block no longer holds its run."""
        entry = block.entry
        assert entry is not None, "the block is not published"
        entry.blocks[block.group] = None
        block.entry = None
        if not any(entry.blocks):
            self._forget(entry)

    def check(self, cached_or_held: set[Block]) -> None:
        """Assert that every entry is reachable, keyed rightly, and only points at live blocks."""
        entries = []
        for parent, latest in self._latest.items():
            assert latest.newer is None
            siblings = [latest]
            while (older := siblings[-1].older) is not None:
                assert older.newer is siblings[-1], "siblings disagree"
                siblings.append(older)
            assert all(entry.parent == parent for entry in siblings)
            entries += siblings
        assert len(self._by_key) == sum(entry.key is not None for entry in entries)
        for entry in entries:
            assert any(entry.blocks), "an entry without blocks was kept"
            if entry.key is not None:
                assert entry.key == self._hash(entry.parent, entry.tokens)
                assert self._by_key[entry.key] is entry
            for group, block in enumerate(entry.blocks):
                if block is not None:
                    assert block.entry is entry, "entry and block disagree"
                    assert block.group == group, "a block stands in another group's place"
                    assert block in cached_or_held, "an entry points at a free block"

    def _find(self, parent: bytes, run: bytes) -> Entry | None:
        if len(run) == self.run_bytes:
            return self._after(parent, run)
        return next((entry for entry in self._children(parent) if entry.tokens == run), None)

    def _after(self, parent: bytes, run: bytes) -> Entry | None:
        """The entry of a full run."""
        latest = self._latest.get(parent)
        if latest is None or latest.tokens == run:
            return latest
        return self._keyed(self.key(parent, run), parent, run)

    def _keyed(self, key: bytes, parent: bytes, run: bytes) -> Entry | None:
        """The entry of a key, if it is the one of this run: a hash alone proves nothing."""
        entry = self._by_key.get(key)
        found = entry is not None and entry.tokens == run and entry.parent == parent
        return entry if found else None

    def _children(self, parent: bytes) -> list[Entry]:
        """The latest ones."""
        children: list[Entry] = []
        entry = self._latest.get(parent)
        while entry is not None and len(children) < _MAX_CHILDREN_TRIED:
            children.append(entry)
            entry = entry.older
        return children

    def _link(self, entry: Entry) -> None:
        entry.older = self._latest.get(entry.parent)
        if entry.older is not None:
            entry.older.newer = entry
        self._latest[entry.parent] = entry
        if entry.key is not None:
            self._by_key[entry.key] = entry

    def _forget(self, entry: Entry) -> None:
        parent, older, newer = entry.parent, entry.older, entry.newer
        if newer is not None:
            newer.older = older
        elif older is not None:
            self._latest[parent] = older
        else:
            del self._latest[parent]
        if older is not None:
            older.newer = newer
        if entry.key is not None:
            del self._by_key[entry.key]
        entry.older = entry.newer = None

    @staticmethod
    def _hash(parent: bytes, run: bytes) -> bytes:
        return hashlib.blake2b(parent + run, digest_size=KEY_BYTES).digest()
