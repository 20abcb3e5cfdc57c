"""The one thread that changes files: stores, erasures, and every second a look at the directory.

    store, delete -> queue -> thread: a slot of this server's own segment, payload, then entry

A segment that this server appends to is locked by it; when it is full another one with free slots
is taken over, else one is made. A disk that refuses is left alone for a while, longer each time;
meanwhile nothing is taken in.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdover.cache.tiers._buffers import Buffers
from holdover.cache.tiers._disk.catalog import Catalog
from holdover.cache.tiers._disk.directory import Directory
from holdover.cache.tiers._disk.files import Files
from holdover.cache.tiers._disk.format import DamagedError, Format
from holdover.cache.tiers._disk.segment import Segment
from holdover.cache.tiers.base import Record

_log = logging.getLogger(__name__)
_RETRY_S = (1.0, 60.0)  # after the first refusal, and at most
_BURST_S = 0.25  # of the bandwidth, written without a pause
_MOST_YIELD_S = 0.02  # that one write waits for reads
_YIELD_STEP_S = 0.001

Named = tuple[int, bytes]
"""Group and key."""


@dataclass(frozen=True, slots=True)
class _Store:
    record: Record
    buffer: memoryview


@dataclass(frozen=True, slots=True)
class _Erase:
    record: Record
    asked_s: float


@dataclass(frozen=True, slots=True)
class _Scrub:
    """A damaged block, if the slot still has that entry."""

    segment: Segment
    slot: int
    digest: bytes


@dataclass(slots=True)
class _Active:
    """The segment of one group that this server appends to, locked by `fd`."""

    segment: Segment
    fd: int
    free: deque[int]


class _Pace:
    """Sleeps so that no more than `bytes_per_s` are written over time."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._allowed_bytes = 0.0
        self._at_s = time.monotonic()

    def wait_s(self, n_bytes: int) -> float:
        """Before `n_bytes` are written."""
        now_s = time.monotonic()
        earned = max(0.0, now_s - self._at_s) * self._bytes_per_s
        self._at_s = now_s
        most = _BURST_S * self._bytes_per_s
        self._allowed_bytes = min(most, self._allowed_bytes + earned) - n_bytes
        return max(0.0, -self._allowed_bytes / self._bytes_per_s)


