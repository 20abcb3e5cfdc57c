"""Simulated tiers beside the real ones: the same caps and blocks, and loads as slow as a link."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from holdover.cache.tiers import disk, ram
from holdover.cache.tiers.base import Record, TierSpec, Transcoder
from holdover.codecs.base import uniform
from holdover.errors import ConfigError
from holdover.simulate.costs import LinkCosts
from holdover.simulate.tiers import Clock, SimulatedDisk, SimulatedRam, simulated_tiers
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full

LAYERS = (LayerSpec(attention_planes(2, 64), Full()),)
LAYOUT = CacheLayout.of(CacheSpec.of(LAYERS, 16), uniform("bf16"))
BLOCK_BYTES = LAYOUT.blocks[0].nbytes
NOTHING = memoryview(b"")


def record(number: int) -> Record:
    key = hashlib.blake2b(b"%d" % number, digest_size=16).digest()
    return Record(key, b"\0" * 16, b"\1\0\0\0" * 16, 0)


def made(
    kind: str, cap_bytes: int, rate: float = 1e9
) -> tuple[SimulatedRam | SimulatedDisk, Clock]:
    clock = Clock()
    spec = TierSpec(kind, cap_bytes, path=".")
    [tier] = simulated_tiers((spec,), LAYOUT, clock, LinkCosts({kind: rate}))
    return tier, clock


def held(tier: object, n: int) -> list[int]:
    return [i for i in range(n) if tier.holds(record(i).key, 0)]  # type: ignore[attr-defined]


def test_a_load_takes_what_the_link_takes() -> None:
    tier, clock = made("ram", 8 * BLOCK_BYTES, rate=BLOCK_BYTES)
    taken = []
    for i in range(3):
        assert tier.store(record(i), NOTHING)
    tickets = [tier.load(record(i)) for i in range(3)]
    assert tier.load(record(9)) is None
    for now_s, n_ended in ((0.9, 0), (1.0, 1), (2.5, 2), (3.0, 3)):
        clock.now_s = now_s
        tier.poll(lambda ticket, data, why: taken.append((ticket, why)))
        assert taken == [(ticket, "") for ticket in tickets[:n_ended]]
    assert tier.loads.link.moved_bytes == 3 * BLOCK_BYTES
    assert tier.stats().read_bytes_per_s == BLOCK_BYTES


def test_what_was_evicted_meanwhile_is_not_given() -> None:
    for kind, cap_bytes in (("ram", 2 * BLOCK_BYTES), ("disk", 1 << 20)):
        tier, clock = made(kind, cap_bytes, rate=1.0)
        tier.store(record(0), NOTHING)
        clock.now_s = 1.0
        assert tier.load(record(0)) is not None
        tier.delete(record(0))
        clock.now_s = 1e9
        taken = []
        tier.poll(lambda ticket, data, why, taken=taken: taken.append((data, why)))
        [(data, why)] = taken
        assert data is None
        assert "evicted" in why


def untranscoded(stored: CacheLayout) -> Transcoder:
    raise AssertionError("a tier without a codec of its own asks for no transcoder")


def test_ram_keeps_what_the_real_one_keeps() -> None:
    spec = TierSpec("ram", 5 * BLOCK_BYTES + 1)
    real = ram.create(spec, LAYOUT, b"", untranscoded)
    tier, _ = made("ram", spec.cap_bytes)
    for i in (0, 1, 2, 3, 4, 0, 5, 6, 1, 7):
        for one, block in ((real, memoryview(bytes(BLOCK_BYTES))), (tier, NOTHING)):
            assert one.store(record(i), block)
    assert held(tier, 8) == held(real, 8)
    assert tier.stats().held_bytes == real.stats().held_bytes == 5 * BLOCK_BYTES
    assert tier.stats().evicted_blocks == real.stats().evicted_blocks


@pytest.mark.parametrize("cap_bytes", [1 << 20, 3 << 20])
def test_the_disk_keeps_what_the_real_one_keeps(tmp_path: Path, cap_bytes: int) -> None:
    """Blocks stored one after the other, until segments have gone: the same are left."""
    n = 3 * cap_bytes // BLOCK_BYTES
    spec = TierSpec("disk", cap_bytes, path=str(tmp_path))
    settings = disk.Settings(write_bytes_per_s=1e12, staged_bytes=n * 2 * BLOCK_BYTES)
    real = disk.Disk(spec, LAYOUT, b"", settings)
    tier, clock = made("disk", cap_bytes)
    for i in range(n):
        clock.now_s += 1.0
        assert tier.store(record(i), NOTHING)
        assert real.store(record(i), memoryview(bytes(BLOCK_BYTES)))
    clock.now_s += 1.0
    real.close(60)
    assert held(tier, n) == held(real, n)
    assert tier.stats().evicted_blocks == real.stats().evicted_blocks > 0
    assert tier.stats().held_bytes <= cap_bytes
    assert abs(tier.stats().held_bytes - real.stats().held_bytes) < 4096


def test_the_disk_takes_no_more_than_it_writes() -> None:
    tier, clock = made("disk", 64 << 20)
    n_taken = next(i for i in range(10_000) if not tier.store(record(i), NOTHING))
    assert n_taken * BLOCK_BYTES == pytest.approx(disk.Settings().staged_bytes, rel=0.05)
    assert not held(tier, 10), "what waits to be written cannot be read"
    clock.now_s = 60.0
    assert len(held(tier, n_taken)) == n_taken
    assert tier.stats().refused_stores == 1


def test_a_segment_that_is_used_outlives_one_that_is_not() -> None:
    tier, clock = made("disk", 1 << 20)
    n = (1 << 20) // BLOCK_BYTES
    for i in range(3 * n):
        clock.now_s += 1.0
        tier.store(record(0) if i % 3 else record(i), NOTHING)
    assert held(tier, 1) == [0]


def test_sizes_that_hold_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="holds no block"):
        made("ram", BLOCK_BYTES - 1)
    with pytest.raises(ConfigError, match="hold no block of each kind"):
        made("disk", BLOCK_BYTES)
    requantised = TierSpec("ram", 1 << 30, codec="int4")
    with pytest.raises(ConfigError, match="int4 cannot be simulated; give ram:SIZE"):
        simulated_tiers((requantised,), LAYOUT, Clock(), LinkCosts({"ram": 1.0}))
