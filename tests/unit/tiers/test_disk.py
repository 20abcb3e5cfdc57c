"""The disk tier where nothing goes wrong: what is stored comes back, also after a restart."""

from __future__ import annotations

import os
import shutil
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdover.cache.tiers import disk as module
from holdover.cache.tiers.disk import Settings, buffer_bytes, parse, tenant_secret
from holdover.errors import ConfigError
from holdover.units import format_bytes

from .blocks import (
    BIG,
    LAYOUT,
    MIB,
    ROOT,
    block,
    disk,
    held_bytes,
    load,
    outcome,
    record,
    segments,
    spec,
    store,
    until,
)


def no_other_form(stored: object) -> None:
    raise AssertionError("it stores blocks as they are")


BOTH = [record(i, group, n_tokens=1 + i % 4) for i in range(40) for group in (0, 1)]


def test_blocks_come_back_also_from_a_new_process(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    store(tier, BOTH)
    assert all(outcome(tier, BOTH))
    stats = tier.stats()
    assert (stats.blocks, stats.stored_blocks, stats.loaded_blocks) == (80, 80, 80)
    assert (stats.failed_loads, stats.evicted_blocks, stats.trouble) == (0, 0, None)
    assert stats.read_bytes_per_s > 0
    tier.close(5)
    again = disk(tmp_path)
    assert again.stats().blocks == 80
    assert all(outcome(again, BOTH))
    again.close(5)


def test_a_tier_larger_than_its_disk_is_warned_of(tmp_path: Path) -> None:
    """What the tier holds already is room for it, what others left there is none; a folder need
    not be there yet."""
    free = shutil.disk_usage(tmp_path).free
    folder = tmp_path / "not" / "yet"
    text = module.warning(parse(f"{folder}:{2 * free}"))
    assert text is not None
    assert f"disk:{folder} may take {format_bytes(2 * free)}" in text
    assert module.warning(parse(f"{folder}:{free // 2}")) is None
    folder.mkdir(parents=True)
    other = folder / "other"
    with other.open("wb") as held:
        held.truncate(2 * free)  # sparse: the disk keeps its room
    assert module.warning(parse(f"{folder}:{2 * free}")) is not None
    other.rename(folder / ("0" * 16 + "-0-" + "0" * 16 + ".segment"))
    assert module.warning(parse(f"{folder}:{2 * free}")) is None


def test_runs_are_the_latest_first_also_after_a_restart(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    runs = [record(i, group=i % 2) for i in (5, 3, 9, 1)]
    other = record(7, parent=b"o" * 16)
    for one in [*runs, other]:
        store(tier, [one])
    assert list(tier.runs(ROOT)) == runs[::-1]
    tier.close(5)
    again = disk(tmp_path)
    assert list(again.runs(ROOT)) == runs[::-1]
    assert list(again.runs(b"o" * 16)) == [other]
    assert list(again.runs(b"x" * 16)) == []
    again.close(5)


def test_what_is_held_is_not_stored_again(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    store(tier, BOTH[:4])
    for one in BOTH[:4]:
        assert tier.store(one, memoryview(block(one)))
    time.sleep(0.1)
    assert tier.stats().stored_blocks == 4
    tier.close(5)


def test_a_new_process_goes_on_in_a_segment_that_is_not_full(tmp_path: Path) -> None:
    for i in range(3):
        tier = disk(tmp_path)
        store(tier, [record(i)])
        tier.close(5)
    assert len(segments(tmp_path)) == 1
    again = disk(tmp_path)
    assert all(outcome(again, [record(i) for i in range(3)]))
    again.close(5)


def test_a_segment_in_use_is_not_taken_over_nor_evicted(tmp_path: Path) -> None:
    one, two = disk(tmp_path), disk(tmp_path)
    store(one, [record(1)])
    store(two, [record(2)])
    assert len(segments(tmp_path)) == 2
    until(lambda: one.holds(record(2).key, 0) and two.holds(record(1).key, 0))
    assert all(outcome(one, [record(1), record(2)]))
    # A server of another model that needs all the room there is evicts neither.
    other = disk(tmp_path, cap_bytes=MIB, identity=b"another model")
    before = segments(tmp_path)
    for i in range(600):
        until(lambda i=i: other.store(record(i), memoryview(block(record(i)))))
    until(lambda: other.stats().evicted_blocks > 0)
    assert set(before) <= set(segments(tmp_path))
    store(one, [record(3)])
    assert all(outcome(one, [record(i) for i in (1, 2, 3)]))
    for tier in (one, two, other):
        tier.close(5)


def test_where_all_room_is_in_use_nothing_is_stored_and_it_is_said(tmp_path: Path) -> None:
    one = disk(tmp_path, cap_bytes=MIB, identity=b"one")
    store(one, [record(1, 0), record(1, 1)])
    two = disk(tmp_path, cap_bytes=held_bytes(tmp_path) + 32, identity=b"two")
    assert two.store(record(1), memoryview(block(record(1))))
    until(lambda: "in use by servers" in (two.stats().trouble or ""))
    assert all(outcome(one, [record(1, 0), record(1, 1)]))
    one.close(5)
    two.close(5)


def test_the_least_recently_used_segment_goes_first(tmp_path: Path) -> None:
    size = 64 * 1024  # of a segment: a sixteenth of the cap
    tier = disk(tmp_path, cap_bytes=16 * size, settings={"refresh_s": 60.0})
    per_segment = 0
    stored = []
    while len(segments(tmp_path)) < 15:
        stored.append(record(len(stored)))
        store(tier, stored[-1:])
        if len(segments(tmp_path)) == 2 and not per_segment:
            per_segment = len(stored) - 1
    first, second = stored[:per_segment], stored[per_segment : 2 * per_segment]
    until(lambda: tier.load(first[0]) is not None)  # the oldest is used once more
    time.sleep(0.2)
    tier.poll(lambda *_: None)
    while tier.stats().evicted_blocks == 0:
        stored.append(record(len(stored)))
        store(tier, stored[-1:])
        assert held_bytes(tmp_path) <= 16 * size
    assert all(outcome(tier, first))
    assert not any(outcome(tier, second))
    assert tier.stats().evicted_blocks == per_segment
    tier.close(5)


def test_a_pinned_record_keeps_its_segment(tmp_path: Path) -> None:
    size = 64 * 1024
    tier = disk(tmp_path, cap_bytes=16 * size, settings={"refresh_s": 60.0})
    tier.pin(record(0), time.monotonic() + 1000)  # before it comes
    n = 0
    while tier.stats().evicted_blocks == 0 or len(segments(tmp_path)) < 15:
        store(tier, [record(n)])
        n += 1
    gone = tier.stats().evicted_blocks
    assert tier.holds(record(0).key, 0)
    assert not any(tier.holds(record(i).key, 0) for i in range(gone, 2 * gone))
    tier.pin(record(0), 0)
    while tier.holds(record(0).key, 0):
        assert tier.stats().evicted_blocks < 20 * gone, "a pin that has ended still holds"
        store(tier, [record(n)])
        n += 1
    tier.close(5)


def test_the_cap_holds_all_models_together_and_may_shrink(tmp_path: Path) -> None:
    for identity in (b"one", b"two", b"three"):
        tier = disk(tmp_path, cap_bytes=MIB, identity=identity)
        for i in range(400):
            until(lambda i=i, tier=tier: tier.store(record(i), memoryview(block(record(i)))))
        tier.close(20)
        assert held_bytes(tmp_path) <= MIB
    assert held_bytes(tmp_path) > MIB // 2
    tier = disk(tmp_path, cap_bytes=MIB // 4, identity=b"three")
    assert held_bytes(tmp_path) <= MIB // 4
    assert 0 < tier.stats().held_bytes <= MIB // 4
    assert tier.stats().blocks > 0  # of the latest
    tier.close(5)


def test_another_identity_or_layout_finds_nothing(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    store(tier, BOTH)
    tier.close(5)
    other = disk(tmp_path, identity=b"other weights")
    assert other.stats().blocks == 0
    assert not any(outcome(other, BOTH))
    other.close(5)


def test_deleting_removes_the_bytes_also_from_another_servers_file(tmp_path: Path) -> None:
    one, two = disk(tmp_path), disk(tmp_path)
    gone, kept = record(1, n_tokens=3), record(2)
    store(one, [gone, kept])
    until(lambda: two.holds(gone.key, 0))
    before = segments(tmp_path)[0].read_bytes()
    assert all(part in before for part in (block(gone), gone.key, gone.tokens))
    two.delete(gone)
    assert not two.holds(gone.key, 0)
    assert two.load(gone) is None
    assert list(two.runs(ROOT)) == [kept]
    until(lambda: two.stats().blocks == 1)
    for path in segments(tmp_path):
        content = path.read_bytes()
        assert all(part not in content for part in (block(gone), gone.key, gone.tokens))
    until(lambda: not one.holds(gone.key, 0))
    assert outcome(one, [kept]) == [True]
    store(two, [gone])  # and may come again
    assert all(outcome(two, [gone, kept]))
    one.close(5)
    two.close(5)


def test_both_copies_of_a_record_are_deleted(tmp_path: Path) -> None:
    # Servers that do not look around within the test store the same record twice.
    slow = {"refresh_s": 60.0}
    one, two = disk(tmp_path, settings=slow), disk(tmp_path, settings=slow)
    store(one, [record(1)])
    store(two, [record(1)])
    one.close(5)
    two.close(5)
    third = disk(tmp_path)
    assert third.stats().blocks == 1
    third.delete(record(1))
    until(lambda: third.stats().blocks == 0)
    assert all(block(record(1)) not in path.read_bytes() for path in segments(tmp_path))
    third.close(5)


def test_where_one_copy_is_damaged_the_other_is_loaded(tmp_path: Path) -> None:
    slow = {"refresh_s": 60.0}
    one, two = disk(tmp_path, settings=slow), disk(tmp_path, settings=slow)
    for tier in (one, two):
        store(tier, [record(1)])
        tier.close(5)
    third = disk(tmp_path)
    segment, slot = third._index.get(record(1).key, 0)
    with open(tmp_path / segment.name, "r+b") as file:
        file.seek(segment.form.shape.slot_offset(slot, segment.form.n_slots))
        file.write(b"damage")
    assert outcome(third, [record(1)]) == [False]
    assert outcome(third, [record(1)]) == [True]
    assert list(third.runs(ROOT)) == [record(1)]
    third.close(5)


def test_what_another_server_has_just_stored_is_deleted(tmp_path: Path) -> None:
    one = disk(tmp_path)
    two = disk(tmp_path, settings={"refresh_s": 60.0})
    store(one, [record(1)])
    two.delete(record(1))
    two.close(5)
    assert all(block(record(1)) not in path.read_bytes() for path in segments(tmp_path))
    one.close(5)


def test_a_delete_ends_stores_that_came_before_it(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    assert tier.store(record(1), memoryview(block(record(1))))
    tier.delete(record(1))
    assert not tier.holds(record(1).key, 0)
    tier.close(5)
    assert all(block(record(1)) not in path.read_bytes() for path in segments(tmp_path))


def test_an_interrupted_deletion_is_ended_by_who_comes_next(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    store(tier, [record(1), record(2)])
    segment, slot = tier._index.get(record(1).key, 0)
    tier.close(5)
    with open(segments(tmp_path)[0], "r+b") as file:  # as a crash after the first write leaves it
        file.seek(segment.form.shape.entry_offset(slot))
        file.write(segment.form.doomed())
    assert block(record(1)) in segments(tmp_path)[0].read_bytes()
    again = disk(tmp_path)
    until(lambda: block(record(1)) not in segments(tmp_path)[0].read_bytes())
    assert outcome(again, [record(1), record(2)]) == [False, True]
    again.close(5)


def test_close_ends_stores_first(tmp_path: Path) -> None:
    tier = disk(tmp_path, settings={"write_bytes_per_s": 1.0})  # a block in minutes
    stored = [record(i) for i in range(20)]
    assert all(tier.store(one, memoryview(block(one))) for one in stored)
    tier.close(10)
    assert not tier.store(record(99), memoryview(block(record(99))))
    assert tier.load(record(1)) is None
    again = disk(tmp_path)
    assert all(outcome(again, stored))
    again.close(5)


def test_writing_keeps_to_the_bandwidth(tmp_path: Path) -> None:
    block_bytes = BIG.blocks[0].nbytes
    tier = disk(tmp_path, layout=BIG, settings={"write_bytes_per_s": 20 * block_bytes})
    began_s = time.monotonic()
    store(tier, [record(i) for i in range(15)], BIG)
    assert time.monotonic() - began_s > 0.5 * (15 / 20 - 0.25)
    tier.close(5)


def test_hundreds_of_loads_wait_for_few_buffers(tmp_path: Path) -> None:
    settings = {"read_bytes": 1, "staged_bytes": 1}  # four buffers each
    tier = disk(tmp_path, layout=BIG, cap_bytes=64 * MIB, settings=settings)
    records = [record(i, i % 2) for i in range(300)]
    store(tier, records, BIG)
    assert all(outcome(tier, records[::-1] + records, BIG))
    tier.close(5)


def test_a_store_without_a_free_buffer_is_refused(tmp_path: Path) -> None:
    settings = {"staged_bytes": 1, "write_bytes_per_s": 1.0}
    tier = disk(tmp_path, settings=settings)
    answers = [tier.store(record(i), memoryview(block(record(i)))) for i in range(10)]
    assert answers.count(False) == tier.stats().refused_stores > 0
    tier.close(5)
    assert tier.stats().stored_blocks == answers.count(True)


def test_the_buffers_are_what_was_planned(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    for where in (spec(tmp_path / "a"), spec(tmp_path / "b", key=key)):
        tier = module.create(where, BIG, b"", no_other_form)
        assert tier.buffer_bytes == buffer_bytes(where, BIG)
        tier.close(5)
    small = replace(Settings(), staged_bytes=1, read_bytes=1)
    assert buffer_bytes(where, BIG, small) < buffer_bytes(where, BIG)


def test_only_the_owner_reads_what_is_there(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = tmp_path / "made" / "here"
        tier = disk(folder)
        store(tier, [record(1)])
        tenant_secret(str(folder))
        tier.close(5)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert {path.name for path in folder.iterdir()} > {"lock", "secret"}


def test_what_is_not_ours_stays_and_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"x" * 2 * MIB)
    (tmp_path / "folder").mkdir()
    tier = disk(tmp_path, cap_bytes=MIB)
    for i in range(600):
        until(lambda i=i: tier.store(record(i), memoryview(block(record(i)))))
    tier.close(20)
    assert (tmp_path / "notes.txt").stat().st_size == 2 * MIB
    assert (tmp_path / "folder").is_dir()
    assert tier.stats().evicted_blocks > 0
    assert tier.stats().held_bytes <= MIB


@pytest.mark.parametrize(
    ("text", "path", "cap_bytes", "key"),
    [
        ("/kv:20GiB", "/kv", 20 << 30, None),
        ("/with:colon:1GB", "/with:colon", 10**9, None),
        ("/kv:64MiB:key=/etc/key", "/kv", 64 * MIB, "/etc/key"),
        ("/a:key=b:64MiB:key=/k:1", "/a:key=b", 64 * MIB, "/k:1"),
    ],
)
def test_parse(text: str, path: str, cap_bytes: int, key: str | None) -> None:
    found = parse(text)
    assert (found.kind, found.path, found.cap_bytes, found.key_path) == (
        "disk", path, cap_bytes, key,
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "/kv", ":1GiB", "1GiB", "/kv:", "/kv:much", "/kv:1GiB:key="])
def test_parse_says_how_to_write_it(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--tiers: disk:.*write it as disk:/path:20GiB"):
        parse(text)


def test_a_cap_for_less_than_one_block_of_each_group_names_the_least(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"at least (\d+)") as caught:
        disk(tmp_path, cap_bytes=100)
    least = int(caught.value.reason.split("at least ")[1].split()[0])
    with pytest.raises(ConfigError):
        disk(tmp_path, cap_bytes=least - 1)
    tier = disk(tmp_path, cap_bytes=least)
    for i in range(5):  # each takes the place of the one before
        store(tier, [record(i, 0), record(i, 1)])
        assert held_bytes(tmp_path) <= least
    assert all(outcome(tier, [record(4, 0), record(4, 1)]))
    tier.close(5)


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"--tiers: disk: .*file"):
        disk(tmp_path / "file")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigError, match="chmod go-w"):
        disk(tmp_path / "open")


def test_the_secret_is_made_once_and_shared(tmp_path: Path) -> None:
    secret = tenant_secret(str(tmp_path / "kv"))
    assert len(secret) == 32
    assert len(set(secret)) > 8
    assert tenant_secret(str(tmp_path / "kv")) == secret
    assert tenant_secret(str(tmp_path / "other")) != secret
    path = tmp_path / "kv" / "secret"
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read"):
        tenant_secret(str(tmp_path / "kv"))
    path.chmod(0o600)
    path.write_bytes(secret[:31])
    with pytest.raises(ConfigError, match="damaged; run: rm"):
        tenant_secret(str(tmp_path / "kv"))
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="secret"):
        tenant_secret(str(tmp_path / "kv"))


def test_a_load_of_other_tokens_under_the_same_key_is_a_miss(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    store(tier, [record(1)])
    wrong = replace(record(1), tokens=record(2).tokens), replace(record(1), parent=b"p" * 16)
    assert load(tier, wrong) == ["not held", "not held"]
    tier.close(5)


def test_a_layout_is_small() -> None:
    assert all(b.nbytes < 4096 for b in LAYOUT.blocks)
