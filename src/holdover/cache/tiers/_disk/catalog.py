"""What the directory's segments of this engine hold, kept up with what other servers do to them.

Used by one thread at a time: by who starts the tier, then by its writer. Reads headers and entries
only; a segment that cannot be read is as if it were not there.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence

import numpy as np

from holdover.cache.tiers._disk.directory import Directory, held_bytes, is_segment_of
from holdover.cache.tiers._disk.files import Files, FileState
from holdover.cache.tiers._disk.format import PAGE_BYTES, DamagedError, Format, SegmentFormat
from holdover.cache.tiers._disk.index import Index
from holdover.cache.tiers._disk.segment import Segment
from holdover.cache.tiers.base import Record

_TICK_NS = 10**9


class Catalog:
    def __init__(
        self, directory: Directory, shapes: Sequence[Format], index: Index, files: Files
    ) -> None:
        self._directory = directory
        self._shapes = shapes
        self._index = index
        self._files = files
        self._numbers = itertools.count()
        self._refused: dict[str, tuple[int, int]] = {}  # damaged: not read again until it changes
        self.segments: dict[str, Segment] = {}
        self.held_bytes = 0
        self.evicted_blocks = 0

    def refresh(self) -> None:
        """Take over what changed since the last time. Raises OSError where there is no folder."""
        found = self._directory.listing()
        self.held_bytes = held_bytes(found)
        for segment in list(self.segments.values()):
            state = found.get(segment.name)
            if state is None or (state.size, state.inode) != (segment.size, segment.inode):
                self.drop(segment)
        self._refused = {name: seen for name, seen in self._refused.items() if name in found}
        fresh: list[tuple[Segment, list[int]]] = []
        for name, state in found.items():
            shape = next((s for s in self._shapes if is_segment_of(name, s)), None)
            if shape is None or self._refused.get(name) == (state.mtime_ns, state.inode):
                continue
            known = self.segments.get(name)
            if known is None or known.mtime_ns != state.mtime_ns:
                fresh += self._read(name, state, shape)
        if fresh:
            items = [item for segment, slots in fresh for item in segment.named(slots)]
            stored_ns = np.concatenate([segment.stored_ns(slots) for segment, slots in fresh])
            self._index.add(items[i] for i in np.argsort(stored_ns, kind="stable").tolist())

    def adopt(self, name: str, form: SegmentFormat, inode: int) -> Segment:
        """A segment of which no entry was read yet."""
        segment = self.segments[name] = Segment(next(self._numbers), name, inode, form)
        self._index.open(segment)
        return segment

    def reread(self, segment: Segment, fd: int) -> None:
        """Take over the entries as they are now. Raises OSError."""
        self._index.add(segment.named(self._update(segment, fd)))

    def put(self, segment: Segment, slot: int, entry: bytes) -> None:
        """An entry that was just written."""
        self._index.add(segment.named(self._take(segment, bytearray(entry), [slot])))

    def forget(self, segment: Segment, slot: int) -> None:
        """A record that was just erased."""
        self._index.drop(segment.named([slot]))
        segment.clear(slot)

    def drop(self, segment: Segment) -> None:
        """A segment that is no more."""
        self.segments.pop(segment.name, None)
        self.evicted_blocks += self._index.drop(segment.named(segment.slots()))
        self._index.close(segment)

    def places(self, record: Record) -> list[tuple[Segment, int]]:
        """Wherever this very record lies."""
        found = self._index.all_of(record.key, record.group)
        return [place for place in found if place[0].holds(place[1], record)]

    def touch(self, group: int, key: bytes) -> None:
        """What holds it counts as used."""
        place = self._index.get(key, group)
        if place is not None:
            place[0].touched = True

    def doomed(self) -> list[tuple[Segment, int]]:
        """Slots in whose erasure a server was interrupted, or is at it."""
        return [(s, slot) for s in self.segments.values() for slot in s.doomed_slots()]

    def _read(self, name: str, state: FileState, shape: Format) -> list[tuple[Segment, list[int]]]:
        try:
            fd = self._files.open(self._directory.file(name), os.O_RDONLY)
            try:
                segment = self.segments.get(name) or self._open(name, state, shape, fd)
                # A file may change again within one tick of its clock: then look again.
                is_old = abs(time.time_ns() - state.mtime_ns) > _TICK_NS
                segment.mtime_ns = state.mtime_ns if is_old else -1
                return [(segment, self._update(segment, fd))]
            finally:
                self._files.close(fd)
        except (OSError, DamagedError):
            known = self.segments.get(name)
            if known is not None:
                self.drop(known)
            self._refused[name] = (state.mtime_ns, state.inode)
            return []

    def _open(self, name: str, state: FileState, shape: Format, fd: int) -> Segment:
        header = bytearray(PAGE_BYTES)
        self._files.read(fd, [memoryview(header)], 0)
        now = self._files.state(fd)  # another file may have taken the name
        return self.adopt(name, SegmentFormat.read(bytes(header), now.size, shape), now.inode)

    def _update(self, segment: Segment, fd: int) -> list[int]:
        """Slots of records that are new."""
        form = segment.form
        raw = bytearray(form.n_slots * form.shape.entry.itemsize)
        if self._files.read(fd, [memoryview(raw)], PAGE_BYTES) != len(raw):
            raise DamagedError("it is cut off")
        differing = segment.differing(form.as_entries(raw))
        return self._take(segment, raw, differing) if differing else []

    def _take(self, segment: Segment, raw: bytearray, slots: list[int]) -> list[int]:
        """Let the entries of `slots`, in `raw`, be known; of one slot, `raw` is its entry alone."""
        first_slot = slots[0] if len(raw) == segment.form.shape.entry.itemsize else 0
        records = segment.form.verify(raw, slots, first_slot)
        self._index.drop(segment.named(segment.are_records(slots)))
        entries = segment.form.as_entries(raw)[[slot - first_slot for slot in slots]]
        segment.become(slots, entries, records)
        return records
