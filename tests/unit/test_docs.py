"""The commands in README and docs are run, and must print what stands below them."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What no two runs share: times, and what the first of several streams left for the others to reuse.
TIMINGS = re.compile(r"[\d.,]+ (ms|s|tokens/s|of them reused)\b")
# Figures of quality: their last digits differ between CPUs.
MEASURED = re.compile(r"\b\d+\.\d{3,}|\d+\.\d%|Python 3\.\d+")
NEEDS_A_SERVER = "holdover bench"
# What was measured, how wide its column is, and on which machine.
FIGURES = re.compile(
    r"^.* cores, load .*$|(, \d+ of them go round in circles)?; asked| *[\d.,]+", re.MULTILINE
)


def blocks(page: Path, language: str) -> list[str]:
    return [body for found, body in FENCE.findall(page.read_text()) if found == language]


def transcripts(with_server: bool = False) -> list:
    """Every `$ command` of a console block with the output printed under it."""
    found = []
    for page in PAGES:
        for block in blocks(page, "console"):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                if command.startswith(NEEDS_A_SERVER) != with_server:
                    continue
                found.append(pytest.param(command, output, id=f"{page.name}:{command[:40]}"))
    return found


def environment() -> dict[str, str]:
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize(("command", "output"), transcripts())
def test_what_the_docs_show_is_what_is_printed(command: str, output: str) -> None:
    done = subprocess.run(
        command, shell=True, cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    kinds = {"holdover quality": MEASURED, NEEDS_A_SERVER: FIGURES}
    varies = next((p for name, p in kinds.items() if command.startswith(name)), TIMINGS)
    assert varies.sub("#", done.stdout) == varies.sub("#", output)


def test_make_serve_and_the_curl_of_the_readme() -> None:
    """The two commands are make's; the request under them is answered by what they start."""
    assert (ROOT / ".venv/installed").exists(), "run by `make test`: here it would install first"
    readme = (ROOT / "README.md").read_text()
    assert "make serve" in readme
    assert "make test" in readme
    curl = next(body for body in blocks(ROOT / "README.md", "") if body.startswith("curl "))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        ["make", "serve", f"PORT={port}", "ARGS=--kv-memory 64MiB"],
        cwd=ROOT,
        env=environment(),
        start_new_session=True,
    )
    try:
        _await_health(f"http://127.0.0.1:{port}/health", server)
        words = [word.replace(":8000", f":{port}") for word in shlex.split(curl)]
        assert f":{port}" in words[1]
        done = subprocess.run([*words, "-sS"], capture_output=True, text=True, timeout=120)
        answer = json.loads(done.stdout)
        assert answer["choices"][0]["message"]["content"].strip()
        assert 0 < answer["usage"]["completion_tokens"] <= 60
        for transcript in transcripts(with_server=True):
            command, output = transcript.values
            command += f" --url http://127.0.0.1:{port}"
            test_what_the_docs_show_is_what_is_printed(command, output.replace(":8000", f":{port}"))
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=60)


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def _await_health(url: str, server: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert server.poll() is None, "make serve ended"
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise AssertionError("the server did not come up")
