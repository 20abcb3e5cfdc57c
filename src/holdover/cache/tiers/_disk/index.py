"""What lies where: (group, key) to a slot of a segment, and which runs follow a key.

Read by the engine's thread at any time; changed by the tier's threads, a few records at a time, so
that the engine never waits for long. Millions of small objects would slow down the collection of
garbage in the whole process: places are kept as plain numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import islice

from holdover.cache.tiers._disk.segment import MAX_SLOTS, Item, Segment
from holdover.cache.tiers.base import Record

Place = tuple[Segment, int]
_AT_ONCE = 256  # records changed while the lock is held


class Index:
    def __init__(self, n_groups: int) -> None:
        self._lock = threading.Lock()
        self._segments: dict[int, Segment] = {}
        self._places: list[dict[bytes, int]] = [{} for _ in range(n_groups)]
        # The same record twice, stored by servers that did not know of each other's.
        self._twins: dict[tuple[int, bytes], list[Item]] = {}
        # A dict of one takes 232 bytes: a place that has no brothers stands for itself.
        self._children: dict[bytes, int | dict[int, None]] = {}

    def __len__(self) -> int:
        return sum(len(places) for places in self._places)

    def get(self, key: bytes, group: int) -> Place | None:
        place = self._places[group].get(key) if 0 <= group < len(self._places) else None
        return None if place is None else self._found(place)

    def all_of(self, key: bytes, group: int) -> list[Place]:
        with self._lock:
            place = self._places[group].get(key)
            places = [] if place is None else [place]
            places += [item[0] for item in self._twins.get((group, key), ())]
        return [found for found in map(self._found, places) if found is not None]

    def runs(self, parent: bytes) -> list[Record]:
        """The latest first."""
        with self._lock:
            children = self._children.get(parent)
            if children is None:
                return []
            places = [children] if isinstance(children, int) else list(reversed(children))
        found = [place for place in map(self._found, places) if place is not None]
        records = (segment.record(slot) for segment, slot in found)
        return [record for record in records if record is not None and record.parent == parent]

    def open(self, segment: Segment) -> None:
        """Before records of it are added."""
        self._segments[segment.number] = segment

    def close(self, segment: Segment) -> None:
        """After its records were dropped."""
        self._segments.pop(segment.number, None)

    def add(self, items: Iterable[Item]) -> None:
        """Records that their segments now hold, the oldest first."""
        items = iter(items)
        while some := list(islice(items, _AT_ONCE)):
            with self._lock:
                for item in some:
                    self._add(item)

    def drop(self, items: Iterable[Item]) -> int:
        """Returns how many there were."""
        n_dropped = 0
        items = iter(items)
        while some := list(islice(items, _AT_ONCE)):
            with self._lock:
                n_dropped += sum(self._drop(item) for item in some)
        return n_dropped

    def _add(self, item: Item) -> None:
        place, key, parent = item
        group = self._segments[place // MAX_SLOTS].group
        known = self._places[group].setdefault(key, place)
        if known != place:
            twins = self._twins.setdefault((group, key), [])
            if item not in twins:
                twins.append(item)
            return
        brothers = self._children.get(parent)
        if brothers is None or brothers == place:
            self._children[parent] = place
        elif isinstance(brothers, int):
            self._children[parent] = {brothers: None, place: None}
        else:
            brothers[place] = None

    def _drop(self, item: Item) -> bool:
        place, key, parent = item
        segment = self._segments.get(place // MAX_SLOTS)
        if segment is None:
            return False
        group = segment.group
        twins = self._twins.get((group, key), [])
        if self._places[group].get(key) != place:
            if item in twins:
                twins.remove(item)
                self._forget_twins(group, key, twins)
            return False
        del self._places[group][key]
        brothers = self._children.get(parent)
        if brothers == place:
            del self._children[parent]
        elif isinstance(brothers, dict):
            brothers.pop(place, None)
            if not brothers:
                del self._children[parent]
        if twins:
            heir = twins.pop(0)
            self._forget_twins(group, key, twins)
            self._add(heir)
            return False
        return True

    def _forget_twins(self, group: int, key: bytes, twins: list[Item]) -> None:
        if not twins:
            self._twins.pop((group, key), None)

    def _found(self, place: int) -> Place | None:
        number, slot = divmod(place, MAX_SLOTS)
        segment = self._segments.get(number)
        return None if segment is None else (segment, slot)
