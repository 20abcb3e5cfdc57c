"""Digests of large files, remembered for as long as a file is the same one, unchanged.

A file is known by its real path, size, times of its last change, inode and device; one that was
changed a moment ago is not remembered, for it may change again within a tick of the clock. The
memo is the user's own, in a file that nobody else may write to. Whatever is wrong with it, the file
is hashed again: a memo can only save time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from holdover.files import cache_folder, reading

_log = logging.getLogger(__name__)
LEAST_BYTES = 1 << 20  # less is hashed at once
_SETTLED_NS = 2 * 10**9
_MOST_FILES = 256
_MOST_MEMO_BYTES = 1 << 20
_VERSION = 1

Files = dict[str, tuple[list[int], str]]
"""By real path: what the file is known by, and its digest in hex."""


class _BadMemoError(Exception):
    """Its text says what is wrong."""


def remembered_digest(path: Path, digest_of: Callable[[Path], bytes]) -> bytes:
    """`digest_of(path)`, or what it was last time. Raises ModelFileError for an unreadable file."""
    with reading(path):
        before = os.stat(path)
    if before.st_size < LEAST_BYTES:
        return digest_of(path)
    name, known_by = os.path.realpath(path), _known_by(before)
    found = _read().get(name)
    if found is not None and found[0] == known_by:
        return bytes.fromhex(found[1])
    began_ns = time.time_ns()
    digest = digest_of(path)
    with reading(path):
        after = os.stat(path)
    changed_ns = max(before.st_mtime_ns, before.st_ctime_ns)
    if _known_by(after) == known_by and changed_ns < began_ns - _SETTLED_NS:
        _remember(name, known_by, digest)
    return digest


def memo_path() -> Path:
    return cache_folder() / "digests.json"


def _known_by(found: os.stat_result) -> list[int]:
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]


def _read() -> Files:
    """Nothing where there is no memo, or one that cannot be believed."""
    try:
        return _parsed(_content())
    except FileNotFoundError:
        return {}
    except (OSError, _BadMemoError) as error:
        reason = getattr(error, "strerror", None) or error
        _log.warning("%s is ignored, models are hashed again: %s", memo_path(), reason)
        return {}


def _content() -> bytes:
    fd = os.open(memo_path(), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise _BadMemoError("it is no file")
        if state.st_uid != os.getuid() or state.st_mode & 0o022:
            raise _BadMemoError("others can write to it")
        return file.read(_MOST_MEMO_BYTES + 1)


def _parsed(content: bytes) -> Files:
    try:
        memo = json.loads(content)
        files = memo["files"]
        if memo["version"] != _VERSION or memo["check"] != _check(files):
            raise _BadMemoError("it is damaged, or of another version")
        for _, digest in files.values():
            bytes.fromhex(digest)
        return {name: (known_by, digest) for name, (known_by, digest) in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _BadMemoError("it is damaged") from error


def _remember(name: str, known_by: list[int], digest: bytes) -> None:
    files = _read()
    files.pop(name, None)
    files[name] = (known_by, digest.hex())
    kept: dict[str, Any] = {n: list(files[n]) for n in list(files)[-_MOST_FILES:]}
    memo = {"version": _VERSION, "files": kept, "check": _check(kept)}
    draft = memo_path().with_name(f"digests.{os.getpid()}.{time.monotonic_ns()}.new")
    try:
        draft.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "w") as file:
                json.dump(memo, file)
            os.replace(draft, memo_path())
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
    except OSError as error:
        _log.info("the digest of %s is not remembered: %s", name, error.strerror or error)


def _check(files: Any) -> str:
    return blake2b(json.dumps(files).encode(), digest_size=16).hexdigest()
