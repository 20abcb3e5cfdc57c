"""What a result has to say to be repeated: the machine, versions, the command."""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import holdover
from holdover.bench.wire import Wire, WireError

# Where servers say which they are: vLLM, llama.cpp, Ollama, SGLang; ours in its OpenAPI document.
_VERSIONS = {
    "/version": "version",
    "/props": "build_info",
    "/api/version": "version",
    "/get_server_info": "version",
    "/openapi.json": "info",
}
_SECRETS = ("--api-key",)


def run_facts(arguments: Sequence[str], program: str = "holdover") -> dict[str, Any]:
    """Of this run: when, with what, on what machine, and how busy that was before."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(arguments, program),
        "holdover": holdover.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "load_before": _load(),
    }


def command_line(arguments: Sequence[str], program: str = "holdover") -> str:
    """As it was typed, without keys."""
    shown: list[str] = []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if shown and shown[-1] in _SECRETS:
            shown.append("***")
        elif equals and name in _SECRETS:
            shown.append(f"{name}=***")
        else:
            shown.append(argument)
    return shlex.join([program, *shown])


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Model name, and the widest vector instructions that matter here."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    vectors = ("amx_tile", "avx512_bf16", "avx512_vnni", "avx512f", "avx2", "bf16", "asimd")
    name = fields.get("model name") or platform.machine()
    return f"{name} ({', '.join(v for v in vectors if v in flags)})"


async def server_facts(wire: Wire) -> dict[str, str]:
    """What the server says of itself: its Server header, and a version where it has one."""
    found: dict[str, str] = {}
    for path, key in _VERSIONS.items():
        try:
            answer = await wire.get(path)
        except WireError:
            continue  # some servers close the connection on a path they do not know
        if "server" in answer.headers:
            found.setdefault("server", answer.headers["server"])
        version = _version(answer.body, key) if answer.status == 200 else None
        if version is not None:
            return found | {"version": version}
    return found


def _version(body: bytes, key: str) -> str | None:
    try:
        value = json.loads(body)[key]
    except (ValueError, KeyError, TypeError):
        return None
    if isinstance(value, dict):
        value = " ".join(str(value[k]) for k in ("title", "version") if k in value)
    return value if isinstance(value, str) else None


def _memory_bytes() -> int | None:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _load() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
