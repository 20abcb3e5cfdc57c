"""A fixed number of equal buffers, in one piece of memory that is all that is ever allocated."""

from __future__ import annotations

import mmap


class Buffers:
    def __init__(self, n_buffers: int, buffer_bytes: int) -> None:
        view = memoryview(mmap.mmap(-1, n_buffers * buffer_bytes))
        self.nbytes = view.nbytes
        self._free = [view[i * buffer_bytes :][:buffer_bytes] for i in range(n_buffers)]

    @staticmethod
    def count(buffer_bytes: int, about_bytes: int, least: int = 4) -> int:
        return max(least, about_bytes // buffer_bytes)

    def __len__(self) -> int:
        """Free ones."""
        return len(self._free)

    def take(self) -> memoryview | None:
        try:
            return self._free.pop()
        except IndexError:
            return None

    def give(self, buffer: memoryview) -> None:
        self._free.append(buffer)
