"""What a tier is: a slower home of blocks, asked and polled, never waited for.

    engine's thread   holds, runs, store, load, poll, delete      memory only, no file is touched
    tier's threads    reads, writes, checksums, eviction

A tier may lose a block at any time, and never gives a wrong one: `load` ends with the very bytes
that were stored for the record, verified, or with the reason why not. A tier with a `codec` of its
own gives back what that codec keeps of them, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from holdover.spec.layout import CacheLayout

KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class Record:
    """One group's block of one run of tokens, as every tier names it.

    `key` is the hash of `parent`, the key of all that precedes the run, and of the run; both follow
    from weights, layout and tenant, so two servers that agree on a key agree on the bytes.
    """

    key: bytes  # KEY_BYTES
    parent: bytes  # KEY_BYTES
    tokens: bytes  # int32, little-endian; fewer than a block's in a tail
    group: int
    start_tokens: int = field(default=0, compare=False)  # position of the run; 0: or not known


@dataclass(frozen=True, slots=True)
class TierSpec:
    """One part of `--tiers`."""

    kind: str
    cap_bytes: int
    path: str | None = None
    codec: str | None = None  # of a tier that stores its blocks in another form
    key_path: str | None = None  # of a tier that encrypts what it stores


@dataclass(frozen=True, slots=True)
class TierStats:
    """Since the start, but for the first two."""

    held_bytes: int  # never above cap_bytes; of a shared directory, all that lies there
    cap_bytes: int
    blocks: int  # that this engine could load
    stored_blocks: int
    loaded_blocks: int
    failed_loads: int
    refused_stores: int
    evicted_blocks: int
    read_bytes_per_s: float  # measured; 0: not yet
    trouble: str | None  # why it stores nothing at the moment; None: it does
    codec: str | None = None  # it stores blocks requantised; None: as the arena has them


Take = Callable[[int, memoryview | None, str], None]
"""What `poll` calls for a load that has ended: its ticket, the block's bytes, which are the tier's
again when it returns, or None and the reason."""


class Transcoder(Protocol):
    """A block of the arena as one of a denser form, and back: equal bytes on every backend.

    `start_tokens` is the position of the block's first token, the same both ways. Called by tiers'
    threads; what is in neither form's fields is left as it is.
    """

    def encode(self, group: int, start_tokens: int, block: memoryview, to: memoryview) -> None: ...

    def decode(self, group: int, start_tokens: int, block: memoryview, to: memoryview) -> None: ...


TranscoderTo = Callable[[CacheLayout], Transcoder]
"""From the arena's layout to one of other codecs."""


class Tier(Protocol):
    """Created by its module's `create`. All methods return at once."""

    @property
    def name(self) -> str: ...

    @property
    def codec(self) -> str | None:
        """What it stores blocks in, requantised; None: it gives back the bytes it was given."""

    def stored_bytes(self, group: int) -> int:
        """Of one block."""

    @property
    def buffer_bytes(self) -> int:
        """Memory that was allocated in this process."""

    def holds(self, key: bytes, group: int) -> bool:
        """Whether a load is worth trying."""

    def runs(self, parent: bytes) -> Iterable[Record]:
        """Runs that are held right after `parent`, the latest first."""

    def store(self, record: Record, block: memoryview) -> bool:
        """Take a copy of the block's bytes; False: not now (no room, too much under way).

        Of a record that is held already nothing is taken, and its use is noted: True.
        """

    def load(self, record: Record) -> int | None:
        """Begin to read a block; returns the ticket with which `poll` names it, or None."""

    def poll(self, take: Take) -> None:
        """Hand over what has ended since the last call."""

    def pin(self, record: Record, until_s: float) -> None:
        """Evict others first until then (time.monotonic()), whether it is held or comes to be;
        0: like any other again."""

    def delete(self, record: Record) -> None:
        """Remove a block for good: once it has ended, `stats` counts it no more and no file has
        its bytes."""

    def stats(self) -> TierStats: ...

    def close(self, wait_s: float) -> None:
        """End what is under way, stores first, for at most `wait_s`."""


class TierModule(Protocol):
    """What a tier's file offers."""

    def parse(self, text: str) -> TierSpec:
        """What follows the kind's name and colon in --tiers. Raises ConfigError."""

    def buffer_bytes(self, spec: TierSpec, layout: CacheLayout) -> int:
        """Memory that the tier allocates in this process, exactly."""

    def warning(self, spec: TierSpec) -> str | None:
        """What a person should hear of a tier that can be opened but may not hold what it says."""

    def secret(self, spec: TierSpec) -> bytes | None:
        """32 bytes that all servers of the tier have in common; None: it outlives no server."""

    def create(
        self, spec: TierSpec, layout: CacheLayout, identity: bytes, transcoder_to: TranscoderTo
    ) -> Tier:
        """`identity` is equal for two engines exactly when one can read the other's blocks.

        Raises ConfigError for a place that cannot be used at all, or a codec that is not denser.
        """
