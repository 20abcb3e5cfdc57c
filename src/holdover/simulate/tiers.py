"""Tiers whose blocks have no bytes: real caps, real eviction, loads that take a link's time.

RAM is the engine's own tier on a region without memory. The disk's files are only counted: segments
of the same sizes, filled and evicted whole, the longest unused first, under the same cap; stores go
through as many buffers and at the same pace as those of the real one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from holdover.cache.arena import NullArena
from holdover.cache.tiers import disk, ram
from holdover.cache.tiers._disk.directory import SECRET_BYTES
from holdover.cache.tiers._shelf import Place, Shelf, place_of
from holdover.cache.tiers.base import Record, Take, TierSpec, TierStats
from holdover.errors import ConfigError
from holdover.simulate.costs import LinkCosts
from holdover.spec.layout import CacheLayout

GONE = "it was evicted before it was read"


class Clock:
    """Seconds that only the simulation lets pass."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(slots=True)
class Link:
    """One thing after the other, each as long as its bytes take."""

    clock: Clock
    bytes_per_s: float
    moved_bytes: int = 0
    free_s: float = 0.0

    def end_s(self, n_bytes: int) -> float:
        """When a move that is asked for now ends."""
        self.free_s = max(self.free_s, self.clock.now_s) + n_bytes / self.bytes_per_s
        return self.free_s


@dataclass(slots=True)
class Loads:
    """What was asked for and is on its way."""

    link: Link
    _under_way: deque[tuple[float, int, Record]] = field(default_factory=deque)
    _tickets: int = 0

    def begin(self, record: Record, n_bytes: int) -> int:
        self._tickets += 1
        self._under_way.append((self.link.end_s(n_bytes), self._tickets, record))
        return self._tickets

    def ended(self) -> Iterable[tuple[int, Record]]:
        while self._under_way and self._under_way[0][0] <= self.link.clock.now_s:
            _, ticket, record = self._under_way.popleft()
            yield ticket, record


class SimulatedRam:
    """The engine's own, which hands a block over when the link would have."""

    name = "ram"
    codec = None
    buffer_bytes = 0

    def __init__(self, spec: TierSpec, layout: CacheLayout, link: Link) -> None:
        region = NullArena(ram.buffer_bytes(spec, layout))
        self._ram = ram.Ram(spec.cap_bytes, Shelf(layout, region))
        self.loads = Loads(link)
        self.written_bytes = 0

    def holds(self, key: bytes, group: int) -> bool:
        return self._ram.holds(key, group)

    def runs(self, parent: bytes) -> Iterable[Record]:
        return self._ram.runs(parent)

    def store(self, record: Record, block: memoryview) -> bool:
        if not self._ram.holds(record.key, record.group):
            self.written_bytes += self.stored_bytes(record.group)
        return self._ram.store(record, block)

    def load(self, record: Record) -> int | None:
        if not self._ram.holds(record.key, record.group):
            return None
        return self.loads.begin(record, self.stored_bytes(record.group))

    def poll(self, take: Take) -> None:
        for ticket, record in self.loads.ended():
            if self._ram.load(record) is None:
                take(ticket, None, GONE)
                continue
            self.loads.link.moved_bytes += self.stored_bytes(record.group)

            def taken(_: int, data: memoryview | None, why: str, ticket: int = ticket) -> None:
                take(ticket, data, why)

            self._ram.poll(taken)

    def stored_bytes(self, group: int) -> int:
        return self._ram.stored_bytes(group)

    def pin(self, record: Record, until_s: float) -> None:
        self._ram.pin(record, until_s)

    def delete(self, record: Record) -> None:
        self._ram.delete(record)

    def stats(self) -> TierStats:
        return replace(self._ram.stats(), read_bytes_per_s=self.loads.link.bytes_per_s)

    def close(self, wait_s: float) -> None:
        self._ram.close(wait_s)


@dataclass(slots=True, eq=False)
class _Segment:
    """One file of slots."""

    group: int
    n_free: int
    nbytes: int
    used_s: float
    records: dict[Place, Record] = field(default_factory=dict)


