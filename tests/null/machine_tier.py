"""A tier whose every answer the test decides: when a load ends, and whether it fails."""

from collections.abc import Iterable

from holdover.cache.tiers.base import Record, Take, TierStats


class MachineTier:
    name = "machine"
    buffer_bytes = 0

    def __init__(self) -> None:
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
            take(ticket, view, problem)
            if view is not None:
                view[:] = b"\xdd" * len(view)

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
