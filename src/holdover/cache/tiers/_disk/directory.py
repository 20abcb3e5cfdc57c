"""The directory that servers share: its lock, its secret, and its cap in bytes.

    FINGERPRINT-GROUP-RANDOM.segment   blocks; full size from the beginning
    RANDOM.new                         a file in the making, under the lock; else left by a crash
    lock, secret                       32 random bytes, from which tenants' salts are made

Only these are counted, and only these are ever removed. Room is made before a file is, under the
lock, so that their sizes never add up to more than the cap. Who evicts cuts the file to nothing
first: other servers that have it open give its room back too, and read a miss.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass

from holdover.cache.tiers._disk.files import FOLDER_MODE, Files, FileState, is_full
from holdover.cache.tiers._disk.format import FINGERPRINT_BYTES, SALT_BYTES, Format, SegmentFormat
from holdover.errors import ConfigError
from holdover.units import format_bytes

SECRET_BYTES = 32
FIELD = "--tiers"
_LOCK = "lock"
_SECRET = "secret"
_NAMED_BYTES = 8  # of the fingerprint
_SEGMENT = re.compile(rf"[0-9a-f]{{{2 * _NAMED_BYTES}}}-[0-9]{{1,3}}-[0-9a-f]{{16}}\.segment")
_NEW = re.compile(r"[0-9a-f]{16}\.new")
_LOCK_WAIT_S = 20.0
_LOCK_RETRY_S = 0.01
# A file marked as used later than this from now was marked by a clock that was wrong.
_CLOCK_SLACK_NS = 60 * 10**9


class NoRoomError(OSError):
    """The cap leaves no room, and nothing may be evicted."""


class BusyError(OSError):
    """Another server holds the directory's lock."""


@dataclass(frozen=True, slots=True)
class Made:
    """A new segment, locked by its descriptor."""

    name: str
    fd: int
    form: SegmentFormat
    inode: int


class Directory:
    def __init__(self, path: str, cap_bytes: int, files: Files) -> None:
        self.path = path
        self.cap_bytes = cap_bytes
        self._files = files
        self._device: int | None = None

    def prepare(self) -> None:
        """Make the folder if need be. Raises ConfigError for one that cannot be used."""
        try:
            os.makedirs(self.path, FOLDER_MODE, exist_ok=True)
            found = os.stat(self.path)
        except OSError as error:
            reason = f"disk: the folder {self.path} cannot be used: {error.strerror}"
            raise ConfigError(FIELD, reason) from error
        if not stat.S_ISDIR(found.st_mode):
            raise ConfigError(FIELD, f"disk: {self.path} is not a folder")
        if found.st_mode & 0o022:
            raise ConfigError(
                FIELD,
                f"disk: others can write to the folder {self.path}, and so to the answers; "
                f"run: chmod go-w {self.path}, or name a new folder in it",
            )
        self._device = found.st_dev

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def listing(self) -> dict[str, FileState]:
        """Our files, those in the making included. Raises OSError."""
        self._check_device()
        found = self._files.listing(self.path)
        return {name: state for name, state in found.items() if _is_ours(name)}

    @contextlib.contextmanager
    def locked(self, wait_s: float = _LOCK_WAIT_S) -> Iterator[None]:
        """Alone among all servers of this directory. Raises OSError."""
        deadline_s = time.monotonic() + wait_s
        self._check_device()
        while True:
            fd = self._files.open_mode(self.file(_LOCK), os.O_RDWR | os.O_CREAT)
            try:
                if self._files.try_lock(fd):
                    # Whoever cleans the folder makes two locks of one: only the named one counts.
                    if self._files.is_linked(fd):
                        yield
                        return
                elif time.monotonic() > deadline_s:
                    raise BusyError(f"another server holds {self.file(_LOCK)}")
            finally:
                self._files.close(fd)
            time.sleep(_LOCK_RETRY_S)

    def clean(self) -> None:
        """What a crash left goes, and what is above the cap. Raises OSError."""
        with self.locked():
            self._make_room(0)

    def make(self, shape: Format, n_slots: int, insist: bool) -> Made:
        """A new segment; evicts what must go for it. Raises OSError.

        A disk that is full below the cap is an error unless we `insist`: then what we have there
        makes room for itself.
        """
        size = shape.file_bytes(n_slots)
        with self.locked():
            self._make_room(size)
            try:
                return self._create(shape, n_slots)
            except OSError as error:
                if not insist or not is_full(error):
                    raise
                self._make_room(size, at_least=1)
                return self._create(shape, n_slots)

    def evict(self, name: str) -> bool:
        """Whether it went; not where a server is appending to it, or the disk refuses."""
        try:
            fd = self._files.open(self.file(name))
        except FileNotFoundError:
            return True
        try:
            if not self._files.try_lock(fd):
                return False
            self._files.truncate(fd)
            self._files.unlink(self.file(name))
        finally:
            self._files.close(fd)
        return True

    def _check_device(self) -> None:
        if self._device not in (None, self._files.device(self.path)):
            raise OSError(f"another disk stands at {self.path} than at the start")

    def _create(self, shape: Format, n_slots: int) -> Made:
        form, header = SegmentFormat.new(shape, n_slots, os.urandom(SALT_BYTES))
        name = segment_name(shape)
        new = self.file(f"{os.urandom(8).hex()}.new")
        fd = self._files.create(new)
        try:
            assert self._files.try_lock(fd), "a file that nobody else knows is locked"
            self._files.allocate(fd, shape.file_bytes(n_slots))
            self._files.write(fd, header, 0)
            self._files.rename(new, self.file(name))
        except BaseException:
            with contextlib.suppress(OSError):
                self._files.truncate(fd)
                self._files.unlink(new)
            self._files.close(fd)
            raise
        return Made(name, fd, form, self._files.state(fd).inode)

    def _make_room(self, n_bytes: int, at_least: int = 0) -> None:
        """Under the lock: evict until `n_bytes` more fit. Raises NoRoomError."""
        found = self._listed_clean()
        segments = {name: s for name, s in found.items() if _SEGMENT.fullmatch(name)}
        room_bytes = self.cap_bytes - held_bytes(found) - n_bytes
        if room_bytes < 0 or at_least:
            for name in sorted(segments, key=lambda n: self._turn(n, segments[n])):
                if room_bytes >= 0 and at_least <= 0:
                    break
                if self.evict(name):
                    room_bytes += segments[name].size
                    at_least -= 1
        if room_bytes < 0:
            raise NoRoomError(
                f"{format_bytes(self.cap_bytes - room_bytes - n_bytes)} of "
                f"{format_bytes(self.cap_bytes)} are in use by servers that run on this directory; "
                "give it more, or each server its own"
            )

    def _listed_clean(self) -> dict[str, FileState]:
        """Our files, after what a crash has left was removed and wrong clocks' marks corrected."""
        found = self.listing()
        now_ns = time.time_ns()
        for name, state in list(found.items()):
            if _NEW.fullmatch(name):
                self._files.unlink(self.file(name))
                del found[name]
            elif _SEGMENT.fullmatch(name) is None:
                continue
            elif not state.size:
                if self.evict(name):
                    del found[name]
            elif state.mtime_ns > now_ns + _CLOCK_SLACK_NS:
                self._files.touch(self.file(name), now_ns)  # it ages from now on
        return found

    def _turn(self, name: str, state: FileState) -> tuple[bool, int]:
        """Whose turn it is to be evicted: damaged files first, then the longest unused."""
        try:
            fd = self._files.open(self.file(name), os.O_RDONLY)
        except OSError:
            return False, state.mtime_ns
        try:
            header = bytearray(SegmentFormat.HEADER_BYTES)
            self._files.read(fd, [memoryview(header)], 0)
        except OSError:
            return False, state.mtime_ns
        finally:
            self._files.close(fd)
        return SegmentFormat.is_header(bytes(header)), state.mtime_ns


