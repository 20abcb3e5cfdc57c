"""A second region of this machine's memory, for blocks that the arena has no room for.

    --tiers ram:2GiB

Laid out as the arena is, so a store and a load are one copy each, made by who asks. The block that
was used longest ago goes first.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from holdover.cache.arena import Arena, HostArena
from holdover.cache.sectors import SectorPool
from holdover.cache.tiers.base import Record, Take, TierSpec, TierStats
from holdover.errors import ConfigError
from holdover.spec.layout import CacheLayout
from holdover.units import exact_div, format_bytes, parse_bytes


@dataclass(slots=True)
class _Held:
    record: Record
    number: int


class Ram:
    name = "ram"

    def __init__(self, layout: CacheLayout, region: Arena) -> None:
        self._layout = layout
        self._region = region
        self._pool = SectorPool(layout, exact_div(region.nbytes, layout.sector_bytes))
        self._held: OrderedDict[tuple[bytes, int], _Held] = OrderedDict()
        self._after: dict[bytes, dict[tuple[bytes, int], Record]] = {}
        self._n_blocks = [0] * len(layout.blocks)
        self._asked: deque[tuple[int, Record]] = deque()
        self._read_s, self._read_bytes = 0.0, 0  # the copies of who takes
        self._closed = False
        self._tickets = 0
        self._stats = TierStats(0, region.nbytes, 0, 0, 0, 0, 0, 0, 0.0, None)

    @property
    def buffer_bytes(self) -> int:
        return self._region.nbytes

    def holds(self, key: bytes, group: int) -> bool:
        return (key, group) in self._held

    def runs(self, parent: bytes) -> Iterable[Record]:
        return reversed(self._after.get(parent, {}).values())

    def store(self, record: Record, block: memoryview) -> bool:
        place = (record.key, record.group)
        if place in self._held:
            self._held.move_to_end(place)
            return True
        number = None if self._closed else self._room_for(record.group)
        if number is None:
            return False  # closed, or a region of one sector, which another group has
        self._view(record.group, number)[:] = block
        self._held[place] = _Held(record, number)
        self._n_blocks[record.group] += 1
        self._after.setdefault(record.parent, {})[place] = record
        self._count(stored_blocks=1)
        return True

    def load(self, record: Record) -> int | None:
        if self._closed or self._find(record) is None:
            return None
        self._tickets += 1
        self._asked.append((self._tickets, record))
        return self._tickets

    def poll(self, take: Take) -> None:
        while self._asked:
            ticket, record = self._asked.popleft()
            held = self._find(record)
            if held is None:
                self._count(failed_loads=1)
                take(ticket, None, "it was evicted from RAM before it was read")
                continue
            self._held.move_to_end((record.key, record.group))
            self._count(loaded_blocks=1)
            view = self._view(record.group, held.number)
            began_s = time.perf_counter()
            take(ticket, view, "")
            self._read_s += time.perf_counter() - began_s
            self._read_bytes += len(view)

    def delete(self, record: Record) -> None:
        held = self._held.get((record.key, record.group))
        if held is not None:
            view = self._view(record.group, held.number)
            view[:] = bytes(len(view))
            self._forget((record.key, record.group))

    def stats(self) -> TierStats:
        held_bytes = self._layout.held_bytes(self._n_blocks)
        rate = self._read_bytes / self._read_s if self._read_s else 0.0
        return replace(
            self._stats, held_bytes=held_bytes, blocks=len(self._held), read_bytes_per_s=rate
        )

    def close(self, wait_s: float) -> None:
        self._closed = True
        self._asked.clear()

    def _find(self, record: Record) -> _Held | None:
        held = self._held.get((record.key, record.group))
        return held if held is not None and held.record == record else None

    def _room_for(self, group: int) -> int | None:
        while (number := self._pool.take(group)) is None:
            oldest = next(iter(self._held), None)
            if oldest is None:
                return None
            self._forget(oldest)
            self._count(evicted_blocks=1)
        return number

    def _forget(self, place: tuple[bytes, int]) -> None:
        held = self._held.pop(place)
        self._n_blocks[held.record.group] -= 1
        siblings = self._after[held.record.parent]
        del siblings[place]
        if not siblings:
            del self._after[held.record.parent]
        self._pool.give(held.record.group, held.number)

    def _view(self, group: int, number: int) -> memoryview:
        offset = self._layout.block_offset(group, number)
        return self._region.view(offset, self._layout.blocks[group].nbytes)

    def _count(self, **more: int) -> None:
        counts = {name: getattr(self._stats, name) + n for name, n in more.items()}
        self._stats = replace(self._stats, **counts)


def parse(text: str) -> TierSpec:
    return TierSpec("ram", parse_bytes(text, "--tiers ram"))


def buffer_bytes(spec: TierSpec, layout: CacheLayout) -> int:
    n_sectors = spec.cap_bytes // layout.sector_bytes
    if not n_sectors:
        least = format_bytes(layout.sector_bytes)
        raise ConfigError(
            "--tiers", f"ram:{format_bytes(spec.cap_bytes)} holds no block; the least is {least}"
        )
    return n_sectors * layout.sector_bytes


def secret(spec: TierSpec) -> None:
    return None


def create(spec: TierSpec, layout: CacheLayout, identity: bytes) -> Ram:
    return Ram(layout, HostArena(buffer_bytes(spec, layout)))
