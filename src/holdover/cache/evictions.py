"""What was evicted lately: why a prompt finds no more, and entries of runs that may come back."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from holdover.cache.blocks import Entry

REMEMBERED = 16384


@dataclass(frozen=True, slots=True)
class Eviction:
    """`owner` is whose sequence wanted the room, None for one of another tenant."""

    tokens: bytes
    at_s: float  # time.time()
    owner: str | None
    tenant: str


class Evictions:
    """The last ones, by the key of what precedes them: one for each, that with the most tokens."""

    def __init__(self) -> None:
        self.owner = ""  # whose sequence is being given room
        self.tenant = ""
        self._last: OrderedDict[bytes, tuple[Entry, float, str, str]] = OrderedDict()

    def note(self, entry: Entry) -> None:
        last, parent = self._last, entry.parent
        before = last.get(parent)
        if before is not None:
            last.move_to_end(parent)
            if len(before[0].tokens) > len(entry.tokens):
                return
        last[parent] = (entry, time.time(), self.owner, self.tenant)
        if len(last) > REMEMBERED:
            last.popitem(last=False)

    def full(self, parent: bytes, run: bytes) -> Entry | None:
        """The entry that a full run had."""
        found = self._last.get(parent)
        if found is None or found[0].key is None or found[0].tokens != run:
            return None
        return found[0]

    def after(self, parent: bytes, tenant: str) -> Eviction | None:
        """What went from right after `parent`, as far as it is a tenant's business."""
        found = self._last.get(parent)
        if found is None:
            return None
        entry, at_s, owner, of_tenant = found
        is_own = of_tenant == tenant
        return Eviction(entry.tokens, at_s, owner if is_own else None, tenant if is_own else "")