def held_bytes(found: dict[str, FileState]) -> int:
    """Of our files; the secret counts before it is there, for it may come at any time."""
    return sum(s.size for name, s in found.items() if name != _SECRET) + SECRET_BYTES


def segment_name(shape: Format) -> str:
    return f"{_prefix(shape)}{os.urandom(8).hex()}.segment"


def is_segment(name: str) -> bool:
    """Of anyone."""
    return _SEGMENT.fullmatch(name) is not None


def is_segment_of(name: str, shape: Format) -> bool:
    return name.startswith(_prefix(shape)) and _SEGMENT.fullmatch(name) is not None


def tenant_secret(path: str, files: Files | None = None) -> bytes:
    """32 random bytes of a directory, made once, the same for all servers of it and all time.

    Raises ConfigError.
    """
    files = files or Files()
    directory = Directory(path, 0, files)
    directory.prepare()
    name = directory.file(_SECRET)
    try:
        with contextlib.suppress(FileNotFoundError):
            return _read_secret(name, files)
        with directory.locked():
            with contextlib.suppress(FileNotFoundError):
                return _read_secret(name, files)
            new = directory.file(f"{os.urandom(8).hex()}.new")
            fd = files.create(new)
            try:
                files.write(fd, os.urandom(SECRET_BYTES), 0)
                os.fsync(fd)  # all that is kept depends on it
            finally:
                files.close(fd)
            files.rename(new, name)
            return _read_secret(name, files)
    except OSError as error:
        reason = f"disk: the secret of tenants {name} cannot be had: {error.strerror or error}"
        raise ConfigError(FIELD, reason) from error


def _read_secret(name: str, files: Files) -> bytes:
    fd = files.open(name, os.O_RDONLY)
    try:
        mode = os.fstat(fd).st_mode
        content = bytearray(SECRET_BYTES + 1)
        n_bytes = files.read(fd, [memoryview(content)], 0)
    finally:
        files.close(fd)
    if mode & 0o077:
        raise ConfigError(
            FIELD,
            f"disk: others can read the secret of tenants; run: rm {name} "
            "(what is stored there is then computed again)",
        )
    if n_bytes != SECRET_BYTES:
        raise ConfigError(
            FIELD, f"disk: {name} is damaged; run: rm {name} (what is stored is computed again)"
        )
    return bytes(content[:SECRET_BYTES])


def _is_ours(name: str) -> bool:
    if name in (_LOCK, _SECRET):
        return True
    return _SEGMENT.fullmatch(name) is not None or _NEW.fullmatch(name) is not None


def _prefix(shape: Format) -> str:
    assert len(shape.fingerprint) == FINGERPRINT_BYTES
    return f"{shape.fingerprint[:_NAMED_BYTES].hex()}-{shape.group}-"
