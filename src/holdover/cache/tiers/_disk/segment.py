"""One file of slots, as far as it is known here: its entries as they were last read and verified.

Changed by the writer's thread only. A reader takes a copy of an entry, and what it then reads must
match that copy: a slot that is reused meanwhile is a miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdover.cache.tiers._disk.format import DOOMED, Entries, SegmentFormat
from holdover.cache.tiers.base import KEY_BYTES, Record

MAX_SLOTS = 1 << 32
Item = tuple[int, bytes, bytes]
"""Of a record: segment's number * MAX_SLOTS + slot, key, parent."""


class Segment:
    def __init__(self, number: int, name: str, inode: int, form: SegmentFormat) -> None:
        assert form.n_slots < MAX_SLOTS
        self.number = number
        self.name = name
        self.inode = inode
        self.form = form
        self.group = form.shape.group
        self.size = form.shape.file_bytes(form.n_slots)
        self.mtime_ns = -1  # of the file when its entries were read
        self.touched = False  # used since its file was last marked so
        self._entries: Entries = np.zeros(form.n_slots, form.shape.entry)
        self._is_record: NDArray[np.bool_] = np.zeros(form.n_slots, bool)

    def named(self, slots: Sequence[int]) -> list[Item]:
        """The index's items of records."""
        entries = self._entries[slots]
        keys, parents = entries["key"].tobytes(), entries["parent"].tobytes()
        first = self.number * MAX_SLOTS
        return [
            (first + slot, keys[at : at + KEY_BYTES], parents[at : at + KEY_BYTES])
            for slot, at in zip(slots, range(0, len(keys), KEY_BYTES), strict=True)
        ]

    def stored_ns(self, slots: Sequence[int]) -> NDArray[np.uint64]:
        return np.asarray(self._entries["stored_ns"][slots])

    def entry(self, slot: int) -> Any:
        """A copy, of one state of the slot."""
        return self._entries[slot : slot + 1].copy()[0]

    def raw(self, slot: int) -> bytes:
        """The same as bytes."""
        return self._entries[slot : slot + 1].tobytes()

    def holds(self, slot: int, record: Record) -> bool:
        """Whether the slot has this very record."""
        return bool(self._is_record[slot]) and self.form.names(self.raw(slot), record)

    def record(self, slot: int) -> Record | None:
        return self.form.record(self.entry(slot)) if self._is_record[slot] else None

    def slots(self) -> list[int]:
        """Of records."""
        return np.flatnonzero(self._is_record).tolist()

    def free_slots(self) -> list[int]:
        """Free ones, and those whose entry is damaged."""
        return np.flatnonzero(~self._is_record & ~self._is_doomed()).tolist()

    def doomed_slots(self) -> list[int]:
        return np.flatnonzero(self._is_doomed()).tolist()

    def differing(self, entries: Entries) -> list[int]:
        """Slots of which `entries`, just read from the file, say something else than is known."""
        digests, states = entries["digest"], entries["state"]
        known = self._entries
        return np.flatnonzero((digests != known["digest"]) | (states != known["state"])).tolist()

    def are_records(self, slots: list[int]) -> list[int]:
        return [slot for slot in slots if self._is_record[slot]]

    def become(self, slots: list[int], entries: Entries, records: list[int]) -> None:
        """Of the differing slots, `records` were verified; the index has let go of all."""
        self._is_record[slots] = False
        self._entries[slots] = entries
        self._is_record[records] = True

    def clear(self, slot: int) -> None:
        self._is_record[slot] = False
        self._entries[slot] = np.zeros(1, self._entries.dtype)[0]

    def _is_doomed(self) -> NDArray[np.bool_]:
        return np.asarray(self._entries["state"] == DOOMED, bool)
