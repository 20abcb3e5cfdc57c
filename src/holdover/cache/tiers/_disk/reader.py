"""Threads that read blocks: from the queue of loads into a fixed pool of buffers, verified.

    submit -> queue -> thread: one read for blocks that lie side by side -> verify -> ended -> poll

Of one file one thread reads at a time: the system reads ahead of a sequential reader, and two that
take turns are half as fast as one. (Telling it what will be needed costs as much as reading.)

A load that fails for any reason ends with that reason, and its record is out of the index.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from holdover.cache.tiers._buffers import Buffers
from holdover.cache.tiers._disk.directory import Directory
from holdover.cache.tiers._disk.files import Files
from holdover.cache.tiers._disk.index import Index
from holdover.cache.tiers._disk.segment import Segment
from holdover.cache.tiers.base import Record, Take

_log = logging.getLogger(__name__)
_OPEN_FILES = 16  # a thread
_AT_ONCE_BYTES = 2 << 20  # of one read
_GIVEN_AT_ONCE = 4  # buffers, before a thread that waits for one is woken
_LOOKED_AT = 64  # loads, for one that another thread's reading does not stand in the way of
_RATE_MEMORY_S = 4.0  # of reading, after which what was measured counts half
EVICTED = "evicted while it was asked for"
DAMAGED = "damaged on the disk"

Report = Callable[[Segment, int, bytes], None]
"""Told of a slot whose block is damaged, and the entry's checksum of its block."""


@dataclass(frozen=True, slots=True)
class _Load:
    ticket: int
    record: Record
    segment: Segment
    slot: int


@dataclass(frozen=True, slots=True)
class _Ended:
    ticket: int
    buffer: memoryview | None
    n_bytes: int
    reason: str


class _OpenFiles:
    """One thread's, so that none is closed while it is read."""

    def __init__(self, directory: Directory, files: Files) -> None:
        self._directory = directory
        self._files = files
        self._fds: OrderedDict[str, int] = OrderedDict()

    def get(self, name: str) -> int:
        fd = self._fds.pop(name, None)
        if fd is None:
            fd = self._files.open(self._directory.file(name), os.O_RDONLY)
        self._fds[name] = fd
        if len(self._fds) > _OPEN_FILES:
            self._files.close(self._fds.popitem(last=False)[1])
        return fd

    def close(self, name: str | None = None) -> None:
        """One, or all."""
        for known in list(self._fds) if name is None else [name]:
            fd = self._fds.pop(known, None)
            if fd is not None:
                self._files.close(fd)


class _Rate:
    """Bytes per second of the time in which anything is read."""

    def __init__(self) -> None:
        self._n_reading = 0
        self._since_s = 0.0
        self._bytes = 0.0
        self._seconds = 0.0

    def begin(self, now_s: float) -> None:
        self._count_time(now_s)
        self._n_reading += 1

    def end(self, now_s: float, n_bytes: int) -> None:
        self._count_time(now_s)
        self._n_reading -= 1
        self._bytes += n_bytes
        if self._seconds > _RATE_MEMORY_S:
            self._bytes, self._seconds = self._bytes / 2, self._seconds / 2

    @property
    def bytes_per_s(self) -> float:
        return self._bytes / self._seconds if self._seconds > 0 else 0.0

    def _count_time(self, now_s: float) -> None:
        if self._n_reading:
            self._seconds += max(0.0, now_s - self._since_s)
        self._since_s = now_s


