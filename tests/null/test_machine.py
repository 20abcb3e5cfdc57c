"""Limits of containers as the kernel writes them, in folders made to look like /proc and cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdover.errors import ConfigError
from holdover.plan.machine import Machine, read_machine

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def machine(tmp_path: Path, proc: dict[str, str], cgroup: dict[str, str]) -> Machine:
    meminfo = {"meminfo": f"MemTotal: 99 kB\nMemAvailable:   {8 * GIB // 1024} kB\n"}
    return read_machine(
        write(tmp_path / "proc", meminfo | proc), write(tmp_path / "cgroup", cgroup)
    )


def test_without_limits_the_host_decides(tmp_path: Path) -> None:
    found = machine(tmp_path, {}, {"memory.max": "max\n", "memory.current": "5"})
    assert (found.available_bytes, found.memory_source) == (8 * GIB, "MemAvailable")
    assert found.cores >= 1


def test_cgroup_v2_limit_of_an_ancestor_binds_and_page_cache_counts_as_free(tmp_path: Path) -> None:
    found = machine(
        tmp_path,
        {"self/cgroup": "0::/pod/box\n"},
        {
            "pod/memory.max": str(4 * GIB),
            "pod/memory.current": str(3 * GIB),
            "pod/memory.stat": f"anon 1\ninactive_file {GIB}\n",
            "pod/box/memory.max": "max",
            "pod/box/memory.current": "1",
        },
    )
    assert (found.available_bytes, found.memory_source) == (2 * GIB, "cgroup limit")


def test_cgroup_v1_limit(tmp_path: Path) -> None:
    files = {
        "memory/docker/x/memory.limit_in_bytes": str(2 * GIB),
        "memory/docker/x/memory.usage_in_bytes": str(GIB),
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "0",
    }
    lines = {"self/cgroup": "4:memory:/docker/x\n0::/\n"}
    assert machine(tmp_path, lines, files).available_bytes == GIB


def test_cgroup_of_the_host_that_is_not_mounted_here_falls_back_to_the_root(tmp_path: Path) -> None:
    files = {"memory.max": str(GIB), "memory.current": "0"}
    assert machine(tmp_path, {"self/cgroup": "0::/elsewhere/x\n"}, files).available_bytes == GIB


@pytest.mark.parametrize(
    "files",
    [
        {"cpu.max": "150000 100000\n"},
        {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"},
    ],
)
def test_a_cpu_quota_counts_whole_cores(tmp_path: Path, files: dict[str, str]) -> None:
    assert machine(tmp_path, {}, files).cores == 1


@pytest.mark.parametrize(
    ("flags", "native"), [("fpu avx512f avx512_bf16", True), ("fpu avx2 avx512f", False)]
)
def test_bf16_is_native_only_where_the_cpu_says_so(
    tmp_path: Path, flags: str, native: bool
) -> None:
    proc = {"cpuinfo": f"processor : 0\nflags\t\t: {flags}\n"}
    assert machine(tmp_path, proc, {}).native_bf16 is native


def test_no_memory_figures_at_all_is_an_error_that_names_the_flag(tmp_path: Path) -> None:
    proc = write(tmp_path / "proc", {"meminfo": "Odd: 1 kB\n"})
    with pytest.raises(ConfigError, match="--kv-memory"):
        read_machine(proc, tmp_path / "cgroup")
