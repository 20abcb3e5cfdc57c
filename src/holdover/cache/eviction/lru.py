"""Least recently used: the block whose last user let go of it longest ago goes first.

A sequence lets go of its blocks from the last to the first, so a prefix outlives its tail.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from holdover.cache.blocks import Block
from holdover.cache.eviction.base import EvictionPolicy


class Lru:
    def __init__(self) -> None:
        # OrderedDict, not dict: taking the first key of a dict slows down as its front empties.
        self._order: OrderedDict[Block, None] = OrderedDict()

    def add(self, block: Block) -> None:
        self._order[block] = None

    def remove(self, block: Block) -> None:
        del self._order[block]

    def victim(self) -> Block | None:
        return next(iter(self._order), None)

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._order)


def create() -> EvictionPolicy:
    return Lru()
