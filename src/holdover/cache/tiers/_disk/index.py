"""What lies where: (group, key) to a slot of a segment, and which runs follow a key.

Read by the engine's thread at any time; changed by the tier's threads, a few records at a time, so
that the engine never waits for long.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import islice

from holdover.cache.tiers._disk.segment import Segment
from holdover.cache.tiers.base import Record

Place = tuple[Segment, int]
_AT_ONCE = 256  # records changed while the lock is held


class Index:
    def __init__(self, n_groups: int) -> None:
        self._lock = threading.Lock()
        self._places: list[dict[bytes, Place]] = [{} for _ in range(n_groups)]
        # The same record twice, stored by servers that did not know of each other's.
        self._twins: dict[tuple[int, bytes], list[Place]] = {}
        # A dict of one takes 232 bytes: a place that has no brothers stands for itself.
        self._children: dict[bytes, Place | dict[Place, None]] = {}

    def __len__(self) -> int:
        return sum(len(places) for places in self._places)

    def get(self, key: bytes, group: int) -> Place | None:
        return self._places[group].get(key) if 0 <= group < len(self._places) else None

    def all_of(self, key: bytes, group: int) -> list[Place]:
        with self._lock:
            place = self.get(key, group)
            return [] if place is None else [place, *self._twins.get((group, key), ())]

    def runs(self, parent: bytes) -> list[Record]:
        """The latest first."""
        with self._lock:
            found = self._children.get(parent)
            if found is None:
                return []
            places = [found] if isinstance(found, tuple) else list(reversed(found))
        records = (segment.record(slot) for segment, slot in places)
        return [record for record in records if record is not None and record.parent == parent]

    def add(self, places: Iterable[Place]) -> None:
        """Records that their segments now hold, the oldest first."""
        places = iter(places)
        while some := list(islice(places, _AT_ONCE)):
            with self._lock:
                for place in some:
                    self._add(place)

    def drop(self, places: Iterable[Place]) -> int:
        """Returns how many there were. Call it before the segment forgets them."""
        n_dropped = 0
        places = iter(places)
        while some := list(islice(places, _AT_ONCE)):
            with self._lock:
                n_dropped += sum(self._drop(place) for place in some)
        return n_dropped

    def _add(self, place: Place) -> None:
        segment, slot = place
        key, parent = segment.key(slot), segment.parent(slot)
        places = self._places[segment.group]
        known = places.setdefault(key, place)
        if known != place:
            twins = self._twins.setdefault((segment.group, key), [])
            if place not in twins:
                twins.append(place)
            return
        brothers = self._children.get(parent)
        if brothers is None or brothers == place:
            self._children[parent] = place
        elif isinstance(brothers, tuple):
            self._children[parent] = {brothers: None, place: None}
        else:
            brothers[place] = None

    def _drop(self, place: Place) -> bool:
        segment, slot = place
        key, parent = segment.key(slot), segment.parent(slot)
        twins = self._twins.get((segment.group, key), [])
        if self._places[segment.group].get(key) != place:
            if place in twins:
                twins.remove(place)
                self._forget_twins(segment.group, key, twins)
            return False
        del self._places[segment.group][key]
        brothers = self._children.get(parent)
        if brothers == place:
            del self._children[parent]
        elif isinstance(brothers, dict):
            brothers.pop(place, None)
            if not brothers:
                del self._children[parent]
        if twins:
            heir = twins.pop(0)
            self._forget_twins(segment.group, key, twins)
            self._add(heir)
            return False
        return True

    def _forget_twins(self, group: int, key: bytes, twins: list[Place]) -> None:
        if not twins:
            self._twins.pop((group, key), None)
