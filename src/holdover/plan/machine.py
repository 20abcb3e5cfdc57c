"""What this machine offers: memory this process may still take, cores, native bf16.

Everything is read from /proc and /sys/fs/cgroup, so a container's limits count and not only the
host's. Called by the plan for defaults, never by a running engine. A file that is not there (macOS,
an unmounted cgroup tree) means that there is no such limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdover.errors import ConfigError
from holdover.units import format_bytes

_UNLIMITED_V1_BYTES = 2**62  # cgroup v1 writes "no limit" as a number near 2**63


@dataclass(frozen=True, slots=True)
class Machine:
    """`memory_source` says which limit decided `available_bytes`."""

    available_bytes: int
    memory_source: str
    cores: int
    native_bf16: bool

    def describe(self) -> str:
        bf16 = "native bf16" if self.native_bf16 else "no native bf16"
        cores = f"{self.cores} core" + ("" if self.cores == 1 else "s")
        memory = f"{format_bytes(self.available_bytes)} available ({self.memory_source})"
        return f"{memory}, {cores}, {bf16}"


def read_machine(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> Machine:
    """The machine as this process sees it; the two roots are parameters for tests."""
    available_bytes, source = _available_memory(proc, cgroup)
    return Machine(available_bytes, source, _usable_cores(proc, cgroup), _native_bf16(proc))


def _available_memory(proc: Path, cgroup: Path) -> tuple[int, str]:
    found = [
        *_host_memory(proc),
        *_cgroup_v2_memory(proc, cgroup),
        *_cgroup_v1_memory(proc, cgroup),
    ]
    if not found:
        raise ConfigError(
            "--kv-memory", "this system does not say how much memory is free; give 256MiB or more"
        )
    return min(found)


def _host_memory(proc: Path) -> Iterator[tuple[int, str]]:
    fields = _table(proc / "meminfo", ":")
    if "MemAvailable" in fields:
        yield int(fields["MemAvailable"].split()[0]) * 1024, "MemAvailable"
    elif not fields and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "physical memory"


def _cgroup_v2_memory(proc: Path, cgroup: Path) -> Iterator[tuple[int, str]]:
    """Every ancestor's limit binds; page cache that can be dropped counts as free."""
    for folder in _ancestors(cgroup, _cgroup_path(proc, "")):
        limit = _number(folder / "memory.max")
        used = _number(folder / "memory.current")
        if limit is not None and used is not None:
            reclaimable = int(_table(folder / "memory.stat", " ").get("inactive_file", 0))
            yield max(0, limit - used + reclaimable), "cgroup limit"


def _cgroup_v1_memory(proc: Path, cgroup: Path) -> Iterator[tuple[int, str]]:
    for folder in _ancestors(cgroup / "memory", _cgroup_path(proc, "memory")):
        limit = _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _UNLIMITED_V1_BYTES:
            reclaimable = int(_table(folder / "memory.stat", " ").get("total_inactive_file", 0))
            yield max(0, limit - used + reclaimable), "cgroup limit"


def _usable_cores(proc: Path, cgroup: Path) -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    for folder in _ancestors(cgroup, _cgroup_path(proc, "")):
        quota = (_text(folder / "cpu.max") or "max").split()
        if len(quota) == 2 and quota[0] != "max":
            cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    for folder in _ancestors(cgroup / "cpu", _cgroup_path(proc, "cpu")):
        quota_us = _number(folder / "cpu.cfs_quota_us")
        period_us = _number(folder / "cpu.cfs_period_us")
        if quota_us is not None and quota_us > 0 and period_us:
            cores = min(cores, max(1, quota_us // period_us))
    return cores


def _native_bf16(proc: Path) -> bool:
    """Whether the CPU multiplies bf16 itself; elsewhere bf16 is emulated and slower than fp32."""
    for line in (_text(proc / "cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(value.split())
    return False


def _cgroup_path(proc: Path, controller: str) -> str:
    """This process's path in the hierarchy of a v1 controller, or in the v2 one ("")."""
    for line in (_text(proc / "self" / "cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"


def _ancestors(root: Path, path: str) -> Iterator[Path]:
    """The cgroup's folder and those above it; inside a container only `root` may be there."""
    folder = root / path.strip("/")
    if ".." in folder.parts:
        folder = root
    while folder != root:
        yield folder
        folder = folder.parent
    yield root


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = (_text(path) or "").strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _table(path: Path, separator: str) -> dict[str, str]:
    lines = (line.partition(separator) for line in (_text(path) or "").splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
