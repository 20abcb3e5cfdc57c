"""Blocks in one region of memory, laid out as an arena is: where each lies, and who goes first.

What was used longest ago goes first, and what is pinned after all else. No locks: one thread at a
time.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from holdover.cache.arena import Arena
from holdover.cache.sectors import SectorPool
from holdover.cache.tiers.base import Record
from holdover.spec.layout import CacheLayout
from holdover.units import exact_div

SWEEP_S = 60.0  # between two looks for pins that have ended
Place = tuple[bytes, int]
"""Key and group."""


@dataclass(slots=True)
class Held:
    record: Record
    number: int


class Shelf:
    def __init__(self, layout: CacheLayout, region: Arena) -> None:
        self.layout = layout
        self._region = region
        self._pool = SectorPool(layout, exact_div(region.nbytes, layout.sector_bytes))
        # The longest unused first; pins whose time is over are looked for when room is wanted.
        self._free_to_go: OrderedDict[Place, Held] = OrderedDict()
        self._pinned: OrderedDict[Place, Held] = OrderedDict()
        self._pins: dict[Place, float] = {}  # of what is not here as well
        self._after: dict[bytes, dict[Place, Record]] = {}
        self._n_blocks = [0] * len(layout.blocks)
        self._swept_s = 0.0
        self.evicted_blocks = 0

    def __len__(self) -> int:
        return len(self._free_to_go) + len(self._pinned)

    @property
    def nbytes(self) -> int:
        return self._region.nbytes

    @property
    def held_bytes(self) -> int:
        return self.layout.held_bytes(self._n_blocks)

    def holds(self, place: Place) -> bool:
        return place in self._free_to_go or place in self._pinned

    def find(self, record: Record) -> Held | None:
        """The very record, tokens compared."""
        place = place_of(record)
        held = self._free_to_go.get(place) or self._pinned.get(place)
        return held if held is not None and held.record == record else None

    def touch(self, place: Place) -> None:
        for order in (self._free_to_go, self._pinned):
            if place in order:
                order.move_to_end(place)

    def runs(self, parent: bytes) -> Iterable[Record]:
        """The latest first."""
        return list(reversed(self._after.get(parent, {}).values()))

    def room_for(self, group: int) -> int | None:
        """A block number that is the caller's to fill, and then to `put`; evicts as needed.

        None where another group has the one sector that there is.
        """
        while (number := self._pool.take(group)) is None:
            victim = self._victim()
            if victim is None:
                return None
            self.drop(victim)
            self.evicted_blocks += 1
        return number

    def put(self, record: Record, number: int) -> None:
        place = place_of(record)
        order = self._pinned if self._is_pinned(place) else self._free_to_go
        order[place] = Held(record, number)
        self._n_blocks[record.group] += 1
        self._after.setdefault(record.parent, {})[place] = record

    def drop(self, place: Place) -> None:
        held = self._free_to_go.pop(place, None) or self._pinned.pop(place)
        self._n_blocks[held.record.group] -= 1
        siblings = self._after[held.record.parent]
        del siblings[place]
        if not siblings:
            del self._after[held.record.parent]
        self._pool.give(held.record.group, held.number)

    def erase(self, record: Record) -> None:
        """Drop it, its bytes included."""
        place = place_of(record)
        held = self._free_to_go.get(place) or self._pinned.get(place)
        if held is not None:
            view = self.view(record.group, held.number)
            view[:] = bytes(len(view))
            self.drop(place)

    def pin(self, record: Record, until_s: float) -> None:
        place = place_of(record)
        if until_s:
            self._pins[place] = until_s
        else:
            self._pins.pop(place, None)
        self._sort(place)
        if time.monotonic() > self._swept_s + SWEEP_S:
            self._end_pins()

    def view(self, group: int, number: int) -> memoryview:
        offset = self.layout.block_offset(group, number)
        return self._region.view(offset, self.layout.blocks[group].nbytes)

    def _victim(self) -> Place | None:
        if self._free_to_go:
            return next(iter(self._free_to_go))
        self._end_pins()
        return next(iter(self._free_to_go), None) or next(iter(self._pinned), None)

    def _end_pins(self) -> None:
        """Of those whose time is over."""
        self._swept_s = time.monotonic()
        for place in [p for p, until_s in self._pins.items() if until_s <= self._swept_s]:
            del self._pins[place]
            self._sort(place)

    def _is_pinned(self, place: Place) -> bool:
        return self._pins.get(place, 0.0) > time.monotonic()

    def _sort(self, place: Place) -> None:
        here, there = self._free_to_go, self._pinned
        if not self._is_pinned(place):
            here, there = there, here
        if place in here:
            there[place] = here.pop(place)


def place_of(record: Record) -> Place:
    return record.key, record.group