class Reader:
    def __init__(
        self,
        directory: Directory,
        files: Files,
        index: Index,
        buffers: Buffers,
        report: Report,
        n_threads: int,
        deadline_s: float,
    ) -> None:
        self._directory = directory
        self._files = files
        self._index = index
        self._buffers = buffers
        self._report = report
        self._deadline_s = deadline_s
        self._tickets = itertools.count()
        self._changed = threading.Condition()
        self._queue: deque[_Load] = deque()
        self._ended: deque[_Ended] = deque()
        self._since_s: list[float | None] = [None] * n_threads  # that each has been reading
        self._reading: set[Segment] = set()
        self._closing = False
        self._causes: set[str] = set()
        self._rate = _Rate()
        self.loaded = 0
        self.failed = 0
        self._threads = [
            threading.Thread(target=self._run, args=(i,), name=f"disk-reader-{i}", daemon=True)
            for i in range(n_threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    # ---- the engine's thread ------------------------------------------------------------------

    def submit(self, record: Record, segment: Segment, slot: int) -> int | None:
        """None while a read hangs: whatever is asked for would only wait behind it."""
        if self._closing or self.hangs_s > self._deadline_s:
            return None
        segment.touched = True
        load = _Load(next(self._tickets), record, segment, slot)
        with self._changed:
            self._queue.append(load)
            if segment not in self._reading:
                self._changed.notify()
        return load.ticket

    def poll(self, take: Take) -> None:
        n_given = 0
        try:
            while self._ended:
                ended = self._ended.popleft()
                if ended.buffer is None:
                    take(ended.ticket, None, ended.reason)
                    continue
                try:
                    take(ended.ticket, ended.buffer[: ended.n_bytes], "")
                finally:
                    self._buffers.give(ended.buffer)
                    n_given += 1
                if n_given % _GIVEN_AT_ONCE == 0:
                    self._wake()
        finally:
            if n_given:
                self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    @property
    def hangs_s(self) -> float:
        """How long the oldest read has been under way."""
        now_s = time.monotonic()
        return max((now_s - since_s for since_s in self._since_s if since_s is not None), default=0)

    @property
    def is_busy(self) -> bool:
        return bool(self._queue) or any(since_s is not None for since_s in self._since_s)

    @property
    def bytes_per_s(self) -> float:
        return self._rate.bytes_per_s

    def close(self, deadline_s: float) -> None:
        """What is queued is not read any more."""
        with self._changed:
            self._closing = True
            self._queue.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    # ---- the readers' threads -----------------------------------------------------------------

    def _run(self, number: int) -> None:
        opened = _OpenFiles(self._directory, self._files)
        loads: list[_Load] = []
        n_bytes = 0
        while True:
            with self._changed:
                if loads:
                    self._since_s[number] = None
                    self._rate.end(time.monotonic(), n_bytes)
                while not self._closing and (at := self._turn()) is None:
                    self._changed.wait()
                if self._closing or at is None:
                    break
                loads, buffers = self._take(at)
                self._reading.add(loads[0].segment)
                self._since_s[number] = time.monotonic()
                self._rate.begin(time.monotonic())
                if self._turn() is not None:
                    self._changed.notify()  # there is more, for another thread
            n_bytes = self._read(opened, loads, buffers)
        opened.close()

    def _turn(self) -> int | None:
        """Where in the queue the next load is that can be read now."""
        if not len(self._buffers):
            return None
        for at, load in enumerate(islice(self._queue, _LOOKED_AT)):
            if load.segment not in self._reading:
                return at
        return None

    def _take(self, at: int) -> tuple[list[_Load], list[memoryview]]:
        """A load of the queue, those behind it that lie side by side, and a buffer for each."""
        first = self._queue[at]
        loads = [first]
        most = min(_AT_ONCE_BYTES // first.segment.form.shape.slot_bytes, len(self._buffers))
        for load in islice(self._queue, at + 1, at + most):
            if load.segment is not first.segment or load.slot != loads[-1].slot + 1:
                break
            loads.append(load)
        self._queue.rotate(-at)
        for _ in loads:
            self._queue.popleft()
        self._queue.rotate(at)
        return loads, [self._take_buffer() for _ in loads]

    def _take_buffer(self) -> memoryview:
        buffer = self._buffers.take()
        assert buffer is not None, "only taken under the lock, after a look"
        return buffer

    def _read(
        self,
        opened: _OpenFiles,
        loads: list[_Load],
        buffers: list[memoryview],
    ) -> int:
        """Bytes read."""
        first = loads[0]
        form = first.segment.form
        slot_bytes = form.shape.slot_bytes
        try:
            fd = opened.get(first.segment.name)
            offset = form.shape.slot_offset(first.slot, form.n_slots)
            n_bytes = self._files.read(fd, [buffer[:slot_bytes] for buffer in buffers], offset)
            self._let_next(first.segment)
        except OSError as error:
            self._let_next(first.segment)
            opened.close(first.segment.name)
            gone = isinstance(error, FileNotFoundError)
            reason = EVICTED if gone else f"the disk fails: {error.strerror or error}"
            for load, buffer in zip(loads, buffers, strict=True):
                self._fail(load, buffer, reason)
            return 0
        for i, (load, buffer) in enumerate(zip(loads, buffers, strict=True)):
            if n_bytes < (i + 1) * slot_bytes:
                opened.close(first.segment.name)
                self._fail(load, buffer, EVICTED)
            else:
                self._verify(load, buffer)
        return n_bytes

    def _let_next(self, segment: Segment) -> None:
        """Another thread may read this file while this one verifies."""
        with self._changed:
            self._reading.discard(segment)
            if self._turn() is not None:
                self._changed.notify()

    def _verify(self, load: _Load, buffer: memoryview) -> None:
        form = load.segment.form
        entry = load.segment.raw(load.slot)
        if not form.names(entry, load.record):
            self._fail(load, buffer, EVICTED)  # the slot was given to another
        elif form.open(buffer[: form.shape.payload_bytes], load.record, load.slot, entry):
            self.loaded += 1
            self._ended.append(_Ended(load.ticket, buffer, form.shape.record_bytes, ""))
        else:
            self._report(load.segment, load.slot, form.digest(entry))
            self._fail(load, buffer, DAMAGED)

    def _fail(self, load: _Load, buffer: memoryview, reason: str) -> None:
        if load.segment.holds(load.slot, load.record):
            self._index.drop(load.segment.named([load.slot]))
        with self._changed:
            self.failed += 1
            is_new = reason not in self._causes
            self._causes.add(reason)
            self._buffers.give(buffer)
        if is_new and reason != EVICTED:
            _log.warning(
                "a block in %s was not loaded: %s; it is computed again (said once)",
                self._directory.file(load.segment.name), reason,
            )  # fmt: skip
        self._ended.append(_Ended(load.ticket, None, 0, reason))
