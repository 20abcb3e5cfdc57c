"""A tier whose every answer the test decides: when a load ends, and whether it fails.

With a codec, the lowest bit of each row that comes back is set, and all that stand for exact rows
are even: so what is exact and what is not can be told apart.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from holdover.cache.tiers.base import Record, Take, TierStats


class MachineTier:
    buffer_bytes = 0

    def __init__(
        self, name: str = "machine", codec: str | None = None, block_bytes: Sequence[int] = ()
    ) -> None:
        self.name = name
        self.codec = codec
        self.stored_block_bytes = block_bytes
        self.are_rows_even = False  # those that an exact tier may be given
        self.pins: dict[Record, float] = {}
        self.held: dict[Record, bytes] = {}
        self.loads: dict[int, Record] = {}
        self.ended: list[tuple[int, bytes | None, str]] = []
        self.takes_stores = True
        self.takes_loads = True
        self.rate = 0.0
        self._tickets = 0

    def holds(self, key: bytes, group: int) -> bool:
        return any(r.key == key and r.group == group for r in self.held)

    def runs(self, parent: bytes) -> Iterable[Record]:
        return [r for r in reversed(self.held) if r.parent == parent]

    def store(self, record: Record, block: memoryview) -> bool:
        if self.codec is None and self.are_rows_even:
            assert not (_words(block) & 1).any(), "rows that are not exact"
        if self.takes_stores:
            self.held.setdefault(record, bytes(block))
        return self.takes_stores

    def load(self, record: Record) -> int | None:
        if not self.takes_loads:
            return None
        self._tickets += 1
        self.loads[self._tickets] = record
        return self._tickets

    def poll(self, take: Take) -> None:
        ended, self.ended = self.ended, []
        for ticket, data, problem in ended:
            # writable, and gone when it returns: nobody may keep it
            view = memoryview(bytearray(data)) if data is not None else None
            if view is not None and self.codec is not None:
                words = _words(view)
                words |= 1
            take(ticket, view, problem)
            if view is not None:
                view[:] = b"\xdd" * len(view)

    def stored_bytes(self, group: int) -> int:
        return self.stored_block_bytes[group]

    def pin(self, record: Record, until_s: float) -> None:
        self.pins[record] = until_s

    def delete(self, record: Record) -> None:
        self.held.pop(record, None)

    def stats(self) -> TierStats:
        return TierStats(0, 0, len(self.held), 0, 0, 0, 0, 0, self.rate, None)

    def close(self, wait_s: float) -> None:
        self.end_loads(len(self.loads))

    def end_loads(self, n: int, fails: bool = False) -> None:
        for ticket in list(self.loads)[:n]:
            record = self.loads.pop(ticket)
            data = None if fails else self.held.get(record)
            self.ended.append((ticket, data, "" if data is not None else "lost"))


def _words(block: memoryview) -> np.ndarray:
    return np.frombuffer(block, np.int32)
