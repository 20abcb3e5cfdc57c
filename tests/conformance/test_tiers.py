"""Every tier, by its name: what is stored comes back as it was or not at all, and nothing waits.

A tier may lose blocks at any time; these tests give it room enough, so that one that loses what it
was given fails.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdover.cache.tiers.base import KEY_BYTES, Record, Tier, TierModule, TierSpec, Transcoder
from holdover.codecs.base import uniform
from holdover.errors import ConfigError
from holdover.kernels._transcoding import transcoder
from holdover.registry import load_plugin, plugin_names
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full, Window

PACKAGE = "holdover.cache.tiers"
BLOCK_TOKENS = 4
CAP = "8MiB"
CODEC = "int4"  # of a kind that can store blocks requantised
CAP_BYTES = 8 << 20
ROOT = b"r" * KEY_BYTES
WAIT_S = 30.0
AT_ONCE_S = 0.5  # no method may take longer, whatever else runs on the machine


def make_layout() -> CacheLayout:
    residencies = (Full(), Full(), Window(8))
    layers = tuple(LayerSpec(attention_planes(1, 32), residency) for residency in residencies)
    return CacheLayout.of(CacheSpec.of(layers, BLOCK_TOKENS), uniform("bf16"))


LAYOUT = make_layout()


def takes_a_codec(name: str) -> bool:
    try:
        return load_plugin(PACKAGE, name).parse(f"{CAP}:{CODEC}").codec is not None
    except ConfigError:
        return False


NAMES = plugin_names(PACKAGE)
KINDS = [*NAMES, *(f"{name}:{CODEC}" for name in NAMES if takes_a_codec(name))]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def module(kind: str) -> TierModule:
    return load_plugin(PACKAGE, kind.partition(":")[0])


@pytest.fixture
def spec(kind: str, module: TierModule, tmp_path: Path) -> TierSpec:
    """A tier of CAP; a kind that needs a place refuses the size alone."""
    if kind.endswith(f":{CODEC}"):
        return module.parse(f"{CAP}:{CODEC}")
    try:
        return module.parse(CAP)
    except ConfigError:
        return module.parse(f"{tmp_path / 'place'}:{CAP}")


def to_stored(stored: CacheLayout) -> Transcoder:
    return transcoder(LAYOUT, {}, stored, {})


def create(module: TierModule, spec: TierSpec, identity: bytes = b"identity") -> Tier:
    return module.create(spec, LAYOUT, identity, to_stored)


@pytest.fixture
def tier(module: TierModule, spec: TierSpec) -> Iterator[Tier]:
    tier = create(module, spec)
    yield tier
    tier.close(5)


def record(i: int, group: int = 0, parent: bytes = ROOT, n_tokens: int = BLOCK_TOKENS) -> Record:
    tokens = np.arange(i, i + n_tokens, dtype="<i4").tobytes()
    return Record(hashlib.blake2b(b"%d" % i, digest_size=KEY_BYTES).digest(), parent, tokens, group)


def block(one: Record) -> bytes:
    """Numbers that any codec may store: a block of bf16 values between -1 and 1."""
    rng = np.random.default_rng(int.from_bytes(one.key[:7], "little") + one.group)
    values = rng.uniform(-1, 1, LAYOUT.blocks[one.group].nbytes // 2).astype("<f4")
    return (values.view("<u4") >> 16).astype("<u2").tobytes()


def until(is_so: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not come to be"
        time.sleep(0.002)


def store(tier: Tier, *records: Record) -> None:
    for one in records:
        until(lambda one=one: tier.store(one, memoryview(block(one))))
    for one in records:
        until(lambda one=one: tier.holds(one.key, one.group))


def load(tier: Tier, *records: Record) -> list[bytes | None]:
    tickets = [tier.load(one) for one in records]
    known = [ticket for ticket in tickets if ticket is not None]
    assert len(set(known)) == len(known), "a ticket was given twice"
    ended: dict[int, bytes | None] = {}

    def take(ticket: int, data: memoryview | None, reason: str) -> None:
        assert ticket in known
        assert ticket not in ended
        assert (data is None) == bool(reason), "either bytes or a reason"
        ended[ticket] = None if data is None else bytes(data)

    until(lambda: tier.poll(take) or len(ended) == len(known))
    return [None if ticket is None else ended[ticket] for ticket in tickets]


def same(data: bytes | None, one: Record, spec: TierSpec) -> bool:
    """A tier that stores in another form gives back what that form keeps."""
    if data is None or spec.codec is None:
        return data == block(one)
    found, stored = (np.frombuffer(b, "<u2").astype("<u4") << 16 for b in (data, block(one)))
    error = found.view("<f4") - stored.view("<f4")
    return bool(0 < np.square(error).mean() < 0.05**2)


def test_it_has_its_files_name(module: TierModule, spec: TierSpec, tier: Tier) -> None:
    assert tier.name == spec.kind == module.__name__.rpartition(".")[2]  # type: ignore[attr-defined]
    assert spec.cap_bytes == CAP_BYTES == tier.stats().cap_bytes


def test_a_stored_block_is_held_and_loaded(tier: Tier, spec: TierSpec) -> None:
    records = [record(i, i % 2, n_tokens=1 + i % BLOCK_TOKENS) for i in range(20)]
    assert not any(tier.holds(one.key, one.group) for one in records)
    store(tier, *records)
    for one, data in zip(records, load(tier, *records), strict=True):
        assert same(data, one, spec)
    stats = tier.stats()
    assert (stats.blocks, stats.stored_blocks, stats.loaded_blocks) == (20, 20, 20)
    assert (stats.failed_loads, stats.evicted_blocks, stats.trouble) == (0, 0, None)
    assert 0 < stats.held_bytes <= stats.cap_bytes
    assert stats.read_bytes_per_s > 0


def test_the_block_is_copied_when_it_is_stored(tier: Tier, spec: TierSpec) -> None:
    data = bytearray(block(record(1)))
    until(lambda: tier.store(record(1), memoryview(data)))
    data[:] = bytes(len(data))
    until(lambda: tier.holds(record(1).key, 0))
    assert same(load(tier, record(1))[0], record(1), spec)


def test_groups_of_one_key_are_apart(tier: Tier, spec: TierSpec) -> None:
    store(tier, record(1, group=1))
    assert not tier.holds(record(1).key, 0)
    assert load(tier, record(1, group=0)) == [None]
    store(tier, record(1, group=0))
    both = record(1, group=0), record(1, group=1)
    assert all(same(data, one, spec) for one, data in zip(both, load(tier, *both), strict=True))


def test_runs_are_those_right_after_the_parent_latest_first(tier: Tier) -> None:
    order = [record(i, group=i % 2) for i in (3, 1, 4, 1, 5)]
    for one in order:
        store(tier, one)
    store(tier, record(9, parent=order[0].key))
    assert list(tier.runs(ROOT)) == [order[4], order[2], order[1], order[0]]
    assert list(tier.runs(order[0].key)) == [record(9, parent=order[0].key)]
    assert list(tier.runs(b"nobody's parent.")) == []


def test_what_is_held_already_is_not_taken_again(tier: Tier) -> None:
    store(tier, record(1))
    before = tier.stats()
    for _ in range(5):
        assert tier.store(record(1), memoryview(block(record(1))))
    time.sleep(0.05)
    after = tier.stats()
    assert (after.blocks, after.stored_blocks) == (before.blocks, before.stored_blocks) == (1, 1)


def test_what_is_not_held_is_not_loaded(tier: Tier) -> None:
    store(tier, record(1))
    assert tier.load(record(2)) is None
    other_tokens = Record(record(1).key, ROOT, record(2).tokens, 0)
    other_parent = Record(record(1).key, b"p" * KEY_BYTES, record(1).tokens, 0)
    assert load(tier, other_tokens, other_parent) == [None, None]


def test_hundreds_of_loads_at_once(tier: Tier, spec: TierSpec) -> None:
    records = [record(i) for i in range(100)]
    store(tier, *records)
    wanted = [one for _ in range(4) for one in records]
    random.Random(1).shuffle(wanted)
    assert all(same(d, one, spec) for one, d in zip(wanted, load(tier, *wanted), strict=True))


def test_a_buffer_is_the_tiers_again_after_take_even_where_take_raises(tier: Tier) -> None:
    store(tier, record(1))

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    for _ in range(100):  # more than there are buffers
        assert tier.load(record(1)) is not None
        with pytest.raises(ZeroDivisionError):
            until(lambda: tier.poll(broken))
    assert load(tier, record(1)) != [None]


def test_deleted_for_good(tier: Tier) -> None:
    store(tier, record(1), record(2))
    tier.delete(record(1))
    until(lambda: tier.stats().blocks == 1)
    assert not tier.holds(record(1).key, 0)
    assert tier.load(record(1)) is None
    assert list(tier.runs(ROOT)) == [record(2)]
    assert load(tier, record(2)) != [None]
    tier.delete(record(7))  # that is not there
    store(tier, record(1))
    assert load(tier, record(1)) != [None]


def test_the_cap_is_never_passed_and_the_latest_stay(tier: Tier, spec: TierSpec) -> None:
    n, stop = 0, CAP_BYTES // min(LAYOUT.blocks[0].nbytes, tier.stored_bytes(0)) + 100
    while n < stop:
        one = record(n)
        until(lambda one=one: tier.store(one, memoryview(block(one))))
        n += 1
        if n % 64 == 0:
            stats = tier.stats()
            assert stats.held_bytes <= CAP_BYTES
            if stats.evicted_blocks:
                stop = min(stop, n + 200)
    until(lambda: tier.holds(record(n - 1).key, 0))
    kept = sum(tier.holds(record(i).key, 0) for i in range(n))
    stats = tier.stats()
    assert kept == stats.blocks < n
    assert stats.evicted_blocks == n - kept
    assert stats.held_bytes <= CAP_BYTES
    assert same(load(tier, record(n - 1))[0], record(n - 1), spec)
    assert not tier.holds(record(0).key, 0)


def test_another_identity_sees_nothing(module: TierModule, spec: TierSpec, tier: Tier) -> None:
    store(tier, record(1))
    other = create(module, spec, b"another identity")
    assert not other.holds(record(1).key, 0)
    assert list(other.runs(ROOT)) == []
    assert other.load(record(1)) is None
    other.close(5)


def test_no_method_waits(tier: Tier) -> None:
    longest_s = 0.0
    data = memoryview(block(record(0)))
    for i in range(300):
        for call in (
            lambda i=i: tier.store(record(i), data),
            lambda i=i: tier.load(record(i)),
            lambda i=i: tier.holds(record(i).key, 0),
            lambda: list(tier.runs(b"nobody's parent.")),
            lambda: tier.poll(lambda *_: None),
            lambda i=i: tier.delete(record(i - 50)),
            tier.stats,
        ):
            began_s = time.monotonic()
            call()
            longest_s = max(longest_s, time.monotonic() - began_s)
    assert longest_s < AT_ONCE_S


def test_closed(module: TierModule, spec: TierSpec) -> None:
    tier = create(module, spec)
    store(tier, record(1))
    tier.close(5)
    assert not tier.store(record(2), memoryview(block(record(2))))
    assert tier.load(record(1)) is None
    tier.poll(lambda *_: None)
    tier.close(5)


def test_memory_is_known_before(module: TierModule, spec: TierSpec, tier: Tier) -> None:
    assert module.buffer_bytes(spec, LAYOUT) == tier.buffer_bytes > 0


def test_it_says_what_it_stores_blocks_in(module: TierModule, spec: TierSpec, tier: Tier) -> None:
    assert tier.codec == tier.stats().codec == spec.codec
    if spec.codec is not None:
        assert all(tier.stored_bytes(g) < b.nbytes for g, b in enumerate(LAYOUT.blocks))


def test_what_is_pinned_goes_last(module: TierModule, spec: TierSpec) -> None:
    if spec.path is not None:
        pytest.skip("whole segments go: tests/unit/tiers/test_disk.py")
    tier = create(module, replace(spec, cap_bytes=1 << 17))
    pinned, n = [record(i) for i in range(20)], 100

    def crowd(n_evicted: int) -> None:
        nonlocal n
        stop = tier.stats().evicted_blocks + n_evicted
        while tier.stats().evicted_blocks < stop:
            one = record(n)
            until(lambda one=one: tier.store(one, memoryview(block(one))))
            n += 1

    store(tier, *pinned)
    for one in [*pinned, record(10**6)]:  # also one that never comes
        tier.pin(one, time.monotonic() + 1000)
    crowd(300)
    assert all(tier.holds(one.key, 0) for one in pinned)
    tier.pin(pinned[0], 0)
    tier.pin(pinned[1], time.monotonic() - 1)
    crowd(300)
    assert [tier.holds(one.key, 0) for one in pinned] == [False] * 2 + [True] * 18
    for i in range(100, n):
        tier.pin(record(i), time.monotonic() + 1000)
    crowd(10)  # nothing else is left
    tier.close(5)


@pytest.mark.parametrize("text", ["", "much", "12 apples", ":"])
def test_a_wrong_size_is_a_message(module: TierModule, text: str) -> None:
    with pytest.raises(ConfigError, match="--tiers"):
        module.parse(text)


def test_at_random(tier: Tier, spec: TierSpec) -> None:
    """Against a dictionary: nothing that was deleted or never stored, and never a wrong byte."""
    chance = random.Random(3)
    parents = [ROOT, b"q" * KEY_BYTES]
    everything = [record(i, i % 2, parents[i % 2], 1 + i % BLOCK_TOKENS) for i in range(60)]
    known: set[Record] = set()
    asked: dict[int, Record] = {}

    def take(ticket: int, data: memoryview | None, reason: str) -> None:
        one = asked.pop(ticket)
        assert data is None or same(bytes(data), one, spec)

    for _ in range(3000):
        one = chance.choice(everything)
        what = chance.random()
        if what < 0.3:
            if tier.store(one, memoryview(block(one))):
                known.add(one)
        elif what < 0.4:
            tier.delete(one)
            known.discard(one)
            assert not tier.holds(one.key, one.group)
        elif what < 0.7:
            if (ticket := tier.load(one)) is not None:
                assert one in known, "a block that was deleted, or never stored"
                asked[ticket] = one
        elif what < 0.8:
            assert set(tier.runs(one.parent)) <= {k for k in known if k.parent == one.parent}
        tier.poll(take)
    until(lambda: tier.poll(take) or not asked)
    until(lambda: all(tier.holds(one.key, one.group) for one in known))
    until(lambda: tier.stats().blocks == len(known))
    listed = {one for parent in parents for one in tier.runs(parent)}
    assert listed == known
