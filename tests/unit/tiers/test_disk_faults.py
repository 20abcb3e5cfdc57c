"""A disk that is full, read-only, broken, slow or gone, and clocks that jump: serving goes on."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdover.cache.tiers._disk import writer
from holdover.cache.tiers._disk.files import Files

from .blocks import (
    BIG,
    LAYOUT,
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

RECORDS = [record(i) for i in range(6)]


class Faulty(Files):
    """Calls whose names are in `errors` fail; reads wait while `stuck` is set."""

    def __init__(self) -> None:
        self.errors: dict[str, int] = {}
        self.stuck = threading.Event()
        self.released = threading.Event()
        self.released.set()

    def __getattribute__(self, name: str) -> object:
        method = super().__getattribute__(name)
        errors = super().__getattribute__("__dict__").get("errors", {})
        if name in errors:

            def fail(*_: object, **__: object) -> None:
                raise OSError(errors[name], os.strerror(errors[name]))

            return fail
        return method

    def read(self, fd, buffers, offset):  # type: ignore[no-untyped-def]
        if self.stuck.is_set():
            self.released.wait(30)
        return super().read(fd, buffers, offset)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_RETRY_S", (0.05, 0.2))


def offered(tier, one, layout=LAYOUT) -> bool:  # type: ignore[no-untyped-def]
    return tier.store(one, memoryview(block(one, layout)))


def refuses_with(tier, text: str, first: int = 100) -> None:  # type: ignore[no-untyped-def]
    """Stores until it says why not."""
    numbers = iter(range(first, 10**6))

    def says_so() -> bool:
        offered(tier, record(next(numbers)))
        return text in (tier.stats().trouble or "")

    until(says_so)


def recovers(tier) -> None:  # type: ignore[no-untyped-def]
    numbers = iter(range(500_000, 10**6))

    def is_well() -> bool:
        offered(tier, record(next(numbers)))
        return tier.stats().trouble is None

    until(is_well)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        ("allocate", errno.ENOSPC, "No space left"),
        ("write", errno.ENOSPC, "No space left"),
        ("write", errno.EIO, "Input/output error"),
        ("create", errno.EROFS, "Read-only file system"),
        ("open_mode", errno.EACCES, "Permission denied"),
        ("rename", errno.EIO, "Input/output error"),
        ("listing", errno.ENOENT, "No such file"),
        ("unlink", errno.EIO, "Input/output error"),
    ],
)
def test_a_call_that_fails_stops_storing_and_nothing_else(
    tmp_path: Path, call: str, error: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = Faulty()
    tier = disk(tmp_path, cap_bytes=MIB // 2, files=files)
    store(tier, RECORDS)
    with caplog.at_level(logging.WARNING):
        files.errors[call] = error
        refuses_with(tier, text)
        assert tier.stats().refused_stores > 0
        time.sleep(0.3)
        refuses_with(tier, text, first=1000)  # still, and still said once
        held = [one for one in RECORDS if tier.holds(one.key, 0)]  # some may be evicted by now
        assert all(outcome(tier, held))
        files.errors.clear()
        recovers(tier)
    said = [r.getMessage() for r in caplog.records if "stores nothing" in r.getMessage()]
    assert len(said) == 1
    assert str(tmp_path) in said[0]
    assert sum("stores again" in r.getMessage() for r in caplog.records) == 1
    store(tier, [record(7)])
    assert outcome(tier, [record(7)]) == [True]
    tier.close(5)
    assert held_bytes(tmp_path) <= MIB // 2
    assert not list(tmp_path.glob("*.new"))


def test_reads_that_fail_are_misses_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Faulty()
    tier = disk(tmp_path, files=files, settings={"refresh_s": 60.0})
    store(tier, RECORDS)
    files.errors["read"] = errno.EIO
    with caplog.at_level(logging.WARNING):
        assert load(tier, RECORDS) == ["the disk fails: Input/output error"] * 6
    assert tier.stats().failed_loads == 6
    assert sum("was not loaded" in r.getMessage() for r in caplog.records) == 1
    files.errors.clear()
    # Nothing was erased for it: a new process finds them all.
    tier.close(5)
    again = disk(tmp_path)
    assert all(outcome(again, RECORDS))
    again.close(5)


def test_a_read_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    files = Faulty()
    settings = {"read_deadline_s": 0.2, "read_threads": 2, "refresh_s": 60.0}
    tier = disk(tmp_path, files=files, settings=settings)
    store(tier, RECORDS)
    files.stuck.set()
    files.released.clear()
    began_s = time.monotonic()
    assert tier.load(RECORDS[0]) is not None
    until(lambda: tier.load(RECORDS[1]) is None)
    ended = []
    tier.poll(lambda *result: ended.append(result))
    tier.stats()
    assert time.monotonic() - began_s < 5
    assert ended == []
    files.stuck.clear()
    files.released.set()
    until(lambda: tier.load(RECORDS[2]) is not None)
    until(lambda: tier.poll(lambda *result: ended.append(result[2])) or len(ended) >= 2)
    assert set(ended) == {""}
    tier.close(5)


def test_closing_waits_no_longer_than_it_is_told(tmp_path: Path) -> None:
    files = Faulty()
    tier = disk(tmp_path, files=files, settings={"refresh_s": 60.0})
    store(tier, RECORDS)
    files.stuck.set()
    files.released.clear()
    tier.load(RECORDS[0])
    began_s = time.monotonic()
    tier.close(0.3)
    assert time.monotonic() - began_s < 2
    files.released.set()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir(mode=0o700)
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=1M,mode=700", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], capture_output=True)


def test_a_real_disk_that_is_full(small_disk: Path) -> None:
    filler = small_disk / "someone-elses"
    filler.write_bytes(bytes(900 * 1024))
    tier = disk(small_disk, cap_bytes=4 * MIB)  # segments of a quarter of the disk
    refuses_with(tier, "No space left")
    assert not list(small_disk.glob("*.new"))
    filler.unlink()
    recovers(tier)
    # And with a cap above what there is, the tier lives on what it has.
    for i in range(3000):
        until(lambda i=i: offered(tier, record(i)))
    until(lambda: tier.stats().evicted_blocks > 0)
    recovers(tier)
    assert filler.parent.stat().st_dev == small_disk.stat().st_dev
    tier.close(10)


def test_a_real_disk_that_is_read_only(small_disk: Path) -> None:
    tier = disk(small_disk, cap_bytes=MIB)
    store(tier, RECORDS)
    tier.close(5)
    remount = ["mount", "-o", "remount", "tmpfs", str(small_disk)]
    subprocess.run([*remount[:2], "remount,ro", *remount[3:]], check=True)
    tier = disk(small_disk, cap_bytes=MIB)
    assert "Read-only" in (tier.stats().trouble or "")
    assert all(outcome(tier, RECORDS))
    subprocess.run([*remount[:2], "remount,rw", *remount[3:]], check=True)
    recovers(tier)
    tier.close(5)


def test_a_disk_that_is_unmounted(small_disk: Path) -> None:
    tier = disk(small_disk, cap_bytes=MIB)
    store(tier, RECORDS)
    subprocess.run(["umount", "-l", str(small_disk)], check=True)
    refuses_with(tier, "another disk")
    assert not any(outcome(tier, RECORDS))
    assert list(small_disk.iterdir()) == []  # nothing is written to what lies below
    tier.close(5)


def test_a_folder_that_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    tier = disk(folder)
    store(tier, RECORDS)
    shutil.rmtree(folder)
    refuses_with(tier, "No such file")
    assert not any(outcome(tier, RECORDS))
    assert not folder.exists()
    folder.mkdir(mode=0o700)
    recovers(tier)
    store(tier, RECORDS)
    assert all(outcome(tier, RECORDS))
    tier.close(5)


def test_a_file_size_limit(tmp_path: Path) -> None:
    """In another process: a limit of its own makes every large write fail."""
    code = (
        "import resource, sys, pathlib\n"
        "sys.path.insert(0, '.')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
        "from tests.unit.tiers.blocks import *\n"
        f"tier = disk(pathlib.Path({str(tmp_path)!r}))\n"
        "tier.store(record(1), memoryview(block(record(1))))\n"
        "until(lambda: 'File too large' in (tier.stats().trouble or ''))\n"
        "tier.close(5)\n"
    )
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    done = subprocess.run(
        [os.sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"lock"}


def test_a_delete_that_fails_is_tried_again(tmp_path: Path) -> None:
    files = Faulty()
    tier = disk(tmp_path, files=files)
    store(tier, RECORDS)
    files.errors["erase"] = errno.EIO
    tier.delete(RECORDS[0])
    until(lambda: tier.stats().trouble)
    assert not tier.holds(RECORDS[0].key, 0)
    time.sleep(0.3)
    assert tier.stats().blocks == 6  # it has not ended
    files.errors.clear()
    until(lambda: tier.stats().blocks == 5)
    assert block(RECORDS[0]) not in segments(tmp_path)[0].read_bytes()
    tier.close(5)


@pytest.mark.parametrize("jump_s", [-(10**9), -3600, 3600, 10**9])
def test_a_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: int) -> None:
    tier = disk(tmp_path, cap_bytes=MIB // 2)
    store(tier, RECORDS)
    real_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + jump_s * 10**9)
    monkeypatch.setattr(time, "time", lambda: real_ns() / 1e9 + jump_s)
    assert all(outcome(tier, RECORDS))
    for i in range(10, 400):
        until(lambda i=i: offered(tier, record(i)))
    until(lambda: tier.stats().evicted_blocks > 0)
    until(lambda: tier.holds(record(399).key, 0))
    assert outcome(tier, [record(399)]) == [True]
    assert tier.stats().trouble is None
    tier.close(5)
    monkeypatch.undo()
    again = disk(tmp_path, cap_bytes=MIB // 2)
    until(lambda: again.stats().blocks > 0)
    for i in range(1000, 1400):
        until(lambda i=i: offered(again, record(i)))
    until(lambda: again.holds(record(1399).key, 0))
    assert held_bytes(tmp_path) <= MIB // 2
    again.close(5)


def test_files_marked_by_a_clock_in_the_future_age_like_others(tmp_path: Path) -> None:
    tier = disk(tmp_path, cap_bytes=MIB // 2)
    store(tier, RECORDS)
    tier.close(5)
    (path,) = segments(tmp_path)
    ahead_ns = time.time_ns() + 10**18
    os.utime(path, ns=(ahead_ns, ahead_ns))
    again = disk(tmp_path, cap_bytes=MIB // 2, identity=b"other")
    for i in range(400):
        until(lambda i=i: offered(again, record(i)))
    until(lambda: not path.exists())
    again.close(5)


def test_blocks_of_many_pages(tmp_path: Path) -> None:
    tier = disk(tmp_path, layout=BIG, cap_bytes=32 * MIB)
    records = [record(i, i % 2) for i in range(60)]
    store(tier, records, BIG)
    assert all(outcome(tier, records, BIG))
    tier.close(5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_the_writer_is_seen_and_serving_goes_on(tmp_path: Path) -> None:
    class Broken(Faulty):
        def allocate(self, fd: int, size: int) -> None:
            if size < MIB:
                raise ZeroDivisionError

    tier = disk(tmp_path, files=Broken())
    offered(tier, record(1))
    until(lambda: "bug" in (tier.stats().trouble or ""))
    assert not offered(tier, record(2))
    assert tier.load(record(1)) is None
    tier.close(5)
