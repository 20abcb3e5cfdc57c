"""A block in use and what the prefix index knows of it.

A block is free (no `Block` object exists), held (`refs` > 0: in that many block tables), or cached
(`refs` == 0 and `entry` set: kept only for reuse, and evictable).
"""

from __future__ import annotations

from dataclasses import dataclass

TOKEN_BYTES = 4  # int32


@dataclass(slots=True, eq=False)
class Block:
    """`number` is the block's place among its group's blocks; compaction may change it."""

    group: int
    number: int
    refs: int = 0
    entry: Entry | None = None
    pinned_until_s: float = 0.0  # time.monotonic(); 0: not pinned
    # False: it came back from a tier that requantises, or was computed from what did.
    is_exact: bool = True


@dataclass(slots=True, eq=False)
class Entry:
    """The KV of one run of tokens after one prefix, in each group that still has it.

    `tokens` holds int32 values; a run shorter than a block is the tail of a released sequence and
    has no `key`. `parent` is the key of everything before the run, `start_tokens` how much that is.
    """

    parent: bytes
    key: bytes | None
    tokens: bytes
    blocks: list[Block | None]
    start_tokens: int = 0
    # Others after the same parent: what came to be kept before and after it.
    older: Entry | None = None
    newer: Entry | None = None

    @property
    def n_tokens(self) -> int:
        return len(self.tokens) // TOKEN_BYTES
