"""Several servers on one directory, and servers that are killed: in processes of their own."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdover.cache.tiers._disk.directory import _is_ours

from .blocks import ROOT as ROOT_KEY
from .blocks import disk, held_bytes, outcome, record, store, until
from .hammer import PARENTS

ROOT = Path(__file__).parents[3]
CAP = 512 * 1024


def hammer(folder: Path, seed: int, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.unit.tiers.hammer"]
    command += [str(folder), str(CAP), str(seed), str(seconds)]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def check_whole(folder: Path, least_records: int) -> None:
    """A new server finds nothing but what was stored, and nothing is left over."""
    tier = disk(folder, CAP)
    assert held_bytes(folder) <= CAP
    assert all(_is_ours(path.name) for path in folder.iterdir())
    assert not list(folder.glob("*.new"))
    found = [one for parent in [*PARENTS, ROOT_KEY] for one in tier.runs(parent)]
    assert len(found) == tier.stats().blocks >= least_records
    assert all(outcome(tier, found)), "a record that is listed cannot be read"
    store(tier, [record(10**6)])  # and goes on
    assert outcome(tier, [record(10**6)]) == [True]
    tier.close(5)
    assert held_bytes(folder) <= CAP


def kill_and_look(folder: Path, times: int, seed: int) -> None:
    chance = random.Random(seed)
    for i in range(times):
        process = hammer(folder, seed + i, 60)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        time.sleep(chance.random() * 0.5)
        process.send_signal(signal.SIGKILL)
        assert process.wait(20) == -signal.SIGKILL, process.communicate()[1]
        process.communicate()
        check_whole(folder, 0)


def test_killed_at_random_moments(tmp_path: Path) -> None:
    kill_and_look(tmp_path, 3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_fifty_times(tmp_path: Path) -> None:
    kill_and_look(tmp_path, 50, seed=100)


def run_together(folder: Path, n: int, seconds: float) -> None:
    processes = [hammer(folder, seed, seconds) for seed in range(n)]
    most = 0
    while any(process.poll() is None for process in processes):
        size = 0
        for path in folder.glob("*"):
            with contextlib.suppress(FileNotFoundError):
                size += os.path.getsize(path)
        most = max(most, size)
        time.sleep(0.01)
    for process in processes:
        output, errors = process.communicate()
        assert process.returncode == 0, output + errors
    assert CAP // 2 < most <= CAP
    check_whole(folder, 50)


def test_two_servers_at_once_keep_to_the_cap(tmp_path: Path) -> None:
    run_together(tmp_path, 2, 2.0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_servers_for_ten_minutes(tmp_path: Path) -> None:
    run_together(tmp_path, 2, float(os.environ.get("HOLDOVER_TEST_SHARED_S", "600")))


def test_what_one_stores_the_other_loads(tmp_path: Path) -> None:
    one, two = disk(tmp_path, CAP), disk(tmp_path, CAP)
    stored = [record(i, i % 2) for i in range(20)]
    store(one, stored)
    until(lambda: two.stats().blocks == 20)
    assert all(outcome(two, stored))
    one.close(5)
    two.close(5)


def test_what_one_evicts_is_a_miss_for_the_other(tmp_path: Path) -> None:
    one = disk(tmp_path, CAP)
    store(one, [record(i) for i in range(20)])
    one.close(5)
    reader = disk(tmp_path, CAP, settings={"refresh_s": 60.0})
    first = [record(i) for i in range(20)]
    assert all(outcome(reader, first))  # its files are open
    writer = disk(tmp_path, CAP, identity=b"another model")
    for i in range(800):
        until(lambda i=i: writer.store(record(i), memoryview(bytes(256))))
    writer.close(20)
    assert held_bytes(tmp_path) <= CAP
    assert not any(outcome(reader, first))
    assert reader.stats().blocks == 0
    reader.close(5)
