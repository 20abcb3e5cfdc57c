"""Conversations that wait in RAM or on disk while others are on the device.

A conversation answers only while it is on the device; it comes back at the speed of the link. The
speeds are assumed, and said to be wherever they are used.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdover.errors import ConfigError
from holdover.units import parse_bytes

# RAM: PCIe 4.0 x16 as measured in practice, of each device. Disk: one NVMe drive, reading.
BYTES_PER_S = {"ram": 25_000_000_000, "disk": 3_000_000_000}
NAMES = {"ram": "RAM", "disk": "disk"}


@dataclass(frozen=True, slots=True)
class Offload:
    """`home` is "ram" or "disk", `n_bytes` what it has for waiting conversations."""

    home: str
    n_bytes: int

    @classmethod
    def parse(cls, text: str) -> Offload:
        """ "ram:64GiB" or "disk:1TiB"."""
        home, _, size = text.partition(":")
        home = home.strip().lower()
        if home not in BYTES_PER_S or not size:
            raise ConfigError("--offload", f"{text!r}: give ram:64GiB or disk:1TiB")
        return cls(home, parse_bytes(size, "--offload"))

    def resume_s(self, rank_bytes: int, n_devices: int) -> float:
        """The least time until a conversation of `rank_bytes` on each device is back: every
        device has a link of its own to RAM, and all share the disk."""
        n_bytes = rank_bytes if self.home == "ram" else rank_bytes * n_devices
        return n_bytes / BYTES_PER_S[self.home]
