"""Files that are not what was written: never a wrong byte, and no more lost than was hit."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdover.cache.tiers._disk.catalog import Catalog
from holdover.cache.tiers._disk.directory import Directory
from holdover.cache.tiers._disk.files import Files
from holdover.cache.tiers._disk.format import _HEADER, PAGE_BYTES, SegmentFormat, _hash
from holdover.cache.tiers._disk.index import Index
from holdover.cache.tiers.base import Record
from holdover.cache.tiers.disk import Disk

from .blocks import (
    MIB,
    block,
    disk,
    held_bytes,
    load,
    outcome,
    record,
    segments,
    store,
    until,
)

CAP = 320 * 1024  # segments of three slots
RECORDS = [record(i, n_tokens=1 + i) for i in range(3)]
QUIET = {"refresh_s": 60.0, "read_threads": 1}


@pytest.fixture(params=["plain", "sealed"])
def key(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    if request.param == "plain":
        return None
    path = tmp_path / "key"
    path.write_text("5f" * 32)
    path.chmod(0o600)
    return path


def opened(folder: Path, key: Path | None) -> Disk:
    return disk(folder, cap_bytes=CAP, key=key, settings=QUIET)


def one_segment(folder: Path, key: Path | None) -> tuple[Path, SegmentFormat]:
    """A full segment of RECORDS, and how it is cut."""
    tier = opened(folder, key)
    store(tier, RECORDS)
    found = tier._index.get(RECORDS[0].key, 0)
    assert found is not None
    tier.close(5)
    (path,) = segments(folder)
    assert found[0].form.n_slots == len(RECORDS)
    return path, found[0].form


def hit_by(offset: int, form: SegmentFormat) -> list[int]:
    """Slots whose records a byte of the file belongs to."""
    shape = form.shape
    if offset < PAGE_BYTES:
        return list(range(form.n_slots)) if offset < SegmentFormat.HEADER_BYTES else []
    slot = (offset - PAGE_BYTES) // shape.entry.itemsize
    if slot < form.n_slots:
        return [slot]
    at = offset - shape.slot_offset(0, form.n_slots)
    return (
        [at // shape.slot_bytes] if at >= 0 and at % shape.slot_bytes < shape.payload_bytes else []
    )


def flipped(path: Path, content: bytes, offset: int) -> None:
    """The segment with one bit of a byte changed."""
    with open(path, "r+b") as file:
        file.write(content)
        file.seek(offset)
        file.write(bytes([content[offset] ^ 1 << offset % 8]))


def expected(offset: int, form: SegmentFormat) -> list[bool]:
    hit = hit_by(offset, form)
    return [i not in hit for i in range(len(RECORDS))]


def meaningful(form: SegmentFormat) -> list[int]:
    size = form.shape.file_bytes(form.n_slots)
    return [offset for offset in range(size) if hit_by(offset, form)]


def test_a_flipped_byte_is_a_miss_of_its_record_alone(tmp_path: Path, key: Path | None) -> None:
    path, form = one_segment(tmp_path / "kv", key)
    content = path.read_bytes()
    padding = [offset for offset in range(len(content)) if not hit_by(offset, form)]
    chance = random.Random(5)
    for offset in chance.sample(meaningful(form), 24) + chance.sample(padding, 6):
        flipped(path, content, offset)
        tier = opened(path.parent, key)
        assert outcome(tier, RECORDS) == expected(offset, form), offset
        tier.close(5)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_byte_flipped_in_turn(tmp_path: Path, key: Path | None) -> None:
    """With the parts that read and verify, without threads: there are 20,000 of them."""
    path, form = one_segment(tmp_path / "kv", key)
    content = path.read_bytes()
    assert len(content) == form.shape.file_bytes(len(RECORDS)) == 20480
    directory = Directory(str(path.parent), CAP, Files())
    for offset in range(len(content)):
        flipped(path, content, offset)
        index = Index(1)
        Catalog(directory, [form.shape], index, Files()).refresh()
        whole = path.read_bytes()
        assert [read(index, one, whole) for one in RECORDS] == expected(offset, form), offset


def read(index: Index, one: Record, content: bytes) -> bool:
    """As a reader does; whether it is handed over, and then it must be right."""
    place = index.get(one.key, 0)
    if place is None or place[0].record(place[1]) != one:
        return False
    segment, slot = place
    shape = segment.form.shape
    start = shape.slot_offset(slot, segment.form.n_slots)
    payload = bytearray(content[start : start + shape.payload_bytes])
    is_read = segment.form.open(memoryview(payload), one, slot, segment.raw(slot))
    assert not is_read or payload[: shape.record_bytes] == block(one), "wrong bytes"
    return is_read


def test_bytes_that_change_under_an_open_tier(tmp_path: Path, key: Path | None) -> None:
    path, form = one_segment(tmp_path / "kv", key)
    tier = opened(tmp_path / "kv", key)
    with open(path, "r+b") as file:
        file.seek(form.shape.slot_offset(1, form.n_slots) + 7)
        file.write(b"\x00\xff")
    got = load(tier, RECORDS)
    assert got[1] == "damaged on the disk"
    assert [got[0], got[2]] == [block(RECORDS[0]), block(RECORDS[2])]
    assert tier.stats().failed_loads == 1
    assert not tier.holds(RECORDS[1].key, 0)
    # It is stored anew, and what was damaged does not come back with a restart.
    store(tier, [RECORDS[1]])
    assert all(outcome(tier, RECORDS))
    tier.close(5)
    again = opened(tmp_path / "kv", key)
    assert all(outcome(again, RECORDS))
    again.close(5)


def test_cut_off_at_any_length(tmp_path: Path, key: Path | None) -> None:
    path, _ = one_segment(tmp_path / "kv", key)
    content = path.read_bytes()
    chance = random.Random(6)
    for length in [0, 1, 4095, 4096, len(content) - 1, *chance.sample(range(len(content)), 10)]:
        path.write_bytes(content[:length])
        os.chmod(path, 0o600)
        tier = opened(tmp_path / "kv", key)
        assert outcome(tier, RECORDS) == [False] * 3
        tier.close(5)


def test_cut_off_under_an_open_tier(tmp_path: Path) -> None:
    path, _ = one_segment(tmp_path, None)
    tier = opened(tmp_path, None)
    os.truncate(path, 0)
    assert load(tier, RECORDS) == ["evicted while it was asked for"] * 3
    tier.close(5)


def test_zeroed_or_filled_with_noise(tmp_path: Path, key: Path | None) -> None:
    path, _ = one_segment(tmp_path / "kv", key)
    size = path.stat().st_size
    for content in (bytes(size), os.urandom(size), os.urandom(10)):
        path.write_bytes(content)
        tier = opened(tmp_path / "kv", key)
        assert outcome(tier, RECORDS) == [False] * 3
        assert tier.stats().held_bytes >= len(content)  # it is ours, and counted
        tier.close(5)


def test_a_damaged_file_is_the_first_to_be_evicted(tmp_path: Path) -> None:
    tier = disk(tmp_path, cap_bytes=CAP, settings=QUIET)
    stored = [record(i) for i in range(3 * 12)]
    store(tier, stored)
    tier.close(5)
    last = max(segments(tmp_path), key=lambda path: path.stat().st_mtime_ns)
    content = bytearray(last.read_bytes())
    content[20] ^= 1  # the header
    last.write_bytes(content)  # which makes it the latest used, too
    again = disk(tmp_path, cap_bytes=CAP, settings=QUIET)
    n_before = again.stats().blocks
    i = 1000
    while last.exists():
        store(again, [record(i)])
        i += 1
    assert again.stats().evicted_blocks == 0
    assert n_before == len(stored) - 3
    again.close(5)


@pytest.mark.parametrize("how", ["swapped", "replaced"])
def test_files_under_each_others_names(tmp_path: Path, key: Path | None, how: str) -> None:
    """Those of one group and model hold what their entries say; others nothing."""
    ours, theirs = tmp_path / "kv", tmp_path / "theirs"
    path, _ = one_segment(ours, key)
    tier = disk(theirs, cap_bytes=CAP, key=key, identity=b"other weights")
    other = [record(i, group) for i in range(3) for group in (0, 1)]
    store(tier, other)
    tier.close(5)
    for foreign in segments(theirs):
        if how == "swapped":
            kept = tmp_path / "kept"
            os.rename(path, kept)
            os.rename(foreign, path)
            os.rename(kept, foreign)
        else:
            shutil.copy(foreign, path)
        tier = opened(ours, key)
        assert outcome(tier, [*RECORDS, *other]) == [False] * 9
        tier.close(5)
        if how == "swapped":
            os.rename(path, kept)
            os.rename(foreign, path)
            os.rename(kept, foreign)


def test_another_file_renamed_over_ours_while_it_is_open(tmp_path: Path) -> None:
    path, _ = one_segment(tmp_path / "kv", None)
    foreign, _ = one_segment(tmp_path / "theirs", None)
    content = bytearray(foreign.read_bytes())
    content[-4096:] = os.urandom(4096)
    foreign.write_bytes(content)
    tier = disk(tmp_path / "kv", cap_bytes=CAP)
    os.rename(foreign, path)
    until(lambda: outcome(tier, RECORDS) == [True, True, False])
    tier.close(5)


def test_a_record_moved_to_another_slot_is_none(tmp_path: Path, key: Path | None) -> None:
    path, form = one_segment(tmp_path / "kv", key)
    content, shape = bytearray(path.read_bytes()), form.shape
    size = shape.entry.itemsize
    parts = [(shape.entry_offset, size), (lambda s: shape.slot_offset(s, 3), shape.slot_bytes)]
    for offset_of, length in parts:
        first, second = offset_of(0), offset_of(1)
        one, two = content[first:][:length], content[second:][:length]
        content[first : first + length], content[second : second + length] = two, one
    path.write_bytes(content)
    tier = opened(tmp_path / "kv", key)
    assert outcome(tier, RECORDS) == [False, False, True]
    tier.close(5)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(field=st.integers(0, 9), value=st.integers(0, 2**64 - 1))
def test_a_header_made_by_someone_is_not_believed(tmp_path: Path, field: int, value: int) -> None:
    """With a right checksum, and any one field wrong: sizes are compared before they are used."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    path, _ = one_segment(folder, None)
    content = bytearray(path.read_bytes())
    fields = list(_HEADER.unpack(content[: _HEADER.size]))
    if isinstance(fields[field], bytes):
        new = value.to_bytes(8, "little").ljust(len(fields[field]), b"x")
    else:
        new = value % 2**32 if field in (1, 2, 7, 8) else value
    changed = fields[field] != new
    fields[field] = new
    header = _HEADER.pack(*fields)
    content[: SegmentFormat.HEADER_BYTES] = header + _hash(header)
    path.write_bytes(content)
    tier = opened(folder, None)
    assert outcome(tier, RECORDS) == [not changed] * 3
    tier.close(5)


def test_links_are_not_followed(tmp_path: Path) -> None:
    path, _ = one_segment(tmp_path / "kv", None)
    target = tmp_path / "elsewhere"
    os.rename(path, target)
    path.symlink_to(target)
    tier = opened(tmp_path / "kv", None)
    assert outcome(tier, RECORDS) == [False] * 3
    tier.close(5)
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "kv" / "lock").unlink()
    (tmp_path / "kv" / "lock").symlink_to(tmp_path / "victim")
    tier = opened(tmp_path / "kv", None)
    assert tier.stats().trouble is not None
    assert not tier.store(record(9), memoryview(block(record(9))))
    tier.close(5)
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_what_a_crash_leaves_in_the_making_goes(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    store(tier, [record(1)])
    tier.close(5)
    (tmp_path / "0123456789abcdef.new").write_bytes(bytes(MIB))
    empty = segments(tmp_path)[0].with_name("0" * 16 + "-0-" + "0" * 16 + ".segment")
    empty.write_bytes(b"")
    before = held_bytes(tmp_path)
    again = disk(tmp_path)
    assert not empty.exists()
    assert held_bytes(tmp_path) == before - MIB
    assert outcome(again, [record(1)]) == [True]
    again.close(5)
