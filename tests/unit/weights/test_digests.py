"""Digests of large files: read once, and again as soon as anything about the file changes."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from holdover.weights import _digests
from holdover.weights._digests import LEAST_BYTES, memo_path, remembered_digest
from holdover.weights.base import content_digest


class Hashing:
    def __init__(self) -> None:
        self.n = 0

    def __call__(self, path: Path) -> bytes:
        self.n += 1
        return content_digest(path)


@pytest.fixture
def hashing() -> Hashing:
    return Hashing()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of random bytes, old enough to be remembered; a memo of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(_digests, "_SETTLED_NS", -(10**12))
    path = tmp_path / "model.gguf"
    path.write_bytes(os.urandom(LEAST_BYTES + 1))
    return path


def test_hashed_once_and_the_memo_is_the_users_alone(model: Path, hashing: Hashing) -> None:
    first = remembered_digest(model, hashing)
    assert first == content_digest(model)
    assert [remembered_digest(model, hashing) for _ in range(3)] == [first] * 3
    assert hashing.n == 1
    assert stat.S_IMODE(memo_path().stat().st_mode) == 0o600
    assert os.listdir(memo_path().parent) == [memo_path().name]
    link = model.with_name("link.gguf")
    link.symlink_to(model)
    assert (remembered_digest(link, hashing), hashing.n) == (first, 1)


def test_a_flipped_byte_is_another_digest(model: Path, hashing: Hashing) -> None:
    first = remembered_digest(model, hashing)
    state = model.stat()
    with model.open("r+b") as file:
        file.seek(LEAST_BYTES // 2)
        byte = file.read(1)[0]
        file.seek(LEAST_BYTES // 2)
        file.write(bytes([byte ^ 1]))
    os.utime(model, ns=(state.st_atime_ns, state.st_mtime_ns))  # whoever did it hides it
    assert remembered_digest(model, hashing) != first
    assert hashing.n == 2


def test_another_file_of_the_same_name_size_and_time(model: Path, hashing: Hashing) -> None:
    first, state = remembered_digest(model, hashing), model.stat()
    other = model.with_name("other")
    other.write_bytes(os.urandom(state.st_size))
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    other.replace(model)
    assert remembered_digest(model, hashing) == content_digest(model) != first


def test_what_was_just_changed_is_not_remembered(
    model: Path, hashing: Hashing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_digests, "_SETTLED_NS", 2 * 10**9)
    remembered_digest(model, hashing)
    remembered_digest(model, hashing)
    assert hashing.n == 2


@pytest.mark.parametrize("damage", ["cut", "flip", "form", "empty", "others", "link", "folder"])
def test_a_memo_that_cannot_be_believed_is_ignored_with_a_reason(
    model: Path, hashing: Hashing, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(_digests._log, "warning", lambda text, *told: said.append(text % told))
    first, memo = remembered_digest(model, hashing), memo_path()
    content = memo.read_bytes()
    if damage == "cut":
        memo.write_bytes(content[:-20])
    elif damage == "flip":
        at = content.index(first.hex().encode())
        other = b"0" if content[at : at + 1] != b"0" else b"1"
        memo.write_bytes(content[:at] + other + content[at + 1 :])
    elif damage == "form":
        memo.write_text(json.dumps({"version": 1, "files": [1], "check": None}))
    elif damage == "empty":
        memo.write_bytes(b"")
    elif damage == "others":
        memo.chmod(0o666)
    elif damage == "link":
        memo.rename(memo.with_name("elsewhere"))
        memo.symlink_to("elsewhere")
    else:
        memo.unlink()
        memo.mkdir()
    assert remembered_digest(model, hashing) == first
    assert hashing.n == 2
    assert said
    assert all("is ignored, models are hashed again: " in line for line in said)


def test_a_folder_that_cannot_be_written_only_costs_time(
    model: Path, hashing: Hashing, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model.parent / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(model.parent / "file"))
    assert remembered_digest(model, hashing) == content_digest(model)
