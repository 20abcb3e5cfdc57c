"""A real server that is killed while it works: what it says afterwards is what it says cold."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

MODEL = "smollm2"
MIB = 1 << 20
CAP_BYTES = 24 * MIB  # fewer tokens than the conversations have, so that segments are evicted
ARENA = "12MiB"  # of fewer still, so that the disk is read and written all the time
OWN_FILES = re.compile(r"[0-9a-f-]+\.segment|lock|secret|conversations.*\.sqlite(-wal|-shm)?")
USERS, TURNS, ANSWER_TOKENS = 5, 3, 8
LOADED_S = 2.0  # at most, before the server is killed


def words(user: int, turn: int, n: int) -> str:
    chance = random.Random(1000 * user + turn)
    return " ".join(chance.choice(["tide", "ledger", "violet", "of", "seven"]) for _ in range(n))


def prompt(user: int, turn: int) -> str:
    """What `user` sends: all turns up to this one, so that a turn goes on from the one before."""
    return "\n".join(words(user, one, 120) for one in range(turn + 1))


ASKED = [(user, turn) for user in range(USERS) for turn in range(TURNS)]


@contextlib.contextmanager
def served(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "holdover", "serve", MODEL, "--port", "0"]
    command += ["--kv-memory", ARENA, "--max-context", "512", "--max-sequences", "8", *flags]
    path = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"http://[0-9.]+:[0-9]+", line):
                break
        else:
            raise AssertionError("".join(said))
        threading.Thread(target=process.stdout.read, daemon=True).start()  # or its log fills up
        yield process, found[0]
    finally:
        process.kill()
        process.wait(20)


def answer(url: str, user: int, turn: int, key: str = "none") -> str:
    http = httpx.Client(verify=False, timeout=60)
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=http
    ) as client:
        said = client.completions.create(
            model=MODEL, prompt=prompt(user, turn), max_tokens=ANSWER_TOKENS, temperature=0,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
    return said.choices[0].text


@pytest.fixture(scope="module")
def cold() -> dict[tuple[int, int], str]:
    """Each prompt's answer to a client of its own, who shares nothing with the others."""
    keys = [f"key-{i}" for i in range(len(ASKED))]
    with served(*(flag for key in keys for flag in ("--api-key", key))) as (_, url):
        return {one: answer(url, *one, key) for one, key in zip(ASKED, keys, strict=True)}


def load(url: str, seed: int, answers: list[tuple[tuple[int, int], str]]) -> None:
    """Random turns until the server is gone."""
    chance = random.Random(seed)
    with contextlib.suppress(openai.APIConnectionError):
        while True:
            one = chance.choice(ASKED)
            answers.append((one, answer(url, *one)))


def held_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.segment"))


def kill_and_look(folder: Path, times: int, cold: dict[tuple[int, int], str]) -> None:
    disk = ("--tiers", f"disk:{folder}:{CAP_BYTES // MIB}MiB")
    chance = random.Random(times)
    for i in range(times):
        answers: list[tuple[tuple[int, int], str]] = []
        with served(*disk) as (process, url):
            clients = [
                threading.Thread(target=load, args=(url, 100 * i + n, answers)) for n in range(3)
            ]
            for client in clients:
                client.start()
            time.sleep(chance.random() * LOADED_S)
            process.send_signal(signal.SIGKILL)
            for client in clients:
                client.join(60)
        assert held_bytes(folder) <= CAP_BYTES
        assert all(said == cold[one] for one, said in answers)
    with served(*disk) as (process, url):
        assert all(answer(url, *one) == said for one, said in cold.items())
        metrics = httpx.get(f"{url}/metrics", verify=False).text
        found = re.search(r'holdover_tier_loaded_blocks_total\{tier="disk"\} ([0-9.e+]+)', metrics)
        assert found
        assert float(found[1]) > 0, "what was killed left nothing that could be wrong"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert held_bytes(folder) <= CAP_BYTES
    strange = [path.name for path in folder.iterdir() if not OWN_FILES.fullmatch(path.name)]
    assert not strange, "left over"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_fifty_times(tmp_path: Path, cold: dict[tuple[int, int], str]) -> None:
    kill_and_look(tmp_path, 50, cold)
