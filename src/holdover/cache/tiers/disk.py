"""Blocks in files of a directory, which several servers may share: `disk:/path:20GiB[:key=FILE]`.

    engine's thread   the index, copies into and out of fixed buffers; touches no file
    writer            appends, erases, evicts, follows what other servers do     _disk/writer.py
    readers           read and verify                                            _disk/reader.py

The directory never takes more than its size, across restarts, servers and models. What a crash, a
damaged or a full disk leaves is a miss.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holdover.cache.tiers._buffers import Buffers
from holdover.cache.tiers._disk.catalog import Catalog
from holdover.cache.tiers._disk.directory import (
    FIELD,
    SECRET_BYTES,
    Directory,
    held_bytes,
    tenant_secret,
)
from holdover.cache.tiers._disk.files import Files
from holdover.cache.tiers._disk.format import Format
from holdover.cache.tiers._disk.index import Index
from holdover.cache.tiers._disk.reader import Reader
from holdover.cache.tiers._disk.sealing import read_key
from holdover.cache.tiers._disk.segment import Segment
from holdover.cache.tiers._disk.writer import Writer
from holdover.cache.tiers.base import KEY_BYTES, Record, Take, TierSpec, TierStats, TranscoderTo
from holdover.errors import ConfigError
from holdover.files import typed_path
from holdover.spec.layout import CacheLayout
from holdover.units import format_bytes, parse_bytes

__all__ = [
    "Disk", "Settings", "Sizes", "buffer_bytes", "create", "parse", "tenant_secret", "warning",
]  # fmt: skip

_KEY = ":key="
_SEGMENTS = 16  # of a small cap: what one eviction takes is not much
_MOST_SEGMENTS = 512  # of a large one
_SEGMENT_BYTES = 256 << 20
_KEY_BYTES_AS_PLANNED = b"\0" * 32  # a key's value changes no size


@dataclass(frozen=True, slots=True)
class Settings:
    write_bytes_per_s: float = 200e6
    staged_bytes: int = 16 << 20  # about: blocks that wait to be written
    read_bytes: int = 8 << 20  # about: blocks that were read and wait to be polled
    read_threads: int = 2
    read_deadline_s: float = 5.0
    refresh_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a directory of some size is cut into: a format and the slots of a segment for each
    group, and how many blocks can wait to be written."""

    shapes: tuple[Format, ...]
    n_slots: tuple[int, ...]
    n_staged: int

    @classmethod
    def of(cls, spec: TierSpec, layout: CacheLayout, settings: Settings) -> Sizes:
        """Raises ConfigError where the cap cannot hold a block of each group."""
        key = None if spec.key_path is None else _KEY_BYTES_AS_PLANNED
        shapes = _shapes(layout, b"", key)
        _, n_staged, _ = _pools(shapes, settings)
        return cls(tuple(shapes), tuple(_slots(spec, shapes)), n_staged)


def parse(text: str) -> TierSpec:
    """PATH:SIZE or PATH:SIZE:key=FILE; the path may hold colons."""
    before, marker, key_path = text.rpartition(_KEY)
    if not marker:
        before = text
    path, colon, size = before.rpartition(":")
    form = "write it as disk:/path:20GiB, or disk:/path:20GiB:key=/path/to/keyfile"
    if not (path and colon):
        raise ConfigError(FIELD, f"disk:{text} lacks a folder or a size; {form}")
    if marker and not key_path:
        raise ConfigError(FIELD, f"disk:{text} names no key file; {form}")
    try:
        cap_bytes = parse_bytes(size, FIELD)
    except ConfigError as error:
        raise ConfigError(FIELD, f"disk:{text}: {error.reason}; {form}") from error
    folder = str(typed_path(path, FIELD).absolute())
    key_file = str(typed_path(key_path, FIELD).absolute()) if marker else None
    return TierSpec("disk", cap_bytes, path=folder, key_path=key_file)


def buffer_bytes(spec: TierSpec, layout: CacheLayout, settings: Settings | None = None) -> int:
    key = None if spec.key_path is None else _KEY_BYTES_AS_PLANNED
    slot_bytes, n_staged, n_read = _pools(_shapes(layout, b"", key), settings or Settings())
    return (n_staged + n_read) * slot_bytes


def warning(spec: TierSpec) -> str | None:
    """Where the disk has less room than the tier may take."""
    assert spec.path is not None, "a disk tier has a folder"
    path = Path(spec.path)
    directory = Directory(spec.path, spec.cap_bytes, Files())
    try:
        held = held_bytes(directory.listing()) if path.is_dir() else 0
        there = next(folder for folder in (path, *path.parents) if folder.exists())
        room_bytes = held + shutil.disk_usage(there).free
    except OSError:
        return None  # whoever opens it says why it cannot be used
    if spec.cap_bytes <= room_bytes:
        return None
    return (
        f"--tiers disk:{spec.path} may take {format_bytes(spec.cap_bytes)}, its disk has room for "
        f"{format_bytes(room_bytes)}: once that is full, it keeps no more; "
        f"{room_bytes >> 20}MiB would fit"
    )


def secret(spec: TierSpec) -> bytes:
    assert spec.path is not None, "a disk tier has a folder"
    return tenant_secret(spec.path)


def create(
    spec: TierSpec, layout: CacheLayout, identity: bytes, transcoder_to: TranscoderTo
) -> Disk:
    return Disk(spec, layout, identity)


