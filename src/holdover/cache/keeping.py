"""Conversations that nobody computes at the moment, as what the cache keeps of them.

A conversation is its tokens, of one tenant: where they lie, how to keep them longer, how to be rid
of them. Blocks that another conversation goes on from are never removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdover.cache.blocks import TOKEN_BYTES, Block
from holdover.cache.ends import PromptEnds
from holdover.cache.matching import Matcher
from holdover.cache.mover import Mover
from holdover.cache.prefix import PrefixIndex
from holdover.cache.room import Room
from holdover.cache.tiers.base import Record
from holdover.spec.layout import CacheLayout


@dataclass(frozen=True, slots=True)
class Kept:
    """`reusable_tokens` need not be computed again; `bytes_in` the arena and each tier by name."""

    reusable_tokens: int
    bytes_in: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Step:
    """One run of a conversation."""

    parent: bytes
    key: bytes
    run: bytes


class Keeper:
    def __init__(
        self,
        layout: CacheLayout,
        index: PrefixIndex,
        room: Room,
        matcher: Matcher,
        mover: Mover,
        ends: PromptEnds,
    ) -> None:
        self._layout = layout
        self._index = index
        self._room = room
        self._matcher = matcher
        self._mover = mover
        self._ends = ends

    def kept(self, tokens: bytes, tenant: str) -> Kept:
        bytes_in: dict[str, int] = {}
        for step in self._steps(tokens, tenant):
            for record in self._records(step):
                for place, n_bytes in self._places(record).items():
                    bytes_in[place] = bytes_in.get(place, 0) + n_bytes
        return Kept(self._matcher.reach(tokens, tenant, self._mover).n_tokens, bytes_in)

    def pin(self, tokens: bytes, tenant: str, until_s: float) -> None:
        """Evict others' blocks first until then (time.monotonic()); 0: like any other again."""
        for step in self._steps(tokens, tenant):
            for block in self._index.blocks(step.parent, step.run):
                self._room.pin(block, until_s)
            for record in self._records(step):
                self._mover.pin(record, until_s)

    def forget(self, tokens: bytes, tenant: str, keep_tokens: int = 0) -> int:
        """Remove what no one else goes on from; returns how many blocks went.

        The whole blocks of the first `keep_tokens` stay.
        """
        n_gone = 0
        gone: dict[bytes, bytes] = {}
        n_kept = keep_tokens * TOKEN_BYTES // self._index.run_bytes
        for step in reversed(list(self._steps(tokens, tenant))[n_kept:]):
            if self._is_shared(step):
                break
            gone[step.parent] = step.run
            for shorter in self._runs_within(step):
                n_gone += self._remove(shorter)
        self._ends.forget(gone)
        return n_gone

    # ---- within -------------------------------------------------------------------------------

    def _steps(self, tokens: bytes, tenant: str) -> Iterator[_Step]:
        """Every full block, and the rest."""
        parent = self._index.root(tenant)
        for start in range(0, len(tokens), self._index.run_bytes):
            run = tokens[start : start + self._index.run_bytes]
            key = self._index.key(parent, run)
            yield _Step(parent, key, run)
            parent = key

    def _records(self, step: _Step) -> list[Record]:
        groups = range(self._index.n_groups)
        return [Record(step.key, step.parent, step.run, group) for group in groups]

    def _places(self, record: Record) -> dict[str, int]:
        """Where it lies, and its bytes there."""
        blocks = self._index.blocks(record.parent, record.tokens)
        is_here = any(b.group == record.group for b in blocks)
        here = {"arena": self._layout.blocks[record.group].nbytes} if is_here else {}
        return here | self._mover.places(record)

    def _runs_within(self, step: _Step) -> list[_Step]:
        """The run, and tails of earlier turns that it contains."""
        runs = set(self._index.runs(step.parent))
        runs |= {record.tokens for record in self._mover.runs(step.parent)}
        return [
            _Step(step.parent, self._index.key(step.parent, run), run)
            for run in runs
            if step.run.startswith(run)
        ]

    def _is_shared(self, step: _Step) -> bool:
        """Whether a sequence uses it, or something that is kept stands on it."""
        if any(block.refs for block in self._index.blocks(step.parent, step.run)):
            return True
        if len(step.run) < self._index.run_bytes:
            return False
        return bool(self._index.runs(step.key) or list(self._mover.runs(step.key)))

    def _remove(self, step: _Step) -> int:
        blocks = [b for b in self._index.blocks(step.parent, step.run) if not b.refs]
        for block in blocks:
            self._erase(block)
        return len(blocks) + sum(self._mover.delete(record) for record in self._records(step))

    def _erase(self, block: Block) -> None:
        view = self._room.view(block)
        view[:] = bytes(len(view))
        self._index.withdraw(block)
        self._room.drop(block)
