"""The commands on the real built-in models, without loading weights where none are needed."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import holdover
from holdover.cli.app import build_app
from holdover.config import Config
from holdover.engine.planning import plan_serving
from holdover.errors import BudgetError, ConfigError
from holdover.kernels.native.availability import extension
from holdover.plan.machine import Machine
from holdover.spec.dtypes import DType

GIB = 2**30


def run(*arguments: str) -> Any:
    return CliRunner().invoke(build_app(), list(arguments), env={"COLUMNS": "200"})


def test_version_and_help() -> None:
    assert run("--version").output == f"holdover {holdover.__version__}\n"
    for command in ("plan", "serve", "chat", "inspect", "bench"):
        assert command in run("--help").output
        assert run(command, "--help").exit_code == 0


def test_plan_prints_the_identity_and_what_fits() -> None:
    output = run("plan", "smollm2", "--kv-memory", "256MiB", "--dtype", "bf16").output
    sizes = dict(re.findall(r"^(\w+|= memory) +[\d.]+ \w+ +([\d,]+)  ", output, re.MULTILINE))
    numbers = {name: int(size.replace(",", "")) for name, size in sizes.items()}
    total = numbers.pop("= memory")
    assert set(numbers) == {
        "process", "weights", "workspace", "tables", "activations", "ends", "arena", "slack",
    }  # fmt: skip
    assert sum(numbers.values()) == total
    assert numbers["arena"] + numbers["slack"] == 256 * 2**20
    # 30 layers x 3 heads x 64 x k and v x 2 bytes = 23,040 a token; 11,639 tokens in 727 blocks.
    assert re.search(r"^full +30 \(0-29\) +23,040 +368,640 +0 ", output, re.MULTILINE)
    assert re.search(r"^1k tokens +11 +22.5 MiB", output, re.MULTILINE)
    assert re.search(r"^128k tokens +- .*the model's context is 8192", output, re.MULTILINE)
    assert not any(line != line.rstrip() for line in output.splitlines())


def test_plan_json_has_the_same_numbers() -> None:
    result = run("plan", "smollm2", "--kv-memory", "256MiB", "--dtype", "bf16", "--json")
    report = json.loads(result.output)
    assert report["schema"] == "holdover.plan/1"
    assert sum(report["memory"].values()) == report["memory_bytes"]
    assert report["bytes_per_token"] == 23_040
    assert [row["fit"] for row in report["conversations"]] == [11, 2, None, None]
    assert "fields" not in report["groups"][0]


def test_plan_fields_say_where_each_byte_goes() -> None:
    arguments = ("plan", "gemma3-270m", "--kv-memory", "64MiB", "--fields", "--json")
    report = json.loads(run(*arguments).output)
    assert [group["residency"] for group in report["groups"]] == ["window 512", "full"]
    for group in report["groups"]:
        used = sum(f["field_bytes"] + f["padding_bytes"] for f in group["fields"])
        assert used == group["block_bytes"]
    assert "1 head x 128 unit x 16 token x 2 element" in run(*arguments[:-1]).output


def test_plan_that_cannot_work_says_what_would() -> None:
    result = run("plan", "smollm2", "--kv-memory", "100KiB", "--dtype", "bf16")
    assert result.exit_code == 2
    assert "Give --kv-memory 23MiB, which holds a conversation of 1024 tokens" in result.stderr
    assert "the least is --kv-memory 360KiB, for 16 tokens" in result.stderr
    result = run("plan", "smollm2", "--max-context", "20000")
    assert result.exit_code == 2
    assert "--max-context: 20000 is more than the 8192 tokens" in result.stderr
    result = run("plan", "smollm2", "--kv-memory", "64MiB", "--max-context", "8000")
    assert result.exit_code == 2
    assert re.search(r"--max-context 8000: \d+ tokens fit; 8000 need", result.stderr)
    assert run("plan", "no-such-model").exit_code == 2


def test_a_name_that_only_the_planner_knows_says_so_where_it_is_to_be_served() -> None:
    for command in ("serve", "quality"):
        result = run(command, "llama-3-8b")
        assert result.exit_code == 2
        assert "`holdover plan` sizes it by this name, but no weights of it are" in result.stderr
        assert "no such file or folder" in run(command, "no-such-model").stderr


def test_plan_with_a_window_shows_its_bound() -> None:
    arguments = ("plan", "smollm2", "--kv-memory", "256MiB", "--window", "1024", "--sinks", "4")
    output = run(*arguments).output
    # 23,040 bytes a token: 16 tokens with the sinks, and 65 blocks that a window of 1,024 lies in.
    assert "keeps the first 4 and the last 1024 tokens: 23.2 MiB at any length, 34.5 MiB" in output
    assert "context 131072 tokens, as long as tables reach (--max-context); the model's" in output
    report = json.loads(run(*arguments, "--json").output)
    assert report["window"] == {
        "window_tokens": 1024, "sink_tokens": 4, "most_held_bytes": 66 * 368_640,
        "most_held_in_a_step_bytes": 98 * 368_640,
    }  # fmt: skip
    assert {row["held_bytes"] for row in report["conversations"][2:]} == {66 * 368_640}
    assert report["conversations"][3]["fit"] == 728 // 66
    assert sum(report["memory"].values()) == report["memory_bytes"]
    by_default = run(*arguments[:-2], "--json").output
    assert json.loads(by_default)["window"]["sink_tokens"] == 4
    longer = json.loads(run(*arguments, "--max-context", "1000000", "--json").output)
    assert longer["limits"]["max_context_tokens"] == 1_000_000
    assert longer["memory"]["tables_bytes"] > 7 * report["memory"]["tables_bytes"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--sinks", "4"), "--sinks: stay readable beside a window; give --window as well"),
        (("--window", "0"), "--window: 0 is too small; the least is 1"),
        (("--window", "64", "--sinks", "-1"), "--sinks: -1 is too small; the least is 0"),
        (("--window", "9000"), "--window 8188 or less"),
        (("--window", "8192", "--sinks", "4"), "--window 8188 or less"),
        (("--window", "64", "--sinks", "9000"), "--sinks 8128 or less"),
        (("--window", "64", "--max-context", "99999999"), "--max-context: 99999999 is more than "
         "the 16777216 tokens that tables reach; give 16777216 or less"),
    ],
)  # fmt: skip
def test_windows_that_cannot_be(flags: tuple[str, ...], said: str) -> None:
    result = run("plan", "smollm2", "--kv-memory", "64MiB", *flags)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_a_budget_that_does_not_hold_the_window_says_what_would() -> None:
    result = run("plan", "smollm2", "--kv-memory", "16MiB", "--window", "1024")
    assert "less than the window allows; --kv-memory 35MiB holds 131072" in result.stderr


def test_warnings_leave_the_json_clean() -> None:
    result = run("plan", "smollm2", "--kv-memory", "100TiB", "--json")
    assert json.loads(result.stdout)["schema"] == "holdover.plan/1"
    assert re.search(
        r"warning: the plan takes 100\.0 TiB, this machine has .* available .*"
        r"--kv-memory \d+MiB would fit", result.stderr
    )  # fmt: skip
    assert not run("plan", "smollm2", "--kv-memory", "64MiB").stderr


def test_planning_loads_no_torch_and_is_quick() -> None:
    code = (
        "import sys, time; start = time.process_time()\n"
        "sys.argv = ['holdover', 'plan', 'smollm2', '--kv-memory', '256MiB']\n"
        "from holdover.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code in (0, None), end.code\n"
        "heavy = {'torch', 'transformers', 'fastapi', 'httpx'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "print('CPU', time.process_time() - start)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    cpu_s = float(done.stdout.rpartition("CPU ")[2])
    assert cpu_s < 3, f"{cpu_s:.2f} s of CPU time; it is about 0.6 s on an idle machine"


def test_dtype_follows_the_machine() -> None:
    def planned(native_bf16: bool, **settings: str) -> tuple[DType, str, str]:
        machine = Machine(8 * GIB, "MemAvailable", 3, native_bf16)
        plan = plan_serving(Config(kv_memory="64MiB", **settings), machine)
        assert plan.threads == 3
        return plan.dtype, plan.plan.subject.weights, plan.plan.subject.kv

    torch_only = {"backend": "reference"}
    assert planned(True, **torch_only) == (DType.BF16, "bf16", "bf16")
    assert planned(False, **torch_only) == (DType.FP32, "fp32", "bf16")
    assert planned(False, **torch_only, dtype="bf16") == (DType.BF16, "bf16", "bf16")
    assert planned(True, **torch_only, kv="fp16") == (DType.BF16, "bf16", "fp16")


@pytest.mark.skipif(extension() is None, reason="the native kernels are not built")
def test_native_weights_are_16_bit_unless_asked_for() -> None:
    def planned(**settings: str) -> tuple[str, str, str]:
        machine = Machine(8 * GIB, "MemAvailable", 3, native_bf16=False)
        subject = plan_serving(Config(kv_memory="64MiB", **settings), machine).plan.subject
        return subject.dtype, subject.weights, subject.decoder

    assert planned() == ("bf16", "bf16", "native")
    assert planned(dtype="fp32") == ("fp32", "fp32", "native")
    assert planned(weights="fp32") == ("fp32", "fp32", "native")
    assert planned(weights="int8") == ("bf16", "int8", "native")
    assert planned(dtype="fp32", weights="int8") == ("fp32", "int8", "native")
    assert planned(backend="reference", weights="bf16") == ("bf16", "bf16", "torch")
    with pytest.raises(ConfigError, match=r"--weights: int8 takes the native decoder: --backend "
                       r"reference computes in torch; use --weights fp32"):  # fmt: skip
        planned(backend="reference", weights="int8")


@pytest.mark.skipif(extension() is None, reason="the native kernels are not built")
def test_a_type_of_weights_that_is_served_gets_the_plan_of_the_server() -> None:
    asked = ("plan", "smollm2", "--json", "--kv-memory", "64MiB")
    report = json.loads(run(*asked, "--weights", "int8").output)
    assert (report["schema"], report["weights"]) == ("holdover.plan/1", "int8")
    assert report["decoder"] == "native"
    whole = json.loads(run(*asked).output)
    assert whole["weights"] == "bf16"
    half = report["memory"]["weights_bytes"] / whole["memory"]["weights_bytes"]
    assert 0.5 < half < 0.51
    sizing = json.loads(run("plan", "smollm2", "--json", "--weights", "int4").output)
    assert sizing["schema"].startswith("holdover.sizing")


def test_the_default_budget_follows_the_machine() -> None:
    plan = plan_serving(Config(dtype="bf16"), Machine(3 * GIB, "cgroup limit", 2, False)).plan
    rest = 3 * GIB - plan.parts.total_bytes
    assert plan.arena_bytes + plan.slack_bytes == rest // 2
    with pytest.raises(BudgetError, match="--kv-memory"):
        plan_serving(Config(), Machine(GIB // 4, "cgroup limit", 2, False))


def test_inspect_shows_what_a_file_contains() -> None:
    output = run("inspect", "smollm2").output
    for text in ("LlamaForCausalLM", "30: 30 full (0-29)", "9 query, 3 KV, 64 wide", "49,152",
                 "8,192 tokens", "chat template  yes", "Q4_1", "Q8_0", "apache-2.0"):  # fmt: skip
        assert text in output, text
    report = json.loads(run("inspect", "gemma3-270m", "--json", "--tensors").output)
    assert report["geometry"]["residency"]["full"] == [5, 11, 17]
    assert report["tensors_bytes"] == sum(t["tensor_bytes"] for t in report["tensors"])
    assert report["tensors_bytes"] == sum(t["tensors_bytes"] for t in report["types"])
    assert len(report["tensors"]) == sum(t["tensors"] for t in report["types"])


def test_inspect_of_a_damaged_file_names_it_and_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\x03\0\0\0" + b"\xff" * 8)
    result = run("inspect", str(path))
    assert result.exit_code == 2
    assert "broken.gguf" in result.stderr
    assert "Traceback" not in result.stderr


def test_inspect_shows_the_rest_of_a_model_that_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    info = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"model.norm.weight": info}).encode()
    file = len(header).to_bytes(8, "little") + header + bytes(8)
    (tmp_path / "model.safetensors").write_bytes(file)
    result = run("inspect", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    assert "mamba" in result.output
    assert "supported" in result.output
    assert re.search(r"^ +F32 +1 tensor +2 elements", result.output, re.MULTILINE)


def test_bench_without_a_server_is_one_line() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        result = run("bench", "single", "--url", f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert result.exit_code == 2
    assert result.stderr.startswith("holdover: --url: nothing answers at")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "value"), [("--top-p", "2"), ("--temperature", "-1"), ("--max-tokens", "0")]
)
def test_chat_names_the_flag_that_is_wrong(flag: str, value: str) -> None:
    result = run("chat", flag, value)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"holdover: {flag}: ")
    assert result.stderr.count("\n") == 1


def test_chat_on_the_real_model_reuses_the_first_turn() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdover", "chat", "--kv-memory", "32MiB", "--temperature", "0",
         "--max-tokens", "12"],
        input="Say hello.\nAgain, please.\n/stats\n", capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    turns = re.findall(r"\[KV ([\d.]+) MiB for (\d+) tokens, reused (\d+) of (\d+)", done.stderr)
    assert len(turns) == 2
    first, second = turns
    assert first[2] == "0"
    assert second[2] == first[1], "every stored token of turn one is reused"
    assert f"{second[0]} MiB kept for reuse" in done.stderr
    assert "[KV" not in done.stdout
