"""A server that stores, loads and deletes at random on a directory: run as a process of its own.

    python -m tests.unit.tiers.hammer FOLDER CAP_BYTES SEED SECONDS

Prints "ready" when it begins. Ends with code 1 where a load gives wrong bytes, where the files'
sizes add up to more than the cap, or where it could not do anything at all.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from holdover.cache.tiers.base import Record

from .blocks import block, disk, record

PARENTS = [bytes([i]) * 16 for i in range(4)]
N_RECORDS = 4000


def some_record(chance: random.Random) -> Record:
    i = chance.randrange(N_RECORDS)
    return record(i, group=i % 2, parent=PARENTS[i % 4], n_tokens=1 + i % 4)


def ours_bytes(folder: Path) -> int:
    """A file may go while we look."""
    total = 0
    for entry in os.scandir(folder):
        try:
            total += entry.stat().st_size
        except FileNotFoundError:
            continue
    return total


def main(folder: Path, cap_bytes: int, seed: int, seconds: float) -> None:
    chance = random.Random(seed)
    tier = disk(folder, cap_bytes, settings={"refresh_s": 0.02})
    asked, n_loaded = {}, 0
    print("ready", flush=True)
    until_s = time.monotonic() + seconds

    def take(ticket: int, data: memoryview | None, reason: str) -> None:
        nonlocal n_loaded
        one = asked.pop(ticket)
        assert data is None or data == block(one), "wrong bytes"
        n_loaded += data is not None

    while time.monotonic() < until_s:
        one = some_record(chance)
        what = chance.random()
        if what < 0.6:
            tier.store(one, memoryview(block(one)))
        elif what < 0.98:
            for found in [one, *list(tier.runs(one.parent))[:3]]:
                if (ticket := tier.load(found)) is not None:
                    asked[ticket] = found
        else:
            tier.delete(one)
        tier.poll(take)
        if chance.random() < 0.02:
            held = ours_bytes(folder)
            assert held <= cap_bytes, f"{held} bytes under a cap of {cap_bytes}"
            time.sleep(0.001)
    deadline_s = time.monotonic() + 20
    while asked and time.monotonic() < deadline_s:
        tier.poll(take)
        time.sleep(0.001)
    assert not asked, "a load did not end"
    tier.close(20)
    stats = tier.stats()
    print(f"stored {stats.stored_blocks} loaded {n_loaded} evicted {stats.evicted_blocks}")
    assert stats.stored_blocks > 20, stats
    assert n_loaded > 20, stats


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
