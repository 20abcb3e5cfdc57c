"""What the cache knows of one running request: its tokens and its block tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdover.cache.blocks import Block


class BlockTable:
    """One group's blocks of one sequence; `numbers` mirrors `blocks` for the kernels.

    blocks    sink | None None None | live | reserved
              0 .. sinks    dead   ^ start          ^ len
    """

    def __init__(self) -> None:
        self.blocks: list[Block | None] = []
        self.start = 0  # first block that is not dead, sinks apart
        self.n_held = 0  # blocks that are not dead
        self._numbers = np.full(8, -1, dtype=np.int32)

    @property
    def numbers(self) -> NDArray[np.int32]:
        """Block numbers, -1 where dead. A view: do not keep it past the next change."""
        return self._numbers[: len(self.blocks)]

    @classmethod
    def of(cls, blocks: list[Block | None], start: int) -> BlockTable:
        table = cls()
        table.blocks, table.start = blocks, start
        table.n_held = len(blocks) - blocks.count(None)
        while len(table._numbers) < len(blocks):
            table._grow()
        table._numbers[: len(blocks)] = [-1 if b is None else b.number for b in blocks]
        return table

    def _grow(self) -> None:
        grown = np.full(2 * len(self._numbers), -1, dtype=np.int32)
        grown[: len(self._numbers)] = self._numbers
        self._numbers = grown

    def extend(self, blocks: list[Block]) -> None:
        n_before = len(self.blocks)
        self.n_held += len(blocks)
        self.blocks += blocks
        while len(self._numbers) < len(self.blocks):
            self._grow()
        self._numbers[n_before : len(self.blocks)] = [block.number for block in blocks]

    def clear(self, index: int) -> Block | None:
        """Leave a null entry; returns what stood there."""
        block = self.blocks[index]
        self.n_held -= block is not None
        self.blocks[index] = None
        self._numbers[index] = -1
        return block

    def renumber(self, old: int, new: int) -> None:
        self._numbers[: len(self.blocks)][self.numbers == old] = new


@dataclass(frozen=True, slots=True)
class Reused:
    """What a sequence takes over of one group: whole blocks shared, the tail's to be copied."""

    blocks: list[Block | None]  # None where dead
    tail: Block | None
    start: int  # first block that is not dead, sinks apart
    pinned: list[Block]  # all of them

    @classmethod
    def of(cls, blocks: list[Block | None], tail: Block | None, start: int) -> Reused:
        pinned = [block for block in blocks if block is not None]
        return cls(blocks, tail, start, pinned if tail is None else [*pinned, tail])

    def table(self) -> BlockTable:
        return BlockTable.of(list(self.blocks), self.start)


def requantised_tokens(found: Sequence[Reused], n_tokens: int, block_tokens: int) -> int:
    """Those of `n_tokens`, of which `found` are the groups' blocks, that lie in inexact ones."""
    n_full, n_tail = divmod(n_tokens, block_tokens)
    pinned = [(i, b) for reused in found for i, b in enumerate((*reused.blocks, reused.tail))]
    places = {i for i, block in pinned if block is not None and not block.is_exact}
    return sum(n_tail if i == n_full else block_tokens for i in places)


@dataclass(slots=True, eq=False)
class SequenceCache:
    """Made by `manager.admit`; `tokens` are the committed ones, as int32 bytes."""

    tenant: str
    tokens: bytearray
    keys: list[bytes]  # the root key, then the key of each full block
    tables: list[BlockTable]
    promise: tuple[int, ...] = ()  # blocks per group it was let in for
    owner: str = ""  # how people name it
    n_tokens: int = 0
    requantised_tokens: int = 0  # of those it began with
    released: bool = False

    @property
    def is_exact(self) -> bool:
        """What it computes equals what would be computed without any reuse."""
        return not self.requantised_tokens
