"""A second region of this machine's memory, for blocks that the arena has no room for.

    --tiers ram:2GiB        laid out as the arena is: a store and a load are one copy each
    --tiers ram:2GiB:int4   requantised in another codec, by a thread: more blocks, not quite equal

The block that was used longest ago goes first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from holdover.cache.arena import HostArena
from holdover.cache.tiers import _requantised
from holdover.cache.tiers._forms import FIELD, demand_codec, stored_layout
from holdover.cache.tiers._shelf import Shelf, place_of
from holdover.cache.tiers.base import Record, Take, Tier, TierSpec, TierStats, TranscoderTo
from holdover.errors import ConfigError
from holdover.spec.layout import CacheLayout
from holdover.units import format_bytes, parse_bytes


class Ram:
    name = "ram"
    codec = None

    def __init__(self, cap_bytes: int, shelf: Shelf) -> None:
        self._shelf = shelf
        self._asked: deque[tuple[int, Record]] = deque()
        self._read_s, self._read_bytes = 0.0, 0  # the copies of who takes
        self._closed = False
        self._tickets = 0
        self._stats = TierStats(0, cap_bytes, 0, 0, 0, 0, 0, 0, 0.0, None)

    @property
    def buffer_bytes(self) -> int:
        return self._shelf.nbytes

    def stored_bytes(self, group: int) -> int:
        return self._shelf.layout.blocks[group].nbytes

    def holds(self, key: bytes, group: int) -> bool:
        return self._shelf.holds((key, group))

    def runs(self, parent: bytes) -> Iterable[Record]:
        return self._shelf.runs(parent)

    def store(self, record: Record, block: memoryview) -> bool:
        if self._shelf.holds(place_of(record)):
            self._shelf.touch(place_of(record))
            return True
        number = None if self._closed else self._shelf.room_for(record.group)
        if number is None:
            return False  # closed, or a region of one sector, which another group has
        self._shelf.view(record.group, number)[:] = block
        self._shelf.put(record, number)
        self._count(stored_blocks=1)
        return True

    def load(self, record: Record) -> int | None:
        if self._closed or self._shelf.find(record) is None:
            return None
        self._tickets += 1
        self._asked.append((self._tickets, record))
        return self._tickets

    def poll(self, take: Take) -> None:
        while self._asked:
            ticket, record = self._asked.popleft()
            held = self._shelf.find(record)
            if held is None:
                self._count(failed_loads=1)
                take(ticket, None, _requantised.EVICTED)
                continue
            self._shelf.touch(place_of(record))
            self._count(loaded_blocks=1)
            view = self._shelf.view(record.group, held.number)
            began_s = time.perf_counter()
            take(ticket, view, "")
            self._read_s += time.perf_counter() - began_s
            self._read_bytes += len(view)

    def pin(self, record: Record, until_s: float) -> None:
        self._shelf.pin(record, until_s)

    def delete(self, record: Record) -> None:
        self._shelf.erase(record)

    def stats(self) -> TierStats:
        return replace(
            self._stats,
            held_bytes=self._shelf.held_bytes,
            blocks=len(self._shelf),
            evicted_blocks=self._shelf.evicted_blocks,
            read_bytes_per_s=self._read_bytes / self._read_s if self._read_s else 0.0,
        )

    def close(self, wait_s: float) -> None:
        self._closed = True
        self._asked.clear()

    def _count(self, **more: int) -> None:
        counts = {name: getattr(self._stats, name) + n for name, n in more.items()}
        self._stats = replace(self._stats, **counts)


def parse(text: str) -> TierSpec:
    """SIZE or SIZE:CODEC."""
    size, colon, codec = text.partition(":")
    try:
        cap_bytes = parse_bytes(size, FIELD)
    except ConfigError as error:
        form = "write it as ram:2GiB, or ram:2GiB:int4"
        raise ConfigError(FIELD, f"ram:{text}: {error.reason}; {form}") from error
    if not colon:
        return TierSpec("ram", cap_bytes)
    demand_codec(codec, f"ram:{text}")
    return TierSpec("ram", cap_bytes, codec=codec)


def buffer_bytes(spec: TierSpec, layout: CacheLayout) -> int:
    stored = stored_layout(spec, layout)
    region_bytes = _region_bytes(spec, stored)
    return region_bytes + (0 if spec.codec is None else _requantised.pools_bytes(layout))


def warning(spec: TierSpec) -> None:
    return None  # the plan has its bytes


def secret(spec: TierSpec) -> None:
    return None


def create(
    spec: TierSpec, layout: CacheLayout, identity: bytes, transcoder_to: TranscoderTo
) -> Tier:
    stored = stored_layout(spec, layout)
    shelf = Shelf(stored, HostArena(_region_bytes(spec, stored)))
    if spec.codec is None:
        return Ram(spec.cap_bytes, shelf)
    coder = transcoder_to(stored)
    return _requantised.Requantised(spec.codec, spec.cap_bytes, layout, shelf, coder)


def _region_bytes(spec: TierSpec, stored: CacheLayout) -> int:
    n_sectors = spec.cap_bytes // stored.sector_bytes
    if not n_sectors:
        least = format_bytes(stored.sector_bytes)
        raise ConfigError(
            FIELD, f"ram:{format_bytes(spec.cap_bytes)} holds no block; the least is {least}"
        )
    return n_sectors * stored.sector_bytes
