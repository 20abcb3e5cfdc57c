"""`holdover doctor` finds what is wrong, and what is right it does not touch."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from holdover.cache import selftest
from holdover.cache.prefix import PrefixIndex
from holdover.cache.selftest import problems_of, small_layout
from holdover.cache.tiers import disk
from holdover.cache.tiers._open import open_tiers, parse_tiers
from holdover.cache.tiers.base import Transcoder
from holdover.cli.app import build_app
from holdover.codecs.base import uniform
from holdover.kernels._transcoding import transcoder
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full


def transcoder_to(stored: CacheLayout) -> Transcoder:
    return transcoder(small_layout(), {}, stored, {})


def doctor(*tiers: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(), ["doctor", *tiers])
    return result.exit_code, result.output


def fill(folder: Path, key: str = "") -> list[Path]:
    """A directory with blocks of some model; its segments."""
    [spec] = parse_tiers([f"disk:{folder}:8MiB{key}"])
    layout = selftest.small_layout()
    tier = open_tiers([spec], layout, b"some model", transcoder_to)[0]
    server = selftest._Server(tier, b"some model", b"salt")
    server.compute(selftest.PROMPT, "tenant")
    tier.close(5)
    return sorted(folder.glob("*.segment"))


def test_tiers_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    for ram in ("ram:16MiB", "ram:16MiB:int8"):
        assert doctor(ram)[0] == 0
    code, text = doctor(f"disk:{folder}:8MiB")
    assert (code, "is not there yet" in text) == (0, True), text
    fill(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    code, text = doctor(f"disk:{folder}:8MiB")
    assert code == 0, text
    assert "1 segments, 5 blocks" in text
    assert "find only what is theirs" in text
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.parametrize("head_dim", [16, 128])
def test_encrypted_blocks_are_checked_without_their_key(
    head_dim: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 512 bytes, and of a whole page, which a tag does not fit into."""
    layers = (LayerSpec(attention_planes(1, head_dim), Full()),)
    layout = CacheLayout.of(CacheSpec.of(layers, selftest.BLOCK_TOKENS), uniform("fp32"))
    monkeypatch.setattr(selftest, "small_layout", lambda: layout)
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    [segment] = fill(tmp_path / "kv", f":key={key}")
    code, text = doctor(f"disk:{tmp_path / 'kv'}:8MiB")
    assert (code, "5 blocks" in text) == (0, True), text
    damage(segment)
    assert doctor(f"disk:{tmp_path / 'kv'}:8MiB")[0] == 1


def damage(segment: Path) -> None:
    """Of a slot's bytes; slots are filled from the first on."""
    data = bytearray(segment.read_bytes())
    used = np.flatnonzero(np.frombuffer(data, np.uint8))
    data[used[-1]] ^= 0xFF
    segment.write_bytes(data)


@pytest.mark.parametrize("what", ["block", "header", "readable", "writable", "cap", "cut"])
def test_what_is_wrong_is_named(tmp_path: Path, what: str) -> None:
    folder, cap = tmp_path / "kv", "8MiB"
    [segment] = fill(folder)
    expected = {
        "block": "blocks differ from their checksums",
        "header": "header's checksum differs",
        "readable": "others can read it",
        "writable": "others can write",
        "cap": "more than",
        "cut": "its length differs",
    }[what]
    if what == "block":
        damage(segment)
    elif what == "header":
        segment.write_bytes(b"X" + segment.read_bytes()[1:])
    elif what == "readable":
        segment.chmod(0o644)
    elif what == "writable":
        folder.chmod(0o777)
    elif what == "cap":
        cap = "64KiB"
    else:
        os.truncate(segment, segment.stat().st_size - 1)
    code, text = doctor(f"disk:{folder}:{cap}")
    assert (code != 0, expected in text) == (True, True), text


def test_a_tier_that_forgets_the_tenant_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = PrefixIndex.root
    monkeypatch.setattr(PrefixIndex, "root", lambda self, tenant: root(self, "everyone"))
    [spec] = parse_tiers([f"disk:{tmp_path / 'kv'}:8MiB"])
    found = problems_of(lambda identity: disk.create(spec, small_layout(), identity, transcoder_to))
    assert found == ["another tenant can read what a tenant stored"]
