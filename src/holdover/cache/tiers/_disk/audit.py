"""A look at a whole directory, whoever's blocks lie there: modes, sizes and every checksum.

Reads only. Checksums are over what is written, so blocks that are encrypted are checked without
their key.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

from holdover.cache.tiers._disk.directory import Directory, held_bytes, is_segment
from holdover.cache.tiers._disk.files import Files
from holdover.cache.tiers._disk.format import PAGE_BYTES, DamagedError, SegmentFormat
from holdover.units import format_bytes


@dataclass(slots=True)
class Audit:
    """What was looked at, and what is wrong with it, in words."""

    segments: int = 0
    blocks: int = 0
    held_bytes: int = 0
    problems: list[str] = field(default_factory=list)


def audit(path: str, cap_bytes: int) -> Audit:
    """Raises OSError for a folder that cannot be read."""
    files = Files()
    directory = Directory(path, cap_bytes, files)
    found = directory.listing()
    audit = Audit(held_bytes=held_bytes(found))
    if audit.held_bytes > cap_bytes:
        more = format_bytes(audit.held_bytes - cap_bytes)
        audit.problems.append(f"{path} holds {more} more than {format_bytes(cap_bytes)}")
    _check_mode(audit, path, 0o022, "others can write to it")
    for name, state in sorted(found.items()):
        _check_mode(audit, directory.file(name), 0o077, "others can read it")
        if is_segment(name) and state.size:
            audit.segments += 1
            _check_segment(audit, files, directory.file(name), state.size)
    return audit


def _check_mode(audit: Audit, path: str, forbidden: int, why: str) -> None:
    mode = stat.S_IMODE(os.stat(path, follow_symlinks=False).st_mode)
    if mode & forbidden:
        audit.problems.append(f"{path} has mode {mode:o}: {why}")


def _check_segment(audit: Audit, files: Files, path: str, size: int) -> None:
    try:
        fd = files.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # evicted meanwhile
    try:
        header = bytearray(PAGE_BYTES)
        files.read(fd, [memoryview(header)], 0)
        form = SegmentFormat.described(bytes(header), size)
        raw = bytearray(form.n_slots * form.shape.entry.itemsize)
        files.read(fd, [memoryview(raw)], PAGE_BYTES)
        held = form.held(raw)
        intact = form.intact(raw, held)
        audit.blocks += len(held)
        if len(intact) < len(held):
            audit.problems.append(f"{path}: {len(held) - len(intact)} entries are damaged")
        payload = bytearray(form.shape.slot_bytes)
        damaged = 0
        for slot in intact:
            files.read(fd, [memoryview(payload)], form.shape.slot_offset(slot, form.n_slots))
            damaged += not form.is_payload(raw, slot, memoryview(payload))
        if damaged:
            audit.problems.append(f"{path}: {damaged} blocks differ from their checksums")
    except DamagedError as error:
        audit.problems.append(f"{path}: {error}")
    except OSError as error:
        audit.problems.append(f"{path} cannot be read: {error.strerror or error}")
    finally:
        files.close(fd)
