"""Records whose blocks follow from their keys, and the waiting that tests of a tier need."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from holdover.cache.tiers.base import Record, Tier, TierSpec
from holdover.cache.tiers.disk import Disk, Settings
from holdover.codecs.base import uniform
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full, Window

IDENTITY = b"weights, layout and all that"
BLOCK_TOKENS = 4
ROOT = b"r" * 16
MIB = 1 << 20
FAST = Settings(write_bytes_per_s=1e12, refresh_s=0.05)


def layout(n_layers: int = 1, dim: int = 8) -> CacheLayout:
    """Two groups, a full and a window one; blocks of 256 bytes a layer at 8 dims."""
    planes = attention_planes(1, dim)
    layers = tuple(LayerSpec(planes, r) for r in (Full(), Window(8)) for _ in range(n_layers))
    return CacheLayout.of(CacheSpec.of(layers, BLOCK_TOKENS), uniform("fp32"))


LAYOUT = layout()
BIG = layout(n_layers=4, dim=256)  # 32 KiB


def record(i: int, group: int = 0, parent: bytes = ROOT, n_tokens: int = BLOCK_TOKENS) -> Record:
    tokens = np.arange(i, i + n_tokens, dtype="<i4").tobytes()
    return Record(hashlib.blake2b(b"%d" % i, digest_size=16).digest(), parent, tokens, group)


def block(record: Record, layout: CacheLayout = LAYOUT) -> bytes:
    """Its bytes: no other record's."""
    seed = int.from_bytes(record.key, "little") * 4 + record.group
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, layout.blocks[record.group].nbytes, dtype=np.uint8).tobytes()


def spec(folder: Path, cap_bytes: int = 4 * MIB, key: Path | None = None) -> TierSpec:
    path = None if key is None else str(key)
    return TierSpec("disk", cap_bytes, path=str(folder), key_path=path)


def disk(folder: Path, cap_bytes: int = 4 * MIB, **others: object) -> Disk:
    """A tier that keeps no one waiting; `others`: layout, identity, settings, files, key."""
    where = spec(folder, cap_bytes, others.pop("key", None))  # type: ignore[arg-type]
    shape = others.pop("layout", LAYOUT)
    identity = others.pop("identity", IDENTITY)
    settings = replace(FAST, **others.pop("settings", {}))  # type: ignore[arg-type]
    return Disk(where, shape, identity, settings, **others)  # type: ignore[arg-type]


def until(is_so: Callable[[], object], wait_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + wait_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not come to be"
        time.sleep(0.002)


def store(tier: Tier, records: Iterable[Record], layout: CacheLayout = LAYOUT) -> None:
    """And wait until they are held."""
    records = list(records)
    for one in records:
        data = memoryview(block(one, layout))
        until(lambda one=one, data=data: tier.store(one, data))
    for one in records:
        until(lambda one=one: tier.holds(one.key, one.group))


def load(tier: Tier, records: Iterable[Record], wait_s: float = 20.0) -> list[bytes | str]:
    """Each one's bytes, or the reason why not."""
    records = list(records)
    tickets = [tier.load(one) for one in records]
    ended: dict[int, bytes | str] = {}

    def take(ticket: int, data: memoryview | None, reason: str) -> None:
        assert ticket not in ended, "a load has ended twice"
        assert (data is None) == bool(reason)
        ended[ticket] = reason if data is None else bytes(data)

    def all_ended() -> bool:
        tier.poll(take)
        return all(ticket is None or ticket in ended for ticket in tickets)

    until(all_ended, wait_s)
    return ["not held" if ticket is None else ended[ticket] for ticket in tickets]


def outcome(tier: Tier, records: Iterable[Record], layout: CacheLayout = LAYOUT) -> list[bool]:
    """Which of them are loaded; that no wrong byte ever is, is asserted here."""
    records = list(records)
    got = load(tier, records)
    for one, data in zip(records, got, strict=True):
        assert isinstance(data, str) or data == block(one, layout), "wrong bytes"
    return [isinstance(data, bytes) for data in got]


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.segment"))


def held_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
