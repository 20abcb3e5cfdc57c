"""The device a model is put on: how much of each one's memory the cache gets, and how fast it is.

memory = weights (split over the devices) + headroom + what is left for the cache
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from holdover.errors import ConfigError
from holdover.units import parse_bytes


@dataclass(frozen=True, slots=True)
class Device:
    """Bandwidth is None where only bytes were given, `vendor` empty. `unified` memory is the
    processor's as well."""

    name: str
    memory_bytes: int
    bandwidth_bytes_per_s: int | None = None
    vendor: str = ""
    unified: bool = False


@dataclass(frozen=True, slots=True)
class Headroom:
    """What every device keeps free: a share of its memory or bytes."""

    text: str
    share: Fraction = Fraction(0)
    fixed_bytes: int = 0

    @classmethod
    def parse(cls, text: str) -> Headroom:
        if not text.strip().endswith("%"):
            return cls(text, fixed_bytes=parse_bytes(text, "--headroom"))
        try:
            share = Fraction(text.strip()[:-1].strip()) / 100
        except (ValueError, ZeroDivisionError):
            share = Fraction(-1)
        if not 0 <= share < 1:
            raise ConfigError(
                "--headroom", f"{text!r} is neither a share as 10% nor a size as 2GiB"
            )
        return cls(text, share=share)

    def of(self, memory_bytes: int) -> int:
        return self.fixed_bytes + int(memory_bytes * self.share)


def device_of(gpu: str | None, memory: str | None) -> Device | None:
    """The device of `--gpu` or `--memory`; None where neither was given."""
    if gpu is not None and memory is not None:
        raise ConfigError("--memory", "give either --gpu or --memory, not both")
    if gpu is not None:
        from holdover.plan.sizing.accelerated import find_device

        return find_device(gpu)
    if memory is None:
        return None
    n_bytes = parse_bytes(memory, "--memory")
    if n_bytes == 0:
        raise ConfigError("--memory", "0 bytes hold nothing; give what the device has, as 80GiB")
    return Device(f"{memory} of memory", n_bytes)
