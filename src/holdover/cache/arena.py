"""The bytes of the fast tier: one allocation, or none at all.

`NullArena` has a size and no memory: planner, simulator and tests run the real manager on it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from holdover.errors import BudgetError
from holdover.units import format_bytes

if TYPE_CHECKING:
    from torch import Tensor


class Arena(Protocol):
    @property
    def nbytes(self) -> int: ...

    def copy(self, source: int, target: int, n_bytes: int) -> None:
        """Copy between two byte offsets whose ranges do not overlap."""

    def view(self, offset: int, n_bytes: int) -> memoryview:
        """The bytes themselves, to read and to write; none where there is no memory."""


class NullArena:
    """An arena with its memory switched off."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def copy(self, source: int, target: int, n_bytes: int) -> None:
        assert max(source, target) + n_bytes <= self.nbytes, "copy past the end of the arena"

    def view(self, offset: int, n_bytes: int) -> memoryview:
        return memoryview(bytearray())


class HostArena:
    """Host memory as one uint8 tensor of exactly `nbytes`, zeroed, committed as it is touched."""

    def __init__(self, nbytes: int) -> None:
        self.bytes: Tensor = host_bytes(nbytes, "KV arena", "; give less with --kv-memory")

    @property
    def nbytes(self) -> int:
        return self.bytes.nbytes

    def copy(self, source: int, target: int, n_bytes: int) -> None:
        self.bytes[target : target + n_bytes] = self.bytes[source : source + n_bytes]

    def view(self, offset: int, n_bytes: int) -> memoryview:
        return self.bytes[offset : offset + n_bytes].numpy().data


def host_bytes(nbytes: int, what: str, remedy: str = "") -> Tensor:
    """Zeroed memory of this machine, committed as it is touched; in huge pages where it has them.

    Raises BudgetError, naming `what` it is for, where the machine refuses it.
    """
    import mmap

    import torch

    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    # torch.zeros writes every page: seconds at start, and memory taken that may never be used.
    try:
        memory = mmap.mmap(-1, nbytes, flags=flags)
    except (OSError, OverflowError) as error:
        raise BudgetError(
            f"this machine refuses the {format_bytes(nbytes)} of the {what} ({error}){remedy}"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):  # scattered blocks are bound by misses of the page table
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