class Disk:
    name = "disk"
    codec = None

    def __init__(
        self,
        spec: TierSpec,
        layout: CacheLayout,
        identity: bytes,
        settings: Settings | None = None,
        files: Files | None = None,
    ) -> None:
        assert spec.path is not None, "a disk tier has a folder"
        settings, files = settings or Settings(), files or Files()
        key = None if spec.key_path is None else read_key(spec.key_path, FIELD)
        shapes = _shapes(layout, identity, key)
        self._shapes = shapes
        self._cap_bytes = spec.cap_bytes
        directory = Directory(spec.path, spec.cap_bytes, files)
        n_slots = _slots(spec, shapes)
        directory.prepare()
        self._index = Index(len(shapes))
        self._catalog = Catalog(directory, shapes, self._index, files)
        slot_bytes, n_staged, n_read = _pools(shapes, settings)
        staged, read = Buffers(n_staged, slot_bytes), Buffers(n_read, slot_bytes)
        self.buffer_bytes = staged.nbytes + read.nbytes
        self._reader = Reader(
            directory, files, self._index, read, self._scrub,
            settings.read_threads, settings.read_deadline_s,
        )  # fmt: skip
        self._writer = Writer(
            directory, files, self._catalog, shapes, n_slots, staged,
            settings.write_bytes_per_s, settings.refresh_s, lambda: self._reader.is_busy,
        )  # fmt: skip
        for begin in (directory.clean, self._catalog.refresh):
            try:
                begin()
            except OSError as error:  # what can be read is served, and storing is tried again
                self._writer.begin_trouble(error.strerror or str(error))
        self._reader.start()
        self._writer.start()

    def stored_bytes(self, group: int) -> int:
        return self._shapes[group].slot_bytes

    def holds(self, key: bytes, group: int) -> bool:
        # In this order, here and below: an erasure that ends in between must not bring it back.
        return not self._is_erased(key, group) and self._index.get(key, group) is not None

    def runs(self, parent: bytes) -> Iterable[Record]:
        erasing = set(self._writer.erasing)
        found = self._index.runs(parent)
        return [record for record in found if (record.group, record.key) not in erasing]

    def store(self, record: Record, block: memoryview) -> bool:
        shape = self._shapes[record.group]
        assert len(record.key) == len(record.parent) == KEY_BYTES
        assert block.nbytes == shape.record_bytes, "a block of another layout"
        assert 0 < len(record.tokens) <= 4 * shape.block_tokens, "no run of tokens of a block"
        if not self._is_erased(record.key, record.group):
            place = self._index.get(record.key, record.group)
            if place is not None:
                place[0].touched = True
                return True
            if (record.group, record.key) in self._writer.storing:
                return True
        return self._writer.store(record, block.cast("B"))

    def load(self, record: Record) -> int | None:
        if self._is_erased(record.key, record.group):
            return None
        place = self._index.get(record.key, record.group)
        if place is None:
            return None
        segment, slot = place
        if not segment.holds(slot, record):
            return None
        return self._reader.submit(record, segment, slot)

    def poll(self, take: Take) -> None:
        self._reader.poll(take)

    def pin(self, record: Record, until_s: float) -> None:
        self._writer.pin(record, until_s)

    def delete(self, record: Record) -> None:
        self._writer.delete(record)

    def stats(self) -> TierStats:
        reader, writer = self._reader, self._writer
        half_gone = [
            name for name in list(writer.erasing) if self._index.get(name[1], name[0]) is None
        ]
        return TierStats(
            held_bytes=self._catalog.held_bytes,
            cap_bytes=self._cap_bytes,
            blocks=len(self._index) + len(half_gone),
            stored_blocks=writer.stored,
            loaded_blocks=reader.loaded,
            failed_loads=reader.failed,
            refused_stores=writer.refused,
            evicted_blocks=self._catalog.evicted_blocks,
            read_bytes_per_s=reader.bytes_per_s,
            trouble=writer.trouble,
        )

    def close(self, wait_s: float) -> None:
        deadline_s = time.monotonic() + wait_s
        self._writer.close(deadline_s)
        self._reader.close(deadline_s)

    def _is_erased(self, key: bytes, group: int) -> bool:
        return (group, key) in self._writer.erasing

    def _scrub(self, segment: Segment, slot: int, digest: bytes) -> None:
        self._writer.scrub(segment, slot, digest)


def _shapes(layout: CacheLayout, identity: bytes, key: bytes | None) -> list[Format]:
    block_tokens = layout.spec.block_tokens
    return [
        Format.of(group, block.nbytes, block_tokens, identity, key)
        for group, block in enumerate(layout.blocks)
    ]


def _pools(shapes: list[Format], settings: Settings) -> tuple[int, int, int]:
    """Bytes of a buffer, buffers for stores, buffers for loads."""
    slot_bytes = max(shape.slot_bytes for shape in shapes)
    n_staged = Buffers.count(slot_bytes, settings.staged_bytes)
    return slot_bytes, n_staged, Buffers.count(slot_bytes, settings.read_bytes)


def _slots(spec: TierSpec, shapes: list[Format]) -> list[int]:
    """Of a new segment of each group. Raises ConfigError where the cap cannot hold one of each."""
    least = SECRET_BYTES + sum(shape.file_bytes(1) for shape in shapes)
    if spec.cap_bytes < least:
        raise ConfigError(
            FIELD,
            f"disk: {format_bytes(spec.cap_bytes)} hold no block of each kind of this model; "
            f"give at least {least} ({format_bytes(least)})",
        )
    most = max(min(spec.cap_bytes // _SEGMENTS, _SEGMENT_BYTES), spec.cap_bytes // _MOST_SEGMENTS)
    n_slots = [max(1, shape.slots_in(most)) for shape in shapes]
    held = SECRET_BYTES + sum(s.file_bytes(n) for s, n in zip(shapes, n_slots, strict=True))
    return n_slots if held <= spec.cap_bytes else [1] * len(shapes)
