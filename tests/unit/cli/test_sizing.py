"""`holdover plan` as the sizing plan: which plan is printed, the contract of its JSON, refusals."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from holdover.cli.app import build_app
from holdover.cli.flags import PLAN_FIELDS, flags_of, parse
from holdover.config import Config
from holdover.plan.sizing.question import Question
from holdover.plan.sizing.report import SIZING_SCHEMA

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
GIB = 2**30


def run(*arguments: str) -> Any:
    return CliRunner().invoke(build_app(), ["plan", *arguments], env={"COLUMNS": "200"})


def report(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output + result.stderr
    return json.loads(result.stdout)


def refusal(*arguments: str) -> dict[str, str]:
    result = run(*arguments, "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert list(found) == ["error"]
    assert set(found["error"]) == {"field", "reason"}
    assert result.stderr.startswith("holdover: ")
    return found["error"]


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return path


def test_the_keys_of_the_contract(config_path: Path) -> None:
    found = report(str(config_path), "--context", "32768", "--kv", "bf16")
    assert found["schema"] == SIZING_SCHEMA
    assert found["bytes_per_token"] == 131_072
    conversation = found["conversation"]
    assert conversation["tokens"] == 32_768
    assert conversation["logical_bytes"] == 4 * GIB
    assert conversation["held_bytes"] == 4 * GIB
    assert set(conversation["by_kind"]) == {"attention", "indexer", "state", "cross"}
    assert sum(conversation["by_kind"].values()) == conversation["logical_bytes"]
    # The config's own matrices; norms are left out, and it says so.
    assert found["weights_bytes"] == pytest.approx(16_060_522_496, rel=0.001)
    assert "parameters" in {a["field"] for a in found["assumptions"]}
    assert all(set(a) == {"field", "value", "source"} for a in found["assumptions"])
    assert not {"fits", "max_users", "max_context"} & set(found)
    assert re.fullmatch(r".* = 131,072 bytes per token", found["formula"][0])


@pytest.mark.parametrize("device", [("--gpu", "a100 80gb"), ("--memory", "80GiB")])
def test_a_device_adds_what_fits(config_path: Path, device: tuple[str, str]) -> None:
    found = report(str(config_path), *device, "--users", "50", "--context", "4000",
                   "--weights", "16060522496B")  # fmt: skip
    room = 80 * GIB - 8 * GIB - 16_060_522_496
    assert found["fits"] is True
    assert found["max_users"] == room // (4000 * 131_072)
    assert found["max_context"] == room // (50 * 16 * 131_072) * 16
    assert found["device"]["margin_bytes"] == room - 50 * 4000 * 131_072
    assert found["device"]["cache_room_bytes"] == room
    bandwidth = found["device"]["bandwidth_bytes_per_s"]
    assert (found["decode_ceiling"] is None) == (bandwidth is None)


def test_tensor_parallel_ranks_repeat_heads(config_path: Path) -> None:
    found = report(str(config_path), "--gpu", "h100", "--gpus", "16", "--context", "4000")
    assert found["device"]["cache_bytes"] == 4000 * 131_072 // 8
    assert found["conversation"]["logical_bytes"] == 4000 * 131_072
    assert found["device"]["count"] == 16


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--gpu", "h999x"), "--gpu"),
        (("--gpus", "2"), "--gpus"),
        (("--kv", "int3"), "--kv"),
        (("--kv", "k=int8,q=int4"), "--kv"),
        (("--weights", "heavy"), "--weights"),
        (("--headroom", "lots"), "--headroom"),
        (("--goal", "users=3"), "--goal"),
        (("--goal", "users=3,context=9"), "--goal"),
        (("--engine", "tensorrt"), "--engine"),
        (("--engine", "vllm:cats=3"), "--engine"),
        (("--engine", "llama.cpp", "--kv", "int8"), "--kv"),
        (("--lengths", "uniform:1"), "--lengths"),
        (("--assume", "nonsense"), "--assume"),
        (("--context", "0"), "--context"),
        (("--users", "-3"), "--users"),
        (("--memory", "1GiB", "--gpu", "h100"), "--memory"),
        (("--context", "9", "--kv-memory", "1GiB"), "--kv-memory"),
        (("--context", "9", "--dtype", "fp32"), "--dtype"),
        (("--context", "9", "--fields"), "--fields"),
        (("--context", "9", "--threads", "2"), "--threads"),
        (("--context", "9", "--tiers", "ram:1GiB"), "--tiers"),
    ],
)
def test_what_cannot_be_is_refused_by_its_flag(
    config_path: Path, arguments: tuple[str, ...], field: str
) -> None:
    assert refusal(str(config_path), *arguments)["field"] == field


def test_a_missing_field_is_refused_and_can_be_assumed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = {k: v for k, v in LLAMA.items() if k != "num_hidden_layers"}
    path.write_text(json.dumps(config | {"model_type": "no-such-type"}))
    assert refusal(str(path))["field"] == "num_hidden_layers"
    found = report(str(path), "--assume", "num_hidden_layers=16")
    assert found["bytes_per_token"] == 65_536
    assumed = {a["field"]: a for a in found["assumptions"]}
    assert assumed["num_hidden_layers"]["source"] == "--assume"
    assert "num_hidden_layers" in run(str(path), "--assume", "num_hidden_layers=16").output


@pytest.mark.parametrize("text", ["{", "[]", "3", "nul\0l", '{"a": ' * 2000])
def test_files_that_are_no_config(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert refusal(str(path))["field"] == str(path)


def test_a_model_without_a_weight_count_is_sized_but_put_on_no_device(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({k: v for k, v in LLAMA.items() if k != "intermediate_size"}))
    assert report(str(path))["weights_bytes"] is None
    assert refusal(str(path), "--gpu", "h100")["field"] == "parameters"
    found = report(str(path), "--gpu", "h100", "--assume", "parameters=8.03e9")
    assert found["weights_bytes"] == 16_060_000_000
    assert report(str(path), "--gpu", "h100", "--weights", "16GB")["weights_bytes"] == 16 * 10**9


def test_which_plan_is_printed(config_path: Path) -> None:
    serving = report("smollm2", "--kv-memory", "64MiB")
    assert serving["schema"] == "holdover.plan/1"
    sizing = report("smollm2", "--context", "1000")
    assert sizing["schema"] == SIZING_SCHEMA
    # The same cache, however it is asked for.
    assert sizing["bytes_per_token"] == serving["bytes_per_token"] == 23_040
    assert report(str(config_path))["schema"] == SIZING_SCHEMA


def test_a_model_that_is_not_served_is_sized(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24, "state_size": 16,
        "conv_kernel": 4, "intermediate_size": 1536, "vocab_size": 50280, "expand": 2,
        "time_step_rank": 48,
    }))  # fmt: skip
    info = {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}
    header = json.dumps({"x": info}).encode()
    file = len(header).to_bytes(8, "little") + header + bytes(4000)
    (tmp_path / "model.safetensors").write_bytes(file)
    found = report(str(tmp_path))
    assert found["weights_bytes"] == 4000
    assert found["bytes_per_token"] == 0
    assert found["conversation"]["by_kind"]["state"] == found["conversation"]["logical_bytes"] > 0


def test_weights_of_a_gguf_are_what_its_header_says(smollm2_path: Path) -> None:
    found = report(str(smollm2_path), "--context", "1000")
    assert found["origin"] == "gguf"
    assert found["weights"]["parameters"] == 134_515_008
    assert found["weights_bytes"] < smollm2_path.stat().st_size


def test_the_well_known_table_of_llama_3_8b() -> None:
    found = report("llama-3-8b", "--context", "4000", "--users", "50", "--gpu", "a100 80gb")
    by_tokens = {row["tokens"]: row["held_bytes"] for row in found["contexts"]}
    assert by_tokens[2_000] == 262_144_000 == 250 * 2**20
    assert by_tokens[8_000] == 1_048_576_000  # about 1 GB
    assert by_tokens[32_000] == 4_194_304_000  # about 4 GB
    assert by_tokens[128_000] == 16_777_216_000  # about 16 GB, as its own weights
    assert found["weights_bytes"] == 16_060_522_496
    assert found["users_bytes"] == 26_214_400_000  # about 25 GB
    assert round(found["users_bytes"] / 2**30) == 24
    total = found["users_bytes"] + found["weights_bytes"]
    assert total == 42_274_922_496  # about 41 GB
    assert found["fits"] is True
    assert (
        report("llama-3-8b", "--context", "4000", "--users", "50", "--gpu", "rtx 4090")["fits"]
        is False
    )


def test_users_are_added_up_without_a_device() -> None:
    text = run("llama-3-8b", "--users", "5", "--context", "4000", "--shared-prefix", "2000")
    held = 5 * 524_288_000 - 4 * 262_144_000  # the shared half is there once
    line = f"5 users x 4,000 tokens, the first 2,000 of them shared: 1.5 GiB ({held:,} bytes) held"
    assert line in text.stdout
    assert "with the weights 16.4 GiB" in text.stdout


def test_goal_lists_changes_with_their_cost() -> None:
    goal = report("llama-3-8b", "--gpu", "4090", "--goal", "users=50,context=4000")["goal"]
    assert goal["fits"] is False
    assert all(change["margin_bytes"] >= 0 and change["cost"] for change in goal["changes"])
    assert [part["name"] for part in goal["combination"]] == ["kv fp8", "weights fp8"]
    # Its flags, typed, do what it says.
    flags = [word for part in goal["combination"] for word in part["flag"].split()]
    again = report("llama-3-8b", "--gpu", "4090", "--users", "50", "--context", "4000", *flags)
    assert again["fits"] is True
    assert again["device"]["margin_bytes"] == goal["combination"][-1]["margin_bytes"]


def test_lengths_say_how_many_fit_almost_surely() -> None:
    found = report("llama-3-8b", "--gpu", "a100 80gb", "--lengths",
                   "lognormal:mean=4000,p95=16000")  # fmt: skip
    assert found["lengths"]["probability"] == 0.99
    assert 0 < found["lengths"]["max_users"] < found["lengths"]["max_users_of_mean"]
    assert "mean of --lengths" in {a["field"] for a in found["assumptions"]}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp:ubatch=1024,unified"])
def test_engines_reserve_at_least_what_is_needed_and_say_their_flags(engine: str) -> None:
    found = report("gpt-oss-20b", "--engine", engine, "--users", "4", "--context", "8192")
    reserved = found["engine"]["reserved_bytes"]
    assert reserved > 4 * found["conversation"]["logical_bytes"]
    assert reserved == sum(b["buffer_bytes"] for b in found["engine"]["buffers"])
    assert found["engine"]["flags"]
    assert engine.partition(":")[0] in run("gpt-oss-20b", "--engine", engine).output


def test_csv_has_the_numbers_of_the_json() -> None:
    rows = list(csv.DictReader(io.StringIO(run("llama-3-8b", "--csv").stdout)))
    contexts = report("llama-3-8b")["contexts"]
    assert [int(row["held_bytes"]) for row in rows] == [c["held_bytes"] for c in contexts]
    assert {row["model"] for row in rows} == {"llama-3-8b"}


class Tags(HTMLParser):
    """Tags left open or closed out of turn, and whatever a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.handle_startendtag(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        links = [found.get(name) or "#" for name in ("src", "href", "xlink:href", "data")]
        self.fetched += [link for link in links if not link.startswith("#")]
        self.fetched += [tag] if tag in ("script", "link", "iframe", "img") else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    "model", ["llama-3-8b", "falcon-mamba-7b", "whisper-large-v3", "gemma-3-27b"]
)
def test_the_page_needs_nothing_else(model: str, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    assert run(model, "--gpu", "a100 80gb", "--users", "50", "--html", str(page)).exit_code == 0
    tags = Tags()
    tags.feed(page.read_text())
    tags.close()
    assert (tags.open, tags.fetched) == ([], [])
    for chart in re.findall(r"<svg.*?</svg>", page.read_text(), re.DOTALL):
        assert {"weights", "cache"} <= set(ElementTree.fromstring(chart).itertext())


def test_the_page_says_what_the_table_says(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    arguments = ("llama-3-8b", "--gpu", "a100 80gb", "--users", "50", "--html", str(page))
    assert run(*arguments).exit_code == 0
    text = page.read_text()
    assert text.count("<svg") == text.count("</svg>") == 2
    assert not re.search(r"""(?:src|href)=["'](?!#)|@import|url\((?!#)|<script""", text)
    assert "131,072 bytes per token" in text
    assert "fits: yes" in text
    assert run(*arguments).exit_code == 0
    assert page.read_text() == text, "the same plan is the same page"
    assert refusal("llama-3-8b", "--html", str(tmp_path / "no" / "x.html"))["field"] == "--html"
    assert run("llama-3-8b", "--html", str(page)).stderr == f"wrote {page}\n"


def test_the_quick_parser_takes_what_the_library_takes() -> None:
    flags = flags_of(Config, PLAN_FIELDS) | flags_of(Question)
    values = parse(["--users=3", "x", "--assume", "a=1", "--assume", "b=2", "--csv"], flags)
    assert values is not None
    assert (values["model"], values["users"], values["csv"]) == ("x", 3, True)
    assert values["assume"] == ("a=1", "b=2")
    for left in (["--help"], ["--users", "x"], ["--users"], ["--what"], ["a", "b"], ["--csv=1"],
                 ["--gpu", "--csv"], ["-x"], ["--", "x"]):  # fmt: skip
        assert parse(left, flags) is None, left


def test_both_ways_in_print_the_same(config_path: Path) -> None:
    arguments = [str(config_path), "--gpu", "h100", "--users", "3", "--assume", "x=1", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "holdover", "plan", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == run(*arguments).stdout
    wrong = subprocess.run(
        [sys.executable, "-m", "holdover", "plan", "--gpu", "h999x", "llama-3-8b", "--json"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert wrong.returncode == 2
    assert json.loads(wrong.stdout)["error"]["field"] == "--gpu"


def test_sizing_imports_no_parser_and_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['holdover', 'plan', 'llama-3-8b', '--gpu', 'h100']\n"
        "from holdover.cli import main; main()\n"
        "heavy = {'torch', 'numpy', 'typer', 'rich', 'pydantic', 'transformers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def hub() -> Iterator[str]:
    """The two answers of Hugging Face that a plan asks for."""
    config = json.dumps(LLAMA).encode()

    class Answers(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, with_body: bool) -> None:
            if self.path.endswith("/resolve/main/config.json"):
                body = config
            elif self.path.startswith("/api/models/some/model"):
                files = [
                    ("model-1.safetensors", 9_000),
                    ("model-2.safetensors", 1_000),
                    ("original/consolidated.pth", 5),
                    ("config.json", len(config)),
                ]
                body = json.dumps({
                    "id": "some/model", "sha": "0" * 40,
                    "siblings": [{"rfilename": n, "size": s} for n, s in files],
                }).encode()  # fmt: skip
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"1234"')
            self.send_header("X-Repo-Commit", "0" * 40)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_repository_is_sized_from_its_config_and_file_sizes(hub: str, tmp_path: Path) -> None:
    def plan(name: str, endpoint: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "holdover", "plan", name, "--json"],
            capture_output=True, text=True,
            env=os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path)},
        )  # fmt: skip

    done = plan("some/model", hub)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["origin"], found["weights_bytes"]) == ("hub", 10_000)
    assert found["bytes_per_token"] == 131_072
    wrong = plan("some/other", hub)
    assert wrong.returncode == 2
    assert json.loads(wrong.stdout)["error"]["field"] == "some/other"
    # Without a network, the config that is here still sizes the cache.
    offline = json.loads(plan("some/model", "http://127.0.0.1:1").stdout)
    assert (offline["bytes_per_token"], offline["weights"]["source"][:10]) == (
        131_072,
        "parameters",
    )


@pytest.mark.parametrize("model", ["smollm2", "gemma3-270m"])
def test_sizing_and_serving_count_the_same_blocks(model: str) -> None:
    serving = report(model, "--kv-memory", "256MiB")
    for row in serving["conversations"]:
        if row["reason"] is not None and "model's context" in row["reason"]:
            continue
        sizing = report(model, "--context", str(row["context_tokens"]))["conversation"]
        assert sizing["held_bytes"] == row["held_bytes"]
        assert sizing["logical_bytes"] >= row["logical_bytes"]


@pytest.mark.parametrize(
    ("model", "engine", "kv", "flag"),
    [
        ("llama-3-8b", "vllm", "int8", "--kv-cache-dtype int8_per_token_head"),
        ("llama-3-8b", "vllm", "fp16", "--dtype float16"),
        ("deepseek-v3.2", "vllm", "fp8_ds_mla", "--kv-cache-dtype fp8_ds_mla"),
        ("llama-3-8b", "sglang", "fp8", "--kv-cache-dtype fp8_e4m3"),
        ("llama-3-8b", "vllm:block-size=32", "bf16", "--block-size 32"),
        ("llama-3-8b", "sglang:page-size=64", "bf16", "--page-size 64"),
        ("llama-3-8b", "llama.cpp", "k=q8_0,v=q4_0", "-ctk q8_0 -ctv q4_0"),
    ],
)
def test_an_engine_is_told_the_type_it_was_computed_with(
    model: str, engine: str, kv: str, flag: str
) -> None:
    assert flag in report(model, "--engine", engine, "--kv", kv)["engine"]["flags"]


@pytest.mark.parametrize(
    ("model", "engine", "kv"),
    [
        ("llama-3-8b", "vllm", "int4"),
        ("llama-3-8b", "vllm", "k=int8,v=fp8"),
        ("deepseek-v3.2", "vllm", "int8"),
        ("llama-3-8b", "sglang", "int8"),
        ("llama-3-8b", "llama.cpp", "fp8"),
    ],
)
def test_an_engine_is_not_told_a_type_that_it_has_not(model: str, engine: str, kv: str) -> None:
    assert refusal(model, "--engine", engine, "--kv", kv)["field"] == "--kv"


def test_an_engines_pool_is_what_weights_leave_of_its_share() -> None:
    asked = ("llama-3-8b", "--gpu", "a100 80gb", "--context", "4096", "--engine")
    found = report(*asked, "vllm:utilization=0.5")["engine"]
    assert found["pool_tokens"] == (40 * GIB - 16_060_522_496) // (16 * 131_072) * 16
    # On several devices both sizes are of one of them.
    found = report("llama-3-70b", "--gpu", "h100", "--gpus", "4", "--engine", "vllm")["engine"]
    assert found["devices"] == 4
    assert found["reserved_bytes"] == found["logical_bytes"] == 4096 * 80 * 2 * 2 * 128 * 2
    assert report("llama-3-70b", "--gpu", "h100", "--gpus", "4", "--engine", "llama.cpp")[
        "engine"]["logical_bytes"] == 4096 * 327_680  # fmt: skip


def test_lengths_beside_a_shared_start_and_as_a_median() -> None:
    asked = ("llama-3.1-8b", "--gpu", "a100 80gb", "--lengths")
    plain = report(*asked, "lognormal:mean=4000,p95=12000")["lengths"]
    shared = report(*asked, "lognormal:mean=4000,p95=12000", "--shared-prefix", "1000")["lengths"]
    assert shared["max_users"] > plain["max_users"]
    assert shared["mean_bytes"] < plain["mean_bytes"]
    median = report(*asked, "lognormal:median=4000,p95=16000")["lengths"]
    assert median["mean_tokens"] == pytest.approx(5705, rel=0.01)  # exp(mu + sigma^2 / 2)
    assert median["p95_tokens"] == pytest.approx(16000, rel=0.01)
    nearest = report(*asked, "lognormal:mean=4000,p95=16000")
    assert nearest["lengths"]["p95_tokens"] == pytest.approx(16000, rel=0.01)
    assert "median=4000" in next(
        a["source"] for a in nearest["assumptions"] if a["field"] == "mean of --lengths"
    )


@pytest.mark.parametrize(
    ("model", "kv", "per_token"),
    [
        # layers x planes x heads x (dims + the scales beside them)
        ("llama-3-8b", "int8", 32 * 2 * 8 * (128 + 2)),
        ("llama-3-8b", "int4", 32 * 2 * 8 * (64 + 4 + 4)),
        ("llama-3-8b", "k=int8,v=int4", 32 * 8 * (128 + 2 + 64 + 4 + 4)),
        ("llama-3-8b", "q8_0", 32 * 2 * 8 * 128 // 32 * 34),
        ("deepseek-v3", "int8", 61 * (512 + 2 + 64 + 2)),
        ("deepseek-v3", "fp8", 61 * 576),
        ("deepseek-v3.2", "int8", 61 * (512 + 2 + 64 + 2) + 61 * (128 + 2)),
        ("qwen3-next-80b-a3b", "int8", 12 * 2 * 2 * (256 + 2)),
    ],
)
def test_codecs_store_what_their_fields_say(model: str, kv: str, per_token: int) -> None:
    assert report(model, "--kv", kv, "--context", "4096")["bytes_per_token"] == per_token


@pytest.mark.parametrize("model", ["qwen3-next-80b-a3b", "jamba-1.5-mini", "rwkv-6-1.6b"])
def test_states_stay_as_they_are_under_a_quantised_codec(model: str) -> None:
    sizes = [
        report(model, "--kv", kv, "--context", "4096")["conversation"]["by_kind"]["state"]
        for kv in ("bf16", "fp8", "int8", "int4")
    ]
    assert sizes[0] > 0
    assert len(set(sizes)) == 1


def test_a_window_is_put_on_full_layers_only() -> None:
    plain = report("gemma-3-27b", "--context", "32768")["conversation"]
    found = report("gemma-3-27b", "--context", "32768", "--window", "4096", "--sinks", "8")
    rows = {part["label"]: part["rows"] for part in found["conversation"]["by_label"]}
    assert rows == {"window 1024": 1024, "full, as window 4096 and 8 sinks": 4096 + 8}
    assert found["bytes_per_token"] == 0
    assert found["conversation"]["logical_bytes"] < plain["logical_bytes"]
    assert "window" in {a["field"] for a in found["assumptions"]}


def test_a_flag_of_the_other_plan_is_named_with_the_one_that_asked_for_it() -> None:
    wrong = refusal("smollm2", "--users", "3", "--kv-memory", "1GiB")
    assert wrong["field"] == "--kv-memory"
    assert "and --users asks for the other one" in wrong["reason"]
    wrong = refusal("llama-3-8b", "--kv-memory", "1GiB")
    assert "asks for" not in wrong["reason"]
