"""The disk tier: opening a directory of many blocks, and reading beside a plain sequential read.

    python benchmarks/tiers.py [--folder DIR] [--blocks 1000] [--entries 100000] [--rounds 5]

`index`: a new tier on a directory with that many blocks, whose payloads are holes: it must not
touch them. `read`: blocks of SmolLM2-135M (bf16) in the order in which they were stored, copied
into an arena of the benchmark's own, in turn with plain reads of the same files, 1 MiB at a time;
`cold`: after the files were synced and dropped from the page cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from holdover.cache.tiers._disk.files import Files
from holdover.cache.tiers.base import Record, TierSpec
from holdover.cache.tiers.disk import Disk, Settings
from holdover.codecs.base import uniform
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full
from holdover.units import format_bytes

PLAIN_READ_BYTES = 1 << 20
BLOCK_TOKENS = 16


class Sparse(Files):
    """Files whose payloads take no room, and are not written."""

    def allocate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def write(self, fd: int, data: memoryview | bytes, offset: int) -> None:
        if len(data) < PLAIN_READ_BYTES // 8:
            super().write(fd, data, offset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="where the disk to measure is mounted; default: /tmp")
    parser.add_argument("--blocks", type=int, default=1000)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    layers = (LayerSpec(attention_planes(3, 64), Full()),) * 30
    layout = CacheLayout.of(CacheSpec.of(layers, BLOCK_TOKENS), uniform("bf16"))
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        measure_index(layout, asked.entries, f"{folder}/index")
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        measure_read(layout, asked.blocks, asked.rounds, f"{folder}/read")


def chain(n: int) -> list[Record]:
    """Records of one long conversation."""
    keys = [os.urandom(16) for _ in range(n + 1)]
    tokens = np.random.default_rng(0).integers(0, 49152, (n, BLOCK_TOKENS), dtype="<i4")
    return [Record(keys[i + 1], keys[i], tokens[i].tobytes(), 0) for i in range(n)]


def fill(tier: Disk, records: list[Record], block: np.ndarray) -> None:
    for i, record in enumerate(records):
        block[:8] = np.frombuffer(i.to_bytes(8, "little"), np.uint8)
        while not tier.store(record, memoryview(block)):
            assert tier.stats().trouble is None, tier.stats().trouble
            time.sleep(0.0005)
    tier.close(wait_s=600)
    assert tier.stats().stored_blocks == len(records)


def measure_index(layout: CacheLayout, n: int, folder: str) -> None:
    cap_bytes = int(1.1 * n * layout.blocks[0].nbytes) + (64 << 20)
    spec, settings = TierSpec("disk", cap_bytes, path=folder), Settings(write_bytes_per_s=1e15)
    fill(Disk(spec, layout, b"", settings, Sparse()), chain(n), zeros(layout))
    drop_from_page_cache(folder)
    for what in ("cold", "cached"):
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        tier = Disk(spec, layout, b"")
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        assert tier.stats().blocks == n
        tier.close(wait_s=10)
        n_files = len(list(Path(folder).glob("*.segment")))
        print(
            f"index {what:6}  {n} blocks in {n_files} files: {took_s:.2f} s, {cpu_s:.2f} s of CPU"
        )


def measure_read(layout: CacheLayout, n: int, rounds: int, folder: str) -> None:
    block_bytes = layout.blocks[0].nbytes
    spec = TierSpec("disk", 2 * n * block_bytes + (64 << 20), path=folder)
    records, arena = chain(n), np.zeros(n * block_bytes, np.uint8)
    arena += 1  # its pages are there before anything is timed
    block = np.random.default_rng(1).integers(0, 256, block_bytes, dtype=np.uint8)
    fill(Disk(spec, layout, b"", Settings(write_bytes_per_s=1e12)), records, block)
    for what in ("cold", "cached"):
        rates: dict[str, list[float]] = {"plain": [], "tier": []}
        for _ in range(rounds):
            for name, read in (("plain", read_plain), ("tier", read_tier)):
                tier = Disk(spec, layout, b"")
                if what == "cold":
                    drop_from_page_cache(folder)
                began_s = time.perf_counter()
                n_bytes = read(folder, tier, records, arena)
                rates[name].append(n_bytes / (time.perf_counter() - began_s))
                tier.close(wait_s=10)
        plain, tier_rate = (statistics.median(r) for r in rates.values())
        print(
            f"read {what:7}  plain {plain / 1e6:6.0f} MB/s   tier {tier_rate / 1e6:6.0f} MB/s   "
            f"share {tier_rate / plain:.2f}   ({n} blocks of {format_bytes(block_bytes)})"
        )


def read_plain(folder: str, tier: Disk, records: list[Record], arena: np.ndarray) -> int:
    """As many bytes as there are blocks, into the arena."""
    rest = memoryview(arena)
    for path in sorted(Path(folder).glob("*.segment"), key=lambda p: p.stat().st_mtime_ns):
        with open(path, "rb", buffering=0) as file:
            while len(rest) and (n_bytes := file.readinto(rest[:PLAIN_READ_BYTES])):
                rest = rest[n_bytes:]
    return arena.nbytes - len(rest)


def read_tier(folder: str, tier: Disk, records: list[Record], arena: np.ndarray) -> int:
    block_bytes = len(arena) // len(records)
    places: dict[int, int] = {}
    n_ended = 0

    def take(ticket: int, block: memoryview | None, reason: str) -> None:
        nonlocal n_ended
        assert block is not None, reason
        at = places[ticket] * block_bytes
        arena[at : at + block_bytes] = np.frombuffer(block, np.uint8)
        n_ended += 1

    for i, record in enumerate(records):
        ticket = tier.load(record)
        assert ticket is not None
        places[ticket] = i
    while n_ended < len(records):
        tier.poll(take)
        time.sleep(0.0002)
    assert int.from_bytes(arena[-block_bytes:][:8].tobytes(), "little") == len(records) - 1
    return arena.nbytes


def drop_from_page_cache(folder: str) -> None:
    for path in Path(folder).iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def zeros(layout: CacheLayout) -> np.ndarray:
    return np.zeros(layout.blocks[0].nbytes, np.uint8)


if __name__ == "__main__":
    main()