class Writer:
    def __init__(
        self,
        directory: Directory,
        files: Files,
        catalog: Catalog,
        shapes: Sequence[Format],
        n_slots: Sequence[int],
        buffers: Buffers,
        write_bytes_per_s: float,
        refresh_s: float,
        reads_are_waiting: Callable[[], bool],
    ) -> None:
        self._directory = directory
        self._files = files
        self._catalog = catalog
        self._shapes = shapes
        self._n_slots = n_slots
        self._buffers = buffers
        self._pace = _Pace(write_bytes_per_s)
        self._refresh_s = refresh_s
        self._reads_are_waiting = reads_are_waiting
        self._changed = threading.Condition()
        self._queue: deque[_Store | _Erase | _Scrub] = deque()
        self._active: dict[int, _Active] = {}
        self._doomed: set[tuple[Segment, int]] = set()
        self._undone: list[_Erase] = []
        self._begun: set[tuple[Segment, int]] = set()  # erasures that failed on the way
        self._unsynced: set[str] = set()
        self._refreshed_s = time.monotonic()
        self._closing = False
        self._abandoned = False  # closing took too long
        self._looks = True  # the last look at the directory went well
        self._retry_s = 0.0
        self._retry_at_s = 0.0
        self._pins: dict[Named, float] = {}
        self.storing: Counter[Named] = Counter()
        self.erasing: Counter[Named] = Counter()
        self.trouble: str | None = None
        self.stored = 0
        self.refused = 0
        self._thread = threading.Thread(target=self._run, name="disk-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # ---- the engine's thread ------------------------------------------------------------------

    def store(self, record: Record, block: memoryview) -> bool:
        is_resting = self.trouble is not None and time.monotonic() < self._retry_at_s
        buffer = None if self._closing or is_resting else self._buffers.take()
        if buffer is None:
            self.refused += 1
            return False
        buffer[: len(block)] = block
        with self._changed:
            self.storing[record.group, record.key] += 1
            self._queue.append(_Store(record, buffer))
            self._changed.notify()
        return True

    def delete(self, record: Record) -> None:
        with self._changed:
            self.erasing[record.group, record.key] += 1
            self._queue.append(_Erase(record, time.monotonic()))
            self._changed.notify()

    def pin(self, record: Record, until_s: float) -> None:
        with self._changed:
            self._pins[record.group, record.key] = until_s  # one that has ended says the same as 0

    def close(self, deadline_s: float) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        self._abandoned = True

    # ---- any thread ---------------------------------------------------------------------------

    def scrub(self, segment: Segment, slot: int, digest: bytes) -> None:
        with self._changed:
            self._queue.append(_Scrub(segment, slot, digest))
            self._changed.notify()

    def begin_trouble(self, reason: str) -> None:
        """Nothing is stored until it was tried again; said once per change."""
        low, high = _RETRY_S
        self._retry_s = min(high, max(low, 2 * self._retry_s))
        self._retry_at_s = time.monotonic() + self._retry_s
        if reason != self.trouble:
            _log.warning("disk tier at %s stores nothing: %s", self._directory.path, reason)
        self.trouble = reason

    # ---- the writer's thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._work()
        except BaseException:  # a bug: its traceback is printed, and nothing is taken in any more
            self.trouble, self._closing = "its writer has ended, which is a bug", True
            raise

    def _work(self) -> None:
        while not self._abandoned:
            job = self._next()
            if job is not None:
                self._do(job)
            if time.monotonic() - self._refreshed_s >= self._refresh_s:
                self._look_around()
            if job is None and self._closing:
                self._look_around()
                break
        for group in list(self._active):
            self._let_go(group)
        if n_undone := len(self._undone):
            path = self._directory.path
            _log.error("disk tier at %s: %d blocks could not be deleted", path, n_undone)

    def _next(self) -> _Store | _Erase | _Scrub | None:
        with self._changed:
            if not self._queue and not self._closing:
                self._changed.wait(self._refresh_s)
            return self._queue.popleft() if self._queue else None

    def _do(self, job: _Store | _Erase | _Scrub) -> None:
        try:
            if isinstance(job, _Store):
                self._store(job)
            elif isinstance(job, _Erase):
                self._erase_everywhere(job)
            else:
                self._scrub(job)
        except (OSError, DamagedError) as error:
            if isinstance(job, _Store):
                self._let_go(job.record.group)
                self.refused += 1
            reason = getattr(error, "strerror", None) or str(error)
            self.begin_trouble(reason)
            if isinstance(job, _Erase):  # what was to be deleted is not forgotten
                self._undone.append(job)
                return
        with self._changed:
            if isinstance(job, _Store):
                _count_down(self.storing, job.record)
                self._buffers.give(job.buffer)
            elif isinstance(job, _Erase):
                _count_down(self.erasing, job.record)

    def _store(self, job: _Store) -> None:
        record = job.record
        if any(self._catalog.places(record)):
            return  # another server's, meanwhile
        self._give_way(self._shapes[record.group].slot_bytes)
        active = self._active_of(record.group)
        form, slot = active.segment.form, active.free.popleft()
        payload = job.buffer[: form.shape.payload_bytes]
        digest, nonce = form.seal(payload, record, slot)
        offset = form.shape.slot_offset(slot, form.n_slots)
        self._files.write(active.fd, payload, offset)
        entry = form.pack(record, slot, time.time_ns(), digest, nonce)
        self._files.write(active.fd, entry, form.shape.entry_offset(slot))
        self._catalog.put(active.segment, slot, entry)
        self.stored += 1
        self._end_trouble()
        if not active.free:
            self._let_go(record.group)

    def _end_trouble(self) -> None:
        if self.trouble is not None:
            _log.warning("disk tier at %s stores again", self._directory.path)
        self.trouble, self._retry_s = None, 0.0

    def _give_way(self, n_bytes: int) -> None:
        """Keep to the bandwidth, and let reads go first, but not for ever."""
        if self._closing:
            return
        until_s = time.monotonic() + _MOST_YIELD_S
        while self._reads_are_waiting() and time.monotonic() < until_s:
            time.sleep(_YIELD_STEP_S)
        wait_s = self._pace.wait_s(n_bytes)
        if wait_s > 0:
            with self._changed:
                self._changed.wait_for(lambda: self._closing, wait_s)

    def _active_of(self, group: int) -> _Active:
        if group not in self._active:
            self._active[group] = self._take_over(group) or self._make(group)
            self._refresh()  # what was evicted for it
        return self._active[group]

    def _take_over(self, group: int) -> _Active | None:
        """A segment with free slots to which nobody appends, the latest used first."""
        found = [s for s in self._catalog.segments.values() if s.group == group and s.free_slots()]
        for segment in sorted(found, key=lambda s: s.mtime_ns, reverse=True):
            fd = -1
            with contextlib.suppress(OSError, DamagedError):
                fd = self._files.open(self._directory.file(segment.name))
                is_ours = self._files.try_lock(fd) and self._files.is_linked(fd)
                if is_ours and self._files.state(fd).inode == segment.inode:
                    self._catalog.reread(segment, fd)
                    if free := segment.free_slots():
                        return _Active(segment, fd, deque(free))
            if fd >= 0:
                self._files.close(fd)
        return None

    def _make(self, group: int) -> _Active:
        self._mark_used()  # or what was just used might be evicted
        insist = self.trouble is None
        made = self._directory.make(self._shapes[group], self._n_slots[group], insist)
        segment = self._catalog.adopt(made.name, made.form, made.inode)
        return _Active(segment, made.fd, deque(range(made.form.n_slots)))

    def _let_go(self, group: int) -> None:
        active = self._active.pop(group, None)
        if active is not None:
            self._files.close(active.fd)

    # ---- deleting -----------------------------------------------------------------------------

    def _erase_everywhere(self, job: _Erase) -> None:
        if self._refreshed_s < job.asked_s:
            self._refresh()  # others may have stored it too
        for segment, slot in [*self._catalog.places(job.record), *self._begun]:
            self._erase(segment, slot)

    def _scrub(self, job: _Scrub) -> None:
        self._erase(job.segment, job.slot, job.digest)

    def _erase(self, segment: Segment, slot: int, only: bytes | None = None) -> None:
        """Only if the entry still has that checksum. A crash between the writes is found later."""
        form = segment.form
        try:
            fd = self._files.open(self._directory.file(segment.name))
        except FileNotFoundError:
            self._begun.discard((segment, slot))
            return  # evicted: its bytes are gone with it
        try:
            if self._files.state(fd).inode != segment.inode:
                self._begun.discard((segment, slot))
                return
            offset = form.shape.entry_offset(slot)
            entry = bytearray(form.shape.entry.itemsize)
            n_bytes = self._files.read(fd, [memoryview(entry)], offset)
            digest = form.as_entries(entry)["digest"][0].tobytes()
            if n_bytes < len(entry) or only not in (None, digest):
                return
            self._begun.add((segment, slot))
            self._files.write(fd, form.doomed(), offset)
            slot_offset = form.shape.slot_offset(slot, form.n_slots)
            self._files.erase(fd, slot_offset, form.shape.slot_bytes)
            self._files.erase(fd, offset, len(entry))
            self._begun.discard((segment, slot))
            self._unsynced.add(segment.name)
        finally:
            self._files.close(fd)
        self._catalog.forget(segment, slot)

    # ---- every second -------------------------------------------------------------------------

    def _look_around(self) -> None:
        try:
            self._mark_used()
            self._refresh()
            self._finish_erasures()
        except OSError as error:
            self._looks = False
            self.begin_trouble(error.strerror or str(error))
            return
        if not self._looks:
            self._looks = True
            self._end_trouble()
        if self._undone and time.monotonic() >= self._retry_at_s:
            with self._changed:
                self._queue.extend(self._undone)
                self._undone.clear()

    def _refresh(self) -> None:
        self._refreshed_s = time.monotonic()
        self._catalog.refresh()
        for group, active in list(self._active.items()):
            if active.segment.name not in self._catalog.segments:
                self._let_go(group)
                raise FileNotFoundError(f"{active.segment.name} was removed")

    def _use_pinned(self) -> None:
        """A pinned record keeps its segment young, so that all servers evict others first."""
        now_s = time.monotonic()
        with self._changed:
            for named in [named for named, until_s in self._pins.items() if until_s <= now_s]:
                del self._pins[named]
            pinned = list(self._pins)
        for named in pinned:
            self._catalog.touch(*named)

    def _mark_used(self) -> None:
        self._use_pinned()
        for segment in list(self._catalog.segments.values()):
            if segment.touched:
                segment.touched = False
                with contextlib.suppress(OSError):  # it is only evicted earlier
                    self._files.touch(self._directory.file(segment.name), time.time_ns())

    def _finish_erasures(self) -> None:
        doomed = set(self._catalog.doomed())
        for segment, slot in doomed & self._doomed:  # who began it had a second to end it
            self._erase(segment, slot)
        self._doomed = doomed
        while self._unsynced:
            with contextlib.suppress(FileNotFoundError):
                fd = self._files.open(self._directory.file(self._unsynced.pop()), os.O_RDWR)
                try:
                    self._files.sync(fd)
                finally:
                    self._files.close(fd)


def _count_down(counter: Counter[Named], record: Record) -> None:
    named = record.group, record.key
    counter[named] -= 1
    if not counter[named]:
        del counter[named]
