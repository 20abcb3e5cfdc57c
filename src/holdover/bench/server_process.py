"""A server under test as a process tree of its own: started, awaited, watched, ended (Linux).

The tree is everything in the session that the command leads, so what that starts counts too.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from string import Template
from types import FrameType
from urllib.request import ProxyHandler, build_opener

from holdover.errors import HoldoverError

START_LIMIT_S = 300.0  # of a model that is read first
_LOG_LINES = 12  # of a server that did not start
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_DIRECT = build_opener(ProxyHandler({}))  # never by way of a proxy


class ServerError(HoldoverError):
    """The server did not start."""


@dataclass(frozen=True, slots=True)
class Server:
    port: int
    pid: int
    ready_s: float

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def peak_bytes(self) -> int:
        """The most that each process of the tree has had resident, summed."""
        return sum(map(_peak_bytes, _session(self.pid)))

    def cpu_s(self) -> float:
        return sum(_cpu_ticks(stat) for stat in _session(self.pid).values()) / _TICKS_PER_S


@contextmanager
def serving(
    command: str,
    ready: str,
    environment: Mapping[str, str],
    limit_s: float,
    grace_s: float = 15.0,
    port: int | None = None,
) -> Iterator[Server]:
    """Up to `limit_s` to start, `grace_s` to end; {port} is a free one unless given. Raises
    ServerError."""
    port = free_port() if port is None else port
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start_s = time.monotonic()
    with _ended_by_sigterm(), tempfile.TemporaryFile("w+", errors="replace") as log:
        try:
            process = subprocess.Popen(
                arguments(command, port), env=inherited | dict(environment), stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ServerError(f"{_one_line(command)}: {error}") from error
        try:
            _await(ready.replace("{port}", str(port)), process, start_s + limit_s)
            yield Server(port, process.pid, time.monotonic() - start_s)
        except ServerError as error:
            log.seek(0)
            lines = log.read().splitlines()[-_LOG_LINES:]
            raise ServerError("\n  ".join([f"{_one_line(command)}: {error}", *lines])) from None
        finally:
            _end(process, grace_s)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM unwinds, so that the server, which leads a session of its own, ends with us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def arguments(command: str, port: int) -> list[str]:
    """Split as a shell does, with {port} and $NAMES of the environment filled in."""
    try:
        filled = Template(command.replace("{port}", str(port))).substitute(os.environ)
    except KeyError as error:
        raise ServerError(
            f"{_one_line(command)}: set the environment variable {error.args[0]}"
        ) from error
    return shlex.split(filled)


def _one_line(command: str) -> str:
    return " ".join(command.split())


def busy_s() -> float:
    """Processor time that the whole machine has spent on anything, what a host stole included."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def _await(ready: str, process: subprocess.Popen[bytes], deadline_s: float) -> None:
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise ServerError(f"ended with {process.returncode}")
        if _answers(ready):
            return
        time.sleep(0.1)
    raise ServerError(f"{ready} did not answer 200 in time")


def _answers(url: str) -> bool:
    try:
        with _DIRECT.open(url, timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, HTTPException):
        return False  # not listening yet, or still busy with loading


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    for how in (signal.SIGTERM, signal.SIGKILL):
        if not _session(process.pid):
            break
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            break
        deadline_s = time.monotonic() + grace_s
        while _session(process.pid) and time.monotonic() < deadline_s:
            process.poll()
            time.sleep(0.05)
    process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _session(leader: int) -> dict[int, list[str]]:
    """Of each living process of the session: /proc/PID/stat after its name."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # ended meanwhile
            if int(stat[3]) == leader and stat[0] not in "ZX":
                found[int(entry.name)] = stat
    return found


def _cpu_ticks(stat: list[str]) -> int:
    return sum(map(int, stat[11:15]))  # its own, and its ended children's


def _peak_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0  # ended meanwhile
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
