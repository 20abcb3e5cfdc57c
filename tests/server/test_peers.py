"""benchmarks/peers.py on servers that are processes: it starts, measures and ends them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdover.bench import server_process
from holdover.errors import ConfigError, HoldoverError

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # as `python benchmarks/peers.py` has it

import peers  # noqa: E402

SINGLE = "single: one stream: per_token_p50_ms"
ANSWER = "what it says over and over " * 8
SCRIPT = Path(__file__).with_name("serve_scripted.py")
WAITS = "import time; time.sleep(61)"
DESCRIPTION = """
[[engine]]
name = "quick"
ours = true
command = "$PYTHON $SCRIPT 0.001 0.1 {port} '$ANSWER'"

[[engine]]
name = "broken"
command = "$PYTHON -c 'print(1 / 0)'"

[[engine]]
name = "slow"
command = "$PYTHON $SCRIPT 0.006 0.1 {port} '$ANSWER'"
"""


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    described = tmp_path / "engines.toml"
    described.write_text(DESCRIPTION)
    inherited = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHON": sys.executable}
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/peers.py"), str(described), *arguments],
        env=os.environ | inherited | {"SCRIPT": str(SCRIPT), "ANSWER": ANSWER},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_one_table_of_all_engines(tmp_path: Path) -> None:
    kept = tmp_path / "figures.json"
    done = run(
        tmp_path, "--rounds", "1", "--workloads", "single", "--repeats", "2", "--json", str(kept)
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["quick", "broken", "slow"]
    figures = next(line for line in lines if line.startswith(SINGLE)).removeprefix(SINGLE).split()
    quick_ms, times, slow_ms = float(figures[0]), float(figures[2][:-1]), float(figures[-2])
    assert figures[3] == "-"
    assert slow_ms >= 5.6  # a late first piece takes from the rest
    assert quick_ms < slow_ms
    assert times == pytest.approx(slow_ms / quick_ms, rel=0.1)
    memory = next(line for line in lines if line.startswith("peak memory")).split()
    assert all(20 < float(value) < 2000 for value in (memory[3], memory[5]))
    error = next(line for line in lines if line.startswith("round 1, broken, single"))
    assert "ended with 1" in error
    assert "ZeroDivisionError" in done.stderr  # the last it said
    record = json.loads(kept.read_text())
    assert record["run"]["command"].startswith("benchmarks/peers.py ")
    assert [m["engine"] for m in record["measured"]] == ["quick", "broken", "slow"]
    assert not [text for text in _commands() if str(SCRIPT) in text and ANSWER in text]


def test_a_run_that_is_told_to_end_leaves_no_server(tmp_path: Path) -> None:
    described = tmp_path / "engines.toml"
    described.write_text(f"[[engine]]\nname = 'a'\ncommand = '{sys.executable} -c \"{WAITS}\"'")
    going = subprocess.Popen(
        [sys.executable, str(ROOT / "benchmarks/peers.py"), str(described)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    deadline_s = time.monotonic() + 60
    while not [text for text in _commands() if text.endswith(f"{WAITS}\0")]:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    going.terminate()
    assert going.wait(30) == 128 + signal.SIGTERM
    assert not [text for text in _commands() if text.endswith(f"{WAITS}\0")]


def test_a_tree_ends_with_its_children(tmp_path: Path) -> None:
    """A server that starts another process, and neither listens to SIGTERM nor answers."""
    script = "import subprocess, sys, signal; signal.signal(15, signal.SIG_IGN);"
    script += "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    with (
        pytest.raises(server_process.ServerError, match="did not answer"),
        server_process.serving(
            f'{sys.executable} -c "{script}"', "http://127.0.0.1:{port}/", {}, 0.5, grace_s=0.3
        ),
    ):
        raise AssertionError("it cannot be ready")
    assert not [p for p in _commands() if "time.sleep(60)" in p]


def _commands() -> list[str]:
    texts = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                texts.append((process / "cmdline").read_text())
            except OSError:
                continue  # ended meanwhile
    return texts


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(HoldoverError, match="environment variable NOWHERE_SET"):
        server_process.arguments("$NOWHERE_SET --port {port}", 1)


@pytest.mark.parametrize("text", ["", "engine = 1", "[[engine]]\nname = 'x'", "[[engine]]\na = 1"])
def test_a_description_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    described = tmp_path / "engines.toml"
    described.write_text(text)
    with pytest.raises(ConfigError, match=r"engines\.toml"):
        peers.read_engines(described, [])


def test_the_example_reads_and_names_no_machine() -> None:
    path = ROOT / "benchmarks/peers.toml"
    engines = peers.read_engines(path, ["llama.cpp F16"])
    assert [engine.name for engine in engines] == ["llama.cpp F16"]
    with pytest.raises(ConfigError, match="'llama' is none of holdover"):
        peers.read_engines(path, ["llama"])


def test_the_ratio_is_to_the_best_peer() -> None:
    engines = [
        peers.Engine("ours", "", ours=True), peers.Engine("a", ""), peers.Engine("b", ""),
        peers.Engine("int8", "", ours=True),
    ]  # fmt: skip
    values = {
        "ours": {"per_token_ms": (10.0, 12.0, 11.0), "output_tokens_per_s": (150.0,)},
        "a": {"per_token_ms": (22.0, 22.0), "output_tokens_per_s": (100.0,)},
        "b": {"per_token_ms": (44.0,), "output_tokens_per_s": (50.0,)},
        "int8": {"per_token_ms": (44.0,), "output_tokens_per_s": (80.0,)},
    }
    done = [peers.Measured(name, "single", 1, found, 0.1) for name, found in values.items()]
    rows = peers.table(engines, done, [])
    assert rows[0].split() == ["ours", "a", "b", "int8"]
    assert rows[1].split() == [
        "single:", "per_token_ms", "11.0", "(10.0-12.0)", "2.00x", "22.0", "(22.0-22.0)", "44.0",
        "44.0", "0.50x",
    ]  # fmt: skip
    assert rows[2].split() == [
        "single:", "output_tokens_per_s", "150.0", "1.50x", "100.0", "50.0", "80.0", "0.80x"
    ]  # fmt: skip
