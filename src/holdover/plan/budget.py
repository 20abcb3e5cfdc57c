"""Where the KV bytes come from: the three ways a budget is given.

Each budget says how many bytes the arena may take once the other parts are known, and what would
have to be typed for an arena of a wanted size. Sizes in messages are rounded up so that they work
when typed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from holdover.plan.machine import Machine
from holdover.units import ceil_div, format_bytes


class Budget(Protocol):
    def kv_bytes(self, parts_bytes: int, most_bytes: int) -> int:
        """Bytes for the arena; negative when the parts alone are too much.

        `most_bytes` is what `max_sequences` conversations of full context can use.
        """

    def remedy(self, parts_bytes: int, arena_bytes: int) -> str:
        """The flag and the smallest value with which `arena_bytes` fit."""

    def describe(self, parts_bytes: int, most_bytes: int) -> tuple[str, ...]:
        """How `kv_bytes` came about, a line per step."""


@dataclass(frozen=True, slots=True)
class KvBudget:
    """`--kv-memory`: the arena's bytes themselves."""

    n_bytes: int

    def kv_bytes(self, parts_bytes: int, most_bytes: int) -> int:
        return self.n_bytes

    def remedy(self, parts_bytes: int, arena_bytes: int) -> str:
        return f"--kv-memory {flag_bytes(arena_bytes)}"

    def describe(self, parts_bytes: int, most_bytes: int) -> tuple[str, ...]:
        return (f"KV budget {format_bytes(self.n_bytes)}: --kv-memory",)


@dataclass(frozen=True, slots=True)
class TotalBudget:
    """`--memory`: the whole process; the arena gets what the other parts leave."""

    n_bytes: int

    def kv_bytes(self, parts_bytes: int, most_bytes: int) -> int:
        return self.n_bytes - parts_bytes

    def remedy(self, parts_bytes: int, arena_bytes: int) -> str:
        return f"--memory {flag_bytes(parts_bytes + arena_bytes)}"

    def describe(self, parts_bytes: int, most_bytes: int) -> tuple[str, ...]:
        left = format_bytes(self.n_bytes - parts_bytes)
        total, parts = format_bytes(self.n_bytes), format_bytes(parts_bytes)
        return (f"KV budget {left}: --memory {total} less {parts} for the other parts",)


@dataclass(frozen=True, slots=True)
class MachineBudget:
    """Neither flag: half of what the machine has left, and never more than can be used."""

    machine: Machine

    def _half_bytes(self, parts_bytes: int) -> int:
        return (self.machine.available_bytes - parts_bytes) // 2

    def kv_bytes(self, parts_bytes: int, most_bytes: int) -> int:
        return min(self._half_bytes(parts_bytes), most_bytes)

    def remedy(self, parts_bytes: int, arena_bytes: int) -> str:
        return f"--kv-memory {flag_bytes(arena_bytes)} on a machine with that much to spare"

    def describe(self, parts_bytes: int, most_bytes: int) -> tuple[str, ...]:
        half = self._half_bytes(parts_bytes)
        lines = [
            f"  {format_bytes(self.machine.available_bytes)} available "
            f"({self.machine.memory_source}), less {format_bytes(parts_bytes)} for the other parts",
            f"  half of the rest: {format_bytes(half)}",
        ]
        if most_bytes < half:
            lines.append(f"  no more than full conversations can use: {format_bytes(most_bytes)}")
        chosen = format_bytes(self.kv_bytes(parts_bytes, most_bytes))
        return (f"KV budget {chosen}: derived from this machine", *lines)


def flag_bytes(n_bytes: int) -> str:
    """The smallest size of at least `n_bytes` in the form that flags take."""
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if n_bytes >= factor:
            return f"{ceil_div(n_bytes, factor)}{unit}"
    return f"{n_bytes}B"
