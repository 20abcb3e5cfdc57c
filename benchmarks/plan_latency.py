"""Wall and CPU time of `holdover plan` as a whole process: start of Python to last byte printed.

    python benchmarks/plan_latency.py [--runs 20] [ARGUMENTS OF holdover plan ...]

Without arguments: a catalogue name, a config.json with all class defaults to look up, and an answer
about a device. The least wall time is what an idle machine takes; a busy one shows in the median.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 0.3
CONFIG = {
    "model_type": "gemma3_text", "num_hidden_layers": 62, "hidden_size": 5376,
    "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
    "intermediate_size": 21504, "vocab_size": 262208,
}  # fmt: skip


def measure(arguments: list[str], runs: int) -> tuple[list[float], float]:
    """(wall seconds of each run, CPU seconds of the mean run)."""
    walls = []
    # An installed package has its bytecode; an environment that forbids writing it has none.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "holdover", "plan", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        walls.append(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return walls, cpu_s / runs


def main() -> None:
    arguments, runs = sys.argv[1:], 20
    if arguments[:1] == ["--runs"]:
        runs, arguments = int(arguments[1]), arguments[2:]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(CONFIG))
        asked = [arguments] if arguments else [
            ["llama-3-8b"],
            [str(config), "--context", "32768", "--json"],
            ["llama-3-8b", "--gpu", "a100 80gb", "--users", "50", "--context", "4000"],
        ]  # fmt: skip
        load = os.getloadavg()[0]
        print(f"{runs} runs each, load {load:.1f}; the limit is {LIMIT_S} s on an idle machine")
        for one in asked:
            walls, cpu_s = measure(one, runs)
            shown = " ".join(one).replace(str(config), "config.json")
            print(
                f"  least {min(walls):.3f} s, median {statistics.median(walls):.3f} s, "
                f"CPU {cpu_s:.3f} s  holdover plan {shown}"
            )


if __name__ == "__main__":
    main()
