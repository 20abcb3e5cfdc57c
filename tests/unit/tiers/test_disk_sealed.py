"""Encryption at rest: nothing in the files can be read, and another key is like another model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdover.cache.tiers.disk import Disk
from holdover.errors import ConfigError

from .blocks import block, disk, outcome, record, segments, store

RECORDS = [record(1000 * i, group, n_tokens=3) for i in range(1, 9) for group in (0, 1)]


def key_file(tmp_path: Path, content: bytes, name: str = "key", mode: int = 0o600) -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    path.chmod(mode)
    return path


def sealed(tmp_path: Path, key: Path | None) -> Disk:
    return disk(tmp_path / "kv", key=key)


def test_neither_tokens_nor_keys_nor_blocks_can_be_read(tmp_path: Path) -> None:
    key = key_file(tmp_path, os.urandom(32))
    tier = sealed(tmp_path, key)
    store(tier, RECORDS)
    tier.close(5)
    content = b"".join(path.read_bytes() for path in (tmp_path / "kv").iterdir())
    for one in RECORDS:
        assert one.key not in content
        assert one.parent not in content
        assert one.tokens not in content
        assert block(one)[:32] not in content
        assert all(block(one)[at : at + 16] not in content for at in range(0, 240, 16))
    again = sealed(tmp_path, key)
    assert again.stats().blocks == len(RECORDS)
    assert all(outcome(again, RECORDS))
    again.close(5)


def test_the_same_block_twice_is_not_the_same_bytes(tmp_path: Path) -> None:
    key = key_file(tmp_path, os.urandom(32))
    contents = []
    for _ in range(2):
        tier = sealed(tmp_path, key)
        store(tier, [record(1)])
        (path,) = segments(tmp_path / "kv")
        contents.append(path.read_bytes()[4096:])
        tier.close(5)
        path.unlink()
    pages = [{c[at : at + 16] for at in range(0, len(c), 16)} - {bytes(16)} for c in contents]
    assert not pages[0] & pages[1]


def test_no_nonce_is_used_twice(tmp_path: Path) -> None:
    tier = sealed(tmp_path, key_file(tmp_path, os.urandom(32)))
    store(tier, RECORDS)
    nonces = []
    for one in RECORDS:
        found = tier._index.get(one.key, one.group)
        assert found is not None
        entry = found[0].entry(found[1])
        nonces += [entry["nonce"].tobytes(), entry["payload_nonce"].tobytes()]
    assert len(set(nonces)) == 2 * len(RECORDS)
    assert bytes(12) not in nonces
    tier.close(5)


def test_another_key_or_none_is_a_miss(tmp_path: Path) -> None:
    keys = [key_file(tmp_path, os.urandom(32), name) for name in ("one", "two")]
    tier = sealed(tmp_path, keys[0])
    store(tier, RECORDS)
    tier.close(5)
    for key in (keys[1], None):
        other = sealed(tmp_path, key)
        assert outcome(other, RECORDS) == [False] * len(RECORDS)
        assert other.stats().trouble is None
        store(other, RECORDS)  # each its own, side by side
        assert all(outcome(other, RECORDS))
        other.close(5)
    tier = sealed(tmp_path, keys[0])
    assert all(outcome(tier, RECORDS))
    tier.close(5)


def test_hex_and_raw_keys_are_the_same(tmp_path: Path) -> None:
    raw = os.urandom(32)
    tier = sealed(tmp_path, key_file(tmp_path, raw))
    store(tier, RECORDS)
    tier.close(5)
    tier = sealed(tmp_path, key_file(tmp_path, raw.hex().encode() + b"\n", "hex"))
    assert all(outcome(tier, RECORDS))
    tier.close(5)


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33, b"zz" * 32, b"\xff" * 64])
def test_no_key_in_the_file(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match="32 bytes nor 64 hex digits"):
        sealed(tmp_path, key_file(tmp_path, content))


def test_a_key_that_others_can_read(tmp_path: Path) -> None:
    for mode in (0o640, 0o604, 0o660):
        path = key_file(tmp_path, os.urandom(32), mode=mode)
        with pytest.raises(ConfigError, match=f"run: chmod 600 {path}"):
            sealed(tmp_path, path)


def test_no_key_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        sealed(tmp_path, tmp_path / "nothing")
