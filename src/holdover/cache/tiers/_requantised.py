"""Blocks in memory in a denser codec than the arena's: what comes back is close, not equal.

    engine's thread   copies into a buffer, out of one
    the tier's own    encodes and decodes, loads first; it alone writes and reads the region

A block is encoded from what the arena holds and decoded into the arena's own codec again. The cache
marks what came back, and what was computed from it, and gives it to no tier that keeps exact bytes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from holdover.cache.tiers._buffers import Buffers
from holdover.cache.tiers._shelf import Place, Shelf, place_of
from holdover.cache.tiers.base import Record, Take, TierStats, Transcoder
from holdover.spec.layout import CacheLayout

_log = logging.getLogger(__name__)
POOL_BYTES = 4 << 20  # about: of blocks that wait to be encoded, and of decoded ones
EVICTED = "it was evicted from RAM before it was read"


@dataclass(frozen=True, slots=True)
class _Store:
    record: Record
    buffer: memoryview


@dataclass(frozen=True, slots=True)
class _Load:
    ticket: int
    record: Record


class Requantised:
    name = "ram"

    def __init__(
        self,
        codec: str,
        cap_bytes: int,
        layout: CacheLayout,
        shelf: Shelf,
        transcoder: Transcoder,
    ) -> None:
        self.codec = codec
        self._cap_bytes = cap_bytes
        self._block_bytes = [block.nbytes for block in layout.blocks]
        self._shelf = shelf
        self._transcoder = transcoder
        self._staged, self._decoded = _pools(layout)
        self.buffer_bytes = shelf.nbytes + self._staged.nbytes + self._decoded.nbytes
        self._changed = threading.Condition()  # and the lock of all that follows
        self._writes: deque[_Store | Record] = deque()  # a record alone is to be deleted
        self._loads: deque[_Load] = deque()
        self._ended: deque[tuple[_Load, memoryview | None]] = deque()
        self._storing: Counter[Place] = Counter()
        self._erasing: Counter[Place] = Counter()
        self._closing = False
        self._trouble: str | None = None
        self._tickets = 0
        self._stored = self._loaded = self._failed = self._refused = 0
        self._decode_s, self._decoded_bytes = 0.0, 0
        self._thread = threading.Thread(target=self._run, name="ram-tier", daemon=True)
        self._thread.start()

    def stored_bytes(self, group: int) -> int:
        return self._shelf.layout.blocks[group].nbytes

    # ---- the engine's thread ------------------------------------------------------------------

    def holds(self, key: bytes, group: int) -> bool:
        with self._changed:
            return not self._erasing[key, group] and self._shelf.holds((key, group))

    def runs(self, parent: bytes) -> Iterable[Record]:
        with self._changed:
            found = self._shelf.runs(parent)
            return [record for record in found if not self._erasing[place_of(record)]]

    def store(self, record: Record, block: memoryview) -> bool:
        place = place_of(record)
        with self._changed:
            if not self._erasing[place] and (self._shelf.holds(place) or self._storing[place]):
                self._shelf.touch(place)
                return True
            buffer = None if self._closing else self._staged.take()
            if buffer is None:
                self._refused += 1
                return False
        np.copyto(np.asarray(buffer[: len(block)]), np.asarray(block))
        with self._changed:
            self._storing[place] += 1
            self._writes.append(_Store(record, buffer))
            self._changed.notify()
        return True

    def load(self, record: Record) -> int | None:
        with self._changed:
            if self._closing or self._erasing[place_of(record)]:
                return None
            if self._shelf.find(record) is None:
                return None
            self._shelf.touch(place_of(record))
            self._tickets += 1
            self._loads.append(_Load(self._tickets, record))
            self._changed.notify()
            return self._tickets

    def poll(self, take: Take) -> None:
        while self._ended:
            load, buffer = self._ended.popleft()
            if buffer is None:
                take(load.ticket, None, EVICTED)
                continue
            try:
                take(load.ticket, buffer[: self._block_bytes[load.record.group]], "")
            finally:
                with self._changed:
                    self._decoded.give(buffer)
                    self._changed.notify()

    def pin(self, record: Record, until_s: float) -> None:
        with self._changed:
            self._shelf.pin(record, until_s)

    def delete(self, record: Record) -> None:
        with self._changed:
            self._erasing[place_of(record)] += 1
            self._writes.append(record)
            self._changed.notify()

    def stats(self) -> TierStats:
        with self._changed:
            return TierStats(
                held_bytes=self._shelf.held_bytes,
                cap_bytes=self._cap_bytes,
                blocks=len(self._shelf),
                stored_blocks=self._stored,
                loaded_blocks=self._loaded,
                failed_loads=self._failed,
                refused_stores=self._refused,
                evicted_blocks=self._shelf.evicted_blocks,
                read_bytes_per_s=self._decoded_bytes / self._decode_s if self._decode_s else 0.0,
                trouble=self._trouble,
                codec=self.codec,
            )

    def close(self, wait_s: float) -> None:
        """Nothing of it outlives the process: what is under way is left."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(wait_s)

    # ---- the tier's thread --------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (job := self._next()) is not None:
                if isinstance(job, _Store):
                    self._encode(job)
                elif isinstance(job, _Load):
                    self._decode(job)
                else:
                    with self._changed:
                        self._shelf.erase(job)
                        _count_down(self._erasing, place_of(job))
        except BaseException:  # a bug: its traceback is printed, and nothing is taken in any more
            self._trouble, self._closing = "its thread has ended, which is a bug", True
            _log.error("the RAM tier stores nothing: %s", self._trouble)
            raise

    def _next(self) -> _Store | _Load | Record | None:
        with self._changed:
            while not self._closing:
                if self._loads and len(self._decoded):
                    return self._loads.popleft()
                if self._writes:
                    return self._writes.popleft()
                self._changed.wait()
        return None

    def _encode(self, job: _Store) -> None:
        record, place = job.record, place_of(job.record)
        with self._changed:
            known = self._shelf.holds(place)
            number = None if known else self._shelf.room_for(record.group)
            self._refused += number is None and not known
        if number is not None:
            block = job.buffer[: self._block_bytes[record.group]]
            to = self._shelf.view(record.group, number)
            self._transcoder.encode(record.group, record.start_tokens, block, to)
        with self._changed:
            if number is not None:
                self._shelf.put(record, number)
                self._stored += 1
            _count_down(self._storing, place)
            self._staged.give(job.buffer)

    def _decode(self, load: _Load) -> None:
        with self._changed:
            held = self._shelf.find(load.record)
            buffer = None if held is None else self._decoded.take()
        if held is None or buffer is None:
            self._failed += 1
            self._ended.append((load, None))
            return
        record = held.record  # with the position at which it was stored
        view = self._shelf.view(record.group, held.number)
        block = buffer[: self._block_bytes[record.group]]
        began_s = time.perf_counter()
        self._transcoder.decode(record.group, record.start_tokens, view, block)
        self._decode_s += time.perf_counter() - began_s
        self._decoded_bytes += len(block)
        self._loaded += 1
        self._ended.append((load, buffer))


def pools_bytes(layout: CacheLayout) -> int:
    """Memory of the buffers, beside the region."""
    return 2 * _n_buffers(layout) * _slot_bytes(layout)


def _pools(layout: CacheLayout) -> tuple[Buffers, Buffers]:
    size = _n_buffers(layout), _slot_bytes(layout)
    return Buffers(*size), Buffers(*size)


def _slot_bytes(layout: CacheLayout) -> int:
    return max(block.nbytes for block in layout.blocks)


def _n_buffers(layout: CacheLayout) -> int:
    return Buffers.count(_slot_bytes(layout), POOL_BYTES)


def _count_down(counts: Counter[Place], place: Place) -> None:
    counts[place] -= 1
    if not counts[place]:
        del counts[place]
