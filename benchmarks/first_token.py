"""From the start of `holdover serve` to the first streamed token, as a client sees it.

    python benchmarks/first_token.py [--runs 5] [ARGUMENTS OF holdover serve ...]

Needs the package installed (bytecode and all), and is run on an idle machine: two busy cores double
every figure.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

LIMIT_S = 6.0
ASKED = {"messages": [{"role": "user", "content": "Say hello."}], "stream": True, "max_tokens": 8}


def first_token(arguments: list[str]) -> tuple[float, float]:
    """(seconds until the URL is printed, seconds until the first piece of text)."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    holdover = str(Path(sys.executable).with_name("holdover"))
    start = time.perf_counter()
    server = subprocess.Popen(
        [holdover, "serve", "--port", "0", *arguments],
        env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        url = next((line.split()[1] for line in server.stdout if line.startswith("serving ")), None)
        if url is None:
            raise SystemExit("the server did not start")
        ready_s = time.perf_counter() - start
        with urllib.request.urlopen(f"{url}/models") as answer:
            model = json.load(answer)["data"][0]["id"]
        body = json.dumps({"model": model, **ASKED}).encode()
        asked = urllib.request.Request(f"{url}/chat/completions", body)
        asked.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(asked) as answer:
            while b'"content":"' not in (line := answer.readline()) or b'"content":""' in line:
                assert line, "the stream ended without text"
            return ready_s, time.perf_counter() - start
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    arguments, runs = sys.argv[1:], 5
    if arguments[:1] == ["--runs"]:
        runs, arguments = int(arguments[1]), arguments[2:]
    first_token(arguments)  # files into the page cache, bytecode onto the disk
    done = []
    for _ in range(runs):
        load = os.getloadavg()[0]
        ready_s, done_s = first_token(arguments)
        done.append(done_s)
        print(f"  ready {ready_s:.2f} s, first token {done_s:.2f} s (load {load:.1f})", flush=True)
    print(f"least {min(done):.2f} s, median {statistics.median(done):.2f} s; limit {LIMIT_S} s")


if __name__ == "__main__":
    main()
