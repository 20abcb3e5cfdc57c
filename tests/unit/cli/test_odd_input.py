"""`holdover plan` on what nobody means to give it: an answer or one line and code 2, at once."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdover.cli.app import build_app
from holdover.cli.planning import quick_plan

pytestmark = pytest.mark.timeout(60)  # most of these once waited, or read, without end

QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 2048,
    "intermediate_size": 11008, "num_attention_heads": 16, "num_hidden_layers": 36,
    "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
BILLION = 10**9


def run(*arguments: str) -> Any:
    return CliRunner().invoke(build_app(), ["plan", *arguments])


def refusal(*arguments: str) -> dict[str, str]:
    result = run(*arguments, "--json")
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1
    return json.loads(result.stdout)["error"]


def written(folder: Path, name: str = "config.json", **changed: Any) -> str:
    path = folder / name
    path.write_text(json.dumps(QWEN2 | changed))
    return str(path)


@pytest.mark.parametrize(
    "name",
    ["pipe", "pipe.json", "pipe.gguf", "folder/config.json", "folder/model.safetensors"],
)
def test_pipes_are_not_waited_for(tmp_path: Path, name: str) -> None:
    pipe = tmp_path / name
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    if name.endswith(".safetensors"):
        written(pipe.parent)
    asked = pipe.parent if name.startswith("folder") else pipe
    for flags in ((), ("--context", "100")):
        assert refusal(str(asked), *flags) == {
            "field": str(pipe), "reason": "is neither a file nor a folder"
        }  # fmt: skip


def test_lengths_are_read_from_files_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/zero"):
        found = refusal("llama-3-8b", "--lengths", path)
        assert found == {"field": "--lengths", "reason": f"{path}: is neither a file nor a folder"}


def test_too_large_a_list_of_lengths_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.touch()
    os.truncate(path, 1 << 40)
    assert "too large" in refusal("llama-3-8b", "--lengths", str(path))["reason"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["~nobody-of-that-name/model"], "model"),
        (["a" * 300], "a" * 300),
        (["a" * 300 + "/b"], "a" * 300 + "/b"),
        ([""], "model"),
        (["llama-3-8b", "--html", "~nobody-of-that-name/x.html"], "--html"),
        (["llama-3-8b", "--lengths", "~nobody-of-that-name/x.csv"], "--lengths"),
        (["llama-3-8b", "--lengths", "x:" + "a" * 300], "x:" + "a" * 300),
    ],
)
def test_names_that_no_path_can_have(arguments: list[str], field: str) -> None:
    assert refusal(*arguments)["field"] == field


def test_a_mistyped_flag_is_recognised_as_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        quick_plan(["plan", "llama-3-8b", "--contxt", "4", "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["field"] == "--contxt"
    assert "did you mean --context" in error["reason"]


ODD = {"architectures": ["\ud800\x1b[31mX\nfits: yes"], "rope_theta": 1.0}


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]])
def test_text_of_a_file_cannot_steer_the_terminal(tmp_path: Path, form: list[str]) -> None:
    result = run(written(tmp_path, **ODD), "--context", "100", *form)
    assert result.exit_code == 0, result.output
    result.stdout.encode()
    assert "\x1b" not in result.stdout
    assert "fits: yes" not in [line.strip() for line in result.stdout.splitlines()]
    if form == ["--json"]:
        assert json.loads(result.stdout)["architecture"] == "\\ud800\\x1b[31mX\\nfits: yes"


def test_nor_can_it_in_a_page_or_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    odd = written(tmp_path, **ODD)
    assert run(odd, "--context", "100", "--html", str(page)).exit_code == 0
    assert "\x1b" not in page.read_text(encoding="utf-8")
    error = refusal(written(tmp_path, **{"\x1b[31m_num_kv_heads": 3}))
    assert error["field"] == "\\x1b[31m_num_kv_heads"
    error = refusal(written(tmp_path, num_hidden_layers="9" * 10**5))
    assert len(error["reason"]) < 3000


def test_a_terminal_of_ascii_shows_names_as_escapes(tmp_path: Path) -> None:
    path = written(tmp_path, name="modèle.json", architectures=["Ünï"])
    ran = subprocess.run(
        [sys.executable, "-m", "holdover", "plan", path, "--context", "100"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("mod\\xe8le  \\xdcn\\xef, 36 layers")


ENCODER_DECODER = {
    "model_type": "t5", "is_encoder_decoder": True, "num_heads": 8, "d_kv": 64, "d_model": 512
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "flags"),
    [
        (QWEN2 | {"num_hidden_layers": BILLION}, []),
        (ENCODER_DECODER | {"num_layers": 6, "num_decoder_layers": BILLION}, []),
        (QWEN2 | {"num_nextn_predict_layers": BILLION}, ["--mtp"]),
        (QWEN2 | {"num_nextn_predict_layers": 3, "mtp_transformer_layers": BILLION}, ["--mtp"]),
        (QWEN2 | {"model_type": "hrm_text", "H_cycles": BILLION, "L_cycles": 2}, []),
        (
            QWEN2
            | {
                "model_type": "inkling2_loop_text", "loop_layer_index_start": 1,
                "loop_layer_index_end": 9, "loop_num_passes": BILLION,
            },
            [],
        ),
    ],
)  # fmt: skip
def test_layers_are_not_laid_out_by_the_billion(
    tmp_path: Path, config: dict[str, Any], flags: list[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert "layers are more than any model's" in refusal(str(path), *flags)["reason"]


@pytest.mark.parametrize(
    "beside", [["--engine", "vllm"], ["--lengths", "lognormal:mean=4000,p95=12000"]]
)
def test_commands_of_a_goal_run_whatever_else_was_asked(beside: list[str]) -> None:
    goal = ("--gpu", "rtx 4090", "--goal", "users=50,context=4000")
    result = run("llama-3-8b", *goal, *beside, "--json")
    answer = json.loads(result.stdout)["goal"]
    commands = [change["command"] for change in answer["changes"]]
    assert {change["name"] for change in answer["changes"]} >= {"window", "offload to RAM"}
    for command in (*commands, answer["combination_command"]):
        again = run(*shlex.split(command)[2:], "--json")
        assert json.loads(again.stdout)["fits"], command


def test_a_start_longer_than_the_goal_s_conversations_is_refused() -> None:
    error = refusal(
        "llama-3-8b", "--gpu", "h100", "--context", "8000", "--shared-prefix", "4096",
        "--goal", "users=50,context=4000",
    )  # fmt: skip
    assert error == {
        "field": "--shared-prefix", "reason": "is longer than a whole conversation, 4,000 tokens"
    }  # fmt: skip


def test_commands_of_an_absurd_goal_run_too() -> None:
    goal = ("--gpu", "h100", "--goal", "users=1000000000,context=100000")
    answer = json.loads(run("llama-3-8b", *goal, "--json").stdout)["goal"]
    commands = [change["command"] for change in answer["changes"]]
    assert commands
    for command in filter(None, (*commands, answer["combination_command"])):
        again = run(*shlex.split(command)[2:], "--json")
        assert json.loads(again.stdout)["fits"], command
