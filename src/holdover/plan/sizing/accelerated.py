"""Accelerators of the built-in table as devices of a plan."""

from __future__ import annotations

from holdover.plan.accelerators import Accelerator, accelerators, find_accelerator
from holdover.plan.sizing.device import Device


def find_device(name: str) -> Device:
    """The device a person means; raises ConfigError with the choices."""
    return _device(find_accelerator(name))


def other_devices(device: Device) -> tuple[Device, ...]:
    """What could be had instead: the same vendor's, memory of their own, the smallest first."""
    found = [
        one
        for one in accelerators()
        if one.vendor == device.vendor and not one.unified and one.name != device.name
    ]
    return tuple(map(_device, sorted(found, key=lambda a: (a.usable_bytes, a.bandwidth_bytes_s))))


def _device(one: Accelerator) -> Device:
    return Device(one.name, one.usable_bytes, one.bandwidth_bytes_s, one.vendor, one.unified)
