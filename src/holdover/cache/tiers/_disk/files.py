"""Every call that the disk tier makes to the file system, so that a test can make any one fail.

Files are opened without following links and never inherited by other programs. All errors are
OSError.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass

FILE_MODE = 0o600
FOLDER_MODE = 0o700
_ZEROS = bytes(1 << 20)


@dataclass(frozen=True, slots=True)
class FileState:
    size: int
    mtime_ns: int
    inode: int


def is_full(error: OSError) -> bool:
    """Whether other files or a quota are in the way."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class Files:
    """The real ones."""

    def open(self, path: str, flags: int = os.O_RDWR) -> int:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)

    def create(self, path: str) -> int:
        """A new file that only its owner can read, whatever the umask."""
        fd = self.open_mode(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.fchmod(fd, FILE_MODE)
        return fd

    def open_mode(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)

    def close(self, fd: int) -> None:
        os.close(fd)

    def listing(self, folder: str) -> dict[str, FileState]:
        """Plain files only; those that go away meanwhile are left out."""
        found = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        found[entry.name] = _state(entry.stat(follow_symlinks=False))
        return found

    def device(self, folder: str) -> int:
        return os.stat(folder).st_dev

    def state(self, fd: int) -> FileState:
        return _state(os.fstat(fd))

    def is_linked(self, fd: int) -> bool:
        return os.fstat(fd).st_nlink > 0

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Bytes read: all that the buffers hold, or what lies before the end of the file."""
        wanted = sum(len(b) for b in buffers)
        n_bytes = os.preadv(fd, list(buffers), offset)
        while 0 < n_bytes < wanted:  # more than 2 GiB at once, or a signal
            more = os.preadv(fd, _after(buffers, n_bytes), offset + n_bytes)
            if not more:
                break
            n_bytes += more
        return n_bytes

    def write(self, fd: int, data: memoryview | bytes, offset: int) -> None:
        rest = memoryview(data)
        while len(rest):
            n_bytes = os.pwrite(fd, rest, offset)
            rest, offset = rest[n_bytes:], offset + n_bytes

    def allocate(self, fd: int, size: int) -> None:
        """Give a new file its size and its room on the disk."""
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            os.ftruncate(fd, size)

    def erase(self, fd: int, offset: int, n_bytes: int) -> None:
        """Zeros over a part of the file, in place: its room stays taken, its bytes are gone."""
        for at in range(0, n_bytes, len(_ZEROS)):
            self.write(fd, memoryview(_ZEROS)[: min(len(_ZEROS), n_bytes - at)], offset + at)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def truncate(self, fd: int) -> None:
        os.ftruncate(fd, 0)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def touch(self, path: str, now_ns: int) -> None:
        os.utime(path, ns=(now_ns, now_ns), follow_symlinks=False)

    def try_lock(self, fd: int) -> bool:
        """Whether the file is now this descriptor's alone; it is given back by closing it."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _state(found: os.stat_result) -> FileState:
    return FileState(found.st_size, found.st_mtime_ns, found.st_ino)


def _after(buffers: Sequence[memoryview], n_bytes: int) -> list[memoryview]:
    """The buffers without their first `n_bytes`."""
    rest = []
    for buffer in buffers:
        rest.append(buffer[min(n_bytes, len(buffer)) :])
        n_bytes = max(0, n_bytes - len(buffer))
    return [b for b in rest if len(b)]