class SimulatedDisk:
    """The disk tier's bookkeeping without its files."""

    name = "disk"
    codec = None
    buffer_bytes = 0

    def __init__(self, spec: TierSpec, layout: CacheLayout, link: Link) -> None:
        settings = disk.Settings()
        self._clock = link.clock
        self._cap_bytes = spec.cap_bytes
        sizes = disk.Sizes.of(spec, layout, settings)
        self._shapes, self._n_slots, self._n_staged = sizes.shapes, sizes.n_slots, sizes.n_staged
        self._writes = Link(link.clock, settings.write_bytes_per_s)
        self._staged: deque[tuple[float, Record]] = deque()
        self._staged_places: set[Place] = set()
        self._segments: list[_Segment] = []
        self._active: dict[int, _Segment] = {}
        self._where: dict[Place, _Segment] = {}
        self._after: dict[bytes, dict[Place, Record]] = {}
        self._held_bytes = SECRET_BYTES
        self.loads = Loads(link)
        self.written_bytes = 0
        self._n = dict.fromkeys(("stored", "loaded", "failed", "refused", "evicted"), 0)

    def holds(self, key: bytes, group: int) -> bool:
        self._write()
        return (key, group) in self._where

    def runs(self, parent: bytes) -> Iterable[Record]:
        self._write()
        return list(reversed(self._after.get(parent, {}).values()))

    def store(self, record: Record, block: memoryview) -> bool:
        self._write()
        place = place_of(record)
        if place in self._where:
            self._where[place].used_s = self._clock.now_s
            return True
        if place in self._staged_places:
            return True
        if len(self._staged) >= self._n_staged:
            self._n["refused"] += 1
            return False
        slot_bytes = self.stored_bytes(record.group)
        self._staged.append((self._writes.end_s(slot_bytes), record))
        self._staged_places.add(place)
        return True

    def load(self, record: Record) -> int | None:
        self._write()
        segment = self._where.get(place_of(record))
        if segment is None:
            return None
        segment.used_s = self._clock.now_s
        return self.loads.begin(record, self.stored_bytes(record.group))

    def poll(self, take: Take) -> None:
        self._write()
        for ticket, record in self.loads.ended():
            if place_of(record) not in self._where:
                self._n["failed"] += 1
                take(ticket, None, GONE)
                continue
            self._n["loaded"] += 1
            self.loads.link.moved_bytes += self.stored_bytes(record.group)
            take(ticket, memoryview(b""), "")

    def stored_bytes(self, group: int) -> int:
        return self._shapes[group].slot_bytes

    def pin(self, record: Record, until_s: float) -> None:
        """A trace pins nothing."""

    def delete(self, record: Record) -> None:
        self._write()
        segment = self._where.get(place_of(record))
        if segment is not None:
            self._forget(segment, place_of(record))

    def stats(self) -> TierStats:
        return TierStats(
            held_bytes=self._held_bytes,
            cap_bytes=self._cap_bytes,
            blocks=len(self._where),
            stored_blocks=self._n["stored"],
            loaded_blocks=self._n["loaded"],
            failed_loads=self._n["failed"],
            refused_stores=self._n["refused"],
            evicted_blocks=self._n["evicted"],
            read_bytes_per_s=self.loads.link.bytes_per_s,
            trouble=None,
        )

    def close(self, wait_s: float) -> None:
        """Nothing is to be ended."""

    def _write(self) -> None:
        """What the disk has written by now lies there."""
        while self._staged and self._staged[0][0] <= self._clock.now_s:
            at_s, record = self._staged.popleft()
            self._staged_places.discard(place_of(record))
            self._put(record, at_s)

    def _put(self, record: Record, at_s: float) -> None:
        segment = self._active.get(record.group) or self._make(record.group, at_s)
        if segment is None:
            self._n["refused"] += 1
            return
        place = place_of(record)
        segment.records[place] = record
        segment.n_free -= 1
        segment.used_s = at_s
        if not segment.n_free:
            del self._active[record.group]
        self._where[place] = segment
        self._after.setdefault(record.parent, {})[place] = record
        self._n["stored"] += 1
        self.written_bytes += self.stored_bytes(record.group)

    def _make(self, group: int, at_s: float) -> _Segment | None:
        """A new file, for which the longest unused go; None: all that is there is written to."""
        n_slots = self._n_slots[group]
        nbytes = self._shapes[group].file_bytes(n_slots)
        while self._held_bytes + nbytes > self._cap_bytes:
            idle = [s for s in self._segments if s not in self._active.values()]
            if not idle:
                return None
            self._evict(min(idle, key=lambda s: s.used_s))
        segment = _Segment(group, n_slots, nbytes, at_s)
        self._held_bytes += nbytes
        self._segments.append(segment)
        self._active[group] = segment
        return segment

    def _evict(self, segment: _Segment) -> None:
        self._n["evicted"] += len(segment.records)
        for place in list(segment.records):
            self._forget(segment, place)
        self._segments.remove(segment)
        self._held_bytes -= segment.nbytes

    def _forget(self, segment: _Segment, place: Place) -> None:
        record = segment.records.pop(place)
        del self._where[place]
        siblings = self._after[record.parent]
        del siblings[place]
        if not siblings:
            del self._after[record.parent]


SimulatedTiers = tuple[SimulatedRam | SimulatedDisk, ...]


def simulated_tiers(
    specs: Sequence[TierSpec], layout: CacheLayout, clock: Clock, links: LinkCosts
) -> SimulatedTiers:
    """Raises ConfigError for a kind that cannot be simulated, or a size that holds no block."""
    found: list[SimulatedRam | SimulatedDisk] = []
    for spec in specs:
        if spec.kind not in links.read_bytes_per_s:
            kinds = " and ".join(links.read_bytes_per_s)
            raise ConfigError("--tiers", f"a tier {spec.kind} cannot be simulated; {kinds} can")
        if spec.codec is not None:
            raise ConfigError(
                "--tiers",
                f"{spec.kind} requantised in {spec.codec} cannot be simulated; give "
                f"{spec.kind}:SIZE, with SIZE what blocks take as they are",
            )
        link = Link(clock, links.read_bytes_per_s[spec.kind])
        kind = SimulatedRam if spec.kind == "ram" else SimulatedDisk
        found.append(kind(spec, layout, link))
    return tuple(found)
