"""Signals: running streams finish within the grace time, exit code 0; a second one ends at once."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

SCRIPT = Path(__file__).with_name("serve_scripted.py")
Spawn = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    processes = []

    def begin(step_s: float, grace_s: float) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(step_s), str(grace_s)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        processes.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def stream(url: str) -> Any:
    # no TLS here, and reading the certificates of this machine takes a third of a second
    http = httpx.Client(verify=False, timeout=30)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http)
    return client.completions.create(model="scripted", prompt="x", stream=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle(spawn: Spawn, number: signal.Signals) -> None:
    process, url = spawn(0.0, 10.0)
    assert httpx.get(url + "/health", verify=False).json() == {"status": "ok"}
    process.send_signal(number)
    out, err = process.communicate(timeout=5)
    assert (process.returncode, out, err) == (0, "ended\n", "")


def test_running_stream_finishes(spawn: Spawn) -> None:
    process, url = spawn(0.2, 10.0)  # two seconds in all, for what follows to happen meanwhile
    pieces = iter(stream(url))
    text = next(pieces).choices[0].text
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    health = httpx.get(url + "/health", verify=False)
    assert health.status_code == 503
    assert health.json()["error"]["code"] == "shutting_down"
    refused = httpx.post(
        url + "/v1/completions", json={"model": "scripted", "prompt": "x"}, verify=False
    )
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "5"
    text += "".join(piece.choices[0].text for piece in pieces)
    assert text == "abcdefghij"
    out, err = process.communicate(timeout=5)
    assert (process.returncode, out, err) == (0, "finishing 1\nended\n", "")


def test_grace_time_is_a_limit(spawn: Spawn) -> None:
    process, url = spawn(1.0, 0.3)
    pieces = iter(stream(url))
    next(pieces)
    began_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    with pytest.raises(openai.APIError, match="shutting down"):
        list(pieces)
    out, err = process.communicate(timeout=5)
    assert time.monotonic() - began_s < 3
    assert (process.returncode, out, err) == (0, "finishing 1\nended\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_at_once(spawn: Spawn, number: signal.Signals) -> None:
    process, url = spawn(1.0, 60.0)
    pieces = iter(stream(url))
    next(pieces)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(number)
    process.communicate(timeout=2)
    assert process.returncode == 128 + number


def test_a_client_that_never_reads_does_not_hold_up_the_end(start: Any, soon: Any) -> None:
    complaints: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = complaints.append  # type: ignore[method-assign]
    server = start(lambda prompt: b"x" * 3000, grace_s=0.2)
    body = {"model": server.model, "prompt": "x", "stream": True, "n": 64, "max_tokens": 3000}
    with httpx.stream("POST", server.url + "/v1/completions", json={**body, "logprobs": 5}):
        assert soon(lambda: server.engine.generated_tokens > 64 * 300, timeout_s=30)
        began_s = time.monotonic()
        logging.getLogger("uvicorn.error").addHandler(handler)
        server.server.begin_drain()
        assert soon(lambda: server.server.should_exit)
        assert soon(lambda: not server.server.server_state.tasks)
        assert time.monotonic() - began_s < 6
    logging.getLogger("uvicorn.error").removeHandler(handler)
    assert not complaints


def test_port_in_use(spawn: Spawn) -> None:
    from holdover.errors import ConfigError
    from holdover.server.run import bind

    _, url = spawn(0.0, 0.0)
    with pytest.raises(ConfigError, match=r"--port: cannot listen on 127\.0\.0\.1:\d+: .*in use"):
        bind("127.0.0.1", int(url.rpartition(":")[2]))
    with pytest.raises(ConfigError, match="--host"):
        bind("no.such.host.invalid", 0)
    with pytest.raises(
        ConfigError, match=r"--host: 192\.0\.2\.1 is not an address of this machine"
    ):
        bind("192.0.2.1", 0)  # an address that is nobody's (RFC 5737)
