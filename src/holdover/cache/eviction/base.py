"""What an eviction policy is.

A policy holds the blocks that no sequence uses and that are kept only for reuse. Its file offers
`create() -> EvictionPolicy`. One instance orders the blocks of all groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from holdover.cache.blocks import Block


class EvictionPolicy(Protocol):
    def add(self, block: Block) -> None:
        """The block's last user let go of it."""

    def remove(self, block: Block) -> None:
        """The block is used again, or gone."""

    def victim(self) -> Block | None:
        """The block to evict next, without removing it; None when there is none."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Block]: ...
